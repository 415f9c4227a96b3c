"""What prefill and decode share: heads, write gates, memory, output norm. Each is a line of the layer's formula."""

import torch

from kda_lab import ops
from kda_lab.parts.features import rms_norm
from kda_lab.rules import RULES


def split_heads(x, shape):
    """q, k [..., H, K] and v [..., HV, V] from x [..., 2 H K + HV V], where shape is (HV, V, K).

    >>> [tuple(part.shape) for part in split_heads(torch.zeros(5, 2 * 2 * 3 + 4 * 7), (4, 7, 3))]
    [(5, 2, 3), (5, 2, 3), (5, 4, 7)]
    """
    HV, V, K = shape
    keys = (x.shape[-1] - HV * V) // 2
    q, k, v = x.split([keys, keys, HV * V], -1)
    return q.unflatten(-1, (-1, K)), k.unflatten(-1, (-1, K)), v.unflatten(-1, (HV, V))


def write_gates(logits, allow_neg_eigval=False):
    """The gates of a rule, a tuple: sigmoids of their logits. With allow_neg_eigval the first one, which erases, is
    doubled, so that a step may flip the sign along its key.

    >>> write_gates((torch.zeros(1),), allow_neg_eigval=True)
    (tensor([1.]),)
    """
    first, *others = (x.sigmoid() for x in logits)
    return (2 * first if allow_neg_eigval else first, *others)


def remember(form, rule, q, k, v, gate, gates, S, A_log=None, dt_bias=None, lower_bound=None, cu_seqlens=None):
    """(o, state after): a rule of ``ops`` in one of its forms, keys and queries brought to unit length, the decay gate
    still raw.

    form: "chunk" or "recurrent"   rule: a name in RULES   q, k: [B, T, H, K]   v: [B, T, HV, V]   gate: of the decay,
    [B, T, HV, K], [B, T, HV] or None, as the rule has it   gates: a tensor for each of the rule's gates, beta: [B, T,
    HV]   S: [N, HV, V, K] or None for zeros   lower_bound: None for the softplus gate   A_log: None where the gate is a
    log decay already. Implements l2-norm, gate-bounded or gate-softplus, and the rule.

    >>> one = torch.ones(1, 1, 1, 1)
    >>> o, S = remember("recurrent", "kda", one, one, 8 * one, one, (one[0] / 2,), None, A_log=one[0, 0, 0])
    >>> round(o.item(), 3)
    4.0
    """
    named = dict(zip(RULES[rule].gates, gates))
    if gate is not None:
        raw = A_log is not None
        named |= {"g": gate, "use_gate_in_kernel": raw, "A_log": A_log, "dt_bias": dt_bias, "lower_bound": lower_bound}
    return getattr(ops, f"{form}_{rule}")(
        q, k, v, **named, initial_state=S, output_final_state=True, use_qk_l2norm_in_kernel=True, cu_seqlens=cu_seqlens
    )


def gated_norm(o, gate, weight, eps, activation="sigmoid"):
    """RMS norm of each head, times its weight, times sigmoid(gate) or silu(gate) ("swish"), or no gate at all.

    o, gate: [..., V]   weight: [V]   in o's dtype.   Implements norm-attention.

    >>> gated_norm(torch.tensor([3.0, 4.0]), torch.zeros(2), torch.ones(2), 0.0).square().mean().item()
    0.25
    """
    y = rms_norm(o, eps) * weight.to(o.dtype)
    if gate is None:
        return y
    gate = gate.to(o.dtype)
    return y * (gate.sigmoid() if activation == "sigmoid" else torch.nn.functional.silu(gate))

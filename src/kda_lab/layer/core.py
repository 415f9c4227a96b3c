"""What prefill and decode share: heads, write gate, memory, output norm. Each is a line of the layer's formula."""

import torch

from kda_lab import ops
from kda_lab.parts.features import rms_norm


def rule_of(gate):
    """The name that the rule has in ``ops``, by its gate [..., HV, K], [..., HV] or None.   gate: [B, T, ...].

    >>> rule_of(torch.zeros(1, 1, 2))
    'gated_delta_rule'
    """
    return "delta_rule" if gate is None else {3: "gated_delta_rule", 4: "kda"}[gate.ndim]


def split_heads(x, shape):
    """q, k [..., H, K] and v [..., HV, V] from x [..., 2 H K + HV V], where shape is (HV, V, K).

    >>> [tuple(part.shape) for part in split_heads(torch.zeros(5, 2 * 2 * 3 + 4 * 7), (4, 7, 3))]
    [(5, 2, 3), (5, 2, 3), (5, 4, 7)]
    """
    HV, V, K = shape
    keys = (x.shape[-1] - HV * V) // 2
    q, k, v = x.split([keys, keys, HV * V], -1)
    return q.unflatten(-1, (-1, K)), k.unflatten(-1, (-1, K)), v.unflatten(-1, (HV, V))


def write_gate(logits, allow_neg_eigval=False):
    """beta: the sigmoid of its logits, or twice that, which lets a step flip the sign along its key.

    >>> write_gate(torch.zeros(1), allow_neg_eigval=True)
    tensor([1.])
    """
    beta = logits.sigmoid()
    return 2 * beta if allow_neg_eigval else beta


def remember(form, q, k, v, gate, beta, S, A_log=None, dt_bias=None, lower_bound=None, cu_seqlens=None):
    """(o, state after): the rule of ``ops`` in one of its forms, keys and queries brought to unit length, the gate
    still raw.

    form: "chunk" or "recurrent"   q, k: [B, T, H, K]   v: [B, T, HV, V]   gate: [B, T, HV, K] (kda), [B, T, HV]
    (gated_delta_rule) or None (delta_rule)   beta: [B, T, HV]   S: [N, HV, V, K] or None for zeros.
    lower_bound: None for the softplus gate   A_log: None where the gate is a log decay already.
    Implements l2-norm, gate-bounded or gate-softplus, and the rule.

    >>> one = torch.ones(1, 1, 1, 1)
    >>> o, S = remember("recurrent", one, one, 8 * one, one, one[0] / 2, None, A_log=one[0, 0, 0])
    >>> round(o.item(), 3)
    4.0
    """
    gates = {}
    if gate is not None:
        raw = A_log is not None
        gates = {"g": gate, "use_gate_in_kernel": raw, "A_log": A_log, "dt_bias": dt_bias, "lower_bound": lower_bound}
    return getattr(ops, f"{form}_{rule_of(gate)}")(
        q,
        k,
        v,
        beta=beta,
        **gates,
        initial_state=S,
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
        cu_seqlens=cu_seqlens,
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

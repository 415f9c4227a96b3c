"""From the arguments of a call to what the recurrences take: one dtype, gates and norms applied, q scaled, a key for
each value head.
"""

import warnings
from typing import NamedTuple

import torch

from kda_lab.parts.decay import bounded_gate, softplus_gate
from kda_lab.parts.features import l2_normalise
from kda_lab.rules import GATES


class Problem(NamedTuple):
    """q (scaled), k: [B, T, HV, K]   v: [B, T, HV, V]   g: [B, T, HV, K], or [B, T, HV, 1] for one decay a head (0:
    none)   erase: [B, T, HV, K or 1], write: [B, T, HV, V or 1], or None   S: [N, HV, V, K]   cu: list of N + 1
    boundaries, or None for B sequences of T tokens.

    >>> Problem._fields
    ('q', 'k', 'v', 'g', 'erase', 'write', 'S', 'cu')
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    g: torch.Tensor
    erase: torch.Tensor | None
    write: torch.Tensor | None
    S: torch.Tensor
    cu: list | None


def working_dtype(x):
    """float64 for float64 inputs, float32 for all others.

    >>> working_dtype(torch.zeros(1, dtype=torch.bfloat16))
    torch.float32
    """
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def prepare(rule, call, dtype):
    """The problem that a checked call poses, in this dtype; rows after the last boundary of cu_seqlens are cut off.

    >>> from kda_lab.ops.contract import Call
    >>> from kda_lab.rules import RULES
    >>> x = torch.ones(1, 3, 2, 4)
    >>> prepare(RULES["linear_attention"], Call(x, x, x), torch.float32).q[0, 0, 0].tolist()
    [0.5, 0.5, 0.5, 0.5]
    """
    cu = None if call.cu_seqlens is None else call.cu_seqlens.tolist()
    # cut before any arithmetic: a NaN in a row that belongs to nobody must not reach the gradient of A_log
    end = call.q.shape[1] if cu is None else cu[-1]
    q, k, v = (x[:, :end].to(dtype) for x in (call.q, call.k, call.v))
    if call.use_qk_l2norm_in_kernel:
        q, k = l2_normalise(q), l2_normalise(k)
    scale = call.q.shape[-1] ** -0.5 if call.scale is None else call.scale
    group = v.shape[2] // q.shape[2]
    # value head hv reads the key head hv // group
    q, k = (q * scale).repeat_interleave(group, 2), k.repeat_interleave(group, 2)  # [B, T, HV, K]
    g = log_decays(rule, call, end, dtype)  # [B, T, HV, K] or [B, T, HV, 1]
    erase, write = erase_and_write(rule, call, end, dtype)
    if erase is not None:
        warn_if_expanding(k, erase, rule.gates[0])
    N = q.shape[0] if cu is None else len(cu) - 1
    shape = (N, *v.shape[2:], q.shape[-1])
    S = v.new_zeros(shape) if call.initial_state is None else call.initial_state.to(dtype)  # [N, HV, V, K]
    return Problem(q, k, v, g, erase, write, S, cu)


def erase_and_write(rule, call, end, dtype):
    """The erase gate [B, T, HV, K or 1] and the write gate [B, T, HV, V or 1] of the first ``end`` tokens, or Nones.

    >>> from kda_lab.ops.contract import Call
    >>> from kda_lab.rules import RULES
    >>> x = torch.zeros(1, 3, 2, 4)
    >>> pair = erase_and_write(RULES["delta_rule"], Call(x, x, x, gates={"beta": x[..., 0]}), 2, torch.float32)
    >>> pair[0].shape, pair[0] is pair[1]  # beta is both
    (torch.Size([1, 2, 2, 1]), True)
    """
    if not rule.gates:
        return None, None
    found = {name: x[:, :end].to(dtype) for name, x in call.gates.items()}
    if call.use_beta_sigmoid_in_kernel:
        found = {name: x.sigmoid() for name, x in found.items()}
    found = {name: x if GATES[name] else x[..., None] for name, x in found.items()}
    return found[rule.gates[0]], found[rule.gates[-1]]


def log_decays(rule, call, end, dtype):
    """g of the first ``end`` tokens in this dtype, the channel axis always there.   Implements gate-bounded,
    gate-softplus.

    >>> from kda_lab.ops.contract import Call
    >>> from kda_lab.rules import RULES
    >>> x = torch.zeros(1, 3, 2, 4)
    >>> log_decays(RULES["gated_delta_rule"], Call(x, x, x, x[..., 0]), 3, torch.float32).shape
    torch.Size([1, 3, 2, 1])
    """
    if rule.decay is None:
        return call.v.new_zeros((*call.v[:, :end].shape[:3], 1), dtype=dtype)
    g = call.g[:, :end].to(dtype)
    g = g if rule.decay == "channel" else g[..., None]
    if not call.use_gate_in_kernel:
        return g
    A_log = call.A_log.to(dtype)  # [HV]
    dt_bias = None if call.dt_bias is None else call.dt_bias.to(dtype).reshape(len(A_log), -1)  # [HV, K] or [HV, 1]
    if call.lower_bound is None:
        return softplus_gate(g, A_log, dt_bias)
    return bounded_gate(g, A_log, dt_bias, call.lower_bound)


def warn_if_expanding(k, erase, name):
    """Warn where ``beta |k|^2`` leaves 0..2: there a step grows the state, and no arithmetic makes the result usable.

    A step has the eigenvalue 1 - sum_c b_c k_c^2 before the decay, b the erase gate. For beta, one number, no step
    expands a state while that sum is within 0..2 (delta-norm). For an erase gate with channels the warning is as right,
    and its silence promises nothing: the step is not symmetric, with unit keys and gates in 0..1 it stretches a state
    by up to 2/sqrt(3), and without decay two such tokens in turn grow it by 5/4 each time (gdn2-growth).

    Only on a CPU: on a GPU the check would cost a pass over the keys.   k: [..., K]   erase: [..., K or 1]   name: of
    the gate.

    >>> warn_if_expanding(torch.ones(1, 4), torch.tensor([[0.5]]), "beta")
    """
    if k.is_cuda or not k.numel():
        return
    strength = (erase.detach() * k.detach().square()).sum(-1)  # [B, T, HV]
    low, high = (x.item() for x in torch.aminmax(strength))
    # bf16 keys of unit length reach |k|^2 = 1.02
    if low < 0 or high > 2.05:
        worst = low if low < 0 else high
        quantity = f"the sum of {name} k^2 over channels" if GATES[name] else f"{name} |k|^2"
        warnings.warn(
            f"{quantity} must stay within 0 and 2 for the delta rule not to expand its state, got {worst:.3g}; "
            "normalise the keys with use_qk_l2norm_in_kernel=True",
            RuntimeWarning,
            stacklevel=6,
        )

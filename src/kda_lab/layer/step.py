"""One decoding step of the layer between its projections, over pools of states: the formula that a fused kernel
computes.

R requests, each with T tokens: one, or 1 + k when k drafts are verified. States lie in pools and are reached by
indices.

``conv_state``  [slots, w - 1 + k, D], the inputs of the convolution as they came in, the newest last
``state``       [slots, HV, V, K], one recurrent state a slot

After token t of request r the state stands in slot ``state_slots[r, t]``. The next step is told how many tokens of this
one were accepted (the token that was known, and a drafts: a + 1): it begins with slot ``state_slots[r, a]``, and its
convolution reads from row a on. Nothing has to be copied back.
"""

import torch

from kda_lab.layer.core import gated_norm, remember, split_heads, write_gates
from kda_lab.parts.features import short_convolution


# the arguments of cuda.decode.kda_decode, which takes its place on a GPU
@torch.no_grad()
def step(
    qkv,
    gate,
    beta,
    output_gate,
    conv_weight,
    A_log,
    dt_bias,
    norm_weight,
    conv_state,
    state,
    conv_slots,
    state_slots,
    num_accepted=None,
    lower_bound=None,
    eps=1e-5,
    allow_neg_eigval=False,
    activation="sigmoid",
    rule="kda",
):
    """Outputs y [R, T, HV, V] of one step; both pools are updated in place, in slots of requests that take part.

    qkv: [R, T, D] projections before the convolution, q | k | v, D = 2 H K + HV V   conv_weight: [D, w]
    rule: a name in ``rules.RULES``   gate: raw, [R, T, HV, K], [R, T, HV] or None, as the rule's decay is
    dt_bias, lower_bound: as in ``ops``
    A_log: [HV], or None where the gate is a log decay already
    beta: [R, T, HV] logits, or a tuple of them, one for each of the rule's gates; a gate is the sigmoid of its logits,
    and the first one twice that with allow_neg_eigval
    output_gate: [R, T, HV, V] before its activation, or None   norm_weight: [V]   eps: of the output norm
    conv_slots: [R] integers   state_slots: [R, T or more] integers, no slot twice in a step
    num_accepted: [R] integers n, the step begins with the state in state_slots[r, n - 1]; None means 1 for all.
    A request with 0, a negative conv_slot or a negative slot to begin with takes no part: nothing of it is read or
    written, its y is zero. A state whose slot is negative is not stored.

    Arithmetic is float64 if ``state`` is, else float32, from the convolution to the norm; y has qkv's dtype.
    Rows of ``conv_state`` from w - 2 + T on keep what they had. Implements short-convolution, l2-norm, gate-bounded or
    gate-softplus, norm-attention, and the rule's recurrence, as kda-recurrence.

    >>> one, pools = torch.ones(1, 1, 1, 1), (torch.zeros(2, 3, 3), torch.zeros(2, 1, 1, 1))
    >>> parameters = torch.ones(3, 4), torch.ones(1), None, torch.ones(1)
    >>> y = step(torch.ones(1, 1, 3), one, 50 * one[0], one, *parameters, *pools, torch.tensor([1]),
    ...     torch.tensor([[1]]))
    >>> round(pools[1][1].item(), 3), pools[0][1, :, 0].tolist()    # SiLU(1) under a unit key; the input as it came in
    (0.731, [0.0, 0.0, 1.0])
    """
    dtype = state.dtype
    y = qkv.new_zeros(*qkv.shape[:2], *state.shape[1:3])
    accepted = torch.ones_like(conv_slots) if num_accepted is None else num_accepted
    first = (accepted.long() - 1).clamp(min=0)
    origin = state_slots.long().gather(1, first[:, None])[:, 0]  # [R], the slots to begin with
    # who takes no part is left out, not multiplied by zero: a NaN in such a slot must not spread
    rows = ((conv_slots >= 0) & (accepted > 0) & (origin >= 0)).nonzero()[:, 0]  # [P], the requests that take part
    first, slots = first[rows], state_slots[rows].long()
    x = convolve(qkv[rows], conv_weight, conv_state, conv_slots[rows].long(), first, dtype)  # [P, T, D]
    q, k, v = split_heads(x, state.shape[1:])
    gate = None if gate is None else gate[rows].to(dtype)
    logits = beta if isinstance(beta, tuple) else (beta,)
    gates = write_gates([x[rows].to(dtype) for x in logits], allow_neg_eigval)
    # a copy: the slot that is read may be the first to be written
    S = state[origin[rows]]  # [P, HV, V, K]
    for t in range(qkv.shape[1]):
        now = [x if x is None else x[:, t : t + 1] for x in (q, k, v, gate, *gates)]
        o, S = remember("recurrent", rule, *now[:4], now[4:], S, A_log, dt_bias, lower_bound)
        stored = slots[:, t] >= 0
        state[slots[stored, t]] = S[stored]
        out = None if output_gate is None else output_gate[rows, t]
        y[rows, t] = gated_norm(o[:, 0], out, norm_weight, eps, activation).to(y.dtype)
    return y


def convolve(x, weight, conv_state, slots, first, dtype):
    """SiLU of the short convolution of x [P, T, D] behind the rows first..first + w - 2 of its slots, in this dtype.

    Afterwards a slot holds the window without its oldest row, so that reading n rows further on goes n tokens further
    on.

    >>> pool = torch.tensor([[[1.0], [2.0], [3.0], [9.0]]])  # w = 4, and a row for a draft, which was not accepted
    >>> y = convolve(torch.tensor([[[4.0], [5.0]]]), torch.ones(1, 4), pool, torch.tensor([0]), torch.tensor([0]),
    ...     torch.float32)
    >>> pool.flatten().tolist()
    [2.0, 3.0, 4.0, 5.0]
    """
    history = weight.shape[-1] - 1
    rows = first[:, None] + torch.arange(history, device=x.device)  # [P, w - 1]
    before = conv_state[slots[:, None], rows]  # [P, w - 1, D]
    window = torch.cat([before, x.to(conv_state.dtype)], 1)  # [P, w - 1 + T, D]
    conv_state[slots, : window.shape[1] - 1] = window[:, 1:]
    y, _ = short_convolution(window[:, history:].to(dtype), weight.to(dtype), window[:, :history].to(dtype))
    return y

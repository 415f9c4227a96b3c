"""The update rules as functions of whole batches of torch tensors, with flash-linear-attention's argument names.

For each rule X of ``kda_lab.rules.RULES``, as kda, gated_delta_rule, delta_rule, linear_attention:

``chunk_X``      C tokens at a time, for prefill and training; on CUDA a kernel, where no gradient is needed
``recurrent_X``  token by token, for decoding
``naive_X``      token by token in float64 with the code of ``kda_lab.rules``: what the other two are checked against

The three take the same arguments and return the same pair, so that any of them can stand in for another. B sequences of
T tokens (or N sequences of any lengths in one row), H key heads, HV value heads, K key channels, V value channels.

================================  ====================================================================================
q, k                              [B, T, H, K]; any strides (inputs are never written)
v                                 [B, T, HV, V], HV a multiple of H: value head hv reads q and k of head hv // (HV //
                                  H)
g                                 natural log of the decay, <= 0; -inf clears. [B, T, HV, K] for a decay a channel
                                  (kda), [B, T, HV] for one a head (gated_delta_rule), absent for rules without
beta                              [B, T, HV], the write gate, 0 to 2; absent for linear_attention. A rule that has other
                                  gates describes them in its module
scale                             multiplies q; None means K^-0.5, 0.0 is a scale
initial_state                     [N, HV, V, K] float32 (N = B without cu_seqlens), or float64 with float64 inputs;
                                  None means zeros
output_final_state                whether the second result is the final state or None
use_qk_l2norm_in_kernel           q and k are divided by sqrt(sum x^2 + 1e-6) first: a zero key stays zero (l2-norm)
use_gate_in_kernel                g is the raw gate x: g = lower_bound sigmoid(exp(A_log) (x + dt_bias))
                                  (gate-bounded), or -exp(A_log) softplus(x + dt_bias) with lower_bound None
                                  (gate-softplus)
A_log, dt_bias, lower_bound       only with use_gate_in_kernel: [HV]; [HV, K] or [HV K] ([HV] for gated_delta_rule) or
                                  None; a negative number or None
use_beta_sigmoid_in_kernel        beta, or what stands in its place, holds logits
cu_seqlens                        int64 [N + 1], boundaries from 0 on, never falling, with B = 1: sequence n is rows
                                  cu_seqlens[n] to cu_seqlens[n + 1]. Empty sequences keep their state; rows at and
                                  after cu_seqlens[-1] are not read and their outputs are zero
chunk_size                        C, any positive integer; None means 64. The token loops have no chunks and accept it
dtype                             naive_X only: float64 or float32
================================  ====================================================================================

Result: o [B, T, HV, V] in v's dtype, and the final states [N, HV, V, K]. States, and the arithmetic between tokens, are
float32, or float64 when q, k and v are float64; ``naive_X`` returns both in its ``dtype``. T = 0 works. Everything is
differentiable in q, k, v, g, beta, A_log, dt_bias and initial_state, and in other gates. The ``chunk_`` forms have a
hand-derived backward, which keeps one state a chunk and is differentiable once; for second derivatives use
``recurrent_`` or ``naive_``.

Errors: TypeError for wrong types and dtypes, ValueError for wrong shapes, devices and values. On CUDA the checks that
read values (the sign of g, the order of cu_seqlens) wait for the GPU: ``trusted_values`` skips them, and so does the
capture of a CUDA graph. A RuntimeWarning (on a CPU only) says when ``beta |k|^2`` leaves 0..2: the delta rule then
expands its state, and the result is out of contract. For an erase gate b with channels the sum of ``b k^2`` stands
there, and no warning is no promise: ``prepare.warn_if_expanding`` says what is known.
"""

from typing import TYPE_CHECKING

from kda_lab.data.lazy import names
from kda_lab.rules import RULES

# a module for each rule, named as the rule
_HOMES = {name: tuple(f"{form}_{name}" for form in ("chunk", "recurrent", "naive")) for name in RULES}
if TYPE_CHECKING:
    # the same names for checkers of types and for editors, which cannot follow the table
    from kda_lab.ops.contract import trusted_values as trusted_values
    from kda_lab.ops.delta_rule import chunk_delta_rule as chunk_delta_rule
    from kda_lab.ops.delta_rule import naive_delta_rule as naive_delta_rule
    from kda_lab.ops.delta_rule import recurrent_delta_rule as recurrent_delta_rule
    from kda_lab.ops.gated_delta_rule import chunk_gated_delta_rule as chunk_gated_delta_rule
    from kda_lab.ops.gated_delta_rule import naive_gated_delta_rule as naive_gated_delta_rule
    from kda_lab.ops.gated_delta_rule import recurrent_gated_delta_rule as recurrent_gated_delta_rule
    from kda_lab.ops.gdn2 import chunk_gdn2 as chunk_gdn2
    from kda_lab.ops.gdn2 import naive_gdn2 as naive_gdn2
    from kda_lab.ops.gdn2 import recurrent_gdn2 as recurrent_gdn2
    from kda_lab.ops.kda import chunk_kda as chunk_kda
    from kda_lab.ops.kda import naive_kda as naive_kda
    from kda_lab.ops.kda import recurrent_kda as recurrent_kda
    from kda_lab.ops.linear_attention import chunk_linear_attention as chunk_linear_attention
    from kda_lab.ops.linear_attention import naive_linear_attention as naive_linear_attention
    from kda_lab.ops.linear_attention import recurrent_linear_attention as recurrent_linear_attention
else:
    __getattr__, __dir__ = names(__name__, _HOMES | {"contract": ("trusted_values",)})
    __all__ = __dir__()

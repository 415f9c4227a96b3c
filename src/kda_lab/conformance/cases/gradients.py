"""Gradients of every input against autograd through the float64 token loop."""

import math

import torch

from kda_lab.conformance import clauses
from kda_lab.conformance.case import GATED, Wrong, case
from kda_lab.conformance.judge import gradient
from kda_lab.conformance.judge.generate import STREAMS


@case("gradients", input="T=C+6, a loss on o and on the final state", clause=clauses.GRADIENT, needs="backward")
def gradients_of_every_input(bench):
    """A term of the backward pass that is missing, or belongs to another token, head or channel."""
    gradient.right(bench, bench.make(bench.chunk + 6))


@case("gradients", input="T=2C+3, decays near 1", clause=clauses.GRADIENT, needs="backward")
def gradients_across_far_blocks(bench):
    """Adjoints that do not cross the blocks or chunks: strong gates hide them."""
    gradient.right(bench, bench.make(2 * bench.chunk + 3, gates="weak", H=1))


@case(
    "gradients",
    input="a loss on o alone, and on the final state alone",
    clause=clauses.GRADIENT,
    needs="backward final-state",
)
def gradients_from_each_result(bench):
    """A backward that ignores the gradient of the final state, or needs both."""
    named = bench.make(40)
    gradient.right(bench, named, weights=(1.0, 0.0), what="from o alone, ")
    gradient.right(bench, named, weights=(0.0, 1.0), what="from the final state alone, ")


@case("gradients", input="T=1 and T=2", clause=clauses.GRADIENT, needs="backward")
def gradients_of_one_token(bench):
    """A backward that starts one token late, or reads the state after where it needs the state before."""
    for T in (1, 2):
        gradient.right(bench, bench.make(T), what=f"T={T}: ")


@case(
    "gradients",
    input="raw gate, logits and L2 norm inside: A_log, dt_bias, x, q, k, beta",
    clause=clauses.GRADIENT,
    ops=GATED,
    needs="backward fused-backward bounded-gate l2norm beta-logits",
)
def gradients_of_what_is_computed_inside(bench):
    """The chain rule through gate, norm and sigmoid: a factor, or a sum over tokens and batch rows, that is left
    out.
    """
    named = bench.raw(bench.make(40, B=2)) | {"use_qk_l2norm_in_kernel": True, "use_beta_sigmoid_in_kernel": True}
    named["q"] = named["q"] * 3
    gradient.right(bench, named)


@case(
    "gradients",
    input="raw gate without a bound",
    clause=clauses.GRADIENT,
    ops=GATED,
    needs="backward fused-backward softplus-gate",
)
def gradients_of_the_softplus_gate(bench):
    """exp(A_log) or the derivative of softplus left out."""
    gradient.right(bench, bench.raw(bench.make(40), lower_bound=None))


@case(
    "gradients",
    input="H=2, HV=4: dq and dk are sums over the value heads of a group",
    clause=clauses.GRADIENT,
    needs="backward grouped-heads",
    refusal="may",
)
def gradients_of_shared_keys(bench):
    """The gradient of one value head of a group in place of the sum over all."""
    gradient.right(bench, bench.make(40, H=2, HV=4))


@case(
    "gradients",
    input="chunk_size 16, 32 and 64 on the same input",
    clause=clauses.GRADIENT,
    report="fla-org/flash-linear-attention#984",
    needs="backward chunk-size",
)
def gradients_for_every_chunk_size(bench):
    """A backward that is right for one chunk size only."""
    named = bench.make(75, gates="weak")
    for C in (16, 32, 64):
        gradient.right(bench, named | {"chunk_size": C}, what=f"chunk_size={C}: ")


@case(
    "gradients",
    input="g=-5, -20 and -60 everywhere, T=C+6",
    clause=clauses.GRADIENT,
    report="huggingface/transformers#48455",
    ops=GATED,
    needs="backward given-gate",
)
def gradients_at_masked_positions(bench):
    """A mask after the exponential: inf where nothing is read, and 0 times inf in the gradient."""
    for g in (-5.0, -20.0, -60.0):
        named = bench.make(bench.chunk + 6)
        named["g"].fill_(g)
        gradient.right(bench, named, what=f"g={g}: ")


@case("gradients", input="single gates of -inf", clause=clauses.GRADIENT, ops=GATED, needs="backward given-gate")
def gradients_where_a_gate_clears(bench):
    """inf - inf in the backward pass alone."""
    named = bench.make(40, gates="weak")
    named["g"].view(-1)[13::97] = -math.inf
    gradient.right(bench, named)


@case(
    "gradients",
    input="correlated keys of length 0.9, beta=1",
    clause=clauses.GRADIENT,
    report="NVIDIA/cudnn-frontend#1051",
    needs="backward",
)
def gradients_of_correlated_keys(bench):
    """A transposed solve that diverges where the forward one does not."""
    from kda_lab.conformance.cases.keys import with_keys

    gradient.right(bench, with_keys(bench, bench.chunk + 6, 0.3, 1.0, length=0.9, slow=0.1))


@case(
    "gradients",
    input="keys and queries of zero, normalised inside",
    clause=clauses.GRADIENT,
    needs="backward fused-backward l2norm",
)
def gradients_of_zero_keys(bench):
    """The derivative of a norm at zero: 0/0."""
    named = bench.make(20)
    for name in ("q", "k"):
        named[name][:, ::3] = 0
    gradient.right(bench, named | {"use_qk_l2norm_in_kernel": True})


@case("gradients", input="lengths 0, C+2, 3, 16 packed", clause=clauses.GRADIENT, needs="backward varlen")
def gradients_of_packed_sequences(bench):
    """Adjoints that run from one sequence into the one before it."""
    cu = torch.tensor([0, 0, bench.chunk + 2, 3, 16]).cumsum(0).tolist()
    gradient.right(bench, bench.make(cu[-1], cu_seqlens=cu, H=1))


@case("gradients", input="rows after cu_seqlens[-1] are nan", clause=clauses.AFTER, needs="backward varlen")
def rows_of_nobody_get_no_gradient(bench):
    """Rows that belong to nobody and get a gradient, or nan."""
    named = bench.make(30, cu_seqlens=[0, 9, 20])
    for name in STREAMS:
        if name in named:
            named[name][:, 20:] = math.nan
    got = gradient.gradients(bench, named)
    for name in STREAMS:
        if name in got and not (got[name][:, 20:] == 0).all():
            raise Wrong(f"the gradient of {name} must be zero in rows after cu_seqlens[-1]")
    if not all(x.isfinite().all() for x in got.values()):
        raise Wrong("a gradient is not finite because rows after cu_seqlens[-1] are nan")


@case(
    "gradients",
    input="backward twice on fresh graphs; leaves unchanged",
    clause=clauses.FUNCTION,
    needs="backward deterministic",
)
def gradients_repeat(bench):
    """A backward that writes what it saved, or whose sums come in changing order."""
    named = bench.make(bench.chunk + 6)
    before = {name: x.clone() for name, x in named.items()}
    first, second = gradient.gradients(bench, named), gradient.gradients(bench, named)
    for name in first:
        bench.same(second[name], first[name], f"the gradient of {name} differs between two calls")
        bench.same(named[name], before[name], f"{name} was written by the backward pass")

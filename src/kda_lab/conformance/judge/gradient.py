"""Gradients of an implementation beside those of the float64 token loop, by a budget made in the same way as that of
values.
"""

import warnings

import torch

from kda_lab.conformance.capabilities import Unsupported
from kda_lab.conformance.case import Crashed, Refused, Wrong
from kda_lab.conformance.judge import oracle, reading, tolerance
from kda_lab.conformance.judge.examiner import verdict_of
from kda_lab.conformance.judge.generate import STREAMS, digest, generator

NAMES = (*STREAMS, "A_log", "dt_bias", "initial_state")
# a gradient is judged by its block, but at least by this share of its head's largest: it is a sum of terms of both
# signs
SHARE = 0.1


def weights_like(o, S, digits):
    """Random weights of a loss on o and S, the same for every implementation: they depend on ``digits`` alone."""
    g = generator(0, "weights", digits)
    return tuple(None if x is None else torch.randn(x.shape, generator=g, dtype=torch.float64) for x in (o, S))


def differentiate(function, named, weights, digits):
    """Gradients by name of sum(weights[0] o W_o + weights[1] S W_S) for the pair that function(named) returns."""
    leaves = {n: named[n].detach().clone().requires_grad_() for n in NAMES if isinstance(named.get(n), torch.Tensor)}
    with torch.enable_grad():
        o, S = function(named | leaves)
        W_o, W_S = weights_like(o, S, digits)
        loss = (o.double() * W_o.to(o.device)).sum() * weights[0]
        if S is not None:
            loss = loss + (S.double() * W_S.to(o.device)).sum() * weights[1]
        if not loss.requires_grad:
            raise Wrong("the results do not depend on the inputs for autograd; no gradient reaches them")
        found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    return {n: torch.zeros_like(leaves[n]) if x is None else x for n, x in zip(leaves, found)}


def gradients(bench, named, weights=(1.0, 1.0)):
    """Gradients of the implementation by name; errors become Refused or Crashed."""
    digits = digest(plain(named))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return differentiate(bench.call, named, weights, digits)
    except (Wrong, Refused, Crashed, Unsupported):
        raise
    except Exception as error:
        raise verdict_of(error) from error


def plain(named):
    """The arguments that determine what is right."""
    return {name: x for name, x in named.items() if name != "chunk_size"}


def wanted(rule, named, weights):
    """Gradients of the float64 token loop."""
    named = plain(named)
    digits = digest(named)

    def exact():
        return differentiate(lambda a: reading.token_loop(rule, a), named, weights, digits)

    return oracle.kept((rule, digits, "gradient", weights), exact)


def costs(rule, named, weights, bits):
    """The largest error of each gradient over emulated computations with operands of this many bits."""
    named = plain(named)
    digits, right_ones = digest(named), wanted(rule, named, weights)
    terms = sizes_of_terms(named, right_ones)

    def one(run):
        g = generator(run, "rounding", bits)

        def emulation(a):
            return tolerance.emulate(rule, a, bits, (64, 16)[run], g)

        found = differentiate(emulation, named, weights, digits)
        return {name: error_of(name, found[name], right_ones[name], terms.get(name)).size for name in found}

    def measure():
        runs = [one(run) for run in range(2)]
        return {name: max(r[name] for r in runs) for name in runs[0]}

    return oracle.kept((rule, digits, "gradient", weights, bits), measure)


def error_of(name, got, right_one, terms=None):
    """The largest relative error of a block of a gradient: by 16 tokens and head, by channel of a state, or by head.

    terms: the size of what a gradient is the sum of, which may be much larger than the gradient, or None.

    >>> error_of("A_log", torch.tensor([1.0, 2.0]), torch.tensor([1.0, 1.0]), torch.tensor([0.0, 2.0])).size
    0.5
    """
    got, right_one = got.detach().cpu().double(), right_one.detach().cpu().double()
    if name == "initial_state":
        return tolerance.channel_errors(got, right_one, SHARE)
    if name in ("A_log", "dt_bias"):
        # one row of "tokens": a relative error for each head
        heads = len(terms)
        got, right_one, terms = (x.reshape(1, 1, heads, -1) for x in (got, right_one, terms))
    return tolerance.row_errors(got, right_one, SHARE, terms)


def sizes_of_terms(named, found):
    """How large the terms are whose sums the gradients of g and of the gate's parameters are, by name; float64, on the
    CPU.

    A chunk's backward has the gradient of a log decay as a running sum of q dq - k dk over later tokens
    (backward-gates): under strong gates the two cancel, and the rounding of either stays. found: the exact gradients.
    """
    if "g" not in named:
        return {}
    wanted = (name for name in ("q", "k", "g", "A_log", "dt_bias") if isinstance(named.get(name), torch.Tensor))
    a = {name: named[name].detach().cpu().double() for name in wanted}
    dq, dk, dg = (found[name].detach().cpu().double() for name in ("q", "k", "g"))
    terms = ((a["q"] * dq).abs() + (a["k"] * dk).abs()).repeat_interleave(
        a["g"].shape[2] // dq.shape[2], 2
    )  # [B, T, HV, K]
    terms = terms.sum(-1) if a["g"].ndim == 3 else terms
    if not named.get("use_gate_in_kernel"):
        return {"g": terms}
    HV, ndim = a["g"].shape[2], a["g"].ndim
    bias = a.get("dt_bias", torch.zeros(HV, dtype=torch.float64)).reshape(HV, *[-1] * (ndim - 3))
    x = (a["g"] + bias).requires_grad_()
    A_log = a["A_log"].reshape(HV, *[1] * (ndim - 3))
    bound = named.get("lower_bound")
    with torch.enable_grad():
        rate = A_log.exp() * x
        g = -A_log.exp() * torch.nn.functional.softplus(x) if bound is None else bound * torch.sigmoid(rate)
        slope = torch.autograd.grad(g.sum(), x)[0].abs()  # [B, T, HV, K]
    x, g = x.detach(), g.detach()
    rate_slope = g.abs() if bound is None else slope * x.abs()
    per_head = [d for d in range(ndim) if d != 2]
    return {
        "g": terms * slope + dg.abs(),
        "A_log": (terms * rate_slope).square().sum(per_head).sqrt(),
        "dt_bias": (terms * slope).square().sum((0, 1)).sqrt(),
    }


def right(bench, named, weights=(1.0, 1.0), what=""):
    """Raise Wrong unless every gradient is within its budget."""
    if not bench.can.can("final-state"):
        weights = (weights[0], 0.0)
    got = gradients(bench, named, weights)
    right_ones = wanted(bench.rule, named, weights)
    bits = tolerance.RUNGS[bench.rung or "bfloat16"]
    cost, terms = costs(bench.rule, named, weights, bits), sizes_of_terms(named, right_ones)
    for name in got:
        error = error_of(name, got[name], right_ones[name], terms.get(name))
        output = tolerance.BITS[named[name].dtype]
        # the backward pass reads the loss's weights, which the forward pass rounded to o's dtype
        limit = tolerance.FACTOR * cost[name] + 4 * tolerance.floor(bits, named["q"].shape[1], output)
        bench.judge(error, limit, f"{what}gradient of {name}")

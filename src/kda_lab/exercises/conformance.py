"""Exercises of the chapter on whether public kernels agree."""

import math

import torch

from kda_lab import conformance, ops
from kda_lab.conformance import tolerance


def budget():
    """The budget, to four places, and whether 0.05 passes."""
    # <solution>
    return 0.0438, False
    # </solution>


def check_budget(budget):
    limit = tolerance.FACTOR * max(0.006, 0.009) + tolerance.floor(8, 88, 8)
    assert tuple(budget()) == (round(limit, 4), limit > 0.05), (
        "four times the larger cost, and the floor: a rounding of the operands, one of the result, and 40 + T "
        "of float32"
    )


def held(q, k, v, g, beta, scale=None, initial_state=None, output_final_state=False):
    """A faulty implementation: exponents of a block of 16 tokens are held at -126 in base 2."""
    sums = [block.cumsum(1) for block in g.split(16, dim=1)]
    sums = [G.clamp(min=-126 * math.log(2)) for G in sums]
    steps = [G.diff(dim=1, prepend=torch.zeros_like(G[:, :1])) for G in sums]
    options = {"scale": scale, "initial_state": initial_state, "output_final_state": output_final_state}
    return ops.chunk_kda(q, k, v, torch.cat(steps, 1), beta, **options)


def reveal(named):
    """Arguments of a call on which ``held`` is far off, as a new dict.

    Off: 16 tokens of a head of o, by more than a tenth of their
    norm (``tolerance.row_errors``); keys stay of length one, gates
    finite.   named: q, k, v, g, beta, initial_state of T = 20 tokens
    with slow gates, float64.
    """
    # <solution>
    return named | {"g": torch.full_like(named["g"], -10.0)}
    # </solution>


def check_reveal(reveal):
    from kda_lab.conformance import arguments, generator

    plain = arguments("kda", 20, generator(3), gates="weak", dtype=torch.float64)
    named = reveal(dict(plain))
    lengths = named["k"].norm(dim=-1)
    assert torch.allclose(lengths, torch.ones_like(lengths)), "the keys are no longer of length one"
    assert (named["g"] <= 0).all() and all(x.isfinite().all() for x in named.values()), (
        "gates above zero, or an input that is not finite"
    )
    exact = ops.naive_kda(**named)[0]
    right, wrong = (tolerance.row_errors(f(**named)[0], exact).size for f in (ops.chunk_kda, held))
    assert right < 1e-9, f"a right implementation is off by {right:.1e} on this input: it is not fair"
    assert wrong > 0.1, (
        f"the fault is off by {wrong:.1e} alone: which sums reach the limit, and what do later tokens then keep?"
    )


FIRST = ["plain-inputs", "strong-gates", "weak-gates", "far-blocks-are-seen", "a-given-scale", "no-tokens-at-all"]


def hidden():
    """An implementation of KDA that passes the cases FIRST.

    Anybody would write those; it fails one of the kind "gates".
    """

    # <solution>
    def clamped(q, k, v, g, beta, scale=None, initial_state=None, output_final_state=False):
        options = {"scale": scale, "initial_state": initial_state, "output_final_state": output_final_state}
        return ops.chunk_kda(q, k, v, g, beta.clamp(max=1), **options)

    return clamped
    # </solution>


def check_hidden(hidden):
    found = conformance.examine(hidden(), only=FIRST, stop=True)
    bad = [f"{r.case}: {r.reason}" for r in found if not conformance.ok(r)]
    assert not bad, f"already caught: {bad[0]}"
    assert all(r.outcome == "pass" for r in found), (
        "some are unsupported: take scale, initial_state and output_final_state"
    )
    caught = [r for r in conformance.examine(hidden(), only=["gates"], stop=True) if r.outcome == "fail"]
    assert caught, "no case of the kind 'gates' sees it"
    sizes = [r.error for r in caught if r.error is not None]
    assert not sizes or max(sizes) > 1e-3 or math.inf in sizes, "the fault is smaller than a rounding of bf16"

"""Exercises of the chapter on whether public kernels agree."""

import math

import torch

from kda_lab import conformance, ops
from kda_lab.conformance import tolerance


def budget():
    """The budget, rounded to four places, and whether an error of 0.05 passes."""
    # <solution>
    return 0.0438, False
    # </solution>


def check_budget(budget):
    limit = tolerance.FACTOR * max(0.006, 0.009) + tolerance.floor(8, 88, 8)
    assert tuple(budget()) == (round(limit, 4), limit > 0.05), (
        "four times the larger cost, and the floor: a rounding of the operands, one of the result, and 40 + T of float32"
    )


def applied(g):
    """The log decays that a chunk applies whose scores take differences of float32 running sums.

    g: [T], float64   returns [T], float64: their sum over any span of tokens is the difference of the two stored sums.
    """
    # <solution>
    G = g.float().cumsum(0).double()
    return G.diff(prepend=torch.zeros(1, dtype=torch.float64))
    # </solution>


def check_applied(applied):
    for gates in ([-0.25, -(2.0**25), -0.5], [-1e30, -0.1, -0.1], [-1.0, -2.0, -3.0]):
        g, total, want = torch.tensor(gates, dtype=torch.float64), torch.tensor(0.0), []
        for x in g:
            before, total = float(total), total + x.float()
            want.append(float(total) - before)
        got = applied(g).tolist()
        assert got == want, f"for {gates} the stored sums differ by {want}, got {got}"


def held(q, k, v, g, beta, scale=None, initial_state=None, output_final_state=False):
    """A faulty implementation: exponents of a block of 16 tokens are held at -126 in base 2."""
    blocks = [g[:, a : a + 16].cumsum(1).clamp(min=-126 * math.log(2)) for a in range(0, g.shape[1], 16)]
    g = torch.cat([G.diff(dim=1, prepend=torch.zeros_like(G[:, :1])) for G in blocks], 1)
    return ops.chunk_kda(q, k, v, g, beta, scale=scale, initial_state=initial_state, output_final_state=output_final_state)


def reveal(named):
    """Change the arguments of a call so that ``held`` is wrong by more than a tenth; keys stay of length one, gates finite.

    named: q, k, v, g, beta, initial_state of T = 20 tokens with slow gates, float64.
    """
    # <solution>
    return named | {"g": torch.full_like(named["g"], -10.0)}
    # </solution>


def check_reveal(reveal):
    from kda_lab.conformance import generate

    plain = generate.arguments("kda", 20, generate.generator(3), gates="weak", dtype=torch.float64)
    named = reveal(dict(plain))
    lengths = named["k"].norm(dim=-1)
    assert torch.allclose(lengths, torch.ones_like(lengths)), "the keys are no longer of length one"
    assert (named["g"] <= 0).all() and all(x.isfinite().all() for x in named.values()), "gates above zero, or an input that is not finite"
    exact = ops.naive_kda(**named)[0]
    right, wrong = (tolerance.row_errors(f(**named)[0], exact).size for f in (ops.chunk_kda, held))
    assert right < 1e-9, f"a right implementation is off by {right:.1e} on this input: it is not fair"
    assert wrong > 0.1, f"the fault is off by {wrong:.1e} alone: which sums reach the limit, and what do later tokens then keep?"


FIRST = ["plain-inputs", "strong-gates", "weak-gates", "far-blocks-are-seen", "a-given-scale", "no-tokens-at-all"]


def hidden():
    """An implementation of KDA that passes the cases FIRST, which anybody would write, and fails one of the kind "gates"."""

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
    assert all(r.outcome == "pass" for r in found), "some are unsupported: take scale, initial_state and output_final_state"
    caught = [r for r in conformance.examine(hidden(), only=["gates"], stop=True) if r.outcome == "fail"]
    assert caught, "no case of the kind 'gates' sees it"
    sizes = [r.error for r in caught if r.error is not None]
    assert not sizes or max(sizes) > 1e-3 or math.inf in sizes, "the fault is smaller than a rounding of bf16"

"""Softmax attention: what is replaced, and why replacing its exponential is not harmless."""

import math

import numpy as np
import sympy
import torch

from kda_lab.parts import softmax
from kda_lab.proof.equations.common import agree, normal, require
from kda_lab.proof.registry import Check, Equation, Mutant, variant

VASWANI = "Vaswani et al. (2017)"
ONLINE = "Milakov and Gimelshein (2018), Online normalizer calculation for softmax"
QIN = "Qin et al. (2022), The devil in linear transformer"


def check_attention(attention):
    """Rows against sums written out, in float64, tokens T=1..6."""
    for T in (1, 2, 6):
        Q, K, V = normal(T, 4, seed=1), normal(T, 4, seed=2), normal(T, 3, seed=3)
        rows = []
        for i in range(T):
            weights = [math.exp(sum(float(a * b) for a, b in zip(Q[i], K[j]))) for j in range(i + 1)]
            rows.append([sum(w * V[j, r].item() for j, w in enumerate(weights)) / sum(weights) for r in range(3)])
        agree(attention(Q, K, V), torch.tensor(rows, dtype=torch.float64), f"T = {T}")


def scores_of_each_kind():
    """Ascending (the running maximum changes with every token), descending, equal, alone, far apart, masked at the
    start.
    """
    s = normal(12, seed=4) * 200
    yield "ascending", s.sort().values
    yield "descending", s.sort(descending=True).values
    yield "random", s
    yield "equal", torch.full((5,), 800.0, dtype=torch.float64)
    yield "alone", torch.tensor([-600.0], dtype=torch.float64)
    yield "far apart", torch.tensor([-600.0, 600.0, 599.0], dtype=torch.float64)
    yield "masked start", torch.cat([torch.full((4,), -math.inf, dtype=torch.float64), s[:3]])


def check_online(online):
    for name, s in scores_of_each_kind():
        V = normal(len(s), 3, seed=5)
        for tile in (1, 2, 5):
            agree(online(s, V, tile), softmax.two_pass(s, V), f"{name}, tiles of {tile}")
        agree(online(s, V), softmax.two_pass(s, V), f"{name}, token by token")


def same_partial(left, right, what):
    require(left.m.equal(right.m), f"{what}: the largest scores differ")
    agree(left.l, right.l, what)
    agree(left.o, right.o, what)


def check_combine(combine):
    """Tiles in any order and any grouping; a masked tile is the identity."""
    scores = normal(9, seed=6) * 200
    V = normal(9, 3, seed=7)
    a, b, c = (softmax.partial(scores[n : n + 3], V[n : n + 3]) for n in (0, 3, 6))
    nothing = softmax.partial(torch.full((2,), -math.inf, dtype=torch.float64), V[:2])
    same_partial(combine(a, b), softmax.partial(scores[:6], V[:6]), "two tiles are one longer tile")
    same_partial(combine(a, b), combine(b, a), "commutative")
    same_partial(combine(combine(a, b), c), combine(a, combine(b, c)), "associative")
    same_partial(combine(nothing, a), a, "nothing before")
    same_partial(combine(a, nothing), a, "nothing behind")
    same_partial(combine(nothing, nothing), nothing, "nothing at all")


def prove_shift(shift):
    """With the sums cross-multiplied, e^(s + c) = e^s e^c cancels: three tokens, all scores and shifts."""
    s, v, c = sympy.symbols("s:3"), sympy.symbols("v:3"), sympy.Symbol("c")
    moved = shift(np.array(s, dtype=object), c)
    numerator = [sum(sympy.exp(x) * y for x, y in zip(scores, v)) for scores in (s, moved)]
    denominator = [sum(sympy.exp(x) for x in scores) for scores in (s, moved)]
    rest = sympy.expand(sympy.expand_power_exp(numerator[0] * denominator[1] - numerator[1] * denominator[0]))
    require(rest == 0, f"{rest} is left over")


def check_shift(shift):
    s, V = normal(7, seed=8) * 3, normal(7, 2, seed=9)
    for c in (-40.0, 0.5, 300.0):
        agree(softmax.two_pass(shift(s, c), V), softmax.two_pass(s, V), f"shift {c}")


def score_gradient(p, ratio, j, k):
    """dp_j / ds_k = f'(s_k) / f(s_k) p_j (delta_jk - p_k), where p_j = f(s_j) / sum f and ratio_k = f'(s_k) / f(s_k).

    p, ratio: sequences over tokens.   Implements score-gradient.

    >>> score_gradient([0.5, 0.5], [1, 1], 0, 1)                # exp: f'/f = 1
    -0.25
    """
    return ratio[k] * p[j] * ((1 if j == k else 0) - p[k])


def prove_gradient(gradient):
    """Any differentiable f, three tokens: SymPy's derivative against the closed form."""
    f, s = sympy.Function("f"), sympy.symbols("s:3")
    total = sum(f(x) for x in s)
    p = [f(x) / total for x in s]
    ratio = [f(x).diff(x) / f(x) for x in s]
    for j in range(3):
        for k in (0, 1):
            rest = sympy.numer(sympy.together(p[j].diff(s[k]) - gradient(p, ratio, j, k)))
            require(sympy.expand(rest) == 0, f"j = {j}, k = {k}")


FEATURES = {"exp": torch.exp, "identity": lambda x: x}


def check_gradient(gradient):
    for name, f in FEATURES.items():
        s = (normal(5, seed=10).abs() + 0.1).requires_grad_()
        p = f(s) / f(s).sum()
        slope = torch.autograd.grad(f(s).sum(), s, retain_graph=True)[0] / f(s)
        for j in range(5):
            exact = torch.autograd.grad(p[j], s, retain_graph=True)[0]
            agree(torch.stack([gradient(p, slope, j, k) for k in range(5)]), exact, f"{name}, row {j}")


def gradient_bound(feature, s):
    """The largest |dp_j / ds_k| that token k's score s allows: 1/4 for exp, 1 / (4 |s|) for f(s) = s.

    Implements score-gradient-bound.

    >>> gradient_bound("identity", torch.tensor([0.125, 1.0])).tolist()
    [2.0, 0.25]
    """
    return torch.full_like(s, 0.25) if feature == "exp" else 1 / (4 * s.abs())


def check_gradient_bound(bound):
    """No gradient above the bound; two equal scores (p = 1/2) attain it, however small they are."""
    for name, f in FEATURES.items():
        for scale in (1e-6, 1e-2, 1.0, 5.0):
            for tokens in (normal(4, seed=11).abs() + 0.1, torch.ones(2, dtype=torch.float64)):
                s = tokens * scale
                jacobian = torch.autograd.functional.jacobian(lambda x: f(x) / f(x).sum(), s)
                largest, allowed = jacobian.abs().amax(0), bound(name, s)
                require(
                    (largest <= allowed * (1 + 1e-12)).all(), f"{name}: gradient above the bound at scores near {scale}"
                )
                if len(s) == 2:
                    agree(largest, allowed, f"{name}: the bound is not attained")
    steep = bound("identity", torch.tensor(1e-9, dtype=torch.float64))
    require(steep > 1e8, "the bound of the identity feature should grow without limit near zero")


_BOTH = "first.l * a + second.l * b, first.o * a + second.o * b"
no_rescale = variant(softmax.combine, (_BOTH, "first.l + second.l * b, first.o + second.o * b"))
values_unscaled = variant(softmax.combine, ("first.o * a", "first.o"))
turned_round = variant(softmax.combine, ("(first.m - _shift(m))", "(_shift(m) - first.m)"))
smaller_maximum = variant(softmax.combine, ("torch.maximum", "torch.minimum"))
unguarded = variant(softmax.combine, _shift=lambda m: m)


def one_score_moves(s, c):
    """Mutant: the number is added to the first score alone."""
    out = s * 1
    out[0] = out[0] + c
    return out


EQUATIONS = [
    Equation(
        "softmax-attention",
        "Softmax attention: row i averages the values of tokens 1..i with weights e^(q_i . k_j).",
        VASWANI,
        "checked",
        Check("float64", "T=1..6 K=4 V=3", check_attention),
        None,
        softmax.attention,
        (
            Mutant("sees the future", variant(softmax.attention, ("K[: i + 1] @ Q[i], V[: i + 1]", "K @ Q[i], V"))),
            Mutant("scores without exp", variant(softmax.attention, two_pass=lambda s, V: s @ V / s.sum())),
            Mutant(
                "no denominator",
                variant(softmax.attention, two_pass=variant(softmax.two_pass, (" / weights.sum()", ""))),
            ),
            Mutant(
                "sum includes the shift",
                variant(softmax.attention, two_pass=variant(softmax.two_pass, ("/ weights.sum()", "/ s.exp().sum()"))),
            ),
        ),
    ),
    Equation(
        "online-softmax",
        "One pass with a running maximum gives the answer of two passes.",
        ONLINE,
        "checked",
        Check("float64", "scores to 800, tiles of 1, 2, 5", check_online),
        None,
        softmax.online_softmax,
        (
            # invisible when the first score is the largest: the scores must ascend
            Mutant("the old sums are not rescaled", variant(softmax.online_softmax, combine=no_rescale)),
            Mutant("only the denominator is rescaled", variant(softmax.online_softmax, combine=values_unscaled)),
            Mutant("rescaled the wrong way", variant(softmax.online_softmax, combine=turned_round)),
            Mutant("a masked tile gives nan", variant(softmax.online_softmax, combine=unguarded)),
            Mutant(
                "the last tile is left out",
                variant(softmax.online_softmax, ("range(0, len(s), tile)", "range(0, max(1, len(s) - tile), tile)")),
            ),
        ),
    ),
    Equation(
        "softmax-combine",
        "Partial softmax results combine in any order and grouping; a masked tile is the identity.",
        ONLINE,
        "checked",
        Check("float64", "3 tiles of 3, scores to 600", check_combine),
        None,
        softmax.combine,
        (
            Mutant("the old sums are not rescaled", no_rescale),
            Mutant("only the denominator is rescaled", values_unscaled),
            Mutant("rescaled the wrong way", turned_round),
            Mutant("the smaller maximum", smaller_maximum),
            Mutant("no guard for -inf", unguarded),
        ),
    ),
    Equation(
        "softmax-shift",
        "Adding one number to all scores of a row changes nothing; multiplying them does.",
        VASWANI,
        "proved",
        Check("calculus", "3 tokens, symbolic scores", prove_shift),
        Check("float64", "T=7", check_shift),
        lambda s, c: s + c,
        (
            Mutant("a factor, such as K^-1/2, is not a shift", lambda s, c: s * c),
            Mutant("a shift for each token", lambda s, c: s + c * (s - s[0])),
            Mutant("only one score moves", one_score_moves),
        ),
    ),
    Equation(
        "score-gradient",
        "With weights f(s_j) / sum f, dp_j/ds_k = f'(s_k)/f(s_k) p_j (delta_jk - p_k).",
        QIN,
        "proved",
        Check("calculus", "any f, 3 tokens", prove_gradient),
        Check("float64", "T=5", check_gradient),
        score_gradient,
        (
            Mutant("without f'/f", lambda p, ratio, j, k: p[j] * ((1 if j == k else 0) - p[k])),
            Mutant("f'/f of token j", lambda p, ratio, j, k: score_gradient(p, [ratio[j]] * len(p), j, k)),
            Mutant("without the delta", lambda p, ratio, j, k: -ratio[k] * p[j] * p[k]),
            Mutant("p_j instead of p_k", lambda p, ratio, j, k: ratio[k] * p[j] * ((1 if j == k else 0) - p[j])),
        ),
    ),
    Equation(
        "score-gradient-bound",
        "The gradient is at most 1/4 for exp, but 1/(4|s|) for f(s) = s: unbounded near zero.",
        QIN,
        "checked",
        Check("float64", "T=2, 4, scores from 1e-6 to 5", check_gradient_bound),
        None,
        gradient_bound,
        (
            Mutant("1/4 for every feature", lambda feature, s: torch.full_like(s, 0.25)),
            Mutant(
                "1/|s|: never attained", lambda feature, s: gradient_bound(feature, s) * (1 if feature == "exp" else 4)
            ),
            Mutant("1/(8|s|)", lambda feature, s: gradient_bound(feature, s) / 2),
        ),
    ),
]

"""Recurrent networks: what a step with tanh cannot do, and why a linear one sees the order of tokens."""

import math

import sympy
import torch

from kda_lab.algebra import affine
from kda_lab.parts import position
from kda_lab.proof.engines import stack
from kda_lab.proof.equations.common import agree, normal, require
from kda_lab.proof.registry import Check, Equation, Mutant, polynomial, wrong

ELMAN = "Elman (1990), Finding structure in time"
MARTIN = "Martin and Cundy (2018), Parallelizing linear recurrent neural nets over sequence length"


def check_rnn(step):
    h, x, W, W_x, b = (
        normal(3, seed=1),
        normal(2, seed=2),
        normal(3, 3, seed=3),
        normal(3, 2, seed=4),
        normal(3, seed=5),
    )
    want = [
        math.tanh(
            sum(float(W[i, j] * h[j]) for j in range(3)) + sum(float(W_x[i, j] * x[j]) for j in range(2)) + b[i].item()
        )
        for i in range(3)
    ]
    agree(step(h, x, W, W_x, b), torch.tensor(want, dtype=torch.float64), "one step")
    agree(
        step(step(h, x, W, W_x, b), x, W, W_x, b),
        torch.tanh(W @ torch.tensor(want, dtype=torch.float64) + W_x @ x + b),
        "two steps",
    )


def prove_reach(reach):
    """With y = tanh(h) in (-1, 1), tanh(w y + b) is monotone in y, so its ends are at y = -1 and 1. Both signs of w."""
    h, w, b, y = (
        sympy.Symbol("h", real=True),
        sympy.Symbol("w", positive=True),
        sympy.Symbol("b", real=True),
        sympy.Symbol("y", real=True),
    )
    require(
        [sympy.limit(sympy.tanh(h), h, side) for side in (-sympy.oo, sympy.oo)] == [-1, 1],
        "one step reaches from -1 to 1",
    )
    for sign in (1, -1):
        two = sympy.tanh(sign * w * y + b)
        require(sympy.expand(two.diff(y) - sign * w * (1 - two**2)) == 0, "the slope has the sign of w")
        ends = [two.subs(y, -sign), two.subs(y, sign)]
        for end, claimed in zip(ends, reach(sign * w, b, sympy.tanh)):
            require(sympy.expand(end - claimed) == 0, f"sign {sign}: {end}, not {claimed}")


def check_reach(reach):
    """Far states come near the ends and none goes beyond; affine steps, which do compose, have no such ends."""
    h = torch.linspace(-20, 20, 4001, dtype=torch.float64)
    for w, b in ((1.0, 0.0), (0.7, -0.4), (-2.0, 0.3)):
        low, high = reach(*torch.tensor([w, b], dtype=torch.float64))
        two = torch.tanh(w * torch.tanh(h) + b)
        agree(stack([two.min(), two.max()]), stack([low, high]), f"w = {w}, b = {b}")
        T, H = affine.compose((torch.tensor([[w]]), torch.tensor([[b]])), (torch.tensor([[w]]), torch.tensor([[b]])))
        agree(T[0, 0] * h + H[0, 0], w * (w * h + b) + b, "affine steps", tolerance=1e-6)  # float32 weights


def order_gap(W, a, b):
    """h_AB - h_BA of the linear RNN W h + x: (W - I)(a - b), so only W = I is blind.   W: [N, N]   a, b: [N]   returns
    [N].

    Implements linear-rnn-order.

    >>> import numpy as np
    >>> order_gap(np.array([[2]]), np.array([5]), np.array([3]))
    array([2])
    """
    return W @ (a - b) - (a - b)


def claim_rnn_order(x, gap):
    AB = position.linear_rnn_step(position.linear_rnn_step(x.h, x.a, x.W), x.b, x.W)
    BA = position.linear_rnn_step(position.linear_rnn_step(x.h, x.b, x.W), x.a, x.W)
    yield AB - BA, gap(x.W, x.a, x.b)
    yield gap(affine.eye(x.h), x.a, x.b), x.a * 0


EQUATIONS = [
    Equation(
        "rnn-step",
        "The classical recurrence: h_t = tanh(W h_(t-1) + W_x x_t + b).",
        ELMAN,
        "checked",
        Check("float64", "N=3 D=2, two steps", check_rnn),
        None,
        position.rnn_step,
        (
            wrong(position.rnn_step, "no feedback", ("torch.tanh(W @ h + ", "torch.tanh(")),
            wrong(
                position.rnn_step,
                "tanh inside the feedback only",
                ("torch.tanh(W @ h + W_x @ x + b)", "torch.tanh(W @ h) + W_x @ x + b"),
            ),
            wrong(position.rnn_step, "without the bias", ("W_x @ x + b)", "W_x @ x)")),
            wrong(position.rnn_step, "linear", ("torch.tanh(W @ h + W_x @ x + b)", "W @ h + W_x @ x + b")),
        ),
    ),
    Equation(
        "tanh-steps",
        "Two tanh steps reach tanh(b -/+ |w|) only, one step reaches from -1 to 1: no tanh step does what two do.",
        "compare the ranges",
        "proved",
        Check("calculus", "N=1, every w and b", prove_reach),
        Check("float64", "three pairs w, b", check_reach),
        position.reach,
        (
            Mutant("the composition is a tanh step again", lambda w, b, tanh=torch.tanh: (b * 0 - 1, b * 0 + 1)),
            wrong(
                position.reach,
                "without the bias",
                ("tanh(b - abs(w)), tanh(b + abs(w))", "tanh(-abs(w)), tanh(abs(w))"),
            ),
            wrong(
                position.reach,
                "the sign of the weight",
                ("tanh(b - abs(w)), tanh(b + abs(w))", "tanh(b - w), tanh(b + w)"),
            ),
            wrong(
                position.reach,
                "tanh once too often",
                ("tanh(b - abs(w)), tanh(b + abs(w))", "tanh(tanh(b - abs(w))), tanh(tanh(b + abs(w)))"),
            ),
        ),
    ),
    polynomial(
        "linear-rnn-order",
        "In the linear RNN W h + x, swapping two tokens moves the state by (W - I)(a - b): no nonlinearity is needed.",
        MARTIN,
        shapes="h:N a:N b:N W:N,N",
        claim=claim_rnn_order,
        subject=order_gap,
        ring=[{"N": 2}, {"N": 3}],
        real=[{"N": 4}],
        mutants=[
            Mutant("a linear step is blind to order", lambda W, a, b: a * 0),
            wrong(order_gap, "without the identity", ("W @ (a - b) - (a - b)", "W @ (a - b)")),
            wrong(order_gap, "the sign", ("W @ (a - b) - (a - b)", "(a - b) - W @ (a - b)")),
            wrong(order_gap, "transposed", ("W @ (a - b)", "W.T @ (a - b)")),
        ],
    ),
]

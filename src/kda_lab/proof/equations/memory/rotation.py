"""Rotations of queries and keys, and one product that covers decay, erasing and rotation."""

import numpy as np
import sympy

from kda_lab import rules
from kda_lab.algebra import affine
from kda_lab.parts import position
from kda_lab.proof.engines import stack
from kda_lab.proof.equations.common import agree, normal, require
from kda_lab.proof.registry import Check, Equation, polynomial, wrong

ROPE = "Su et al. (2021), RoFormer"
KIMI = "Kimi Linear (2025), on position"


def claim_rotation(x, rotate):
    """Two turns are one turn by the sum of the angles; lengths are kept; no channel pair sees another."""
    yield rotate(rotate(x.x, x.c, x.s), x.e, x.f), rotate(x.x, x.c * x.e - x.s * x.f, x.s * x.e + x.c * x.f)
    turned, unit = rotate(x.x, x.c, x.s), x.c * x.c + x.s * x.s  # 1 for an angle
    yield (
        (turned * turned).sum(),
        sum((x.x[2 * i] * x.x[2 * i] + x.x[2 * i + 1] * x.x[2 * i + 1]) * unit[i] for i in range(len(unit))),
    )
    yield turned[0], x.x[0] * x.c[0] - x.x[1] * x.s[0]
    yield turned[3], x.x[2] * x.s[1] + x.x[3] * x.c[1]


def prove_relative(score):
    """Any two positions and frequencies, two channel pairs: SymPy's addition theorems."""
    t, j = sympy.symbols("t j", integer=True)
    theta = sympy.symbols("theta:2")
    q, k = (np.array(sympy.symbols(f"{name}:4"), dtype=object) for name in "qk")
    turn = lambda n: [np.array([f(n * w) for w in theta], dtype=object) for f in (sympy.cos, sympy.sin)]
    left = position.rotate(q, *turn(t)) @ position.rotate(k, *turn(j))
    rest = sympy.expand(sympy.expand_trig(sympy.expand(left - score(q, k, *turn(j - t)))))
    require(rest == 0, f"{rest} is left over")


def check_relative(score):
    q, k = normal(8, seed=6), normal(8, seed=7)
    for t, j in ((9, 4), (4, 9), (1000, 3), (5, 5)):
        turn = position.angles(j - t, 8)
        want = position.rope(q, t) @ position.rope(k, j)
        agree(score(q, k, turn.cos(), turn.sin()), want, f"t = {t}, j = {j}")
        # angles to 1000 radians
        agree(position.rope(q, t + 70) @ position.rope(k, j + 70), want, "both moved", tolerance=1e-11)


def claim_rope_transition(x, rule):
    """A turning state with plain keys and queries answers like a plain sum of turned ones.

    The angles are those of (1 - m^2)/(1 + m^2), 2m/(1 + m^2): exact in a field.
    """
    c, s = (1 - x.m * x.m) / (1 + x.m * x.m), (x.m + x.m) / (1 + x.m * x.m)
    _, rows = rules.scan(lambda S, q, k, v: rule(S, q, k, v, c, s), rules.outer(x.v[0], x.k[0]) * 0, x.q, x.k, x.v)
    turn, Q, K = (c, s), [], []
    for q, k in zip(x.q, x.k):
        Q.append(position.rotate(q, *turn))
        K.append(position.rotate(k, *turn))
        turn = turn[0] * c - turn[1] * s, turn[1] * c + turn[0] * s
    _, turned = rules.scan(rules.linear, rules.outer(x.v[0], x.k[0]) * 0, Q, K, x.v)
    yield from zip(rows, turned)


def claim_transition_score(x, passage):
    """Each output of KDA: the first state and every write, each carried through the transitions behind it."""
    _, rows = rules.scan(rules.kda, x.S, x.q, x.k, x.v, x.alpha, x.beta)
    T = [affine.transition(*token) for token in zip(x.k, x.alpha, x.beta)]
    for t, o in enumerate(rows):
        old = stack([passage(row, T[: t + 1], x.q[t]) for row in x.S])
        yield o, old + sum(x.v[j] * x.beta[j] * passage(x.k[j], T[j + 1 : t + 1], x.q[t]) for j in range(t + 1))


_TURN, _WRITE = "S = rotate(S, c, s * -1) + outer(v, k)", "S + outer(v, k)"

EQUATIONS = [
    polynomial(
        "rope-rotation",
        "Turning a channel pair twice is turning it once by the sum of the angles, and keeps its length.",
        ROPE,
        shapes="x:K c:P s:P e:P f:P",
        claim=claim_rotation,
        subject=position.rotate,
        ring=[{"K": 4, "P": 2}],
        real=[{"K": 4, "P": 2}],
        mutants=[
            wrong(position.rotate, "both signs plus", ("even * c - odd * s", "even * c + odd * s")),
            wrong(position.rotate, "sine and cosine swapped", ("even * c - odd * s", "even * s - odd * c")),
            wrong(
                position.rotate,
                "the second half of the channels as partner",
                ("x[..., 0::2], x[..., 1::2]", "x[..., : len(c)], x[..., len(c) :]"),
            ),
            wrong(
                position.rotate,
                "one angle for all pairs",
                ("even, odd =", "c, s = c * 0 + c[0], s * 0 + s[0]\n    even, odd ="),
            ),
        ],
    ),
    Equation(
        "rope-relative",
        "A query turned to t and a key turned to j score q . R_(j-t) k: only the distance is left.",
        ROPE,
        "proved",
        Check("calculus", "all positions and frequencies, K=4", prove_relative),
        Check("float64", "K=8, positions to 1070", check_relative),
        position.relative_score,
        (
            wrong(position.relative_score, "R_(t-j)", ("rotate(k, c, s)", "rotate(k, c, s * -1)")),
            wrong(position.relative_score, "the query turned as well", ("q @ rotate", "rotate(q, c, s) @ rotate")),
            wrong(
                position.relative_score,
                "one angle for all pairs",
                ("rotate(k, c, s)", "rotate(k, c * 0 + c[0], s * 0 + s[0])"),
            ),
            wrong(position.relative_score, "no position", ("rotate(k, c, s)", "k")),
        ),
    ),
    polynomial(
        "rope-transition",
        "Linear attention on turned queries and keys is a state that turns at every token: RoPE is a transition.",
        ROPE,
        shapes="q:C,K k:C,K v:C,V m:P",
        claim=claim_rope_transition,
        subject=position.rotating,
        field_sizes=[{"C": 4, "K": 4, "V": 2, "P": 2}, {"C": 12, "K": 8, "V": 3, "P": 4}],
        real=[{"C": 7, "K": 4, "V": 3, "P": 2}],
        mutants=[
            wrong(position.rotating, "the other direction", (_TURN, "S = rotate(S, c, s) + outer(v, k)")),
            wrong(position.rotating, "turns after the write", (_TURN, "S = rotate(S + outer(v, k), c, s * -1)")),
            wrong(position.rotating, "does not turn", (_TURN, "S = S + outer(v, k)")),
            wrong(
                position.rotating, "turns twice", (_TURN, "S = rotate(rotate(S, c, s * -1), c, s * -1) + outer(v, k)")
            ),
        ],
    ),
    polynomial(
        "transition-score",
        "A write reaches an output with the weight beta_j k_j . T_(j+1) ... T_t q_t: decay, erasing and rotation are "
        "one product.",
        KIMI,
        shapes="S:V,K q:C,K k:C,K v:C,V alpha:C,K=decay beta:C=gate",
        claim=claim_transition_score,
        subject=position.passage,
        ring=[{"C": 3, "K": 2, "V": 1}],
        field_sizes=[{"C": 8, "K": 3, "V": 2}],
        real=[{"C": 6, "K": 4, "V": 3}],
        mutants=[
            wrong(position.passage, "descending order", ("in transitions", "in transitions[::-1]")),
            wrong(position.passage, "up to the token before", ("in transitions", "in transitions[:-1]")),
            wrong(position.passage, "without the first", ("in transitions", "in transitions[1:]")),
            wrong(position.passage, "from the left", ("k = k @ T", "k = T @ k")),
        ],
    ),
]

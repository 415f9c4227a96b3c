"""What sees the order of tokens and what does not; rotations; and one product that covers decay, erasing and
rotation.
"""

import itertools
import math
import random

import numpy as np
import sympy
import torch

from kda_lab import rules
from kda_lab.algebra import affine
from kda_lab.parts import position, softmax
from kda_lab.proof.engines import Ring, stack
from kda_lab.proof.equations.common import agree, matrix, normal, require
from kda_lab.proof.registry import Check, Equation, Mutant, polynomial, wrong

ELMAN = "Elman (1990), Finding structure in time"
MARTIN = "Martin and Cundy (2018), Parallelizing linear recurrent neural nets over sequence length"
VASWANI = "Vaswani et al. (2017)"
ROPE = "Su et al. (2021), RoFormer"
NOPE = "Kazemnejad et al. (2023), The impact of positional encoding on length generalization in transformers"
KIMI = "Kimi Linear (2025), on position"


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

    >>> order_gap(np.array([[2]]), np.array([5]), np.array([3]))
    array([2])
    """
    return W @ (a - b) - (a - b)


def claim_rnn_order(x, gap):
    AB = position.linear_rnn_step(position.linear_rnn_step(x.h, x.a, x.W), x.b, x.W)
    BA = position.linear_rnn_step(position.linear_rnn_step(x.h, x.b, x.W), x.a, x.W)
    yield AB - BA, gap(x.W, x.a, x.b)
    yield gap(affine.eye(x.h), x.a, x.b), x.a * 0


def task_orders(T):
    """Rows of single columns and of tiles, forwards, backwards and shuffled."""
    for size in (1, 2, 3):
        tasks = position.tiles(T, size)
        yield tasks
        yield tasks[::-1]
        shuffled = list(tasks)
        random.Random(size).shuffle(shuffled)
        yield shuffled


def claim_any_order(x, sums):
    """Every order of tasks gives the sums over tokens 1..i, and nothing of what comes later."""
    T = len(x.v)
    wanted = matrix(T, x.v.shape[1], lambda i, r: sum(x.p[i, j] * x.v[j, r] for j in range(i + 1)))
    total = stack([sum(x.p[i, j] for j in range(i + 1)) for i in range(T)])
    for tasks in task_orders(T):
        numerators, denominators = sums(x.p, x.v, tasks)
        yield numerators, wanted
        yield denominators, total


def claim_visible_pairs(x, sums):
    """Row 3 with its three visible pairs in all six orders; row 3 with its future replaced."""
    numerators, denominators = sums(x.p, x.v, position.tiles(4, 2))
    for order in itertools.permutations(range(3)):
        moved = [*order, 3]
        n, d = sums(x.p[:, moved], x.v[moved], position.tiles(4, 2))
        yield n[2], numerators[2]
        yield d[2], denominators[2]
    p, v = x.p * 1, x.v * 1
    p[:, 3], v[3] = x.p[:, 3] * 7, x.v[3] * 7
    n, d = sums(p, v, position.tiles(4, 2))
    yield n[:3], numerators[:3]
    yield d[:3], denominators[:3]


MIXERS = (
    "softmax attention",
    "linear attention",
    "sum of tanh",
    "log of a sum",
    "softmax with distances",
    "retnet",
    "gla",
    "delta",
    "kda",
    "linear rnn",
)


def last_output(mixer, x, order):
    """The third output of a mixer on tokens in an order, as polynomials; weights of a softmax are symbols of their
    pair.

    exp and tanh of a token are symbols too (p, f): nothing but the way they are put together counts.
    """
    q, k, v, beta, alpha = (getattr(x, name)[list(order)] for name in ("q", "k", "v", "beta", "alpha"))
    gates = {
        "linear attention": (rules.linear, ()),
        "retnet": (rules.retnet, ([x.gamma] * 3,)),
        "gla": (rules.gla, (alpha,)),
        "delta": (rules.delta, (beta,)),
        "kda": (rules.kda, (alpha, beta)),
    }
    if mixer in gates:
        rule, more = gates[mixer]
        return rules.scan(rule, rules.outer(v[0], k[0]) * 0, q, k, v, *more)[1][-1]
    if mixer.startswith("softmax"):
        near = mixer == "softmax with distances"
        P = matrix(3, 3, lambda i, j: x.near[order[i], order[j], i - j] if near else x.p[order[i], order[j]])
        numerators, denominators = position.masked_sums(P, v, position.tiles(3, 1))
        return stack([*numerators[2], denominators[2]])
    if mixer == "linear rnn":
        h = v[0] * 0
        for token in v:
            h = position.linear_rnn_step(h, token, x.W)
        return h
    return sum(x.f[i] for i in order)


def prove_first_layer(sees):
    x = Ring().inputs(
        "q:N,K k:N,K v:N,V f:N,V beta:N alpha:N,K gamma: W:V,V p:N,N near:N,N,N", {"N": 3, "K": 2, "V": 2}
    )
    for mixer in MIXERS:
        gap = last_output(mixer, x, (0, 1, 2)) - last_output(mixer, x, (1, 0, 2))
        require(sees(mixer) == any(entry != 0 for entry in gap), f"{mixer}: the polynomials say otherwise")


def number_output(mixer, x, order):
    q, k, v, beta, alpha = (y[list(order)] for y in x)
    if mixer == "softmax attention":
        return softmax.attention(q, k, v)[-1]
    if mixer == "softmax with distances":
        turn = lambda X: stack([position.rope(X[t], t) for t in range(3)])
        return softmax.attention(turn(q), turn(k), v)[-1]
    if mixer in ("sum of tanh", "log of a sum"):
        return v.tanh().sum(0) if mixer == "sum of tanh" else torch.logaddexp(torch.logaddexp(v[0], v[1]), v[2])
    if mixer == "linear rnn":
        h = v[0] * 0
        for token in v:
            h = position.linear_rnn_step(h, token, torch.tensor([[0.5, 0.2], [-0.3, 0.9]], dtype=torch.float64))
        return h
    gates = {
        "linear attention": (rules.linear, ()),
        "retnet": (rules.retnet, ([0.8] * 3,)),
        "gla": (rules.gla, (alpha,)),
        "delta": (rules.delta, (beta,)),
        "kda": (rules.kda, (alpha, beta)),
    }
    rule, more = gates[mixer]
    return rules.scan(rule, v.new_zeros(2, k.shape[1]), q, k, v, *more)[1][-1]


def check_first_layer(sees):
    """Real exp, tanh and rotations: the swap moves the output by rounding alone, or by a hundredth and more."""
    x = (
        normal(3, 4, seed=1),
        normal(3, 4, seed=2),
        normal(3, 2, seed=3),
        torch.sigmoid(normal(3, seed=4)),
        torch.sigmoid(normal(3, 4, seed=5)),
    )
    for mixer in MIXERS:
        gap = (number_output(mixer, x, (0, 1, 2)) - number_output(mixer, x, (1, 0, 2))).abs().max()
        require(gap > 1e-2 if sees(mixer) else gap < 1e-14, f"{mixer}: the outputs differ by {gap:.1e}")


def claim_two_means(x, weights):
    """Two layers of averages over tokens 1..i, as masked sums with equal weights."""
    T, X = len(x.v), x.v
    ones = matrix(T, T, lambda i, j: x.v[0, 0] * 0 + 1)
    for _ in range(2):
        numerators, denominators = position.masked_sums(ones, X, position.tiles(T, 1))
        X = numerators / denominators[:, None]
    yield X[-1], sum(x.v[j] * w.numerator / w.denominator for j, w in enumerate(weights(T)))


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
        agree(
            position.rope(q, t + 70) @ position.rope(k, j + 70), want, "both moved", tolerance=1e-11
        )  # angles to 1000 radians


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


def says(name, **changed):
    """Mutant: the table of ``sees_order`` with some answers turned round."""
    return Mutant(name, lambda mixer: changed.get(mixer.replace(" ", "_"), position.sees_order(mixer)))


_MASK, _ADD = "min(end, i + 1)", "numerators[i] = numerators[i] + V[j] * P[i, j]"
SUMS_MUTANTS = (
    wrong(position.masked_sums, "the mask forgotten", (_MASK, "min(end, len(V))")),
    wrong(position.masked_sums, "the mask hides the token itself", (_MASK, "min(end, i)")),
    wrong(
        position.masked_sums,
        "a row reads the row before, as an RNN does",
        (_ADD, _ADD + " + (numerators[i - 1] if j == i and i else 0)"),
    ),
)
_TURN, _WRITE = "S = rotate(S, c, s * -1) + outer(v, k)", "S + outer(v, k)"

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
    polynomial(
        "attention-any-order",
        "Causal attention is one sum a row: rows and tiles may be computed in any order, and no row waits for another.",
        VASWANI,
        shapes="p:T,T v:T,V",
        claim=claim_any_order,
        subject=position.masked_sums,
        ring=[{"T": 4, "V": 2}],
        real=[{"T": 7, "V": 3}],
        mutants=[
            *SUMS_MUTANTS,
            wrong(
                position.masked_sums,
                "a later tile overwrites",
                ("denominators[i] + P[i, j]", "denominators[i] * (j > start) + P[i, j]"),
            ),
            wrong(position.masked_sums, "tiles overlap", ("range(start, ", "range(max(0, start - 1), ")),
        ],
    ),
    polynomial(
        "attention-visible-pairs",
        "A row of causal attention depends on the set of pairs that it sees: not on their order, not on later tokens.",
        VASWANI,
        shapes="p:T,T v:T,V",
        claim=claim_visible_pairs,
        subject=position.masked_sums,
        ring=[{"T": 4, "V": 2}],
        real=[{"T": 4, "V": 3}],
        mutants=[
            SUMS_MUTANTS[0],
            SUMS_MUTANTS[2],
            wrong(position.masked_sums, "weights by distance", (_ADD, _ADD + " * (1 + i - j)")),
            wrong(position.masked_sums, "the newest pair alone", (_ADD, "numerators[i] = V[j] * P[i, j]")),
        ],
    ),
    Equation(
        "first-layer-order",
        "At its third position one layer of softmax or linear attention cannot tell A, B, C from B, A, C; delta "
        "rules and decays can.",
        NOPE,
        "proved",
        Check("ring", "ten mixers, three tokens, K=V=2", prove_first_layer),
        Check("float64", "K=4 V=2", check_first_layer),
        position.sees_order,
        (
            says("the causal mask gives the order away", softmax_attention=True),
            says("sums remember the order", linear_attention=True),
            says("the delta rule needs a decay for it", delta=False),
            says("a nonlinear function is what sees order", sum_of_tanh=True, log_of_a_sum=True),
            says("a linear recurrence is blind", linear_rnn=False),
            says("rotations change nothing", softmax_with_distances=False),
        ),
    ),
    polynomial(
        "second-layer-order",
        "Two causal averages weigh token j by (1/j + ... + 1/T)/T: the second layer sees the order.",
        NOPE,
        shapes="v:T,V",
        claim=claim_two_means,
        subject=position.two_means,
        field_sizes=[{"T": 3, "V": 1}, {"T": 9, "V": 2}],
        real=[{"T": 5, "V": 2}],
        mutants=[
            Mutant("blind, as one layer", lambda T: [sum(position.two_means(T)) / T] * T),
            wrong(position.two_means, "every average is over all tokens", ("Fraction(1, i)", "Fraction(1, T)")),
            wrong(
                position.two_means, "later tokens weigh more", ("for j in range(1, T + 1)", "for j in range(T, 0, -1)")
            ),
        ],
    ),
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
        shapes="S:V,K q:C,K k:C,K v:C,V alpha:C,K beta:C",
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

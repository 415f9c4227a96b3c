"""What sees the order of tokens and what does not: one sum in any order, one layer, two layers."""

import itertools
import random
from types import SimpleNamespace

import torch

from kda_lab import rules
from kda_lab.parts import position, softmax
from kda_lab.proof.engines import Ring, stack
from kda_lab.proof.equations.common import matrix, normal, require
from kda_lab.proof.registry import Check, Equation, Mutant, polynomial, wrong

VASWANI = "Vaswani et al. (2017)"
NOPE = "Kazemnejad et al. (2023), The impact of positional encoding on length generalization in transformers"


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


RULES = {
    "linear attention": (rules.linear, ()),
    "retnet": (rules.retnet, ("gamma",)),
    "gla": (rules.gla, ("alpha",)),
    "delta": (rules.delta, ("beta",)),
    "kda": (rules.kda, ("alpha", "beta")),
}


def recurrent_output(mixer, x, order):
    """The third output of a rule, or of the linear RNN, in any number system; None for other mixers.

    x: q, k, v, beta, alpha with a row a token, gamma and W.
    """
    q, k, v = (getattr(x, name)[list(order)] for name in "qkv")
    if mixer == "linear rnn":
        h = v[0] * 0
        for token in v:
            h = position.linear_rnn_step(h, token, x.W)
        return h
    if mixer not in RULES:
        return None
    rule, gates = RULES[mixer]
    more = [[x.gamma] * 3 if name == "gamma" else getattr(x, name)[list(order)] for name in gates]
    return rules.scan(rule, rules.outer(v[0], k[0]) * 0, q, k, v, *more)[1][-1]


def last_output(mixer, x, order):
    """The third output of a mixer on tokens in an order, as polynomials; weights of a softmax are symbols of their
    pair.

    exp and tanh of a token are symbols too (p, f): nothing but the way they are put together counts.
    """
    if (o := recurrent_output(mixer, x, order)) is not None:
        return o
    if mixer.startswith("softmax"):
        near = mixer == "softmax with distances"
        P = matrix(3, 3, lambda i, j: x.near[order[i], order[j], i - j] if near else x.p[order[i], order[j]])
        numerators, denominators = position.masked_sums(P, x.v[list(order)], position.tiles(3, 1))
        return stack([*numerators[2], denominators[2]])
    return sum(x.f[i] for i in order)


def prove_first_layer(sees):
    x = Ring().inputs(
        "q:N,K k:N,K v:N,V f:N,V beta:N=gate alpha:N,K=decay gamma=decay W:V,V p:N,N near:N,N,N",
        {"N": 3, "K": 2, "V": 2},
    )
    for mixer in MIXERS:
        gap = last_output(mixer, x, (0, 1, 2)) - last_output(mixer, x, (1, 0, 2))
        require(sees(mixer) == any(entry != 0 for entry in gap), f"{mixer}: the polynomials say otherwise")


def number_output(mixer, x, order):
    """The same with real exp, tanh and rotations."""
    if (o := recurrent_output(mixer, x, order)) is not None:
        return o
    q, k, v = (y[list(order)] for y in (x.q, x.k, x.v))
    if mixer == "softmax with distances":
        q, k = (stack([position.rope(X[t], t) for t in range(3)]) for X in (q, k))
    if mixer.startswith("softmax"):
        return softmax.attention(q, k, v)[-1]
    return v.tanh().sum(0) if mixer == "sum of tanh" else torch.logaddexp(torch.logaddexp(v[0], v[1]), v[2])


def check_first_layer(sees):
    """The swap moves the output by rounding alone, or by a hundredth and more."""
    x = SimpleNamespace(
        q=normal(3, 4, seed=1),
        k=normal(3, 4, seed=2),
        v=normal(3, 2, seed=3),
        beta=torch.sigmoid(normal(3, seed=4)),
        alpha=torch.sigmoid(normal(3, 4, seed=5)),
        gamma=0.8,
        W=torch.tensor([[0.5, 0.2], [-0.3, 0.9]], dtype=torch.float64),
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

EQUATIONS = [
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
]

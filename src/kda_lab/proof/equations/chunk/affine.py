"""One token as an affine map of the state, S -> S T + H, and how such maps compose."""

import numpy as np

from kda_lab import rules
from kda_lab.algebra import affine
from kda_lab.proof.engines import Real, run_claim, stack
from kda_lab.proof.equations.common import matrix, require
from kda_lab.proof.registry import Check, Equation, Mutant, polynomial, variant, wrong
from kda_lab.proof.words import same_words, words

KIMI = "Kimi Linear (2025), section 3"
SCAN = "Blelloch (1990), Prefix sums and their applications"


def claim_transition(x, transition):
    """Entry by entry: alpha_e (delta_ec - beta k_e k_c), with a decay for each channel and with one for all."""
    K = len(x.k)
    identity = lambda e, c: int(e == c)
    yield (
        transition(x.k, x.alpha, x.beta),
        matrix(K, K, lambda e, c: x.alpha[e] * (identity(e, c) - x.k[e] * x.k[c] * x.beta)),
    )
    yield (
        transition(x.k, x.gamma, x.beta),
        matrix(K, K, lambda e, c: x.gamma * (identity(e, c) - x.k[e] * x.k[c] * x.beta)),
    )
    yield affine.eye(x.k), matrix(K, K, lambda e, c: x.beta * 0 + identity(e, c))


def claim_increment(x, increment):
    yield increment(x.k, x.v, x.beta), matrix(len(x.v), len(x.k), lambda r, c: x.v[r] * x.k[c] * x.beta)


def claim_step(x, step):
    """S T + H is the state of KDA after the token; with one number for alpha, that of Gated DeltaNet."""
    T, H = step(x.k, x.v, x.alpha, x.beta)
    yield x.S @ T + H, rules.kda(x.S, x.k, x.k, x.v, x.alpha, x.beta)[0]
    T, H = step(x.k, x.v, x.gamma, x.beta)
    yield x.S @ T + H, rules.gated_delta(x.S, x.k, x.k, x.v, x.gamma, x.beta)[0]


def step(k, v, alpha, beta):
    """The pair (T, H) of one token.   Implements kda-affine.

    >>> import numpy as np
    >>> step(np.array([1]), np.array([5]), np.array([2]), 1)  # full overwrite: nothing of the old state is left
    (array([[0]]), array([[5]]))
    """
    return affine.transition(k, alpha, beta), affine.increment(k, v, beta)


def one_by_one(*names):
    """Matrices that are single non-commuting symbols, so that ``@`` on arrays writes words."""
    return [np.array([[w]], dtype=object) for w in words(" ".join(names))]


def prove_composition(compose):
    """Applying two steps is applying their composition; grouping does not matter; (I, 0) changes nothing; order does
    matter.
    """
    S, T1, H1, T2, H2, T3, H3 = one_by_one("S", "T1", "H1", "T2", "H2", "T3", "H3")
    T, H = compose((T1, H1), (T2, H2))
    same_words((S @ T + H)[0, 0], ((S @ T1 + H1) @ T2 + H2)[0, 0])
    left = compose(compose((T1, H1), (T2, H2)), (T3, H3))
    right = compose((T1, H1), compose((T2, H2), (T3, H3)))
    nothing = np.array([[1]], dtype=object), np.array([[0]], dtype=object)
    for part in (0, 1):
        same_words(left[part][0, 0], right[part][0, 0])
        same_words(compose(nothing, (T1, H1))[part][0, 0], (T1, H1)[part][0, 0])
        same_words(compose((T1, H1), nothing)[part][0, 0], (T1, H1)[part][0, 0])
    swapped = compose((T2, H2), (T1, H1))
    require(
        not ((swapped[0] - T)[0, 0] == 0 or (swapped[1] - H)[0, 0] == 0),
        "the order of two steps was expected to matter",
    )


def claim_composition(x, compose):
    """On matrices, K != V: three steps of the loop, composed from either side."""
    steps = [step(k, v, a, b) for k, v, a, b in zip(x.k, x.v, x.alpha, x.beta)]
    S, _ = rules.scan(rules.kda, x.S, x.k, x.k, x.v, x.alpha, x.beta)
    forward = steps[0]
    for s in steps[1:]:
        forward = compose(forward, s)
    backward = steps[-1]
    for s in steps[-2::-1]:
        backward = compose(s, backward)
    for T, H in (forward, backward):
        yield x.S @ T + H, S


def check_composition(compose):
    for weak in (False, True):
        run_claim(
            Real(weak=weak),
            "S:V,K k:C,K v:C,V alpha:C,K=decay beta:C=gate",
            {"C": 7, "K": 4, "V": 4},
            claim_composition,
            compose,
        )
        run_claim(
            Real(weak=weak),
            "S:V,K k:C,K v:C,V alpha:C,K=decay beta:C=gate",
            {"C": 7, "K": 4, "V": 3},
            claim_composition,
            compose,
        )


def claim_fold(x, fold):
    """A chunk folded at once is its two parts folded and composed, cut anywhere; also with one decay a token."""
    for gates in (x.alpha, x.gamma):
        whole = fold(x.k, x.v, gates, x.beta)
        for n in range(1, len(x.k)):
            parts = [fold(x.k[p], x.v[p], gates[p], x.beta[p]) for p in (slice(n), slice(n, None))]
            yield from zip(whole, affine.compose(*parts))
        yield (
            x.S @ whole[0] + whole[1],
            rules.scan(rules.kda, x.S, x.k, x.k, x.v, stack([x.k[0] * 0 + a for a in gates]), x.beta)[0],
        )


_T = "return erase * (k * 0 + alpha)[:, None]"
_C = "return T1 @ T2, H1 @ T2 + H2"

EQUATIONS = [
    polynomial(
        "kda-transition",
        "T = Diag(alpha)(I - beta k k^T): channel e of the old state feeds channel c by alpha_e (delta_ec - beta "
        "k_e k_c).",
        KIMI,
        shapes="k:K alpha:K=decay gamma=decay beta=gate",
        claim=claim_transition,
        subject=affine.transition,
        ring=[{"K": 3}, {"K": 1}],
        real=[{"K": 4}],
        mutants=[
            wrong(affine.transition, "the factors swapped", (_T, "return erase * (k * 0 + alpha)[None, :]")),
            wrong(affine.transition, "the sign of the erase", ("eye(k) - outer", "eye(k) + outer")),
            wrong(affine.transition, "no beta", ("outer(k, k) * beta", "outer(k, k)")),
            wrong(
                affine.transition,
                "the erase does not decay",
                (_T, "return eye(k) * (k * 0 + alpha)[:, None] - outer(k, k) * beta"),
            ),
            wrong(affine.transition, "no decay", (_T, "return erase")),
        ],
    ),
    polynomial(
        "kda-increment",
        "H = beta v k^T.",
        KIMI,
        shapes="k:K v:V beta=gate",
        claim=claim_increment,
        subject=affine.increment,
        ring=[{"K": 2, "V": 2}],
        real=[{"K": 3, "V": 3}, {"K": 4, "V": 3}],
        mutants=[
            wrong(affine.increment, "no beta", (" * beta", "")),
            wrong(affine.increment, "transposed", ("outer(v, k)", "outer(k, v)")),
            Mutant("also decays", lambda k, v, beta: affine.increment(k, v, beta) * k),
        ],
    ),
    polynomial(
        "kda-affine",
        "One token of KDA, and of Gated DeltaNet, is S T + H.",
        KIMI,
        shapes="S:V,K k:K v:V alpha:K=decay gamma=decay beta=gate",
        claim=claim_step,
        subject=step,
        ring=[{"K": 3, "V": 2}],
        real=[{"K": 4, "V": 3}],
        mutants=[
            Mutant(
                "the factors of T swapped",
                variant(step, ("affine.transition(k, alpha, beta)", "affine.transition(k, alpha, beta).T")),
            ),
            Mutant(
                "the write is erased too",
                lambda k, v, alpha, beta: (
                    step(k, v, alpha, beta)[0],
                    affine.increment(k, v, beta) @ affine.transition(k, 1, beta),
                ),
            ),
            Mutant("no decay", lambda k, v, alpha, beta: step(k, v, 1, beta)),
        ],
    ),
    Equation(
        "affine-composition",
        "(T1, H1) * (T2, H2) = (T1 T2, H1 T2 + H2): associative, with identity (I, 0), not commutative.",
        SCAN,
        "proved",
        Check("words", "two and three steps, all sizes", prove_composition),
        Check("float64", "C=7 K=4 V=3, 4", check_composition),
        affine.compose,
        (
            # as printed in a text on DeltaNet; off by H1 T2 - T2 H1
            wrong(affine.compose, "the matrix on the left of the increment", (_C, "return T1 @ T2, T2 @ H1 + H2")),
            wrong(affine.compose, "descending order", (_C, "return T2 @ T1, H1 @ T2 + H2")),
            wrong(affine.compose, "the write does not pass the second step", (_C, "return T1 @ T2, H1 + H2")),
            wrong(affine.compose, "the second write passes the first step", (_C, "return T1 @ T2, H1 + H2 @ T1")),
            wrong(affine.compose, "the sign of the second write", (_C, "return T1 @ T2, H1 @ T2 - H2")),
        ),
    ),
    polynomial(
        "affine-fold",
        "A chunk is the composition of its parts, cut anywhere.",
        SCAN,
        shapes="S:V,K k:C,K v:C,V alpha:C,K=decay gamma:C=decay beta:C=gate",
        claim=claim_fold,
        subject=affine.fold,
        ring=[{"C": 3, "K": 2, "V": 1}],
        field_sizes=[{"C": 6, "K": 3, "V": 2}],
        real=[{"C": 5, "K": 4, "V": 3}],
        mutants=[
            wrong(affine.fold, "the last token alone", ("compose(total, step)", "step")),
            wrong(affine.fold, "descending order", ("compose(total, step)", "compose(step, total)")),
            wrong(
                affine.fold, "the first token twice", ("step if total is None", "compose(step, step) if total is None")
            ),
        ],
    ),
]

"""The delta rule, one token: its forms, what a write changes and what it leaves, and the order of two tokens."""

from kda_lab import rules
from kda_lab.algebra import affine
from kda_lab.proof.engines import stack
from kda_lab.proof.equations.common import affine_step, read, token_by_token
from kda_lab.proof.registry import Check, Equation, Mutant, polynomial, wrong
from kda_lab.proof.words import same_words, scalars, words

SCHLAG = "Schlag et al. (2021), Linear transformers are secretly fast weight programmers"
DELTA = "Yang et al. (2024), Parallelizing linear transformers with the delta rule"
STEP = "S:V,K k:K v:V beta=gate"
SQUARE_FIRST = [{"C": 7, "K": 3, "V": 3}, {"C": 7, "K": 4, "V": 3}]  # K = V lets a transposed state type-check


def delta_by_entries(S, q, k, v, beta):
    """S (I - beta k k^T) + beta v k^T, read with q after the write."""
    S = affine_step(S, lambda e, c: int(e == c) - k[e] * k[c] * beta, lambda r, c: v[r] * k[c] * beta)
    return S, read(S, q)


def left_multiplied(S, q, k, v, beta):
    """Mutant: (I - beta k k^T) S instead of S (I - beta k k^T); type-checks when K = V."""
    S = S - rules.outer(k, S.T @ k) * beta + rules.outer(v, k) * beta
    return S, S @ q


def transition_form(S, k, kt, v, beta):
    """S - beta S k k^T + beta v k^T: the delta rule as a transition and an increment.   Implements delta-forms.

    >>> transition_form(2, 1, 1, 5, 1)                            # numbers will do: a full overwrite
    5
    """
    return S - S * k * kt * beta + v * kt * beta


def prove_forms(form):
    """In words, so for every size: error form and transition form are one."""
    S, k, kt, v = words("S k kt v")
    (beta,) = scalars("beta")
    same_words(S + beta * (v - S * k) * kt, form(S, k, kt, v, beta))


def read_back(S, k, v, beta):
    """What key k returns after its write: (1 - beta |k|^2) S k + beta |k|^2 v.   Implements delta-overwrite.

    >>> import numpy as np
    >>> read_back(np.array([[4, 8]]), np.array([1, 0]), np.array([6]), 2)       # beta = 2 overshoots: 2 v - S k
    array([8])
    """
    share = k @ k * beta
    return S @ k * (1 - share) + v * share


def claim_overwrite(x, read_back):
    _S, o = rules.delta(x.S, x.k, x.k, x.v, x.beta)
    yield o, read_back(x.S, x.k, x.v, x.beta)
    # the error shrinks by the same factor: the write is exact if and only if beta |k|^2 = 1, or nothing was missing
    yield o - x.v, (x.S @ x.k - x.v) * (1 - x.k @ x.k * x.beta)
    unit = affine.eye(x.k)[0]
    for gate, wanted in ((0, x.S @ unit), (1, x.v), (2, x.v * 2 - x.S @ unit)):
        yield read_back(x.S, unit, x.v, gate), wanted


def claim_kaczmarz(x, rule):
    """beta = 1/|k|^2: the new state answers v, a second write changes nothing, and no matrix that does so is nearer."""
    beta = 1 / (x.k @ x.k)
    S, o = rule(x.S, x.k, x.k, x.v, beta)
    yield o, x.v
    yield rule(S, x.k, x.k, x.v, beta)[0], S
    # any other X with X k = v is S + Y (|k|^2 I - k k^T), and it lies further away, by Pythagoras
    apart = x.Y * (x.k @ x.k) - rules.outer(x.Y @ x.k, x.k)
    square = lambda X: (X * X).sum()
    yield (S + apart) @ x.k, x.v
    yield square(S + apart - x.S), square(S - x.S) + square(apart)


def change_of_other_key(S, k, v, beta, other):
    """(S_t - S_(t-1)) k' = beta (v - S k) (k . k').   Implements delta-other-keys.

    >>> import numpy as np
    >>> change_of_other_key(np.array([[4, 8]]), np.array([1, 0]), np.array([6]), 1, np.array([2, 5]))
    array([4])
    """
    return (v - S @ k) * beta * (k @ other)


def claim_other_keys(x, change):
    S, _ = rules.delta(x.S, x.k, x.k, x.v, x.beta)
    yield (S - x.S) @ x.other, change(x.S, x.k, x.v, x.beta, x.other)
    across = stack([x.k[1], -x.k[0]])  # K = 2: orthogonal to k
    yield change(x.S, x.k, x.v, x.beta, across), x.v * 0


def order_difference(a, v_a, beta_a, b, v_b, beta_b):
    """S_AB - S_BA from an empty state: beta_a beta_b (a . b) (v_b a^T - v_a b^T).   Implements delta-order.

    >>> import numpy as np
    >>> order_difference(np.array([1, 0]), np.array([5]), 1, np.array([1, 1]), np.array([7]), 1)
    array([[ 2, -5]])
    """
    return (rules.outer(v_b, a) - rules.outer(v_a, b)) * (a @ b) * beta_a * beta_b


def claim_order(x, difference):
    first, second = (x.a, x.a, x.v, x.beta), (x.b, x.b, x.u, x.beta2)
    empty = rules.outer(x.v, x.a) * 0
    AB = rules.delta(rules.delta(empty, *first)[0], *second)[0]
    BA = rules.delta(rules.delta(empty, *second)[0], *first)[0]
    yield AB - BA, difference(x.a, x.v, x.beta, x.b, x.u, x.beta2)
    # linear attention does not know the order
    plain = [rules.linear(rules.linear(empty, *s[:3])[0], *t[:3])[0] for s, t in ((first, second), (second, first))]
    yield plain[0], plain[1]


_R, _W = "r = (v - S @ k) * beta", "S = S + outer(r, k)"

EQUATIONS = [
    polynomial(
        "delta-recurrence",
        "DeltaNet reads what the key holds and writes beta times the difference.",
        SCHLAG,
        shapes="S:V,K q:C,K k:C,K v:C,V beta:C=gate",
        claim=token_by_token(delta_by_entries, "q", "k", "v", "beta"),
        subject=rules.delta,
        ring=[{"C": 3, "K": 2, "V": 2}, {"C": 2, "K": 3, "V": 2}],
        field_sizes=[{"C": 24, "K": 5, "V": 3}],
        real=SQUARE_FIRST,
        mutants=[
            Mutant("the transition multiplies from the left", left_multiplied),
            wrong(rules.delta, "no erase", (_R, "r = v * beta")),
            wrong(rules.delta, "erases the sum", (_R, "r = (v + S @ k) * beta")),
            wrong(rules.delta, "beta on the erase only", (_R, "r = v - S @ k * beta")),
            wrong(rules.delta, "beta on the write only", (_R, "r = v * beta - S @ k")),
            wrong(rules.delta, "overwrites the state", (_W, "S = outer(r, k)")),
            wrong(
                rules.delta,
                "reads before the write",
                ("    S = S + outer(r, k)\n    return S, S @ q", "    return S + outer(r, k), S @ q"),
            ),
        ],
    ),
    Equation(
        "delta-forms",
        "S + beta (v - S k) k^T = S (I - beta k k^T) + beta v k^T.",
        SCHLAG,
        "proved",
        Check("words", "one token, all sizes", prove_forms),
        None,
        transition_form,
        (
            Mutant("multiplication from the left", lambda S, k, kt, v, beta: S - k * kt * S * beta + v * kt * beta),
            Mutant("k^T k in place of k k^T", lambda S, k, kt, v, beta: S - S * kt * k * beta + v * kt * beta),
            Mutant("v without beta", lambda S, k, kt, v, beta: S - S * k * kt * beta + v * kt),
            Mutant("the sign of the erase", lambda S, k, kt, v, beta: S + S * k * kt * beta + v * kt * beta),
        ),
    ),
    polynomial(
        "delta-overwrite",
        "After the write the key returns (1 - beta |k|^2) S k + beta |k|^2 v: exact if beta |k|^2 = 1.",
        SCHLAG,
        shapes=STEP,
        claim=claim_overwrite,
        subject=read_back,
        ring=[{"K": 3, "V": 2}],
        real=[{"K": 4, "V": 3}],
        mutants=[
            Mutant("the formula for unit keys", lambda S, k, v, beta: S @ k * (1 - beta) + v * beta),
            Mutant("always exact", lambda S, k, v, beta: v * 1),
            Mutant("|k|^2 on the old part only", lambda S, k, v, beta: S @ k * (1 - k @ k * beta) + v * beta),
        ],
    ),
    polynomial(
        "delta-kaczmarz",
        "With beta |k|^2 = 1 the step goes to the nearest matrix that answers v, and is idempotent.",
        "Kaczmarz (1937)",
        shapes="S:V,K k:K v:V Y:V,K",
        claim=claim_kaczmarz,
        subject=rules.delta,
        field_sizes=[{"K": 3, "V": 2}, {"K": 8, "V": 4}],
        real=[{"K": 4, "V": 3}],
        mutants=[
            Mutant("half of the step", lambda S, q, k, v, beta: rules.delta(S, q, k, v, beta / 2)),
            Mutant("adds without erasing", lambda S, q, k, v, beta: rules.linear(S, q, k, v * beta)),
            # exact and idempotent, but not nearest: it also changes what other keys return
            Mutant("starts over", lambda S, q, k, v, beta: rules.delta(S * 0, q, k, v, beta)),
        ],
    ),
    polynomial(
        "delta-other-keys",
        "Another key k' moves by beta (v - S k)(k . k'): untouched only at a right angle.",
        SCHLAG,
        shapes=STEP + " other:K",
        claim=claim_other_keys,
        subject=change_of_other_key,
        ring=[{"K": 2, "V": 2}],
        real=[{"K": 2, "V": 3}],
        mutants=[
            Mutant("other keys are untouched", lambda S, k, v, beta, other: v * 0),
            Mutant("the residual of the other key", lambda S, k, v, beta, other: (v - S @ other) * beta * (k @ other)),
            Mutant("without the overlap", lambda S, k, v, beta, other: (v - S @ k) * beta),
        ],
    ),
    polynomial(
        "delta-order",
        "Swapping two tokens changes the state by beta_a beta_b (a . b)(v_b a^T - v_a b^T): order counts without "
        "any decay.",
        SCHLAG,
        shapes="a:K v:V beta=gate b:K u:V beta2=gate",
        claim=claim_order,
        subject=order_difference,
        ring=[{"K": 2, "V": 2}, {"K": 3, "V": 1}],
        real=[{"K": 4, "V": 3}],
        mutants=[
            Mutant("order does not count", lambda a, v_a, beta_a, b, v_b, beta_b: rules.outer(v_a, a) * 0),
            Mutant("the sign", lambda a, v_a, beta_a, b, v_b, beta_b: order_difference(b, v_b, beta_b, a, v_a, beta_a)),
            Mutant(
                "values not crossed",
                lambda a, v_a, beta_a, b, v_b, beta_b: order_difference(a, v_b, beta_a, b, v_a, beta_b),
            ),
            Mutant(
                "without the overlap",
                lambda a, v_a, beta_a, b, v_b, beta_b: (rules.outer(v_b, a) - rules.outer(v_a, b)) * beta_a * beta_b,
            ),
        ],
    ),
]

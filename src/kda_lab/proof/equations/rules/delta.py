"""DeltaNet: one token corrects what its key holds. What it does to that key, to other keys, and to the order of
tokens.
"""

import torch

from kda_lab import rules
from kda_lab.algebra import affine, chunk
from kda_lab.proof.engines import Ring, run_claim, stack
from kda_lab.proof.equations.common import affine_step, agree, normal, read, require, token_by_token
from kda_lab.proof.registry import Check, Equation, Mutant, polynomial, variant, wrong
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


def write_across(S):
    """A key at right angles to what the state of one value row holds (K = 2).   S: [1, 2]   returns [2].

    >>> import numpy as np
    >>> write_across(np.array([[3, 4]])).astype(int).tolist()
    [-4, 3]
    """
    return stack([-S[0, 1], S[0, 0]])


def claim_pythagoras(x, choose):
    """One step with such a key, beta = 1: |s_t|^2 = |s|^2 + v^2 |k|^2, since nothing is erased."""
    k = choose(x.S)
    S, _ = rules.delta(x.S, k, k, x.v, 1)
    yield (S * S).sum(), (x.S * x.S).sum() + x.v[0] * x.v[0] * (k @ k)


def prove_growth(choose):
    run_claim(Ring(), "S:V,K v:V", {"V": 1, "K": 2}, claim_pythagoras, choose)


def check_growth(choose):
    """Unit keys, unit values, beta = 1, no decay: after t writes |s|^2 = t. Every transition is a contraction."""
    S = torch.tensor([[0.6, 0.8]], dtype=torch.float64)
    for t in range(2, 200):
        k = choose(S)
        k = k / k.norm()
        S, _ = rules.delta(S, k, k, torch.ones(1, dtype=torch.float64), 1.0)
        agree(
            S.square().sum(), torch.tensor(float(t), dtype=torch.float64), f"after {t} writes", tolerance=1e-11
        )  # 200 roundings
        require(torch.linalg.matrix_norm(affine.transition(k, 1.0, 1.0), 2) <= 1 + 1e-12, "a transition expands")


def state_bound(S, k, v, alpha, beta):
    """|S_t| <= a^t |S_0| + max(beta |v| |k|) / (1 - a), with a the largest decay factor, below 1.   Implements
    state-bound.

    S: [V, K]   k, alpha: [T, K]   v: [T, V]   beta: [T]   returns a scalar.

    >>> one = torch.ones(2, 1)
    >>> state_bound(torch.ones(1, 1), one, one, one / 2, torch.ones(2)).item()     # 1/4 + 1 / (1 - 1/2)
    2.25
    """
    a, write = alpha.max(), (beta * v.norm(dim=-1) * k.norm(dim=-1)).max()
    return a ** len(k) * torch.linalg.matrix_norm(S, 2) + write / (1 - a)


def check_state_bound(bound):
    """Random tokens, and the worst ones: beta |k|^2 = 2 along the slowest channel, values that turn with the state."""
    T = 60
    slow = torch.tensor([0.95, 0.1, 0.1], dtype=torch.float64).expand(T, 3)
    fixed = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64).expand(T, 3)
    turning = torch.tensor([(-1.0) ** t for t in range(T)], dtype=torch.float64)[:, None]
    worst = fixed, turning, slow, torch.full((T,), 2.0, dtype=torch.float64)
    random = (
        normal(T, 3, seed=6),
        normal(T, 2, seed=7),
        0.9 * torch.sigmoid(normal(T, 3, seed=8)),
        normal(T, seed=9).abs(),
    )
    random = (*random[:3], random[3].clamp(max=2 / random[0].square().sum(-1)))
    for name, (k, v, alpha, beta), scale in (
        ("worst", worst, 0.0),
        ("random", random, 1.0),
        ("old state alone", worst, 1e3),
    ):
        S = normal(v.shape[1], 3, seed=10) * scale
        for n in (1, 5, T):
            last, _ = rules.scan(rules.kda, S, k[:n], k[:n], v[:n], alpha[:n], beta[:n])
            size, allowed = torch.linalg.matrix_norm(last, 2), bound(S, k[:n], v[:n], alpha[:n], beta[:n])
            require(size <= allowed * (1 + 1e-12), f"{name}: norm {size:.3g} above {allowed:.3g} after {n} tokens")
            if name == "worst" and n == T:
                require(size > 0.9 * allowed, f"the worst case reaches {size:.3g} of {allowed:.3g} only")


def wy_factor(K, beta):
    """W = (I + tril(B K K^T, -1))^-1 B K: the product of I - beta_t k_t k_t^T is I - W^T K.   Implements wy-form.

    K: [C, K]   beta: [C]   returns [C, K].

    >>> import numpy as np
    >>> wy_factor(np.array([[1, 0], [1, 1]]), np.array([1, 1]))
    array([[1, 0],
           [0, 1]])
    """
    empty = K[:1] * 0
    return chunk.delta(empty, K, K, K[:, :1] * 0, beta).W


def claim_wy(x, factor):
    product = affine.eye(x.k[0])
    for k, beta in zip(x.k, x.beta):
        product = product @ (affine.eye(k) - rules.outer(k, k) * beta)
    yield affine.eye(x.k[0]) - factor(x.k, x.beta).T @ x.k, product


def wy_step(sign):
    """(I - W^T K)(I - beta k k^T) = I - W^T K - w k^T with w = beta (k - W^T K k)."""
    Wt, K, k, kt = words("Wt K k kt")
    (beta,) = scalars("beta")
    old = 1 - Wt * K
    w = beta * (k + sign * Wt * K * k)
    same_words(old - beta * old * k * kt, 1 - Wt * K - w * kt)


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
    Equation(
        "unbounded-growth",
        "Contracting transitions do not bound the state: writes at right angles to it give |s_t|^2 = t.",
        "follows from delta-recurrence",
        "proved",
        Check("ring", "one step, V=1 K=2", prove_growth),
        Check("float64", "200 writes", check_growth),
        write_across,
        (
            Mutant("the key that the state holds", lambda S: S[0] * 1),
            Mutant("a fixed key", lambda S: stack([S[0, 0] * 0 + 1, S[0, 0] * 0])),
            Mutant("mirrored instead of turned", lambda S: stack([S[0, 1], S[0, 0]])),
        ),
    ),
    Equation(
        "state-bound",
        "With decay factors at most a < 1, |S_t| <= a^t |S_0| + max(beta |v| |k|)/(1 - a).",
        "follows from transition-norm",
        "checked",
        Check("float64", "60 tokens, random and worst case", check_state_bound),
        None,
        state_bound,
        (
            Mutant("the mean decay", lambda S, k, v, alpha, beta: state_bound(S, k, v, alpha.mean()[None], beta)),
            Mutant("forgets S_0", lambda S, k, v, alpha, beta: state_bound(S * 0, k, v, alpha, beta)),
            Mutant(
                "one write",
                lambda S, k, v, alpha, beta: (
                    state_bound(S, k, v, alpha, beta) - state_bound(S * 0, k, v, alpha, beta) * alpha.max()
                ),
            ),
            Mutant("beta left out", lambda S, k, v, alpha, beta: state_bound(S, k, v, alpha, beta.clamp(max=1.0))),
        ),
    ),
    polynomial(
        "wy-form",
        "A product of I - beta k k^T is I - W^T K: one thin correction for any number of tokens.",
        "Bischof and Van Loan (1987); Yang et al. (2024)",
        shapes="k:C,K beta:C=gate",
        claim=claim_wy,
        subject=wy_factor,
        ring=[{"C": 3, "K": 2}, {"C": 4, "K": 2}],
        field_sizes=[{"C": 32, "K": 6}],
        real=[{"C": 9, "K": 4}],
        mutants=[
            Mutant("not solved: W = B K", lambda K, beta: K * beta[:, None]),
            Mutant(
                "first order of the solve",
                lambda K, beta: K * beta[:, None] - chunk.tril(K @ K.T, -1) * beta[:, None] @ (K * beta[:, None]),
            ),
            Mutant(
                "the wrong sign in the solve",
                variant(
                    wy_factor,
                    ("chunk.delta(", "minus("),
                    minus=variant(chunk.delta, ("substitution(A)", "substitution(-A)")),
                ),
            ),
            Mutant(
                "descending order", lambda K, beta: stack([*wy_factor(stack([*K][::-1]), stack([*beta][::-1]))][::-1])
            ),
        ],
    ),
    Equation(
        "wy-form-step",
        "If I - W^T K is the product for C tokens, the same form holds for C + 1.",
        DELTA,
        "proved",
        Check("words", "one more token, all sizes", wy_step),
        None,
        -1,
        (Mutant("the sign of the correction", +1),),
    ),
]

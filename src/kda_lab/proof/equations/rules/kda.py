"""Gated DeltaNet and Kimi Delta Attention: one token in four ways, and what they contain."""

from kda_lab import rules
from kda_lab.algebra import affine
from kda_lab.proof.engines import stack
from kda_lab.proof.equations.common import KDA_TOKENS, affine_step, read
from kda_lab.proof.equations.rules.tokens import REAL, recurrence
from kda_lab.proof.registry import Check, Equation, Mutant, polynomial, wrong
from kda_lab.proof.words import same_words, scalars, words

KIMI = "Kimi Linear (2025), section 3"
GDN = "Yang et al. (2024), Gated Delta Networks"


def gdn_by_entries(S, q, k, v, alpha, beta):
    """alpha S (I - beta k k^T) + beta v k^T, read with q after the write."""
    S = affine_step(S, lambda e, c: alpha * (int(e == c) - k[e] * k[c] * beta), lambda r, c: v[r] * k[c] * beta)
    return S, read(S, q)


def kda_by_entries(S, q, k, v, alpha, beta):
    """S Diag(alpha) (I - beta k k^T) + beta v k^T, read with q after the write."""
    S = affine_step(S, lambda e, c: alpha[e] * (int(e == c) - k[e] * k[c] * beta), lambda r, c: v[r] * k[c] * beta)
    return S, read(S, q)


def forms(S, k, v, alpha, beta):
    """Four ways to write one step: residual, transition, transition multiplied out, erase from the undecayed state.

    S: [V, K]   k, alpha: [K]   v: [V]   beta: scalar   returns four states [V, K].   Implements kda-forms.

    >>> import numpy as np
    >>> [S.tolist() for S in forms(np.array([[4, 8]]), np.array([1, 0]), np.array([6]), np.array([2, 3]), 1)]
    [[[6, 24]], [[6, 24]], [[6, 24]], [[6, 24]]]
    """
    D = affine.eye(k) * alpha  # Diag(alpha)
    decayed = S @ D
    return (
        decayed + rules.outer((v - decayed @ k) * beta, k),
        S @ D @ (affine.eye(k) - rules.outer(k, k) * beta) + rules.outer(v, k) * beta,
        S @ (D - rules.outer(alpha * k, k) * beta) + rules.outer(v, k) * beta,
        decayed + rules.outer(v, k) * beta - rules.outer(S @ (alpha * k), k) * beta,
    )


def claim_forms(x, forms):
    S, _ = rules.kda(x.S, x.k, x.k, x.v, x.alpha, x.beta)
    for form in forms(x.S, x.k, x.v, x.alpha, x.beta):
        yield form, S


def prove_forms_in_words(transition):
    """S D (I - beta k k^T) + beta v k^T, the residual form and the form with D k, for every size."""
    S, D, k, kt, v = words("S D k kt v")
    (beta,) = scalars("beta")
    step = S * transition(D, k, kt, beta) + beta * v * kt
    same_words(step, S * D + beta * (v - S * D * k) * kt)
    same_words(step, S * (D - beta * (D * k) * kt) + beta * v * kt)


def read_any(S, k, v, alpha, beta, q):
    """What query q returns after a step: S (alpha . q) + beta (v - S (alpha . k)) (k . q).   Implements kda-read-back.

    >>> import numpy as np
    >>> e1, e2 = np.eye(2, dtype=int)
    >>> read_any(np.array([[4, 8]]), e1, np.array([6]), np.array([2, 3]), 1, e2)
    array([24])
    """
    return S @ (alpha * q) + (v - S @ (alpha * k)) * (k @ q) * beta


def claim_read_back(x, reading):
    _S, o = rules.kda(x.S, x.q, x.k, x.v, x.alpha, x.beta)
    yield o, reading(x.S, x.k, x.v, x.alpha, x.beta, x.q)
    share = x.k @ x.k * x.beta
    yield reading(x.S, x.k, x.v, x.alpha, x.beta, x.k), x.S @ (x.alpha * x.k) * (1 - share) + x.v * share
    across = stack([x.k[1], -x.k[0]])  # K = 2: at a right angle to k, where only the decay acts
    yield reading(x.S, x.k, x.v, x.alpha, x.beta, across), x.S @ (x.alpha * across)


def claim_uniform(x, rule):
    """One decay for all channels: Gated DeltaNet. No decay: DeltaNet."""
    for t in range(len(x.k)):
        token = x.q[t], x.k[t], x.v[t]
        gated = rules.gated_delta(x.S, *token, x.alpha[t, 0], x.beta[t])
        plain = rules.delta(x.S, *token, x.beta[t])
        for got, wanted in zip(rule(x.S, *token, x.alpha[t] * 0 + x.alpha[t, 0], x.beta[t]), gated):
            yield got, wanted
        for got, wanted in zip(rule(x.S, *token, x.alpha[t] * 0 + 1, x.beta[t]), plain):
            yield got, wanted
        for got, wanted in zip(rules.gated_delta(x.S, *token, 1, x.beta[t]), plain):
            yield got, wanted


def claim_decay_only(x, rule):
    """beta = 0, or a zero key: the step is the decay alone."""
    for t in range(len(x.k)):
        for key, beta in ((x.k[t], 0), (x.k[t] * 0, x.beta[t])):
            S, o = rule(x.S, x.q[t], key, x.v[t], x.alpha[t], beta)
            yield S, x.S * x.alpha[t]
            yield o, (x.S * x.alpha[t]) @ x.q[t]


def erased(S, k, alpha):
    """KDA with beta = 1 minus GLA: -S (alpha . k) k^T, what the key held. GLA is no special case of KDA.

    Implements gla-is-not-kda.

    >>> import numpy as np
    >>> erased(np.array([[4, 8]]), np.array([1, 0]), np.array([2, 3]))
    array([[-8,  0]])
    """
    return -rules.outer(S @ (alpha * k), k)


def claim_gla_differs(x, erased):
    full, _ = rules.kda(x.S, x.k, x.k, x.v, x.alpha, 1)
    add, _ = rules.gla(x.S, x.k, x.k, x.v, x.alpha)
    yield full - add, erased(x.S, x.k, x.alpha)


_DECAY = "    S = S * alpha  # column c decays by alpha_c\n"
_R = "r = (v - S @ k) * beta"
_WRITE = "    S = S + outer(r, k)\n"
_LATE = "    S = (S + outer(r, k)) * alpha\n"
KDA_MUTANTS = (
    wrong(rules.kda, "reads before the decay", (_DECAY, ""), (_WRITE, "    S = S * alpha + outer(r, k)\n")),
    wrong(rules.kda, "decays after the write", (_DECAY, ""), (_WRITE, _LATE)),
    wrong(rules.kda, "decays rows, not columns", ("S * alpha", "S * alpha[:, None]")),
    wrong(rules.kda, "one decay for all channels", ("S * alpha", "S * alpha[0]")),
    wrong(rules.kda, "no erase", (_R, "r = v * beta")),
    wrong(rules.kda, "erases the sum", (_R, "r = (v + S @ k) * beta")),
    wrong(rules.kda, "beta on the write only", (_R, "r = v * beta - S @ k")),
    wrong(rules.kda, "beta on the erase only", (_R, "r = v - S @ k * beta")),
    wrong(rules.kda, "transposed write", ("outer(r, k)", "outer(k, r)")),
    wrong(
        rules.kda, "reads out before the write", (_WRITE + "    return S, S @ q", "    return S + outer(r, k), S @ q")
    ),
    wrong(rules.kda, "reads with the key", ("S @ q", "S @ k")),
)
_GATED = "    S = S * alpha\n    return delta(S, q, k, v, beta)"

EQUATIONS = [
    recurrence(
        "gdn-recurrence",
        "Gated DeltaNet decays the whole state by one factor, then applies the delta rule.",
        GDN,
        "alpha:C=decay beta:C=gate",
        gdn_by_entries,
        rules.gated_delta,
        [
            wrong(rules.gated_delta, "no decay", ("S = S * alpha", "S = S * 1")),
            wrong(
                rules.gated_delta,
                "reads before the decay",
                (_GATED, "    S2, _ = delta(S, q, k, v, beta)\n    S2 = S2 - S + S * alpha\n    return S2, S2 @ q"),
            ),
            wrong(
                rules.gated_delta,
                "decays after the write",
                (_GATED, "    S, _ = delta(S, q, k, v, beta)\n    return S * alpha, S @ q * alpha"),
            ),
            wrong(
                rules.gated_delta,
                "the decay is in beta too",
                ("return delta(S, q, k, v, beta)", "return delta(S, q, k, v, beta * alpha)"),
            ),
        ],
        field_sizes=[{"C": 24, "K": 5, "V": 3}],
    ),
    recurrence(
        "kda-recurrence",
        "Kimi Delta Attention: decay each channel, read, correct, write, read out.",
        KIMI,
        "alpha:C,K=decay beta:C=gate",
        kda_by_entries,
        rules.kda,
        KDA_MUTANTS,
        ring=[{"C": 3, "K": 2, "V": 2}, {"C": 2, "K": 3, "V": 2}],
        field_sizes=[{"C": 24, "K": 5, "V": 3}],
    ),
    polynomial(
        "kda-forms",
        "Four ways to write one step of KDA are the same step.",
        KIMI,
        shapes="S:V,K k:K v:V alpha:K=decay beta=gate",
        claim=claim_forms,
        subject=forms,
        ring=[{"K": 3, "V": 2}],
        field_sizes=[{"K": 16, "V": 4}],
        real=[{"K": 4, "V": 3}],
        mutants=[
            wrong(
                forms,
                "the factors of T swapped",
                (
                    "S @ D @ (affine.eye(k) - rules.outer(k, k) * beta)",
                    "S @ (affine.eye(k) - rules.outer(k, k) * beta) @ D",
                ),
            ),
            wrong(
                forms,
                "the erase row decays, not the erase column",
                ("rules.outer(alpha * k, k) * beta", "rules.outer(k, alpha * k) * beta"),
            ),
            wrong(forms, "erases what the undecayed state returns", ("S @ (alpha * k)", "S @ k")),
            wrong(forms, "the residual of the undecayed state", ("v - decayed @ k", "v - S @ k")),
        ],
    ),
    Equation(
        "kda-transition-words",
        "S D (I - beta k k^T) + beta v k^T = S D + beta (v - S D k) k^T, with any matrix D.",
        KIMI,
        "proved",
        Check("words", "one token, all sizes", prove_forms_in_words),
        None,
        lambda D, k, kt, beta: D * (1 - beta * k * kt),
        (
            Mutant("the factors of T swapped", lambda D, k, kt, beta: (1 - beta * k * kt) * D),
            Mutant("the sign", lambda D, k, kt, beta: D * (1 + beta * k * kt)),
            Mutant("the erase does not decay", lambda D, k, kt, beta: D - beta * k * kt),
        ),
    ),
    polynomial(
        "kda-read-back",
        "After a step a query returns S (alpha . q) + beta (v - S (alpha . k))(k . q).",
        KIMI,
        shapes="S:V,K q:K k:K v:V alpha:K=decay beta=gate",
        claim=claim_read_back,
        subject=read_any,
        ring=[{"K": 2, "V": 2}],
        real=[{"K": 2, "V": 3}],
        mutants=[
            wrong(read_any, "a query at a right angle sees the undecayed state", ("S @ (alpha * q)", "S @ q")),
            wrong(read_any, "the residual of the undecayed state", ("S @ (alpha * k)", "S @ k")),
            wrong(read_any, "without beta", (" * beta", "")),
            wrong(read_any, "no overlap", ("(v - S @ (alpha * k)) * (k @ q)", "(v - S @ (alpha * k))")),
        ],
    ),
    polynomial(
        "kda-contains-gdn",
        "KDA with one decay for all channels is Gated DeltaNet; with no decay both are DeltaNet.",
        KIMI,
        shapes=KDA_TOKENS,
        claim=claim_uniform,
        subject=rules.kda,
        ring=[{"C": 2, "K": 2, "V": 2}],
        real=REAL,
        mutants=[m for m in KDA_MUTANTS if m.name not in ("decays rows, not columns", "one decay for all channels")],
    ),
    polynomial(
        "kda-decay-only",
        "With beta = 0, or a zero key, a step of KDA is its decay.",
        KIMI,
        shapes=KDA_TOKENS,
        claim=claim_decay_only,
        subject=rules.kda,
        ring=[{"C": 2, "K": 2, "V": 2}],
        real=REAL,
        mutants=[
            m for m in KDA_MUTANTS if m.name.startswith(("decays rows", "one decay", "beta on", "reads with the key"))
        ],
    ),
    polynomial(
        "gla-is-not-kda",
        "KDA with beta = 1 differs from GLA by the erase, -S (alpha . k) k^T: adding is no special case of correcting.",
        KIMI,
        shapes="S:V,K k:K v:V alpha:K=decay",
        claim=claim_gla_differs,
        subject=erased,
        ring=[{"K": 3, "V": 2}],
        real=[{"K": 4, "V": 3}],
        mutants=[
            Mutant("no difference", lambda S, k, alpha: S * 0),
            wrong(erased, "the undecayed state", ("alpha * k", "k")),
            wrong(erased, "the sign", ("-rules", "rules")),
        ],
    ),
]

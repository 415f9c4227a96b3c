"""Gated DeltaNet and Kimi Delta Attention: one token in four ways, what they contain, and which gates keep one
inverse.
"""

import numpy as np
import sympy
import torch

from kda_lab import rules
from kda_lab.algebra import affine, chunk
from kda_lab.proof.engines import stack
from kda_lab.proof.equations.common import affine_step, agree, normal, read, require, token_by_token
from kda_lab.proof.registry import Check, Equation, Mutant, polynomial, wrong
from kda_lab.proof.words import same_words, scalars, words

KIMI = "Kimi Linear (2025), section 3"
GDN = "Yang et al. (2024), Gated Delta Networks"
TOKENS = "S:V,K q:C,K k:C,K v:C,V alpha:C,K beta:C"
REAL = [{"C": 7, "K": 3, "V": 3}, {"C": 9, "K": 4, "V": 3}]  # K = V first: there a transposed state type-checks


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


def gates_that_multiply(row, V):
    """All gates A [V, K] and matrices M [K, K] with S . A = S M for every S: rows of A equal, M diagonal.

    row: the first row of A   returns (A, M) as SymPy matrices.   Implements element-gate.

    >>> gates_that_multiply([2, 3], 2)
    (Matrix([
    [2, 3],
    [2, 3]]), Matrix([
    [2, 0],
    [0, 3]]))
    """
    return sympy.Matrix([list(row)] * V), sympy.diag(*row)


def prove_element_gate(claimed):
    """Comparing the coefficient of every S_rc: a linear system in M and the other rows of A, solved by SymPy."""
    for V, K in ((2, 2), (2, 3), (3, 2)):
        A, M, S = (
            sympy.Matrix(rows, columns, sympy.symbols(f"{name}:{rows * columns}"))
            for name, rows, columns in (("a", V, K), ("m", K, K), ("s", V, K))
        )
        equations = {c for e in A.multiply_elementwise(S) - S * M for c in sympy.Poly(e, *S).coeffs()}
        (solution,) = sympy.solve(equations, [*M, *A[K:]], dict=True)
        gate, matrix = claimed(A[:K], V)
        require(A.subs(solution) == gate and M.subs(solution) == matrix, f"V = {V}, K = {K}: another solution set")


def check_element_gate(claimed):
    S, row = normal(3, 4, seed=1), normal(4, seed=2).abs()
    gate, M = (torch.tensor(np.array(m.tolist(), dtype=float)) for m in claimed(row.tolist(), 3))
    agree(S * gate, S @ M, "gate and matrix")
    require(torch.linalg.matrix_rank(gate) == 1, "rows differ")


def row_by_row(S, Q, K, V, alpha, beta):
    """A chunk whose gate differs between value rows: each row is a KDA of its own, with scores and inverse of its own.

    S: [V, K]   Q, K: [C, K]   V: [C, V]   alpha: [C, V, K]   beta: [C]   returns S [V, K], O [C, V].
    Implements element-gate-rows.

    >>> import numpy as np
    >>> one = np.ones((1, 1), int)
    >>> row_by_row(np.array([[4], [4]]), one, one, np.array([[6, 6]]), np.array([[[2], [3]]]), np.array([0]))[0].T
    array([[8, 12]], dtype=object)
    """
    rows = [chunk.kda(S[r : r + 1], Q, K, V[:, r : r + 1], alpha[:, r], beta) for r in range(len(S))]
    return stack([t.S[0] for t in rows]), stack([t.O[:, 0] for t in rows]).T


def claim_row_by_row(x, chunked):
    S, rows = rules.scan(rules.kda, x.S, x.q, x.k, x.v, x.alpha, x.beta)  # alpha_t [V, K] multiplies entry by entry
    last, O = chunked(x.S, x.q, x.k, x.v, x.alpha, x.beta)
    yield last, S
    yield O, stack(rows)


def rank_one_gate(S, Q, K, V, alpha, a, beta):
    """Gates a_t alpha_t^T keep one inverse: divide the values by the running product of a, and multiply the results.

    S: [V, K]   Q, K, alpha: [C, K]   V, a: [C, V]   beta: [C]   returns S [V, K], O [C, V].   Implements rank-one-gate.

    >>> import numpy as np
    >>> one = np.ones((1, 1))
    >>> rank_one_gate(np.array([[4.0], [4.0]]), one, one, np.array([[6.0, 6.0]]), one * 3, np.array([[1.0, 0.5]]),
    ...     np.zeros(1))[0].T
    array([[12.,  6.]])
    """
    product = chunk.decay_from_start(a)  # [C, V]
    terms = chunk.kda(S, Q, K, V / product, alpha, beta)
    return terms.S * product[-1][:, None], terms.O * product


def claim_rank_one(x, chunked):
    gates = x.a_[:, :, None] * x.alpha[:, None, :]  # [C, V, K]
    S, rows = rules.scan(rules.kda, x.S, x.q, x.k, x.v, gates, x.beta)
    last, O = chunked(x.S, x.q, x.k, x.v, x.alpha, x.a_, x.beta)
    yield last, S
    yield O, stack(rows)
    shared = chunk.kda(x.S, x.q, x.k, x.v, x.alpha, x.beta)
    for r in range(len(x.S)):  # the row's scores and inverse are the shared ones between two diagonals
        own = chunk.kda(x.S, x.q, x.k, x.v, gates[:, r], x.beta)
        G = chunk.decay_from_start(x.a_[:, r])
        yield own.A, shared.A * G[:, None] / G[None, :]
        yield own.R, shared.R * G[:, None] / G[None, :]


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
    polynomial(
        "gdn-recurrence",
        "Gated DeltaNet decays the whole state by one factor, then applies the delta rule.",
        GDN,
        shapes="S:V,K q:C,K k:C,K v:C,V alpha:C beta:C",
        claim=token_by_token(gdn_by_entries, "q", "k", "v", "alpha", "beta"),
        subject=rules.gated_delta,
        ring=[{"C": 3, "K": 2, "V": 2}],
        field_sizes=[{"C": 24, "K": 5, "V": 3}],
        real=REAL,
        mutants=[
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
    ),
    polynomial(
        "kda-recurrence",
        "Kimi Delta Attention: decay each channel, read, correct, write, read out.",
        KIMI,
        shapes=TOKENS,
        claim=token_by_token(kda_by_entries, "q", "k", "v", "alpha", "beta"),
        subject=rules.kda,
        ring=[{"C": 3, "K": 2, "V": 2}, {"C": 2, "K": 3, "V": 2}],
        field_sizes=[{"C": 24, "K": 5, "V": 3}],
        real=REAL,
        mutants=KDA_MUTANTS,
    ),
    polynomial(
        "kda-forms",
        "Four ways to write one step of KDA are the same step.",
        KIMI,
        shapes="S:V,K k:K v:V alpha:K beta:",
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
        shapes="S:V,K q:K k:K v:V alpha:K beta:",
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
        shapes=TOKENS,
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
        shapes=TOKENS,
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
        shapes="S:V,K k:K v:V alpha:K",
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
    Equation(
        "element-gate",
        "A gate on every entry is a product S M for all S exactly if its rows are equal; then M is their diagonal.",
        "linear algebra",
        "proved",
        Check("calculus", "V x K = 2x2, 2x3, 3x2", prove_element_gate),
        Check("float64", "V=3 K=4", check_element_gate),
        gates_that_multiply,
        (
            Mutant(
                "any gate, by its first row",
                lambda row, V: (sympy.Matrix(V, len(row), lambda r, c: row[c] * (r + 1)), sympy.diag(*row)),
            ),
            Mutant(
                "columns equal instead of rows",
                lambda row, V: (sympy.Matrix(V, len(row), lambda r, c: row[min(r, len(row) - 1)]), sympy.diag(*row)),
            ),
            Mutant("M full", lambda row, V: (sympy.Matrix([list(row)] * V), sympy.Matrix([list(row)] * len(row)))),
            Mutant(
                "one number for all", lambda row, V: (sympy.ones(V, len(row)) * row[0], sympy.eye(len(row)) * row[0])
            ),
        ),
    ),
    polynomial(
        "element-gate-rows",
        "With a gate of its own for each value row, each row needs its own triangular inverse.",
        "follows from element-gate",
        shapes="S:V,K q:C,K k:C,K v:C,V alpha:C,V,K beta:C",
        claim=claim_row_by_row,
        subject=row_by_row,
        ring=[{"C": 3, "K": 2, "V": 2}],
        field_sizes=[{"C": 12, "K": 3, "V": 3}],
        real=[{"C": 7, "K": 4, "V": 3}],
        mutants=[
            wrong(row_by_row, "the first row's gates for all", ("alpha[:, r]", "alpha[:, 0]")),
            Mutant(
                "the gates' mean over rows",
                lambda S, Q, K, V, alpha, beta: row_by_row(
                    S, Q, K, V, alpha * 0 + alpha.sum(1)[:, None] / len(S), beta
                ),
            ),
            wrong(row_by_row, "the last row's state", ("S[r : r + 1]", "S[-1:]")),
        ],
    ),
    polynomial(
        "rank-one-gate",
        "Gates of rank one, a_t alpha_t^T, share one inverse: scale the values before and the results after.",
        "follows from element-gate-rows",
        shapes=TOKENS + " a_:C,V",
        claim=claim_rank_one,
        subject=rank_one_gate,
        field_sizes=[{"C": 4, "K": 2, "V": 2}, {"C": 16, "K": 4, "V": 3}],
        real=[{"C": 7, "K": 4, "V": 3}],
        mutants=[
            wrong(rank_one_gate, "values not divided", ("V / product", "V")),
            wrong(rank_one_gate, "results not multiplied", ("terms.O * product", "terms.O")),
            wrong(rank_one_gate, "gates of single tokens", ("chunk.decay_from_start(a)", "a")),
            wrong(rank_one_gate, "the state is not scaled", (" * product[-1][:, None]", "")),
        ],
    ),
]

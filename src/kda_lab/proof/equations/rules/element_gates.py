"""A gate on every entry of the state: which are a product, and which keep one inverse for a chunk."""

import numpy as np
import sympy
import torch

from kda_lab import rules
from kda_lab.algebra import chunk
from kda_lab.proof.engines import stack
from kda_lab.proof.equations.common import KDA_TOKENS, agree, normal, require
from kda_lab.proof.registry import Check, Equation, Mutant, polynomial, wrong


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
    gates = x.a[:, :, None] * x.alpha[:, None, :]  # [C, V, K]
    S, rows = rules.scan(rules.kda, x.S, x.q, x.k, x.v, gates, x.beta)
    last, O = chunked(x.S, x.q, x.k, x.v, x.alpha, x.a, x.beta)
    yield last, S
    yield O, stack(rows)
    shared = chunk.kda(x.S, x.q, x.k, x.v, x.alpha, x.beta)
    for r in range(len(x.S)):  # the row's scores and inverse are the shared ones between two diagonals
        own = chunk.kda(x.S, x.q, x.k, x.v, gates[:, r], x.beta)
        G = chunk.decay_from_start(x.a[:, r])
        yield own.A, shared.A * G[:, None] / G[None, :]
        yield own.R, shared.R * G[:, None] / G[None, :]


EQUATIONS = [
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
        shapes="S:V,K q:C,K k:C,K v:C,V alpha:C,V,K=decay beta:C=gate",
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
        shapes=KDA_TOKENS + " a:C,V=decay",
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

"""The four small factors of a chunk: one solve by rows, with norms and decays folded in."""

from kda_lab import rules
from kda_lab.algebra import chunk, chunk_fused, triangular
from kda_lab.algebra.chunk_fused import Units, factors, folded_decays, solve_rows
from kda_lab.proof.engines import stack
from kda_lab.proof.equations.chunk.fused.common import DERIVED, FIELD, KIMI, REAL, UNITS, mutants
from kda_lab.proof.registry import polynomial, wrong

FACTORS = "q:C,K kr:C,K A:C,C M:C,C beta:C=gate kf:C qf:C alpha:K=decay"


def claim_rows(x, solve_rows):
    """y (I + c A) = -H, column by column: row i of A enters with c_i. What stands above the diagonal of A is not looked
    at.
    """
    y = solve_rows(x.A, x.H, x.c)
    yield y + (y * x.c[None, :]) @ chunk.tril(x.A, -1), x.H * (-1)


def claim_factors(x, factors):
    """The plain chunk form of normalised keys and queries, with its inverse by rows; then the decays of the old
    state.
    """
    M = chunk.tril(x.M)
    f = factors(Units(x.q, x.kr, None, x.A, M, None, None, None), x.beta, x.kf, x.qf, x.alpha)
    read, q = x.kr * x.kf[:, None], x.q * x.qf[:, None]
    R = triangular.substitution(chunk.tril(x.A, -1) * (x.beta * x.kf)[:, None] * x.kf[None, :])
    M = M * x.qf[:, None] * x.kf[None, :]  # [C, C] scores of the residuals
    E, W = R * x.beta[None, :], R @ (read * x.beta[:, None])
    yield f.T, E * x.kf[:, None]
    yield f.M, M @ E
    yield f.W, W * x.kf[:, None] * x.alpha
    yield f.Q, (q - M @ W) * x.alpha


def claim_decays(x, folded_decays):
    """The state as the chunk before leaves it, S, and as it is at this chunk's start, S Diag(before)."""
    expG = chunk.decay_from_start(x.alpha)
    for units in (chunk_fused.middle_units, chunk_fused.edge_units):
        m = units(x.q, x.k, x.alpha)
        fold, keep = folded_decays(m, x.alpha2)
        yield (m.read * fold) @ x.S.T, (x.k * expG) @ (x.S * x.alpha2).T
        yield (m.Q * fold) @ x.S.T, (x.q * expG) @ (x.S * x.alpha2).T
        # written in the same units as the keys, so that one exit leads both to the end
        yield (
            (x.S * keep + x.S[:, :1] * m.write[0]) * m.exit,
            x.S * x.alpha2 * expG[-1] + x.S[:, :1] * (x.k * chunk.decay_to_end(x.alpha))[0],
        )


def two_keys(S, tokens):
    """The delta rule with a read key and a write key, token by token -> S, rows of U (divided by the norm) and O."""
    U, O = [], []
    for q, read, write, v, beta, kf, qf in zip(*tokens):
        u = (v - S @ read * kf) * (beta * kf)
        S = S + rules.outer(u, write)
        U.append(u)
        O.append(S @ q * qf)
    return S, stack(U), stack(O)


_SOLVE = "y[:, j] = y[:, j] - z * A[last, j]"

EQUATIONS = [
    polynomial(
        "row-solve",
        "Rows y (Diag(1/c) + A) c = -H come out in one pass from the last column; no row reads another.",
        "forward substitution, transposed",
        shapes="A:C,C H:n,C c:C",
        claim=claim_rows,
        subject=solve_rows,
        ring=[{"C": 4, "n": 1}],
        field_sizes=[{"C": 16, "n": 3}],
        real=[{"C": 6, "n": 3}],
        mutants=[
            *mutants(
                solve_rows,
                ("A transposed", _SOLVE, _SOLVE.replace("A[last, j]", "A[j, last]")),
                ("added instead of taken off", _SOLVE, _SOLVE.replace("- z", "+ z")),
                ("c left out", "y[:, last] * c[last]", "y[:, last] * 1"),
                ("first to last", "range(len(c) - 1, -1, -1)", "range(len(c))"),
                ("without the sign", "H * (-1)", "H * 1"),
                ("all from the right hand side", "z = y[:, last]", "z = H[:, last] * (-1)"),
            ),
            wrong(
                solve_rows,
                "c of the other column",
                ("z = y[:, last] * c[last]", "z = y[:, last]"),
                ("- z * A", "- z * c[j] * A"),
            ),
        ],
    ),
    polynomial(
        "folded-decays",
        "S stays in the units of the chunk before: its decays up to this chunk's reading fold into [-W; Q], and S "
        "decays beside that product.",
        DERIVED,
        shapes=f"S:V,K {UNITS} alpha2:K=decay",
        claim=claim_decays,
        subject=folded_decays,
        field_sizes=FIELD,
        real=REAL,
        mutants=mutants(
            folded_decays,
            ("the exit of the chunk before forgotten", "before * units.to_read", "units.to_read"),
            ("this chunk's entry forgotten", "before * units.to_read", "before * 1"),
            ("divided by it", "before * units.to_read", "before / units.to_read"),
            ("its exit for its entry", "before * units.to_read", "before * units.exit"),
            ("read where it writes", "return fold, ", "return fold * units.to_write, "),
            ("the state kept where it was read", "fold * units.to_write", "fold"),
            ("the state decays by the entry twice", "fold * units.to_write", "fold * units.to_read"),
            ("the state does not decay", "fold * units.to_write", "before * 0 + 1"),
        ),
    ),
    polynomial(
        "folded-norms",
        "Norms and beta enter through vectors of C: nothing of width K is multiplied by them but the rows of Q.",
        KIMI,
        shapes=FACTORS,
        claim=claim_factors,
        subject=factors,
        ring=[{"C": 3, "K": 1}],
        field_sizes=[{"C": 16, "K": 3}],
        real=[{"C": 6, "K": 3}],
        mutants=mutants(
            factors,
            ("one norm of the key forgotten", "c = b * k_factor", "c = b * 1"),
            ("T with both norms", "Factors(y * b[None, :]", "Factors(y * c[None, :]"),
            ("M with both norms", "x * b[None, :]", "x * c[None, :]"),
            ("queries not scaled beside the correction", "units.Q * q_factor[:, None] + ", "units.Q + "),
            ("scores of the queries not scaled", "units.M * q_factor[:, None]", "units.M * 1"),
            ("W with the other sign", "units.read * (-1)", "units.read"),
            ("the correction of Q with the other sign", " + (x * c", " - (x * c"),
            ("T for M", "solve_rows(units.A, M, c)", "solve_rows(units.A, one, c)"),
            ("the solve with the scores of the queries", "solve_rows(units.A, one, c)", "solve_rows(units.M, one, c)"),
            ("the reads of W undecayed", "W * fold", "W"),
            ("the queries undecayed", "Q * fold", "Q"),
        ),
    ),
]

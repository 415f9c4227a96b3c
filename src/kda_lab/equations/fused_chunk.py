"""The chunk form of the Hopper kernel: middle units, one solve for all rows, norms folded in, U and O out of one accumulator."""

from kda_lab import chunk, chunk_fused, rules, triangular
from kda_lab.proof.engines import stack
from kda_lab.proof.registry import polynomial, wrong

DERIVED = "derived here, from the gauge"
KIMI = "Kimi Linear (2025), section 3; regrouped here"
CHUNK = "S:V,K q:C,K k:C,K v:C,V alpha:C,K beta:C kf:C qf:C"
STEP = "S:V,K read:C,K write:C,K q:C,K v:C,V beta:C kf:C qf:C"
PAIR = f"{STEP} read2:C,K write2:C,K q2:C,K v2:C,V beta2:C kf2:C qf2:C alpha:K"
SMALL = [{"C": 3, "K": 2, "V": 1}]
FIELD = [{"C": 8, "K": 3, "V": 2}, {"C": 16, "K": 4, "V": 2}]
REAL = [{"C": 5, "K": 4, "V": 3}, {"C": 16, "K": 8, "V": 4}]


def claim_middle(x, middle_units):
    """Scores from two factors, and what leads back to the terms of the plain chunk form."""
    m = middle_units(x.q, x.k, x.alpha)
    expG = chunk.decay_from_start(x.alpha)
    yield chunk.tril(m.read @ m.write.T), chunk.decayed_scores(x.k, x.k, x.alpha)
    yield chunk.tril(m.Q @ m.write.T), chunk.decayed_scores(x.q, x.k, x.alpha)
    yield m.read * m.entry, x.k * expG
    yield m.Q * m.entry, x.q * expG
    yield m.write * m.exit, x.k * chunk.decay_to_end(x.alpha)
    yield m.entry * m.exit, expG[-1]
    # the reference lies in the middle: there read and write keys are the key
    yield m.read[(len(x.k) - 1) // 2], x.k[(len(x.k) - 1) // 2]


def claim_rows(x, solve_rows):
    """y (I + c A) = -H, column by column: row i of A enters with c_i."""
    A = chunk.tril(x.A, -1)
    y = solve_rows(A, x.H, x.c)
    yield y + (y * x.c[None, :]) @ A, x.H * (-1)


def claim_factors(x, factors):
    """The plain chunk form of normalised keys and queries, with its inverse by rows."""
    f = factors(chunk_fused.Middle(x.q, x.read, x.write, None, None), x.beta, x.kf, x.qf)
    read, write, q = x.read * x.kf[:, None], x.write * x.kf[:, None], x.q * x.qf[:, None]
    R = triangular.substitution(chunk.tril(read @ write.T, -1) * x.beta[:, None])
    M = chunk.tril(q @ write.T)  # [C, C] scores of the residuals
    E, W = R * x.beta[None, :], R @ (read * x.beta[:, None])
    yield f.T, E * x.kf[:, None]
    yield f.M, M @ E
    yield f.W, W * x.kf[:, None]
    yield f.Q, q - M @ W


def two_keys(S, tokens):
    """The delta rule with a read key and a write key, token by token -> S, rows of U (divided by the norm) and O."""
    U, O = [], []
    for q, read, write, v, beta, kf, qf in zip(*tokens):
        u = (v - S @ read * kf) * (beta * kf)
        S = S + rules.outer(u, write)
        U.append(u)
        O.append(S @ q * qf)
    return S, stack(U), stack(O)


def claim_step(x, step):
    f = chunk_fused.factors(chunk_fused.Middle(x.q, x.read, x.write, None, None), x.beta, x.kf, x.qf)
    for got, wanted in zip(step(x.S, x.v, *f, x.write), two_keys(x.S, (x.q, x.read, x.write, x.v, x.beta, x.kf, x.qf))):
        yield got, wanted


def claim_chunk(x, kda):
    S, O = kda(x.S, x.q, x.k, x.v, x.alpha, x.beta, x.kf, x.qf)
    last, rows = rules.scan(rules.kda, x.S, x.q * x.qf[:, None], x.k * x.kf[:, None], x.v, x.alpha, x.beta)
    yield S, last
    yield O, stack(rows)


def claim_pair(x, pair):
    """Two chunks one after the other, the state scaled in between."""
    tokens = (x.q, x.read, x.write, x.v, x.beta, x.kf, x.qf)
    later = (x.q2, x.read2, x.write2, x.v2, x.beta2, x.kf2, x.qf2)
    a, b = (
        chunk_fused.factors(chunk_fused.Middle(q, read, write, None, None), beta, kf, qf)
        for q, read, write, _, beta, kf, qf in (tokens, later)
    )
    S, Oa, Ob = pair(x.S, x.v, x.v2, a, b, x.write, x.write2, x.alpha)
    middle, _, first = two_keys(x.S, tokens)
    last, _, second = two_keys(middle * x.alpha, later)
    yield Oa, first
    yield Ob, second
    yield S, last


_BACK = "Middle(Q * d, K * d, K / d, middle, expG[-1] / middle)"
_SOLVE = "y[:, j] = y[:, j] - z * A[last, j]"
_STEP = "return S + U.T @ write, U, O"
middle_units, solve_rows, factors, step, kda, pair = (
    chunk_fused.middle_units, chunk_fused.solve_rows, chunk_fused.factors, chunk_fused.step, chunk_fused.kda, chunk_fused.pair,
)  # fmt: skip

EQUATIONS = [
    polynomial(
        "middle-units", "Relative to the middle of a chunk one array of write keys serves scores and update, and exponents reach over half a chunk.", DERIVED,
        shapes="q:C,K k:C,K alpha:C,K", claim=claim_middle, subject=middle_units, field_sizes=FIELD, real=REAL,
        mutants=[
            wrong(middle_units, "read and write keys swapped", (_BACK, "Middle(Q * d, K / d, K * d, middle, expG[-1] / middle)")),
            wrong(middle_units, "write keys not divided", (_BACK, "Middle(Q * d, K * d, K, middle, expG[-1] / middle)")),
            wrong(middle_units, "queries raw", (_BACK, "Middle(Q, K * d, K / d, middle, expG[-1] / middle)")),
            wrong(middle_units, "entry and exit swapped", (_BACK, "Middle(Q * d, K * d, K / d, expG[-1] / middle, middle)")),
            wrong(middle_units, "exit is the whole decay", (_BACK, "Middle(Q * d, K * d, K / d, middle, expG[-1])")),
            wrong(middle_units, "the reference one token late", ("// 2 - 1]", "// 2]")),
            wrong(middle_units, "the reference is the chunk's end", ("expG[(len(alpha) + 1) // 2 - 1]", "expG[-1]")),
        ],
    ),
    polynomial(
        "row-solve", "Rows y (Diag(1/c) + A) c = -H come out in one pass from the last column; no row reads another.", "forward substitution, transposed",
        shapes="A:C,C H:n,C c:C", claim=claim_rows, subject=solve_rows, ring=[{"C": 4, "n": 1}], field_sizes=[{"C": 16, "n": 3}], real=[{"C": 6, "n": 3}],
        mutants=[
            wrong(solve_rows, "A transposed", (_SOLVE, _SOLVE.replace("A[last, j]", "A[j, last]"))),
            wrong(solve_rows, "added instead of taken off", (_SOLVE, _SOLVE.replace("- z", "+ z"))),
            wrong(solve_rows, "c left out", ("y[:, last] * c[last]", "y[:, last] * 1")),
            wrong(solve_rows, "c of the other column", ("z = y[:, last] * c[last]", "z = y[:, last]"), ("- z * A", "- z * c[j] * A")),
            wrong(solve_rows, "first to last", ("range(len(c) - 1, -1, -1)", "range(len(c))")),
            wrong(solve_rows, "without the sign", ("H * (-1)", "H * 1")),
            wrong(solve_rows, "all from the right hand side", ("z = y[:, last]", "z = H[:, last] * (-1)")),
        ],
    ),
    polynomial(
        "folded-norms", "Norms and beta enter through vectors of C: nothing of width K is multiplied by them but the rows of Q.", KIMI,
        shapes="q:C,K read:C,K write:C,K beta:C kf:C qf:C", claim=claim_factors, subject=factors, ring=[{"C": 3, "K": 1}],
        field_sizes=[{"C": 16, "K": 3}], real=[{"C": 6, "K": 3}],
        mutants=[
            wrong(factors, "one norm of the key forgotten", ("c = b * k_factor", "c = b * 1")),
            wrong(factors, "T with both norms", ("Factors(y * b[None, :]", "Factors(y * c[None, :]")),
            wrong(factors, "M with both norms", ("x * b[None, :]", "x * c[None, :]")),
            wrong(factors, "M strictly lower", ("chunk.tril(middle.Q @ middle.write.T)", "chunk.tril(middle.Q @ middle.write.T, -1)")),
            wrong(factors, "queries not scaled beside the correction", ("middle.Q * q_factor[:, None] + ", "middle.Q + ")),
            wrong(factors, "scores of the queries not scaled", ("write.T) * q_factor[:, None]", "write.T) * 1")),
            wrong(factors, "W with the other sign", ("middle.read * (-1)", "middle.read")),
            wrong(factors, "the correction of Q with the other sign", (" + (x * c", " - (x * c")),
            wrong(factors, "W from write keys", ("(y * c[None, :]) @ middle.read", "(y * c[None, :]) @ middle.write")),
        ],
    ),
    polynomial(
        "one-accumulator", "[U; O] = [T; M] V + [-W; Q] S^T: O never waits for U, and a chunk has two dependent products instead of three.", DERIVED,
        shapes=STEP, claim=claim_step, subject=step, ring=SMALL, field_sizes=[{"C": 16, "K": 4, "V": 2}], real=REAL,
        mutants=[
            wrong(step, "U adds the prediction", ("- W @ S.T", "+ W @ S.T")),
            wrong(step, "O reads raw values", ("O = M @ V", "O = V")),
            wrong(step, "O reads the new state", ("O = M @ V + Q @ S.T", "O = M @ V + Q @ (S + U.T @ write).T")),
            wrong(step, "the scores once more on U", ("O = M @ V", "O = M @ U")),
            wrong(step, "the old state forgotten", (_STEP, "return U.T @ write, U, O")),
            wrong(step, "writes the values", (_STEP, "return S + V.T @ write, U, O")),
        ],
    ),
    polynomial(
        "fused-chunk", "The kernel's chunk gives the state and the outputs of the token loop, from raw keys and queries.", KIMI,
        shapes=CHUNK, claim=claim_chunk, subject=kda, field_sizes=FIELD, real=REAL,
        mutants=[
            wrong(kda, "the state enters undecayed", ("step(S * m.entry", "step(S")),
            wrong(kda, "the state leaves undecayed", ("S * m.exit", "S")),
            wrong(kda, "entry and exit swapped", ("S * m.entry", "S * m.exit")),
            wrong(kda, "read keys are written", ("q_factor), m.write)", "q_factor), m.read)")),
            wrong(kda, "T and M swapped", ("*factors(m, beta, k_factor, q_factor)", "*swap(*factors(m, beta, k_factor, q_factor))"), swap=lambda T, M, W, Q: (M, T, W, Q)),
            wrong(kda, "W and Q swapped", ("*factors(m, beta, k_factor, q_factor)", "*swap(*factors(m, beta, k_factor, q_factor))"), swap=lambda T, M, W, Q: (T, M, Q, W)),
        ],
    ),
    polynomial(
        "chunk-pair", "Two chunks read the old state at once; what the first one writes reaches the second by a prepared C x 2C product.", DERIVED,
        shapes=PAIR, claim=claim_pair, subject=pair, ring=[{"C": 2, "K": 1, "V": 1}], field_sizes=[{"C": 4, "K": 3, "V": 2}, {"C": 16, "K": 4, "V": 1}], real=REAL[:1],
        mutants=[
            wrong(pair, "the second chunk misses the first one's writes", (" - (W @ write_a.T) @ Ua", "")),
            wrong(pair, "its outputs miss them", (" + (Q @ write_a.T) @ Ua", "")),
            wrong(pair, "its reads undecayed", ("b.W * between, b.Q * between", "b.W, b.Q")),
            wrong(pair, "the first one's writes stay in its units", ("(write_a * between)", "write_a")),
            wrong(pair, "the second one's writes decay, too", ("Ub.T @ write_b", "Ub.T @ (write_b * between)")),
            wrong(pair, "the old state undecayed", ("return S * between", "return S")),
            wrong(pair, "with the sign of the outputs", ("- (W @ write_a.T)", "+ (W @ write_a.T)")),
        ],
    ),
]  # fmt: skip

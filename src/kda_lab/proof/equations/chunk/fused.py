"""The chunk form of the Hopper kernel: units, one solve for all rows, norms and decays folded in, U and O out of one
accumulator.
"""

import torch

from kda_lab import rules
from kda_lab.algebra import chunk, chunk_fused, triangular
from kda_lab.algebra.chunk_fused import Units
from kda_lab.proof.engines import Ring, run_claim, stack
from kda_lab.proof.equations.common import require
from kda_lab.proof.registry import Check, Equation, Mutant, polynomial, variant, wrong

DERIVED = "derived here, from the gauge"
KIMI = "Kimi Linear (2025), section 3; regrouped here"
UNITS = "q:C,K k:C,K alpha:C,K"
FACTORS = "q:C,K kr:C,K A:C,C M:C,C beta:C kf:C qf:C alpha:K"
STEP = "S:V,K q:C,K kr:C,K kw:C,K v:C,V beta:C kf:C qf:C alpha:K alpha2:K"
TOKENS = "S:V,K q:T,K k:T,K v:T,V alpha:T,K beta:T kf:T qf:T"
FIELD = [{"C": 1, "K": 2, "V": 1}, {"C": 7, "K": 3, "V": 2}, {"C": 16, "K": 4, "V": 2}]
REAL = [{"C": 5, "K": 4, "V": 3}, {"C": 16, "K": 8, "V": 4}]


def claim_units(x, units):
    """Scores out of the units' factors, and what leads back to the terms of the plain chunk form."""
    m = units(x.q, x.k, x.alpha)
    expG = chunk.decay_from_start(x.alpha)
    yield m.A, chunk.decayed_scores(x.k, x.k, x.alpha)
    yield m.M, chunk.decayed_scores(x.q, x.k, x.alpha)
    # what the keys' norms are taken from
    for i in range(len(x.k)):
        yield m.A[i, i], (x.k[i] * x.k[i]).sum()
    yield m.read * m.to_read, x.k * expG
    yield m.Q * m.to_read, x.q * expG
    yield m.write * m.exit, x.k * chunk.decay_to_end(x.alpha)
    yield m.to_read * m.to_write * m.exit, expG[-1]


def claim_middle(x, units):
    yield from claim_units(x, units)
    # the reference lies in the middle: there read and write keys are the key
    m, middle = units(x.q, x.k, x.alpha), (len(x.k) - 1) // 2
    yield m.read[middle], x.k[middle]
    yield m.write[middle], x.k[middle]


def claim_edges(x, units):
    """Also with gates that clear a channel, once in each half and at both ends."""
    yield from claim_units(x, units)
    for token in {0, len(x.k) // 3, len(x.k) - 1}:
        x.alpha[token, 0] = x.alpha[token, 0] * 0
        yield from claim_units(x, units)


def claim_sums(x, gate_sums):
    """Gate by gate: between a token and the middle, without the earlier of the two."""
    d, entry = gate_sums(x.g, x.h)
    g = x.g + x.h
    middle = (len(g) - 1) // 2
    none = g[0] * 0
    yield entry, sum(g[: middle + 1], none)
    for i in range(len(g)):
        yield d[i], sum(g[middle + 1 : i + 1], none) - sum(g[i + 1 : middle + 1], none)


def prove_sums(subject):
    for C in (1, 2, 5, 16):
        run_claim(Ring(), "g:C,K h:C,K", {"C": C, "K": 1}, claim_sums, subject[1])


def check_sums(subject):
    """All that two pieces can lose; then sums of them, next to gates a hundred thousand times stronger."""
    pieces, gate_sums = subject
    # what is lost stands in the last 16 digits, and weighs most behind the smallest leading ones
    digits = torch.arange(1 << 16, dtype=torch.int32)
    for leading in (127 << 7, 127 << 7 | 1, 133 << 7 | 127, 90 << 7):
        g = -(digits + (leading << 16)).view(torch.float32)
        kept = [p.double() for p in pieces(g)]
        require(
            all((p.float().view(torch.int32) & 65535 == 0).all() for p in kept),
            "a piece has more digits than bf16 keeps",
        )
        require(
            ((sum(kept) - g).abs() <= 2.0**-16 * g.abs()).all(), f"pieces lose more than 2^-16 of gates near {g[0]:g}"
        )
    generator = torch.Generator().manual_seed(0)
    for strong in (None, 0, 7, 8, 15):
        g = -0.001 * torch.rand((16, 5), generator=generator)
        if strong is not None:
            g[strong] = -100.0
        for got, exact in zip(gate_sums(*pieces(g)), gate_sums(g.double())):
            # 2^-16 of the pieces and 8 roundings of 2^-24 in a sum of one sign
            require(
                ((got - exact).abs() <= 1.01 * 2.0**-16 * exact.abs()).all(),
                f"token {strong} strong: off by {(got - exact).abs().max():.1e}",
            )
        one = torch.ones_like(g, dtype=torch.float64)
        units = chunk_fused.middle_units(one, one, g.double().exp())
        require(
            torch.allclose(gate_sums(g.double())[0].exp(), units.read, rtol=1e-12),
            "not the exponents of the middle's units",
        )


def prefix_differences(*pieces):
    """Mutant: one prefix sum for all, and differences."""
    G = torch.cumsum(sum(pieces), 0)
    return G - G[(len(G) - 1) // 2], G[(len(G) - 1) // 2]


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


def claim_step(x, step):
    """A state that decays by alpha before it is read, and another time, by a vector of its own, before it is
    written.
    """
    units = Units(x.q, x.kr, x.kw, x.kr @ x.kw.T, chunk.tril(x.q @ x.kw.T), None, None, None)
    f = chunk_fused.factors(units, x.beta, x.kf, x.qf, x.alpha)
    S, U, O = step(x.S, x.v, *f, x.kw, x.alpha * x.alpha2)
    read = x.S * x.alpha
    last, residuals, outputs = two_keys(read, (x.q, x.kr, x.kw, x.v, x.beta, x.kf, x.qf))
    yield U, residuals
    yield O, outputs
    yield S, read * x.alpha2 + (last - read)


def claim_kda(x, kda):
    """Chunks of 3 and of 16, the last one short; the middle's units, the edges', and every change from one to the
    other.
    """
    last, rows = rules.scan(rules.kda, x.S, x.q * x.qf[:, None], x.k * x.kf[:, None], x.v, x.alpha, x.beta)
    for C, edges in ((3, ()), (3, (1,)), (3, (0, 1)), (16, ()), (16, (0,))):
        S, O = kda(x.S, x.q, x.k, x.v, x.alpha, x.beta, x.kf, x.qf, C, edges)
        yield S, last
        yield stack(O), stack(rows)


def mutants(function, *patches):
    """(name, old, new) for each mutant."""
    return [wrong(function, name, (old, new)) for name, old, new in patches]


gate_sums, middle_units, edge_units, half_scores = (
    chunk_fused.gate_sums,
    chunk_fused.middle_units,
    chunk_fused.edge_units,
    chunk_fused.half_scores,
)
solve_rows, folded_decays, factors, step, kda = (
    chunk_fused.solve_rows,
    chunk_fused.folded_decays,
    chunk_fused.factors,
    chunk_fused.step,
    chunk_fused.kda,
)
_KEYS = "Q * d, K * d, K / d"
_EXIT = "middle, middle * 0 + 1, expG[-1] / middle)"
_SOLVE = "y[:, j] = y[:, j] - z * A[last, j]"
_STEP = "return S * keep + U.T @ write, U, O"
_LATE = "X[late] * chunk.decay_from_start(alpha[late])"
_EARLY = "Y[early] * chunk.decay_to_end(alpha[early])"
_FACTORS = "*factors(units, beta[part], k_factor[part], q_factor[part], fold)"


def sums(name, *patches):
    return Mutant(name, (chunk_fused.two_pieces, variant(gate_sums, *patches)))


def pieces(name, *patches):
    return Mutant(name, (variant(chunk_fused.two_pieces, *patches, torch=torch), gate_sums))


def halves(name, old, new):
    """A mutant of edge_units by way of its scores."""
    return Mutant(name, variant(edge_units, half_scores=variant(half_scores, (old, new))))


EQUATIONS = [
    Equation(
        "gate-sums",
        "Exponents relative to the middle are one product of the gates with -1, 0 and 1; gates in two pieces of 8 "
        "bits lose at most 2^-16.",
        DERIVED,
        "proved",
        Check("ring", "C=1 C=2 C=5 C=16", prove_sums),
        Check("float32", "all last digits; gates 10^5 apart", check_sums),
        (chunk_fused.two_pieces, gate_sums),
        (
            sums("back over the token itself", ("signs[i, i + 1 : middle + 1] = -1", "signs[i, i : middle + 1] = -1")),
            sums("back without the middle", ("signs[i, i + 1 : middle + 1] = -1", "signs[i, i + 1 : middle] = -1")),
            sums(
                "back with the sign of later tokens",
                ("signs[i, i + 1 : middle + 1] = -1", "signs[i, i + 1 : middle + 1] = 1"),
            ),
            sums("forth from the middle itself", ("signs[i, middle + 1 : i + 1]", "signs[i, middle : i + 1]")),
            sums("forth without the token", ("signs[i, middle + 1 : i + 1]", "signs[i, middle + 1 : i]")),
            sums("entry without the middle", ("signs[middle, : middle + 1]", "signs[middle, :middle]")),
            sums("the middle keeps its row", ("d[middle] = entry * 0", "d[middle] = entry")),
            sums("the first piece alone", ("for piece in pieces)", "for piece in pieces[:1])")),
            Mutant("one piece", (lambda g: chunk_fused.two_pieces(g)[:1], gate_sums)),
            Mutant("fp32 as it is", (lambda g: (g,), gate_sums)),
            pieces("more digits than bf16 keeps", ("x.bfloat16().float()", "x.half().float()")),
            pieces(
                "cut off, not rounded", ("x.bfloat16().float()", "(x.view(torch.int32) & -65536).view(torch.float32)")
            ),
            pieces("the second piece is the first again", ("kept(g - top)", "kept(g)")),
            Mutant("differences of prefix sums", (chunk_fused.two_pieces, prefix_differences)),
        ),
    ),
    polynomial(
        "middle-units",
        "Relative to the middle of a chunk one array of write keys serves scores and update, and exponents reach "
        "over half a chunk; the keys' scores with themselves are |k|^2.",
        DERIVED,
        shapes=UNITS,
        claim=claim_middle,
        subject=middle_units,
        field_sizes=FIELD,
        real=REAL,
        mutants=mutants(
            middle_units,
            ("read and write keys swapped", _KEYS, "Q * d, K / d, K * d"),
            ("write keys not divided", _KEYS, "Q * d, K * d, K"),
            ("queries raw", _KEYS, "Q, K * d, K / d"),
            ("entry and exit swapped", _EXIT, "expG[-1] / middle, middle * 0 + 1, middle)"),
            ("exit is the whole decay", _EXIT, "middle, middle * 0 + 1, expG[-1])"),
            ("the state decays once more before it is written", _EXIT, "middle, middle, expG[-1] / middle)"),
            ("the reference one token late", "// 2 - 1]", "// 2 % len(alpha)]"),
            ("the reference is the chunk's end", "expG[(len(alpha) + 1) // 2 - 1]", "expG[-1]"),
            ("scores of the queries for the keys", "chunk.tril(read @ write.T)", "chunk.tril(Q @ write.T) * 1"),
            ("scores with read keys", "chunk.tril(Q @ write.T)", "chunk.tril(Q @ read.T)"),
        ),
    ),
    polynomial(
        "edge-units",
        "Read in the units of its start and written in those of its end, a chunk has no factor above 1; scores need "
        "two blocks by pairs, and one product.",
        DERIVED,
        shapes=UNITS,
        claim=claim_edges,
        subject=edge_units,
        ring=[{"C": 4, "K": 2}],
        field_sizes=FIELD,
        real=REAL,
        mutants=[
            *mutants(
                edge_units,
                ("queries raw", "Q * expG", "Q"),
                ("read keys from the next token", "K * expG", "K * chunk.decay_to_end(alpha)"),
                ("write keys in the units of the start", "K * chunk.decay_to_end(alpha)", "K"),
                (
                    "write keys decay by their own gate",
                    "K * chunk.decay_to_end(alpha)",
                    "K * chunk.decay_to_end(alpha) * alpha",
                ),
                ("the state read at the end", "one, expG[-1], one)", "expG[-1], one, one)"),
                ("the state decays behind the writes", "one, expG[-1], one)", "one, one, expG[-1])"),
                ("scores out of read and write keys", "half_scores(K, K, alpha)", "chunk.tril((K * expG) @ write.T)"),
                ("scores of the keys for the queries", "half_scores(Q, K, alpha)", "half_scores(K, K, alpha) * 1"),
            ),
            halves(
                "the late half without its own gate",
                _LATE,
                "X[late] * chunk.decay_from_start(alpha[late]) / alpha[late]",
            ),
            halves("the late half undecayed", _LATE, "X[late]"),
            halves("the early half undecayed", _EARLY, "Y[early]"),
            halves(
                "the early half decayed once more", _EARLY, "Y[early] * chunk.decay_to_end(alpha[early]) * alpha[early]"
            ),
            halves("no scores between the halves", "scores[late, early] = x @ y.T", "pass"),
            halves("no scores in the late half", "for part in (early, late)", "for part in (early,)"),
        ],
    ),
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
        shapes=f"S:V,K {UNITS} alpha2:K",
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
    polynomial(
        "one-accumulator",
        "[U; O] = [T; M] V + [-W; Q] S^T: O never waits for U, and a chunk has two dependent products instead "
        "of three.",
        DERIVED,
        shapes=STEP,
        claim=claim_step,
        subject=step,
        ring=[{"C": 3, "K": 1, "V": 1}],
        field_sizes=[{"C": 16, "K": 4, "V": 2}],
        real=REAL,
        mutants=mutants(
            step,
            ("U adds the prediction", "- W @ S.T", "+ W @ S.T"),
            ("O reads raw values", "O = M @ V", "O = V"),
            ("O reads the new state", "Q @ S.T", "Q @ (S + U.T @ write).T"),
            ("U reads the state as it is kept", "W @ S.T", "W @ (S * keep).T"),
            ("O reads the state as it is kept", "Q @ S.T", "Q @ (S * keep).T"),
            ("the scores once more on U", "O = M @ V", "O = M @ U"),
            ("the old state forgotten", _STEP, "return U.T @ write, U, O"),
            ("the old state does not decay", _STEP, "return S + U.T @ write, U, O"),
            ("what is written decays, too", _STEP, "return (S + U.T @ write) * keep, U, O"),
            ("writes the values", _STEP, "return S * keep + V.T @ write, U, O"),
        ),
    ),
    polynomial(
        "fused-chunk",
        "Chunk after chunk, from raw keys and queries, the kernel's form gives the state and the outputs of the "
        "token loop.",
        KIMI,
        shapes=TOKENS,
        claim=claim_kda,
        subject=kda,
        field_sizes=[{"T": 8, "K": 3, "V": 2}, {"T": 34, "K": 2, "V": 1}],
        real=[{"T": 8, "K": 4, "V": 3}, {"T": 34, "K": 8, "V": 4}],
        mutants=[
            *mutants(
                kda,
                ("the first state decays on its way in", "before = alpha[0] * 0 + 1", "before = alpha[0]"),
                ("the state leaves undecayed", "return S * before", "return S"),
                ("no chunk knows the one before", "before = units.exit", "last = units.exit"),
                ("exits pile up", "before = units.exit", "before = before * units.exit"),
                ("the entry for the exit", "before = units.exit", "before = units.to_read"),
                (
                    "exit after the state has moved on",
                    "fold, keep = folded_decays(units, before)",
                    "fold, keep = folded_decays(units, units.exit)",
                ),
                ("the state kept as it was read", "units.write, keep)", "units.write, fold)"),
                ("read as it will be kept", "q_factor[part], fold)", "q_factor[part], keep)"),
                ("read keys are written", "units.write, keep)", "units.read, keep)"),
                ("norms of the first chunk for all", "k_factor[part]", "k_factor[: len(V[part])]"),
            ),
            wrong(kda, "T and M swapped", (_FACTORS, f"*swap({_FACTORS})"), swap=lambda T, M, W, Q: (M, T, W, Q)),
            wrong(kda, "W and Q swapped", (_FACTORS, f"*swap({_FACTORS})"), swap=lambda T, M, W, Q: (T, M, Q, W)),
        ],
    ),
]

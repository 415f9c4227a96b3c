"""One chunk on the state, and chunk after chunk: one accumulator for residuals and outputs."""

from kda_lab import rules
from kda_lab.algebra import chunk, chunk_fused
from kda_lab.algebra.chunk_fused import Units, kda, step
from kda_lab.proof.engines import stack
from kda_lab.proof.equations.chunk.fused.common import DERIVED, KIMI, REAL, mutants
from kda_lab.proof.equations.chunk.fused.factors import two_keys
from kda_lab.proof.registry import polynomial, wrong

STEP = "S:V,K q:C,K kr:C,K kw:C,K v:C,V beta:C=gate kf:C qf:C alpha:K=decay alpha2:K=decay"
TOKENS = "S:V,K q:T,K k:T,K v:T,V alpha:T,K=decay beta:T=gate kf:T qf:T"


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


_STEP = "return S * keep + U.T @ write, U, O"
_FACTORS = "*factors(units, beta[part], k_factor[part], q_factor[part], fold)"

EQUATIONS = [
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
        field_sizes=[{"T": 1, "K": 2, "V": 1}, {"T": 8, "K": 3, "V": 2}, {"T": 34, "K": 2, "V": 1}],
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

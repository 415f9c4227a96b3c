"""The chunk form: every term against the token loop that defines it."""

from kda_lab import rules
from kda_lab.algebra import affine, chunk
from kda_lab.proof.engines import stack
from kda_lab.proof.equations.chunk.mutants import CHUNK_MUTANTS
from kda_lab.proof.equations.common import KDA_TOKENS, lower_unit, named, residuals
from kda_lab.proof.registry import Mutant, polynomial

KIMI = "Kimi Linear (2025), section 3"
DELTA = "Yang et al. (2024), Parallelizing linear transformers with the delta rule"
SMALL = [{"C": 3, "K": 2, "V": 2}, {"C": 5, "K": 2, "V": 1}]
KERNEL = [{"C": 64, "K": 6, "V": 3}]
REAL = [{"C": 7, "K": 4, "V": 3}, {"C": 33, "K": 5, "V": 3}]


def same_as_the_loop(x, kda_chunk):
    """The state and every output of a chunk equal those of the token loop."""
    S, rows = rules.scan(rules.kda, x.S, x.q, x.k, x.v, x.alpha, x.beta)
    terms = kda_chunk(x.S, x.q, x.k, x.v, x.alpha, x.beta)
    yield terms.S, S
    yield terms.O, stack(rows)


def local_loop(x):
    """The state that the chunk ends in from a zero state, and the residuals of that run (chunk-u's definition)."""
    states, rows = residuals(x.S * 0, x.k, x.v, x.alpha, x.beta)
    return states[-1], stack(rows)


def true_residuals(x):
    """Residuals of the token loop, the incoming state included."""
    return stack(residuals(x.S, x.k, x.v, x.alpha, x.beta)[1])


def terms_of(x, kda_chunk=chunk.kda):
    return kda_chunk(x.S, x.q, x.k, x.v, x.alpha, x.beta)


def claim_a(x, kda_chunk):
    A = terms_of(x, kda_chunk).A
    scores = chunk.decayed_scores(x.k, x.k, x.alpha)
    for i in range(len(A)):
        for j in range(len(A)):
            yield A[i, j], scores[i, j] * x.beta[i] if j < i else scores[i, j] * 0


def claim_readout_scores(x, kda_chunk):
    yield terms_of(x, kda_chunk).M, chunk.decayed_scores(x.q, x.k, x.alpha)


def claim_local_residuals(x, kda_chunk):
    S, U = local_loop(x)
    terms = terms_of(x, kda_chunk)
    yield terms.U, U
    yield terms.U.T @ terms.K_g, S
    yield lower_unit(terms.A) @ terms.U, x.v * x.beta[:, None]


def claim_w(x, kda_chunk):
    terms = terms_of(x, kda_chunk)
    rows, scores = [], chunk.decayed_scores(x.k, x.k, x.alpha)
    p = x.k * chunk.decay_from_start(x.alpha)
    for i in range(len(x.k)):
        w = p[i] * x.beta[i]
        for j in range(i):
            w = w - rows[j] * (scores[i, j] * x.beta[i])
        rows.append(w)
    yield terms.W, stack(rows)
    yield lower_unit(terms.A) @ terms.W, p * x.beta[:, None]


def claim_residual(x, kda_chunk):
    yield terms_of(x, kda_chunk).E, true_residuals(x)


def claim_single_solve(x, solve):
    """One solve gives the residuals when the incoming state is known."""
    terms = terms_of(x)
    yield solve(terms.R, x.v, terms.K_in, x.S, x.beta), true_residuals(x)


def claim_keys_in(x, kda_chunk):
    terms = terms_of(x, kda_chunk)
    product = x.alpha[0] * 0 + 1
    for i in range(len(x.k)):
        product = product * x.alpha[i]
        yield terms.K_in[i], x.k[i] * product
        yield terms.Q_in[i], x.q[i] * product
    yield terms.D, product


def claim_kg(x, kda_chunk):
    terms, C = terms_of(x, kda_chunk), len(x.k)
    for i in range(C):
        kept = x.k[i]
        for t in range(i + 1, C):
            kept = kept * x.alpha[t]
        yield terms.K_g[i], kept
    yield terms.K_g[C - 1], x.k[C - 1]


def claim_transition(x, kda_chunk):
    """The chunk's transition is a diagonal minus W^T K_g, its increment U^T K_g."""
    T, H = affine.fold(x.k, x.v, x.alpha, x.beta)
    terms = terms_of(x, kda_chunk)
    yield affine.eye(x.k[0]) * terms.D - terms.W.T @ terms.K_g, T
    yield terms.U.T @ terms.K_g, H


def claim_state(x, kda_chunk):
    S, _ = rules.scan(rules.kda, x.S, x.q, x.k, x.v, x.alpha, x.beta)
    yield terms_of(x, kda_chunk).S, S


def claim_output(x, kda_chunk):
    _, rows = rules.scan(rules.kda, x.S, x.q, x.k, x.v, x.alpha, x.beta)
    yield terms_of(x, kda_chunk).O, stack(rows)


def claim_closed_forms(x, kda_chunk):
    """w_i and R_ij as products of transitions."""
    terms, C = terms_of(x, kda_chunk), len(x.k)
    identity = affine.eye(x.k[0])
    steps = [affine.transition(x.k[t], x.alpha[t], x.beta[t]) for t in range(C)]
    for i in range(C):
        before = identity
        for t in range(i):
            before = before @ steps[t]
        yield terms.W[i], before @ (x.alpha[i] * x.k[i]) * x.beta[i]
        for j in range(i):
            between = identity
            for t in range(j + 1, i):
                between = between @ steps[t]
            yield terms.R[i, j], -(x.k[j] @ (between @ (x.alpha[i] * x.k[i])) * x.beta[i])


def claim_shared_factor(x, kda_chunk):
    """A and M come from one function: A is M with k for q, times beta, without its diagonal."""
    same = kda_chunk(x.S, x.k, x.k, x.v, x.alpha, x.beta)
    yield same.A, chunk.tril(same.M, -1) * x.beta[:, None]
    for i in range(len(x.k)):
        yield same.M[i, i], x.k[i] @ x.k[i]


def term(slug, sentence, claim, mutants, ring=({"C": 4, "K": 2, "V": 1},), field_sizes=(), real=(), source=KIMI):
    """An equation between the terms of ``chunk.kda``."""
    return polynomial(
        slug,
        sentence,
        source,
        shapes=KDA_TOKENS,
        claim=claim,
        subject=chunk.kda,
        mutants=mutants,
        ring=ring,
        field_sizes=field_sizes,
        real=real,
    )


WHOLE = {"ring": SMALL, "field_sizes": KERNEL, "real": REAL}
SOLVED = {**WHOLE, "field_sizes": [{"C": 24, "K": 4, "V": 2}]}

EQUATIONS = [
    term(
        "chunk-inputs",
        "K_in and Q_in carry the decay from the start of the chunk, their own token included.",
        claim_keys_in,
        [m for m in CHUNK_MUTANTS if "_in drops" in m.name],
    ),
    term(
        "chunk-kg",
        "K_g carries the decay behind a token to the end of the chunk; the last key keeps all.",
        claim_kg,
        named(CHUNK_MUTANTS, "K_g"),
    ),
    term(
        "chunk-scores",
        "A_ij = beta_i Gamma(K, K)_ij below the diagonal: how token j's write disturbs token i's read.",
        claim_a,
        [m for m in CHUNK_MUTANTS if m.name.startswith("A ") and "diagonal" not in m.name],
    ),
    term(
        "chunk-readout-scores",
        "M_ij = Gamma(Q, K)_ij up to and including the diagonal.",
        claim_readout_scores,
        named(CHUNK_MUTANTS, "M "),
    ),
    term(
        "shared-scores",
        "A and M share their right factor: A is M with k for q, times beta, without the diagonal.",
        claim_shared_factor,
        [
            m
            for m in CHUNK_MUTANTS
            if m.name
            in (
                "A is multiplied by beta_j",
                "M is strictly lower",
                "M drops the decay of token i",
                "A starts its decay at token j",
            )
        ],
    ),
    term(
        "chunk-u",
        "(I + A) U = B V: U are the residuals of the chunk run from a zero state.",
        claim_local_residuals,
        named(CHUNK_MUTANTS, "A ", "I -", "R ", "B R V", "K_g"),
        **SOLVED,
        source=DELTA,
    ),
    term(
        "chunk-w",
        "(I + A) W = B K_in: how each residual answers to the incoming state.",
        claim_w,
        named(CHUNK_MUTANTS, "A ", "I -", "R ", "W is", "K_in"),
        **SOLVED,
        source=DELTA,
    ),
    term(
        "chunk-residual",
        "E = U - W S_0^T: the true residuals, one a row.",
        claim_residual,
        named(CHUNK_MUTANTS, "E =", "the residual", "W is", "B R V", "R =", "K_in"),
        **WHOLE,
    ),
    polynomial(
        "single-solve",
        "With S_0 known, E = R B (V - K_in S_0^T): one solve instead of two.",
        KIMI,
        shapes=KDA_TOKENS,
        claim=claim_single_solve,
        subject=chunk.single_solve,
        ring=SMALL,
        real=REAL,
        mutants=[
            Mutant("beta outside", lambda R, V, K_in, S, beta: (R @ (V - K_in @ S.T)) * beta[:, None]),
            Mutant("plus the prediction", lambda R, V, K_in, S, beta: R @ ((V + K_in @ S.T) * beta[:, None])),
        ],
    ),
    term(
        "chunk-transition",
        "The product of all transitions is D_C - W^T K_g, the increment U^T K_g.",
        claim_transition,
        named(CHUNK_MUTANTS, "A ", "I -", "R ", "K_in", "K_g", "W is", "B R V"),
        ring=[{"C": 3, "K": 2, "V": 1}, {"C": 3, "K": 3, "V": 1}],
        field_sizes=[{"C": 16, "K": 5, "V": 2}],
        real=REAL,
        source=DELTA,
    ),
    term(
        "chunk-closed-forms",
        "w_i and R_ij are products of the transitions between their tokens.",
        claim_closed_forms,
        named(CHUNK_MUTANTS, "A ", "I -", "R ", "W is", "K_in"),
        ring=[{"C": 4, "K": 2, "V": 1}],
        field_sizes=[{"C": 8, "K": 3, "V": 1}],
        real=REAL[:1],
    ),
    term(
        "chunk-state",
        "S_C = S_0 D_C + E^T K_g equals the state after C steps of the loop.",
        claim_state,
        [m for m in CHUNK_MUTANTS if not m.name.startswith(("M ", "O ", "Q_in"))],
        **WHOLE,
    ),
    term(
        "chunk-output",
        "O = Q_in S_0^T + M E equals the outputs of the loop; it reads the state before the chunk.",
        claim_output,
        [m for m in CHUNK_MUTANTS if not m.name.startswith(("K_g", "the old state", "the new state"))],
        **WHOLE,
    ),
    term(
        "chunk-order",
        "All terms in order give the loop's state and outputs, for every chunk.",
        same_as_the_loop,
        CHUNK_MUTANTS,
        ring=[{"C": 4, "K": 2, "V": 2}],
        field_sizes=[{"C": 16, "K": 8, "V": 4}],
        real=REAL,
    ),
]

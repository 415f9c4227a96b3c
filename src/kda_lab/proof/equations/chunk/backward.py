"""The adjoints of a token and of a chunk: every one against the derivative of what the forward pass computes.

Exact engines differentiate with numbers a + b eps, eps^2 = 0: run the forward pass on them, and b is the derivative in
a direction. The direction is made of free symbols (or random elements of the field), so one equal number is an equal
gradient. float64 is differentiated by torch.
"""

import numpy as np
import torch

from kda_lab import rules
from kda_lab.algebra import chunk, chunk_backward, triangular
from kda_lab.proof.engines import stack
from kda_lab.proof.equations.chunk.backward_mutants import (
    CHUNK_MUTANTS,
    LINEAR_MUTANTS,
    LOOP_MUTANTS,
    SCORE_MUTANTS,
    SPLIT_MUTANTS,
    TOKEN_MUTANTS,
)
from kda_lab.proof.registry import Mutant, polynomial, variant

KIMI = "Kimi Linear (2025); the adjoint is derived here"
SHAPES = "S:V,K q:C,K k:C,K v:C,V alpha:C,K beta:C dO:C,V dS:V,K hS:V,K hK:C,K hV:C,V hB:C hC:C,C"
SMALL = [{"C": 3, "K": 2, "V": 1}]
LARGE = [{"C": 12, "K": 3, "V": 2}]
# with C = 5 and V = 3 a transpose has another shape, with C = K = V = 4 it has the same
REAL = [{"C": 5, "K": 4, "V": 3}, {"C": 4, "K": 4, "V": 4}]


class Dual:
    """a + b eps with eps^2 = 0, over any number system.

    >>> x = Dual(3, 1)
    >>> (x * x).b
    6
    """

    def __init__(self, a, b=0):
        self.a, self.b = a, b

    def __add__(self, other):
        other = other if isinstance(other, Dual) else Dual(other)
        return Dual(self.a + other.a, self.b + other.b)

    def __mul__(self, other):
        other = other if isinstance(other, Dual) else Dual(other)
        return Dual(self.a * other.a, self.a * other.b + self.b * other.a)

    def __neg__(self):
        return Dual(-self.a, -self.b)

    def __sub__(self, other):
        return self + -other

    def __rsub__(self, other):
        return -self + other

    __radd__, __rmul__ = __add__, __mul__


def lift(a, b=None):
    """Object array of dual numbers; without b they are constants.

    >>> int(lift(np.array([1, 2]), np.array([3, 4]))[1].b)
    4
    """
    out = np.empty(a.shape, dtype=object)
    for index in np.ndindex(*a.shape):
        out[index] = Dual(a[index], 0 if b is None else b[index])
    return out


def gradient_pairs(loss, constants, named):
    """Pairs that agree if each given array is the gradient of the loss in one of its arguments.

    loss: (constants, **changes) -> scalar, where changes are added to what they are named after
    named: {name: (gradient, direction)}, arrays of one shape.
    """
    if isinstance(constants[0], torch.Tensor):
        zeros = {name: torch.zeros_like(got, requires_grad=True) for name, (got, _) in named.items()}
        exact = torch.autograd.grad(loss(constants, **zeros), list(zeros.values()))
        yield from ((got, wanted) for (got, _), wanted in zip(named.values(), exact))
        return
    constants = [lift(X) for X in constants]
    for name, (got, direction) in named.items():
        yield (got * direction).sum(), loss(constants, **{name: lift(direction * 0, direction)}).b


def loop_loss(constants, q=0, k=0, v=0, g=0, beta=0, S=0):
    """<dO, O> + <dS, S_C> of the token loop. A change of g multiplies the decay by 1 + g: that is the slope in ln
    alpha.
    """
    S0, Q, K, V, alpha, B, dO, dS = constants
    S1, rows = rules.scan(rules.kda, S0 + S, Q + q, K + k, V + v, alpha + alpha * g, B + beta)
    return (dO * stack(rows)).sum() + (dS * S1).sum()


def chunk_loss(constants, E=0, X=0, M=0, A=0, Q_in=0, K_in=0, K_g=0, K_row=0, K_col=0):
    """The same of a chunk, term by term, so that each can change alone. X = B (V - K_in S^T) is what the solve is
    applied to.
    """
    S, Q, K, V, alpha, beta, dO, dS = constants
    B, expG, late = beta[:, None], chunk.decay_from_start(alpha), chunk.decay_to_end(alpha)
    row, col = K + K_row, K + K_col
    A = chunk.tril(chunk.decayed_scores(row, col, alpha) * B + A, -1)
    M = chunk.decayed_scores(Q, col, alpha) + M
    X = (V - (row * expG + K_in) @ S.T) * B + X
    E = triangular.substitution(A) @ X + E
    O = (Q * expG + Q_in) @ S.T + M @ E
    S = S * expG[-1] + E.T @ (col * late + K_g)
    return (dO * O).sum() + (dS * S).sum()


def constants_of(x):
    return x.S, x.q, x.k, x.v, x.alpha, x.beta, x.dO, x.dS


def adjoint(x, backward):
    """The chunk's terms, and what ``backward`` makes of them."""
    terms = chunk.kda(x.S, x.q, x.k, x.v, x.alpha, x.beta)
    return terms, backward(x.S, x.q, x.k, x.v, x.alpha, x.beta, terms, x.dO, x.dS)


def inputs_of(x, d):
    """Every input's gradient with its direction; d: gradients with the fields of ``chunk_backward.Gradients``."""
    return {
        "q": (d.dQ, x.hK),
        "k": (d.dK, x.hK),
        "v": (d.dV, x.hV),
        "g": (d.dg, x.hK),
        "beta": (d.dbeta, x.hB),
        "S": (d.dS, x.hS),
    }


def claim_inputs(*names):
    """A claim: these inputs' gradients, from the chunk's adjoint, are the derivatives of the token loop."""

    def claim(x, backward):
        named = inputs_of(x, adjoint(x, backward)[1])
        yield from gradient_pairs(loop_loss, constants_of(x), {n: named[n] for n in names or named})

    return claim


def claim_terms(*names):
    """A claim: these terms' adjoints are the derivatives of the chunk when that term alone changes."""

    def claim(x, backward):
        _, d = adjoint(x, backward)
        lower = chunk.tril(x.hC * 0 + 1)
        named = {
            "E": (d.dE, x.hV),
            "X": (d.Z, x.hV),
            "M": (d.dM, chunk.tril(x.hC)),
            "A": (d.dA, chunk.tril(x.hC, -1)),
            "Q_in": (d.dQ_in, x.hK),
            "K_in": (d.dK_in, x.hK),
            "K_g": (d.dK_g, x.hK),
            "K_row": (d.K_row, x.hK),
            "K_col": (d.K_col, x.hK),
        }
        # above the diagonal M is no variable: there nothing may be passed on
        masked = lambda constants, M=0, **changes: chunk_loss(constants, M=M * lower, **changes)
        yield from gradient_pairs(masked, constants_of(x), {n: named[n] for n in names})
        yield d.dM - chunk.tril(d.dM), d.dM * 0
        yield d.dA - chunk.tril(d.dA, -1), d.dA * 0

    return claim


def claim_values(x, backward):
    yield from claim_inputs("v")(x, backward)
    _, d = adjoint(x, backward)
    yield d.dV, d.Z * x.beta[:, None]


def claim_keys(x, backward):
    """As they read, as they are written, and both together."""
    yield from claim_terms("K_row", "K_col")(x, backward)
    yield from claim_inputs("k")(x, backward)


def claim_state(x, backward):
    """The state's gradient; and the same without Z: dS_0 = dS D + dO^T Q_in - dE^T W, which is what goes from chunk to
    chunk.
    """
    yield from claim_inputs("S")(x, backward)
    terms, d = adjoint(x, backward)
    yield d.dS, x.dS * terms.D + x.dO.T @ terms.Q_in - d.dE.T @ terms.W


def claim_prefix(x, backward):
    """G_i alone changes by h_i if gate i changes by h_i and gate i + 1 by the opposite."""
    _, d = adjoint(x, backward)
    constants = constants_of(x)
    if isinstance(x.S, torch.Tensor):
        (slope,) = torch.autograd.grad(loop_loss(constants, g=(g := torch.zeros_like(x.hK, requires_grad=True))), g)
        yield d.dG, slope - torch.cat([slope[1:], slope[:1] * 0])
        return
    back = x.hK * 1
    back[1:] = back[1:] - x.hK[:-1]
    yield (d.dG * x.hK).sum(), loop_loss([lift(X) for X in constants], g=lift(back * 0, back)).b


def claim_sums(x, sums):
    dg = sums(x.hK)
    for t in range(len(x.hK)):
        yield dg[t], sum(x.hK[i] for i in range(t, len(x.hK)))


def claim_token(x, backward):
    """One token in the middle of nowhere: every term, dr by changing the residual alone."""
    C = len(x.q)
    for t in (0, C - 1):
        constants = x.S, x.q[t], x.k[t], x.v[t], x.alpha[t], x.beta[t : t + 1], x.dO[t], x.dS

        def loss(constants, q=0, k=0, v=0, g=0, beta=0, S=0, r=0):
            S0, Q, K, V, alpha, B, do, dS = constants
            S1 = (S0 + S) * (alpha + alpha * g)
            S1 = S1 + rules.outer((V + v - S1 @ (K + k)) * (B + beta)[0] + r, K + k)
            return (do * (S1 @ (Q + q))).sum() + (dS * S1).sum()

        d = backward(x.S, x.q[t], x.k[t], x.v[t], x.alpha[t], x.beta[t], x.dO[t], x.dS)
        h, hv = x.hK[t], x.hV[t]
        named = {
            "q": (d.dq, h),
            "k": (d.dk, h),
            "v": (d.dv, hv),
            "g": (d.dg, h),
            "r": (d.dr, hv),
            "S": (d.dS, x.hS),
            "beta": (stack([d.dbeta]), x.hB[:1]),
        }
        yield from gradient_pairs(loss, constants, named)


def claim_stretch(x, backward):
    """All gradients of a stretch of tokens."""
    yield from gradient_pairs(loop_loss, constants_of(x), inputs_of(x, backward(*constants_of(x))))


def claim_split(x, split):
    """Chunks of 2 (the last one short), of 1, and one chunk for all."""
    for C in (2, 1, len(x.q)):
        yield from claim_stretch(x, lambda S, *rest, C=C: split(S, C, *rest))


def claim_score_rows(x, rows):
    loss = lambda constants, X=0: (
        constants[3] * chunk.decayed_scores(constants[0] + X, constants[1], constants[2])
    ).sum()
    yield from gradient_pairs(loss, (x.q, x.k, x.alpha, x.hC), {"X": (rows(x.hC, x.k, x.alpha), x.hK)})


def claim_score_columns(x, columns):
    loss = lambda constants, Y=0: (
        constants[3] * chunk.decayed_scores(constants[0], constants[1] + Y, constants[2])
    ).sum()
    yield from gradient_pairs(loss, (x.q, x.k, x.alpha, x.hC), {"Y": (columns(x.hC, x.q, x.alpha), x.hK)})


def claim_linear(x, backward):
    def loss(constants, q=0, k=0, v=0, S=0):
        S0, Q, K, V, dO, dS = constants
        S1, rows = rules.scan(rules.linear, S0 + S, Q + q, K + k, V + v)
        return (dO * stack(rows)).sum() + (dS * S1).sum()

    constants = x.S, x.q, x.k, x.v, x.dO, x.dS
    dQ, dK, dV, dS = backward(*constants)
    yield from gradient_pairs(loss, constants, {"q": (dQ, x.hK), "k": (dK, x.hK), "v": (dV, x.hV), "S": (dS, x.hS)})


def scalar_gates(S, Q, K, V, a, beta, dO, dS):
    """Gated DeltaNet is KDA with one decay for all channels, so its gate collects what the channels' gates get.   a:
    [C].

    Implements gdn-backward.
    """
    alpha = (K * 0 + 1) * a[:, None]
    d = chunk_backward.kda(S, Q, K, V, alpha, beta, chunk.kda(S, Q, K, V, alpha, beta), dO, dS)
    return chunk_backward.Gradients(d.dQ, d.dK, d.dV, sum(d.dg.T), d.dbeta, d.dS)


def claim_gdn(x, backward):
    def loss(constants, q=0, k=0, v=0, g=0, beta=0, S=0):
        S0, Q, K, V, a, B, dO, dS = constants
        S1, rows = rules.scan(rules.gated_delta, S0 + S, Q + q, K + k, V + v, a + a * g, B + beta)
        return (dO * stack(rows)).sum() + (dS * S1).sum()

    constants = x.S, x.q, x.k, x.v, x.alpha[:, 0], x.beta, x.dO, x.dS
    d = backward(*constants)
    yield from gradient_pairs(loss, constants, {**inputs_of(x, d), "g": (d.dg, x.hB)})


def entry(slug, sentence, claim, subject, mutants, ring=SMALL, field_sizes=LARGE, source=KIMI):
    """A polynomial identity of this module; 1e-12 leaves four digits to a few hundred roundings."""
    return polynomial(
        slug,
        sentence,
        source,
        shapes=SHAPES,
        claim=claim,
        subject=subject,
        mutants=mutants,
        ring=ring,
        field_sizes=field_sizes,
        real=REAL,
        tolerance=1e-12,
    )


def of_chunk(*prefixes):
    """The mutants of the chunk's adjoint whose names start so."""
    return [m for m in CHUNK_MUTANTS if m.name.startswith(prefixes)]


_KDA = chunk_backward.kda
EQUATIONS = [
    entry(
        "token-backward",
        "One token backwards: Lambda = dS + do q^T, dr = Lambda k, and dg is the column sum of S_bar . dS_bar.",
        claim_token,
        chunk_backward.token,
        TOKEN_MUTANTS,
        field_sizes=[{"C": 2, "K": 6, "V": 4}],
    ),
    entry(
        "loop-backward",
        "Token by token from the end, every input gets its gradient; the state goes back by T_t^T.",
        claim_stretch,
        chunk_backward.loop,
        LOOP_MUTANTS,
    ),
    entry(
        "backward-score-rows",
        "Scores pass back to their left factor: a row sums later-decayed keys, j <= i.",
        claim_score_rows,
        chunk_backward.decayed_rows,
        SCORE_MUTANTS["rows"],
        ring=[{"C": 4, "K": 2, "V": 1}],
    ),
    entry(
        "backward-score-columns",
        "Scores pass back to their right factor: a column sums the rows i >= j with the same decays.",
        claim_score_columns,
        chunk_backward.decayed_columns,
        SCORE_MUTANTS["columns"],
        ring=[{"C": 4, "K": 2, "V": 1}],
    ),
    entry(
        "backward-residuals",
        "dE = M^T dO + K_g dS^T: residuals are read by queries and kept by the state.",
        claim_terms("E"),
        _KDA,
        of_chunk("dE"),
    ),
    entry(
        "backward-solve",
        "Z = R^T dE: one solve with the transpose, for all that the forward solve was applied to.",
        claim_terms("X"),
        _KDA,
        of_chunk("Z ", "dE"),
    ),
    entry(
        "backward-scores",
        "dM = tril(dO E^T) and dA = -tril(Z E^T, -1).",
        claim_terms("M", "A"),
        _KDA,
        of_chunk("dM", "dA", "Z "),
    ),
    entry(
        "backward-factors",
        "dQ_in = dO S_0, dK_in = -B Z S_0, dK_g = E dS.",
        claim_terms("Q_in", "K_in", "K_g"),
        _KDA,
        of_chunk("dQ_in", "dK_in", "dK_g"),
    ),
    entry("backward-values", "dV = B Z.", claim_values, _KDA, of_chunk("dV", "Z ")),
    entry(
        "backward-beta",
        "dbeta_i = Z_i . Y_i + sum_j dA_ij Gamma(K, K)_ij: a write gate scales its value and its row of A.",
        claim_inputs("beta"),
        _KDA,
        of_chunk("dbeta", "Z ", "dA has"),
    ),
    entry(
        "backward-state",
        "dS_0 = dS D_C + dO^T Q_in - (B Z)^T K_in = dS D_C + dO^T Q_in - dE^T W.",
        claim_state,
        _KDA,
        of_chunk("dS_0", "Z ", "dE"),
    ),
    entry(
        "backward-queries",
        "dq_i = e^G_i . dQ_in,i + sum over j <= i of dM_ij k_j, decayed over j+1..i.",
        claim_inputs("q"),
        _KDA,
        of_chunk("dQ ", "dQ_in", "dM is strictly", "dM takes"),
    ),
    entry(
        "backward-keys",
        "A key gets one part as it reads (K_row) and one as it is written (K_col); dk is their sum.",
        claim_keys,
        _KDA,
        of_chunk("K_row", "K_col", "dK ", "dK_in", "dK_g", "dA has"),
    ),
    entry(
        "backward-prefix",
        "dG_i = q_i . dq_i + k_i . (K_row - K_col)_i, and at the last token the column sum of S_C . dS.",
        claim_prefix,
        _KDA,
        of_chunk("dG by", "dG adds", "dG with"),
    ),
    entry(
        "backward-gates",
        "dg_t is the sum of dG_i over i >= t.",
        claim_sums,
        chunk_backward.sums_from_end,
        [
            Mutant(
                "from the start",
                lambda dG: chunk_backward.sums_from_end(dG[::-1] if not isinstance(dG, torch.Tensor) else dG.flip(0)),
            ),
            Mutant("its own token left out", lambda dG: chunk_backward.sums_from_end(dG) - dG),
            Mutant(
                "neighbours only", variant(chunk_backward.sums_from_end, ("dg[t] + dg[t + 1]", "dg[t] + dG[t + 1]"))
            ),
        ],
        ring=[{"C": 4, "K": 2, "V": 1}],
    ),
    entry(
        "chunk-backward",
        "The adjoint of a chunk gives the derivatives of the token loop, in every input.",
        claim_inputs(),
        _KDA,
        [m for m in CHUNK_MUTANTS if "above the diagonal" not in m.name],
    ),
    entry(
        "backward-by-chunk",
        "Chunk after chunk from the end, with nothing kept but the state before each.",
        claim_split,
        chunk_backward.split,
        SPLIT_MUTANTS,
        field_sizes=[{"C": 7, "K": 3, "V": 2}],
    ),
    entry(
        "linear-chunk-backward",
        "Linear attention backwards: two masked products, and no solve.",
        claim_linear,
        chunk_backward.linear,
        LINEAR_MUTANTS,
        source="Katharopoulos et al. (2020), section 3.3",
    ),
    entry(
        "gdn-backward",
        "With one decay a head, its gradient is the sum of what the channels get.",
        claim_gdn,
        scalar_gates,
        [
            Mutant("the first channel's alone", variant(scalar_gates, ("sum(d.dg.T)", "d.dg[:, 0]"))),
            Mutant("the gradient of alpha, not of ln alpha", variant(scalar_gates, ("sum(d.dg.T)", "sum(d.dg.T) * a"))),
            Mutant("the write gate's left out", variant(scalar_gates, ("d.dbeta", "d.dbeta * 0"))),
        ],
    ),
]

"""The adjoint of a chunk, term by term: each against the derivative of the chunk in that term alone."""

import torch

from kda_lab.algebra import chunk, chunk_backward, triangular
from kda_lab.proof.equations.chunk.backward.common import constants_of, entry, inputs_of, loop_loss
from kda_lab.proof.equations.chunk.backward.mutants import CHUNK_MUTANTS
from kda_lab.proof.equations.common import named
from kda_lab.proof.equations.duals import gradient_pairs, lift
from kda_lab.proof.registry import Mutant, variant


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


def adjoint(x, backward):
    """The chunk's terms, and what ``backward`` makes of them."""
    terms = chunk.kda(x.S, x.q, x.k, x.v, x.alpha, x.beta)
    return terms, backward(x.S, x.q, x.k, x.v, x.alpha, x.beta, terms, x.dO, x.dS)


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


_KDA = chunk_backward.kda

EQUATIONS = [
    entry(
        "backward-residuals",
        "dE = M^T dO + K_g dS^T: residuals are read by queries and kept by the state.",
        claim_terms("E"),
        _KDA,
        named(CHUNK_MUTANTS, "dE"),
    ),
    entry(
        "backward-solve",
        "Z = R^T dE: one solve with the transpose, for all that the forward solve was applied to.",
        claim_terms("X"),
        _KDA,
        named(CHUNK_MUTANTS, "Z ", "dE"),
    ),
    entry(
        "backward-scores",
        "dM = tril(dO E^T) and dA = -tril(Z E^T, -1).",
        claim_terms("M", "A"),
        _KDA,
        named(CHUNK_MUTANTS, "dM", "dA", "Z "),
    ),
    entry(
        "backward-factors",
        "dQ_in = dO S_0, dK_in = -B Z S_0, dK_g = E dS.",
        claim_terms("Q_in", "K_in", "K_g"),
        _KDA,
        named(CHUNK_MUTANTS, "dQ_in", "dK_in", "dK_g"),
    ),
    entry("backward-values", "dV = B Z.", claim_values, _KDA, named(CHUNK_MUTANTS, "dV", "Z ")),
    entry(
        "backward-beta",
        "dbeta_i = Z_i . Y_i + sum_j dA_ij Gamma(K, K)_ij: a write gate scales its value and its row of A.",
        claim_inputs("beta"),
        _KDA,
        named(CHUNK_MUTANTS, "dbeta", "Z ", "dA has"),
    ),
    entry(
        "backward-state",
        "dS_0 = dS D_C + dO^T Q_in - (B Z)^T K_in = dS D_C + dO^T Q_in - dE^T W.",
        claim_state,
        _KDA,
        named(CHUNK_MUTANTS, "dS_0", "Z ", "dE"),
    ),
    entry(
        "backward-queries",
        "dq_i = e^G_i . dQ_in,i + sum over j <= i of dM_ij k_j, decayed over j+1..i.",
        claim_inputs("q"),
        _KDA,
        named(CHUNK_MUTANTS, "dQ ", "dQ_in", "dM is strictly", "dM takes"),
    ),
    entry(
        "backward-keys",
        "A key gets one part as it reads (K_row) and one as it is written (K_col); dk is their sum.",
        claim_keys,
        _KDA,
        named(CHUNK_MUTANTS, "K_row", "K_col", "dK ", "dK_in", "dK_g", "dA has"),
    ),
    entry(
        "backward-prefix",
        "dG_i = q_i . dq_i + k_i . (K_row - K_col)_i, and at the last token the column sum of S_C . dS.",
        claim_prefix,
        _KDA,
        named(CHUNK_MUTANTS, "dG by", "dG adds", "dG with"),
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
]

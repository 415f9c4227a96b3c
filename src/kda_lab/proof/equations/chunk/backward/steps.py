"""The adjoints of one token, of the token loop, and of the decayed scores."""

from kda_lab import rules
from kda_lab.algebra import chunk, chunk_backward
from kda_lab.proof.engines import stack
from kda_lab.proof.equations.chunk.backward.common import claim_stretch, entry
from kda_lab.proof.equations.chunk.backward.mutants import LOOP_MUTANTS, SCORE_MUTANTS, TOKEN_MUTANTS
from kda_lab.proof.equations.duals import gradient_pairs


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
]

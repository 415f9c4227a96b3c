"""Mistakes that chunk kernels have made, each as a full wrong implementation of the chunk form."""

import torch

from kda_lab.algebra import chunk
from kda_lab.proof.engines import Disagreement
from kda_lab.proof.registry import wrong


def scores_keeping_own_decay(X, Y, alpha):
    """Mutant: the interval j..i instead of j+1..i."""
    return chunk.decayed_scores(X, Y * alpha, alpha)


def scores_dropping_last_decay(X, Y, alpha):
    """Mutant: the interval j+1..i-1 instead of j+1..i."""
    scores = X @ Y.T * 0
    for i in range(len(X)):
        for j in range(i + 1):
            product = Y[j]
            for t in range(j + 1, i):
                product = product * alpha[t]
            scores[i, j] = product @ X[i]
    return scores


def previous_decay_from_start(alpha):
    """Mutant: the decays of tokens 1..i-1."""
    out = chunk.decay_from_start(alpha)
    out[1:] = out[:-1] * 1
    out[0] = alpha[0] * 0 + 1
    return out


def late_decay_to_end(alpha):
    """Mutant: the decays of tokens j+2..C."""
    out = chunk.decay_to_end(alpha)
    out[:-1] = out[1:] * 1
    return out


def full_square(X, Y, alpha):
    """Mutant: no causal mask; the upper triangle holds the scores without decay."""
    scores = chunk.decayed_scores(X, Y, alpha)
    plain = X @ Y.T
    for i in range(len(X)):
        scores[i, i + 1 :] = plain[i, i + 1 :]
    return scores


def general_inverse(A):
    """(I + A)^-1 for a lower triangular A whose diagonal is not zero: needs division, so floats and the field only."""
    if isinstance(A, torch.Tensor):
        return torch.linalg.inv(torch.eye(len(A), dtype=A.dtype) + A)
    raise Disagreement("I + A has no polynomial inverse when A keeps its diagonal")


def wrong_chunk(name, *patches, **extra):
    """A mutant of the chunk form: its source with one mistake."""
    return wrong(chunk.kda, name, *patches, **extra)


_A = "A = tril(decayed_scores(K, K, alpha), -1) * beta[:, None]"
_R = "R = triangular.substitution(A)"
_M = "M = decayed_scores(Q, K, alpha)"
_W = "W = R @ (K_in * beta[:, None])"
_U = "U = R @ (V * beta[:, None])"
_E = "E = U - W @ S.T"
_S = "S = S * expG[-1] + E.T @ K_g"
_O = "O = Q_in @ S.T + M @ E"
CHUNK_MUTANTS = (
    wrong_chunk(
        "A drops the decay of token i",
        (_A, _A.replace("decayed_scores", "shorter")),
        shorter=scores_dropping_last_decay,
    ),
    wrong_chunk(
        "A starts its decay at token j", (_A, _A.replace("decayed_scores", "longer")), longer=scores_keeping_own_decay
    ),
    wrong_chunk("A is multiplied by beta_j", (_A, _A.replace("beta[:, None]", "beta[None, :]"))),
    wrong_chunk("A is multiplied by beta_i beta_j", (_A, _A + " * beta[None, :]")),
    wrong_chunk("A is not multiplied by beta", (_A, _A.replace(" * beta[:, None]", ""))),
    wrong_chunk(
        "A keeps its diagonal",
        (_A, _A.replace(", -1)", ")")),
        (_R, "R = general_inverse(A)"),
        general_inverse=general_inverse,
    ),
    wrong_chunk("I - A instead of I + A", (_R, "R = triangular.substitution(-A)")),
    wrong_chunk("R is the identity", (_R, "R = triangular.substitution(A * 0)")),
    wrong_chunk("R = I - A", (_R, "R = triangular.substitution(A * 0) - A")),
    wrong_chunk(
        "K_in drops the decay of token i",
        ("K_in = K * expG", "K_in = K * before(alpha)"),
        before=previous_decay_from_start,
    ),
    wrong_chunk(
        "Q_in drops the decay of token i",
        ("Q_in = Q * expG", "Q_in = Q * before(alpha)"),
        before=previous_decay_from_start,
    ),
    wrong_chunk(
        "K_g includes the decay of its own token",
        ("K_g = K * decay_to_end(alpha)", "K_g = K * decay_to_end(alpha) * alpha"),
    ),
    wrong_chunk("K_g starts two tokens later", ("decay_to_end(alpha)", "late(alpha)"), late=late_decay_to_end),
    wrong_chunk("W is not solved: w_i = beta_i p_i", (_W, "W = K_in * beta[:, None]")),
    wrong_chunk("B R V instead of R B V", (_U, "U = (R @ V) * beta[:, None]")),
    wrong_chunk("E = U", (_E, "E = U")),
    wrong_chunk("E = U + W S^T", (_E, "E = U + W @ S.T")),
    wrong_chunk("the old state does not decay", (_S, "S = S + E.T @ K_g")),
    wrong_chunk("the new state takes U instead of E", (_S, "S = S * expG[-1] + U.T @ K_g")),
    wrong_chunk("M is strictly lower", (_M, "M = tril(decayed_scores(Q, K, alpha), -1)")),
    wrong_chunk("M drops the decay of token i", (_M, "M = shorter(Q, K, alpha)"), shorter=scores_dropping_last_decay),
    wrong_chunk("M starts its decay at token j", (_M, "M = longer(Q, K, alpha)"), longer=scores_keeping_own_decay),
    wrong_chunk("M is multiplied by beta", (_M, _M + " * beta[:, None]")),
    wrong_chunk("M is not masked", (_M, "M = full_square(Q, K, alpha)"), full_square=full_square),
    wrong_chunk("O reads the new state", (f"    {_O}  # [C, V]\n", ""), (_S, f"{_S}\n    {_O}")),
    wrong_chunk("the residual reads the state after the chunk's decay", (_E, "E = U - W @ (S * expG[-1]).T")),
)

"""Adjoints by hand: what a loss makes of every input of a token, of a chunk, and of a sequence cut into chunks.

Written like ``chunk``: one head, plain array algebra, every term by name. dX is the gradient of the loss with respect
to X and has X's shape; dO and dS, the gradients of the outputs and of the state behind them, are given. The gradient
of a log decay needs neither logarithm nor division: dg = alpha . dalpha is a polynomial too.
"""

from typing import Any, NamedTuple

from kda_lab.algebra import chunk
from kda_lab.algebra.chunk import tril
from kda_lab.rules import outer


class TokenGradients(NamedTuple):
    """Adjoints of one token: dr, dv [V]; dq, dk, dg [K]; dbeta scalar; dS [V, K], of the state before the token.

    >>> TokenGradients._fields
    ('dr', 'dq', 'dk', 'dv', 'dg', 'dbeta', 'dS')
    """

    dr: Any
    dq: Any
    dk: Any
    dv: Any
    dg: Any
    dbeta: Any
    dS: Any


class Gradients(NamedTuple):
    """Adjoints of a stretch of tokens: dQ, dK, dg [T, K]; dV [T, V]; dbeta [T]; dS [V, K], of the state before them.

    >>> Gradients._fields
    ('dQ', 'dK', 'dV', 'dg', 'dbeta', 'dS')
    """

    dQ: Any
    dK: Any
    dV: Any
    dg: Any
    dbeta: Any
    dS: Any


class ChunkGradients(NamedTuple):
    """Adjoints of one chunk. dM, dA: [C, C]   dE, Z, dV: [C, V]   dbeta: [C]   dS: [V, K]   the others: [C, K].

    Z is the adjoint of what the solve is applied to. K_row and K_col are the two parts of dK: a key as it reads, a
    key as it is written. dG belongs to the prefix sums G, dg to the log decays themselves.

    >>> ChunkGradients._fields[:6]
    ('dE', 'Z', 'dM', 'dA', 'dQ_in', 'dK_in')
    """

    dE: Any
    Z: Any
    dM: Any
    dA: Any
    dQ_in: Any
    dK_in: Any
    dK_g: Any
    K_row: Any
    K_col: Any
    dG: Any
    dQ: Any
    dK: Any
    dV: Any
    dg: Any
    dbeta: Any
    dS: Any


class GatedGradients(NamedTuple):
    """``Gradients`` with derase [C, K] and dwrite [C, V] in the place of dbeta.

    >>> GatedGradients._fields
    ('dQ', 'dK', 'dV', 'dg', 'derase', 'dwrite', 'dS')
    """

    dQ: Any
    dK: Any
    dV: Any
    dg: Any
    derase: Any
    dwrite: Any
    dS: Any


def token(S, q, k, v, alpha, beta, do, dS):
    """The adjoint of one token of Kimi Delta Attention.

    S: [V, K] before the token   q, k, alpha: [K]   v, do: [V]   beta: scalar   dS: [V, K] behind the token.
    Implements token-backward.

    >>> import numpy as np
    >>> k = np.array([1, 0]); S = np.array([[4, 8]])
    >>> token(S, k, k, np.array([6]), np.array([1, 1]), 1, np.array([1]), S * 0).dv  # o = v: the overwrite is complete
    array([1])
    """
    S_bar = S * alpha  # [V, K]
    e = v - S_bar @ k  # [V]
    dq = (S_bar + outer(e * beta, k)).T @ do  # [K]
    dS = dS + outer(do, q)  # [V, K] of the state behind the token, its own output included
    dr = dS @ k  # [V]
    dk = (dS.T @ e - S_bar.T @ dr) * beta  # [K]
    dS_bar = dS - outer(dr * beta, k)  # [V, K]
    dg = sum(S_bar * dS_bar)  # [K] column sums
    return TokenGradients(dr, dq, dk, dr * beta, dg, dr @ e, dS_bar * alpha)


def loop(S, Q, K, V, alpha, beta, dO, dS):
    """The adjoint of a sequence, token by token from its end; every state in between is kept.

    S: [V, K]   Q, K, alpha: [T, K]   V, dO: [T, V]   beta: [T]   dS: [V, K].   Implements loop-backward.

    >>> import numpy as np
    >>> one = np.ones((3, 1)); S = np.ones((1, 1))
    >>> loop(S, one, one, one, one * 0.5, np.zeros(3), one * 0, S).dg.T  # beta = 0: S_3 = S_0 / 8, and so is each slope
    array([[0.125, 0.125, 0.125]])
    """
    states = [S]
    for k, v, a, b in zip(K, V, alpha, beta):
        S = S * a
        S = S + outer((v - S @ k) * b, k)
        states.append(S)
    dQ, dK, dV, dg, dbeta = (like(X, dS) for X in (Q, K, V, alpha, beta))
    for t in range(len(K) - 1, -1, -1):
        d = token(states[t], Q[t], K[t], V[t], alpha[t], beta[t], dO[t], dS)
        dQ[t], dK[t], dV[t], dg[t], dbeta[t], dS = d.dq, d.dk, d.dv, d.dg, d.dbeta, d.dS
    return Gradients(dQ, dK, dV, dg, dbeta, dS)


def like(X, S):
    """Zeros in X's shape, of a type that holds products with S.   X: any shape   S: [V, K].

    >>> import numpy as np
    >>> like(np.array([1, 2]), np.array([[0.5]]))
    array([0., 0.])
    """
    return X * S[0, 0] * 0


# rows and columns differ in one line of the loop, and each is quoted and proved alone
def decayed_rows(P, Y, alpha):
    """Row i: sum over j <= i of P_ij y_j, decayed over tokens j+1..i.   P: [C, C]   Y, alpha: [C, K]   returns [C, K].

    What ``decayed_scores`` passes back to its left factor.   Implements backward-score-rows.

    >>> import numpy as np
    >>> decayed_rows(np.ones((3, 3), int), np.ones((3, 1), int), np.array([[2], [3], [5]])).T
    array([[ 1,  4, 21]])
    """
    out = like(Y * alpha, P)
    decayed = []  # y_j times the decays of the tokens after j
    for i in range(len(Y)):
        decayed = [y * alpha[i] for y in decayed] + [Y[i]]
        for j in range(i + 1):
            out[i] = out[i] + decayed[j] * P[i, j]
    return out


def decayed_columns(P, X, alpha):
    """Row j: sum over i >= j of P_ij x_i, decayed over tokens j+1..i.   P: [C, C]   X, alpha: [C, K]   returns [C, K].

    What ``decayed_scores`` passes back to its right factor.   Implements backward-score-columns.

    >>> import numpy as np
    >>> decayed_columns(np.ones((3, 3), int), np.ones((3, 1), int), np.array([[2], [3], [5]])).T
    array([[19,  6,  1]])
    """
    out = like(X * alpha, P)
    decayed = []  # x_i times the decays of the tokens from j + 1 to i
    for j in range(len(X) - 1, -1, -1):
        decayed = [X[j]] + [x * alpha[j + 1] for x in decayed]
        for i in range(j, len(X)):
            out[j] = out[j] + decayed[i - j] * P[i, j]
    return out


def sums_from_end(dG):
    """dg_t: the sum of dG_i over i >= t, since G_i holds every gate up to i.   dG: [C, K]; same shape back.

    Implements backward-gates.

    >>> import numpy as np
    >>> sums_from_end(np.array([[1], [2], [3]])).T
    array([[6, 5, 3]])
    """
    dg = dG * 1
    for t in range(len(dG) - 2, -1, -1):
        dg[t] = dg[t] + dg[t + 1]
    return dg


def kda(S, Q, K, V, alpha, beta, terms, dO, dS):
    """The adjoint of one chunk of Kimi Delta Attention: one more solve, with the transpose, and two products for each
    forward one.

    S: [V, K] before the chunk   Q, K, alpha: [C, K]   V, dO: [C, V]   beta: [C]   terms: ``chunk.kda`` of the same
    inputs
    dS: [V, K] behind the chunk.   Implements backward-residuals, backward-solve, backward-scores, backward-factors,
    backward-values, backward-beta, backward-state, backward-queries, backward-keys, backward-prefix, chunk-backward.

    >>> import numpy as np
    >>> one = np.ones((2, 1)); S = np.ones((1, 1)); x = (S, one, one, one, one, np.ones(2))
    >>> kda(*x, chunk.kda(*x), one, S * 0).dV.T  # the second write replaces the first: each output is its own value
    array([[1., 1.]])
    """
    B = beta[:, None]  # [C, 1]
    expG, late = chunk.decay_from_start(alpha), chunk.decay_to_end(alpha)  # [C, K]
    Y = V - terms.K_in @ S.T  # [C, V] what the solve was applied to, before beta

    dE = terms.M.T @ dO + terms.K_g @ dS.T  # [C, V]
    Z = terms.R.T @ dE  # [C, V] one transposed solve
    dM = tril(dO @ terms.E.T)  # [C, C]
    dA = -tril(Z @ terms.E.T, -1)  # [C, C]

    dV = Z * B  # [C, V]
    dQ_in = dO @ S  # [C, K]
    dK_in = -(dV @ S)  # [C, K]
    dK_g = terms.E @ dS  # [C, K]
    dS0 = dS * terms.D + dO.T @ terms.Q_in - dV.T @ terms.K_in  # [V, K]

    reads = decayed_rows(dA, K, alpha)  # [C, K] before beta, so that dbeta needs no division
    dQ = dQ_in * expG + decayed_rows(dM, K, alpha)  # [C, K]
    K_row = dK_in * expG + reads * B  # [C, K]
    K_col = dK_g * late + decayed_columns(dA * B, K, alpha) + decayed_columns(dM, Q, alpha)  # [C, K]
    dbeta = sum((Z * Y).T) + sum((reads * K).T)  # [C]

    dG = Q * dQ + K * (K_row - K_col)  # [C, K]
    dG[-1] = dG[-1] + sum(terms.S * dS)
    return ChunkGradients(
        dE, Z, dM, dA, dQ_in, dK_in, dK_g, K_row, K_col, dG, dQ, K_row + K_col, dV, sums_from_end(dG), dbeta, dS0
    )


def gated_delta_2(S, Q, K, V, alpha, erase, write, terms, dO, dS):
    """The adjoint of one chunk of Gated DeltaNet-2.

    S: [V, K] before the chunk   Q, K, alpha: [C, K]   V, dO: [C, V]   erase: [C, K] or [C, 1]   write: [C, V] or
    [C, 1]   terms: ``chunk.gated_delta_2`` of the same inputs   dS: [V, K] behind the chunk. derase and dwrite have all
    channels; a gate of one number gets their sum. Implements gdn2-backward.

    >>> import numpy as np
    >>> one = np.ones((2, 1)); S = np.ones((1, 1)); x = (S, one, one, one, one, one, one * 0.5)
    >>> d = gated_delta_2(*x, chunk.gated_delta_2(*x), one, S * 0)
    >>> d.dV.T, d.dwrite.T  # each output is its own value, half of it committed
    (array([[0.5, 0.5]]), array([[1., 1.]]))
    """
    # the lines of kda once more, with two gates: the book quotes those, and KDA is the case erase = write = beta, as
    # gdn2-kda proves
    expG, late = chunk.decay_from_start(alpha), chunk.decay_to_end(alpha)  # [C, K]

    dE = terms.M.T @ dO + terms.K_g @ dS.T  # [C, V]
    Z = terms.R.T @ dE  # [C, V] one transposed solve
    dM = tril(dO @ terms.E.T)  # [C, C]
    dA = -tril(Z @ terms.E.T, -1)  # [C, C]

    read = -(Z @ S)  # [C, K] of the gated keys that read the old state
    dQ_in = dO @ S  # [C, K]
    dK_g = terms.E @ dS  # [C, K]
    dS0 = dS * terms.D + dO.T @ terms.Q_in - Z.T @ (terms.K_in * erase)  # [V, K]

    gated = read * expG + decayed_rows(dA, K, alpha)  # [C, K] of K * erase: one product gives the gate and the key
    dQ = dQ_in * expG + decayed_rows(dM, K, alpha)  # [C, K]
    K_row = gated * erase  # [C, K]
    K_col = dK_g * late + decayed_columns(dA, K * erase, alpha) + decayed_columns(dM, Q, alpha)  # [C, K]

    dG = Q * dQ + K * (K_row - K_col)  # [C, K]
    dG[-1] = dG[-1] + sum(terms.S * dS)
    dg = sums_from_end(dG)
    return GatedGradients(dQ, K_row + K_col, Z * write, dg, gated * K, Z * V, dS0)


def linear(S, Q, K, V, dO, dS):
    """The adjoint of one chunk of linear attention; nothing to solve, and no gates.

    S: [V, K] before the chunk   Q, K: [C, K]   V, dO: [C, V]   dS: [V, K] behind it.   Returns dQ, dK, dV, dS.
    Implements linear-chunk-backward.

    >>> import numpy as np
    >>> one = np.ones((3, 1), int)
    >>> linear(one[:1], one, one, one, one, one[:1] * 0)[2].T  # a value is read by its own and by later tokens
    array([[3, 2, 1]])
    """
    M, dM = tril(Q @ K.T), tril(dO @ V.T)  # [C, C]
    return dO @ S + dM @ K, dM.T @ Q + V @ dS, M.T @ dO + K @ dS.T, dS + dO.T @ Q


def split(S, C, Q, K, V, alpha, beta, dO, dS):
    """The adjoint of a sequence, C tokens at a time from its end. Kept from the forward pass: the state before each
    chunk.

    S: [V, K]   Q, K, alpha: [T, K]   V, dO: [T, V]   beta: [T]   dS: [V, K].   Implements backward-by-chunk.

    >>> import numpy as np
    >>> one = np.ones((5, 1)); S = np.ones((1, 1)); x = (one, one, one, one * 0.5, np.ones(5) * 0.5, one)
    >>> bool(np.allclose(split(S, 2, *x, S).dK, loop(S, *x, S).dK))
    True
    """
    sequences = Q, K, V, alpha, beta
    parts = [slice(start, start + C) for start in range(0, len(Q), C)]
    entries = [S]
    for part in parts[:-1]:
        entries.append(chunk.kda(entries[-1], *(X[part] for X in sequences)).S)
    dQ, dK, dV, dg, dbeta = (like(X, dS) for X in sequences)
    for S, part in zip(entries[::-1], parts[::-1]):
        x = [X[part] for X in sequences]
        # the terms are made again, so only one chunk's are ever held
        d = kda(S, *x, chunk.kda(S, *x), dO[part], dS)
        dQ[part], dK[part], dV[part], dg[part], dbeta[part], dS = d.dQ, d.dK, d.dV, d.dg, d.dbeta, d.dS
    return Gradients(dQ, dK, dV, dg, dbeta, dS)

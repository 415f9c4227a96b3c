"""The chunk form: C tokens at once, as matrix products and one triangular inverse.

The same rules as in ``rules``, regrouped. Matrices hold one token a row: Q, K [C, K]; V [C, V]; alpha [C, K] or [C];
beta [C]. Each function returns every intermediate term by name. Plain array algebra alone, like ``rules``: decays
over several tokens are products, and (I + A)^-1 is a finite sum.
"""

from typing import Any, NamedTuple

from kda_lab.algebra import triangular


class Chunk(NamedTuple):
    """The terms of one chunk of a delta rule; the names are those of the notation page.

    A, R, M: [C, C]   U, E: [C, V]   W, K_in, K_g, Q_in: [C, K]   D: [K] or a scalar   S: [V, K]   O: [C, V].

    >>> Chunk._fields
    ('A', 'R', 'M', 'K_in', 'Q_in', 'K_g', 'D', 'U', 'W', 'E', 'S', 'O')
    """

    A: Any
    R: Any
    M: Any
    K_in: Any
    Q_in: Any
    K_g: Any
    D: Any
    U: Any
    W: Any
    E: Any
    S: Any
    O: Any


class LinearChunk(NamedTuple):
    """The terms of one chunk of linear attention: M [C, C], S [V, K], O [C, V].

    >>> LinearChunk._fields
    ('M', 'S', 'O')
    """

    M: Any
    S: Any
    O: Any


def tril(X, k=0):
    """The entries X_ij with j <= i + k; zero elsewhere.   X: [C, C].

    >>> import numpy as np
    >>> tril(np.ones((3, 3), int), -1)
    array([[0, 0, 0],
           [1, 0, 0],
           [1, 1, 0]])
    """
    out = X * 0
    for i in range(max(0, -k), len(X)):
        out[i, : i + 1 + k] = X[i, : i + 1 + k]
    return out


def decay_from_start(alpha):
    """Row i: the product of the decays of tokens 1..i, that is e^(G_i).   alpha: [C] or [C, K]; same shape back.

    Implements decay-prefix.

    >>> import numpy as np
    >>> decay_from_start(np.array([2, 3, 5]))
    array([ 2,  6, 30])
    """
    out = alpha * 1
    product = alpha[0]
    for i in range(1, len(alpha)):
        product = product * alpha[i]
        out[i] = product
    return out


def decay_to_end(alpha):
    """Row j: the product of the decays of tokens j+1..C, that is e^(G_C - G_j).   alpha: [C] or [C, K]; same shape
    back.

    >>> import numpy as np
    >>> decay_to_end(np.array([2, 3, 5]))
    array([15,  5,  1])
    """
    C = len(alpha)
    out = alpha * 0 + 1
    product = out[C - 1]
    for j in range(C - 2, -1, -1):
        product = product * alpha[j + 1]
        out[j] = product
    return out


def decay_between(alpha):
    """D_ij: the product of the decays of tokens j+1..i for j <= i, else 0.   alpha: [C]; returns [C, C].

    Implements scalar-decay-mask.

    >>> import numpy as np
    >>> decay_between(np.array([2, 3, 5]))
    array([[ 1,  0,  0],
           [ 3,  1,  0],
           [15,  5,  1]])
    """
    D = alpha[:, None] * alpha[None, :] * 0
    for j in range(len(alpha)):
        product = alpha[j] * 0 + 1
        D[j, j] = product
        for i in range(j + 1, len(alpha)):
            product = product * alpha[i]
            D[i, j] = product
    return D


def decayed_scores(X, Y, alpha):
    """Gamma(X, Y)_ij = sum_c X_ic Y_jc (product of alpha_tc over t = j+1..i) for j <= i, else 0.

    X, Y: [C, K]   alpha: [C, K]   returns [C, C].   Implements decayed-scores.

    >>> import numpy as np
    >>> one = np.ones((3, 1), int)
    >>> decayed_scores(one, one, np.array([[2], [3], [5]]))
    array([[ 1,  0,  0],
           [ 3,  1,  0],
           [15,  5,  1]])
    """
    scores = (X * alpha) @ Y.T * 0  # [C, C], of a type that holds decays too
    decayed = []  # y_j times the decays of the tokens after j
    for i in range(len(X)):
        decayed = [y * alpha[i] for y in decayed] + [Y[i]]
        for j in range(i + 1):
            scores[i, j] = decayed[j] @ X[i]
    return scores


def linear(S, Q, K, V):
    """Linear attention over a chunk.

    S: [V, K]   Q, K: [C, K]   V: [C, V].   Implements linear-chunk.

    >>> import numpy as np
    >>> one = np.ones((3, 1), int)
    >>> linear(np.zeros((1, 1), int), one, one, np.array([[1], [2], [3]])).O.T
    array([[1, 3, 6]])
    """
    M = tril(Q @ K.T)  # [C, C]
    O = Q @ S.T + M @ V  # [C, V]
    S = S + V.T @ K
    return LinearChunk(M, S, O)


def delta(S, Q, K, V, beta):
    """DeltaNet over a chunk: the WY form.

    S: [V, K]   Q, K: [C, K]   V: [C, V]   beta: [C].   Implements delta-chunk (Yang et al. 2024a).

    >>> import numpy as np
    >>> K = np.array([[1, 0], [0, 1], [1, 0]]); V = np.array([[5], [6], [7]])
    >>> delta(np.zeros((1, 2), int), K, K, V, np.array([1, 1, 1])).S
    array([[7, 6]])
    """
    A = tril(K @ K.T, -1) * beta[:, None]  # [C, C]
    R = triangular.substitution(A)  # (I + A)^-1
    M = tril(Q @ K.T)
    U = R @ (V * beta[:, None])  # [C, V]
    W = R @ (K * beta[:, None])  # [C, K]
    E = U - W @ S.T  # [C, V] the residuals, old state included
    O = Q @ S.T + M @ E
    S = S + E.T @ K
    return Chunk(A, R, M, K, Q, K, 1, U, W, E, S, O)


def gated_delta(S, Q, K, V, alpha, beta):
    """Gated DeltaNet over a chunk: every score is multiplied by one scalar decay, so K K^T is formed once.

    S: [V, K]   Q, K: [C, K]   V: [C, V]   alpha, beta: [C].   Implements gdn-chunk (Yang et al. 2024b).

    >>> import numpy as np
    >>> one = np.ones((2, 1))
    >>> gated_delta(np.ones((1, 1)), one, one, one * 3, np.array([0.5, 0.5]), np.array([0.0, 1.0])).O.T
    array([[0.5, 3. ]])
    """
    decay = decay_between(alpha)  # [C, C]
    expG = decay_from_start(alpha)  # [C]
    A = tril(K @ K.T * decay, -1) * beta[:, None]
    R = triangular.substitution(A)
    M = Q @ K.T * decay
    K_in = K * expG[:, None]
    Q_in = Q * expG[:, None]
    K_g = K * decay_to_end(alpha)[:, None]
    U = R @ (V * beta[:, None])
    W = R @ (K_in * beta[:, None])
    E = U - W @ S.T
    O = Q_in @ S.T + M @ E
    S = S * expG[-1] + E.T @ K_g
    return Chunk(A, R, M, K_in, Q_in, K_g, expG[-1], U, W, E, S, O)


def kda(S, Q, K, V, alpha, beta):
    """Kimi Delta Attention over a chunk: the order of computation that the kernels follow.

    S: [V, K]   Q, K: [C, K]   V: [C, V]   alpha: [C, K]   beta: [C].   Implements chunk-scores, chunk-readout-scores,
    chunk-inverse, chunk-inputs, chunk-kg, chunk-u, chunk-w, chunk-residual, chunk-state, chunk-output (Kimi Linear,
    sec. 3).

    >>> import numpy as np
    >>> K = np.array([[1, 0], [0, 1], [1, 0]]); V = np.array([[5], [6], [7]])
    >>> kda(np.zeros((1, 2), int), K, K, V, np.ones((3, 2), int), np.array([1, 1, 1])).S
    array([[7, 6]])
    """
    expG = decay_from_start(alpha)  # [C, K] e^(G_i)
    K_in = K * expG  # [C, K] keys as the incoming state sees them
    Q_in = Q * expG  # [C, K]
    K_g = K * decay_to_end(alpha)  # [C, K] keys as the outgoing state keeps them
    A = tril(decayed_scores(K, K, alpha), -1) * beta[:, None]  # [C, C]
    M = decayed_scores(Q, K, alpha)  # [C, C]
    R = triangular.substitution(A)  # [C, C] (I + A)^-1
    U = R @ (V * beta[:, None])  # [C, V] residuals if the incoming state were zero
    W = R @ (K_in * beta[:, None])  # [C, K] how they change with the incoming state
    E = U - W @ S.T  # [C, V] the residuals
    O = Q_in @ S.T + M @ E  # [C, V]
    S = S * expG[-1] + E.T @ K_g  # [V, K]
    return Chunk(A, R, M, K_in, Q_in, K_g, expG[-1], U, W, E, S, O)


def gated_delta_2(S, Q, K, V, alpha, erase, write):
    """Gated DeltaNet-2 over a chunk: the order of KDA, with a gated key that reads and a plain key that is written.

    S: [V, K]   Q, K: [C, K]   V: [C, V]   alpha: [C, K]   erase: [C, K] or [C, 1]   write: [C, V] or [C, 1].
    Implements gdn2-chunk (Hatamizadeh et al. 2026).

    >>> import numpy as np
    >>> K = np.array([[1, 0], [0, 1], [1, 0]]); V = np.array([[5], [6], [7]]); one = np.ones((3, 2), int)
    >>> gated_delta_2(np.zeros((1, 2), int), K, K, V, one, one * [0, 1], one[:, :1]).S  # channel 1 is never erased
    array([[12,  6]])
    """
    # the lines of kda once more, with two gates: the book quotes those, and KDA is the case erase = write = beta, as
    # gdn2-kda proves
    expG = decay_from_start(alpha)  # [C, K] e^(G_i)
    K_in = K * expG  # [C, K] keys as the incoming state sees them
    Q_in = Q * expG  # [C, K]
    K_g = K * decay_to_end(alpha)  # [C, K] keys as the outgoing state keeps them
    A = tril(decayed_scores(K * erase, K, alpha), -1)  # [C, C]
    M = decayed_scores(Q, K, alpha)  # [C, C]
    R = triangular.substitution(A)  # [C, C] (I + A)^-1
    U = R @ (V * write)  # [C, V] residuals if the incoming state were zero
    W = R @ (K_in * erase)  # [C, K] how they change with the incoming state
    E = U - W @ S.T  # [C, V] the residuals
    O = Q_in @ S.T + M @ E  # [C, V]
    S = S * expG[-1] + E.T @ K_g  # [V, K]
    return Chunk(A, R, M, K_in, Q_in, K_g, expG[-1], U, W, E, S, O)


def single_solve(R, V, K_in, S, beta):
    """The residuals by one solve, when the incoming state is known: E = R B (V - K_in S^T).

    R: [C, C]   V: [C, V]   K_in: [C, K]   S: [V, K]   beta: [C]   returns [C, V].   Implements single-solve.

    >>> import numpy as np
    >>> one = np.ones((1, 1), int)
    >>> single_solve(one, one * 5, one, one * 2, np.array([1]))
    array([[3]])
    """
    return R @ ((V - K_in @ S.T) * beta[:, None])


def split(chunk, S, C, *sequences):
    """Run a chunk function over T tokens, C at a time; the last chunk may be shorter.

    chunk: one of this module's functions   S: [V, K]   sequences: its other arguments, each with T rows.
    Returns (final state, [terms of each chunk]).   Implements chunk-by-chunk.

    >>> import numpy as np
    >>> one = np.ones((5, 1), int)
    >>> S, terms = split(linear, np.zeros((1, 1), int), 2, one, one, one)
    >>> S, len(terms)
    (array([[5]]), 3)
    """
    if C < 1:
        raise ValueError(f"a chunk needs at least one token, got C = {C}")
    terms = []
    for start in range(0, len(sequences[0]), C):
        out = chunk(S, *(x[start : start + C] for x in sequences))
        S = out.S
        terms.append(out)
    return S, terms

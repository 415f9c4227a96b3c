"""The chunk form of a diagonal plus rank one transition: S_t = S_(t-1) (Diag(w_t) + a_t b_t^T) + v_t k_t^T.

The erase part S_(t-1) a_t is read before the token's decay, so its decays run over tokens j+1..i-1, one token shorter
than those of KDA. RWKV-6 reads its output in the same place. Plain array algebra alone, like ``chunk``.
"""

from typing import Any, NamedTuple

from kda_lab.algebra import chunk, triangular


class DplrChunk(NamedTuple):
    """The terms of one chunk: A_ab, A_ak, R, M_qb, M_qk [C, C]; A_in, Q_in, B_g, K_g [C, K]; Z, O [C, V]; S [V, K].

    >>> DplrChunk._fields
    ('A_ab', 'A_ak', 'R', 'M_qb', 'M_qk', 'A_in', 'Q_in', 'B_g', 'K_g', 'Z', 'S', 'O')
    """

    A_ab: Any
    A_ak: Any
    R: Any
    M_qb: Any
    M_qk: Any
    A_in: Any
    Q_in: Any
    B_g: Any
    K_g: Any
    Z: Any
    S: Any
    O: Any


def decay_before(w):
    """Row i: the product of the decays of tokens 1..i-1; row 1 is all ones.   w: [C, K]; same shape back.

    >>> import numpy as np
    >>> decay_before(np.array([[2], [3], [5]])).T
    array([[1, 2, 6]])
    """
    out = w * 0 + 1
    out[1:] = chunk.decay_from_start(w)[:-1]
    return out


def scores_before(X, Y, w):
    """sum_c X_ic Y_jc (product of w_tc over t = j+1..i-1) for j < i, else 0.

    X, Y, w: [C, K]   returns [C, C].   Implements scores-before-decay.

    >>> import numpy as np
    >>> one = np.ones((3, 1), int)
    >>> scores_before(one, one, np.array([[2], [3], [5]]))
    array([[0, 0, 0],
           [1, 0, 0],
           [3, 1, 0]])
    """
    scores = X @ Y.T * 0  # [C, C]
    decayed = []  # y_j times the decays of the tokens after j, token i not yet included
    for i in range(len(X)):
        for j in range(i):
            scores[i, j] = decayed[j] @ X[i]
        decayed = [y * w[i] for y in decayed] + [Y[i]]
    return scores


def dplr(S, Q, K, V, w, a, b):
    """Diagonal plus rank one over a chunk: Z holds the reads S_(i-1) a_i, one triangular solve for all of them.

    S: [V, K]   Q, K, w, a, b: [C, K]   V: [C, V].   Implements dplr-chunk.

    >>> import numpy as np
    >>> one = np.ones((2, 1), int)
    >>> dplr(np.array([[4]]), one, one, one * 3, one, -one, one).O.T          # a = -b = -k erases what the key held
    array([[3, 3]])
    """
    G = chunk.decay_from_start(w)  # [C, K]
    late = chunk.decay_to_end(w)  # [C, K]
    A_in = a * decay_before(w)  # [C, K] read before the decay of their own token
    Q_in = Q * G
    B_g, K_g = b * late, K * late
    A_ab, A_ak = scores_before(a, b, w), scores_before(a, K, w)  # [C, C] strictly lower
    M_qb, M_qk = chunk.decayed_scores(Q, b, w), chunk.decayed_scores(Q, K, w)  # [C, C] lower
    R = triangular.substitution(-A_ab)  # (I - A_ab)^-1
    Z = R @ (A_in @ S.T + A_ak @ V)  # [C, V]
    O = Q_in @ S.T + M_qb @ Z + M_qk @ V  # [C, V]
    S = S * G[-1] + Z.T @ B_g + V.T @ K_g
    return DplrChunk(A_ab, A_ak, R, M_qb, M_qk, A_in, Q_in, B_g, K_g, Z, S, O)

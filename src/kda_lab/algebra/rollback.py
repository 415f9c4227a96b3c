"""Taking tokens back: the inverse of a transition and why it is of no use, and states inside a chunk from its
residuals.

A server that speculates has a state behind eight tokens and finds that three were right. It can invert (exact on
paper, useless in floats), keep a state for each token, or keep three vectors a token and make the state again.
Plain array algebra, like ``chunk``; the first three functions divide.
"""

from kda_lab.algebra import affine, chunk
from kda_lab.rules import outer


def inverse_transition(k, alpha, beta):
    """``T^-1 = (I + beta / (1 - beta |k|^2) k k^T) Diag(1 / alpha)``.   k, alpha: [K]   beta: scalar   returns [K, K].

    There is none where ``beta |k|^2 = 1`` or a decay is 0.   Implements inverse-transition.

    >>> import numpy as np
    >>> k, alpha = np.array([1.0, 1.0]), np.array([0.5, 0.25])
    >>> affine.transition(k, alpha, 0.25) @ inverse_transition(k, alpha, 0.25)
    array([[1., 0.],
           [0., 1.]])
    """
    erased = outer(k, k) * (beta / (1 - k @ k * beta))
    return (affine.eye(k) + erased) / alpha[None, :]


def undo(S, r, k, alpha):
    """The state before a token, from the state behind it and the token's residual.   S: [V, K]   r: [V]   k, alpha:
    [K].

    Works at ``beta |k|^2 = 1`` too, since r holds what the step erased.   Implements rollback-residual.

    >>> import numpy as np
    >>> undo(np.array([[4.0, 8.0]]), np.array([2.0]), np.array([1.0, 0.0]), np.array([0.5, 1.0]))
    array([[4., 8.]])
    """
    return (S - outer(r, k)) / alpha


def lost_direction(k, alpha):
    """z with z^T T = 0, if ``beta |k|^2 = 1``: what the rows of the state hold along z = k / alpha, the step erases.

    k, alpha: [K]   returns [K].   Implements rollback-singular.

    >>> import numpy as np
    >>> k, alpha = np.array([1.0, 0.0]), np.array([0.5, 1.0])
    >>> lost_direction(k, alpha) @ affine.transition(k, alpha, 1.0)
    array([0., 0.])
    """
    return k / alpha


def states(S, E, K, alpha, lengths):
    """The states behind the first n tokens of a chunk, for each n in ``lengths``: S_n = S_0 e^G_n + sum over i <= n of
    r_i (k_i e^(G_n - G_i))^T.

    Causal: the residuals of later tokens are not read, so one verified chunk commits any of its prefixes.
    S: [V, K] before the chunk   E: [C, V] residuals   K, alpha: [C, K]   returns a list of [V, K].   Implements
    prefix-commit.

    >>> import numpy as np
    >>> one = np.ones((3, 1), int)
    >>> states(one[:1], one, one, one * 2, [0, 1, 3])
    [array([[1]]), array([[3]]), array([[15]])]
    """
    out = []
    for n in lengths:
        if n == 0:
            out.append(S * 1)
            continue
        D = chunk.decay_from_start(alpha[:n])[-1]  # [K]
        K_g = K[:n] * chunk.decay_to_end(alpha[:n])  # [n, K]
        out.append(S * D + E[:n].T @ K_g)
    return out

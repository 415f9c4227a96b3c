"""A state as a checkpoint and the records of the tokens behind it: read it, continue it, move the checkpoint.

A record of token i is (u_i, k_i, alpha_i): what the token wrote, under which key, after which decay. u_i = beta (v_i -
Sbar_i k_i) is already corrected, so replaying is a sum and not a recurrence. Plain array algebra, like ``chunk``:
decays over several tokens are products of later tokens' decays, and nothing is divided.
"""

from kda_lab.algebra import chunk, rollback


def read(S, U, K, alpha, x):
    """S_n x without forming S_n: S (x e^G_n) + sum over j of u_j <k_j e^(G_n - G_j), x>.

    S: [V, K] the checkpoint   U: [n, V]   K, alpha: [n, K]   x: [K]   returns [V].   Implements replay-read.

    >>> import numpy as np
    >>> S, one = np.array([[4.0, 8.0]]), np.ones((1, 2))
    >>> read(S, np.array([[3.0]]), one, one / 2, np.array([1.0, 0.0]))
    array([5.])
    """
    if len(U) == 0:
        return S @ x
    D = chunk.decay_from_start(alpha)[-1]  # [K] e^(G_n)
    later = chunk.decay_to_end(alpha)  # [n, K] e^(G_n - G_j)
    return S @ (x * D) + U.T @ ((K * later) @ x)


def step(S, U, K, alpha, q, k, v, a, beta):
    """What the next token writes and answers: u = beta (v - S_n (a k)), o = S_n (a q) + u <k, q>.

    S, U, K, alpha: as for ``read``   q, k, a: [K]   v: [V]   returns u, o [V].   Implements replay-step.

    >>> import numpy as np
    >>> none, k = np.zeros((0, 1)), np.array([1.0, 0.0])
    >>> step(np.array([[4.0, 8.0]]), none, none, none, k, k, np.array([6.0]), np.array([0.5, 1.0]), 0.5)
    (array([2.]), array([4.]))
    """
    # the token decays the state before it reads it, column by column:
    # so the decay can go to the vector that reads
    u = (v - read(S, U, K, alpha, k * a)) * beta  # [V]
    o = read(S, U, K, alpha, q * a) + u * (k @ q)  # [V]
    return u, o


def advance(S, U, K, alpha, m):
    """The checkpoint moved over its first m records, and the records that are left.

    Returns S_m, U[m:], K[m:], alpha[m:]; they stand for the same state.   Implements replay-anchor.

    >>> import numpy as np
    >>> one = np.ones((2, 1))
    >>> advance(one[:1], one, one, one / 2, 1)
    (array([[1.5]]), array([[1.]]), array([[1.]]), array([[0.5]]))
    """
    (S_m,) = rollback.states(S, U, K, alpha, [m])
    return S_m, U[m:], K[m:], alpha[m:]

"""The chunk form of the Hopper kernel: two dependent products a chunk instead of three.

The same rule as ``chunk.kda``, regrouped once more. The state is kept in the units of the chunk's middle, so that one array
of write keys serves the scores and the update; the norms of keys and queries live in vectors of C; and the residuals and
the outputs are two halves of one product with the old state. Array algebra as in ``chunk``, and one division by decays.
"""

from typing import Any, NamedTuple

from kda_lab import chunk


class Middle(NamedTuple):
    """A chunk in the units of its middle: Q, read, write [C, K]; entry, exit [K], the decays before and behind the middle.

    >>> Middle._fields
    ('Q', 'read', 'write', 'entry', 'exit')
    """

    Q: Any
    read: Any
    write: Any
    entry: Any
    exit: Any


class Factors(NamedTuple):
    """What the state needs of a chunk: T, M [C, C] for the values, W, Q [C, K] for the old state.

    >>> Factors._fields
    ('T', 'M', 'W', 'Q')
    """

    T: Any
    M: Any
    W: Any
    Q: Any


def middle_units(Q, K, alpha):
    """Queries, read keys and write keys relative to the state after token (C + 1) // 2.

    Q, K, alpha: [C, K]   returns a ``Middle``. Exponents reach over half a chunk only: 8 tokens of -5 are e^40, where a
    reference at the chunk's start would need e^80.   Implements middle-units.

    >>> import numpy as np
    >>> one = np.ones((4, 1)); m = middle_units(one, one, one / 2)
    >>> m.read.T, m.write.T, m.entry
    (array([[2.  , 1.  , 0.5 , 0.25]]), array([[0.5, 1. , 2. , 4. ]]), array([0.25]))
    """
    expG = chunk.decay_from_start(alpha)  # [C, K]
    middle = expG[(len(alpha) + 1) // 2 - 1]  # [K]
    d = expG / middle  # [C, K] above 1 before the middle, below 1 behind it
    return Middle(Q * d, K * d, K / d, middle, expG[-1] / middle)


def solve_rows(A, H, c):
    """The rows y of y (Diag(1/c) + A) = -H, each divided by c: all of them in one pass from the last column to the first.

    A: [C, C] strictly lower   H: [n, C] one right hand side a row   c: [C]   returns [n, C], to be multiplied by c or by a
    part of it. A row never reads another, so a thread can own one.   Implements row-solve.

    >>> import numpy as np
    >>> solve_rows(np.array([[0, 0], [5, 0]]), np.eye(2, dtype=int), np.array([2, 3]))
    array([[-1,  0],
           [15, -1]])
    """
    y = H * (-1)  # [n, C]
    for last in range(len(c) - 1, -1, -1):
        z = y[:, last] * c[last]  # [n] final now: only later columns feed a column
        for j in range(last):
            y[:, j] = y[:, j] - z * A[last, j]
    return y


def factors(middle, beta, k_factor, q_factor):
    """The four small factors of a chunk, with the norms folded in.

    middle: a ``Middle`` of raw queries and keys   beta: [C]   k_factor: [C] 1/``|k|``   q_factor: [C] scale/``|q|``.
    Returns ``Factors``.   Implements folded-norms.

    >>> import numpy as np
    >>> one = np.ones((2, 1), int); f = factors(Middle(one, one, one, 1, 1), one[:, 0], one[:, 0], one[:, 0])
    >>> f.T, f.W.T
    (array([[ 1,  0],
           [-1,  1]]), array([[1, 0]]))
    """
    A = chunk.tril(middle.read @ middle.write.T, -1)  # [C, C]
    M = chunk.tril(middle.Q @ middle.write.T) * q_factor[:, None]  # [C, C]
    one = A * 0
    for i in range(len(beta)):
        one[i, i] = 1
    b = beta * k_factor  # [C]
    c = b * k_factor  # [C]
    y, x = solve_rows(A, one, c), solve_rows(A, M, c)  # [C, C] each; 2C rows of one solve
    W = (y * c[None, :]) @ middle.read * (-1)  # [C, K]
    Q = middle.Q * q_factor[:, None] + (x * c[None, :]) @ middle.read  # [C, K]
    return Factors(y * b[None, :] * (-1), x * b[None, :] * (-1), W, Q)


def step(S, V, T, M, W, Q, write):
    """One chunk on the state, all in one gauge: U and O out of one accumulator, then the update.

    S: [V, K]   V: [C, V]   T, M: [C, C]   W, Q, write: [C, K]   returns (S, U [C, V], O [C, V]).
    U are the residuals, already divided by the norms of the keys; O never waits for them.   Implements one-accumulator.

    >>> import numpy as np
    >>> one = np.ones((1, 1), int)
    >>> step(one * 2, one * 5, one, one, one, one, one)      # r = 5 - 2 is written: 2 + 3 = 5; o = 5 + 2
    (array([[5]]), array([[3]]), array([[7]]))
    """
    U = T @ V - W @ S.T  # [C, V]
    O = M @ V + Q @ S.T  # [C, V] the same two products with other rows
    return S + U.T @ write, U, O


def kda(S, Q, K, V, alpha, beta, k_factor, q_factor):
    """Kimi Delta Attention over a chunk of raw keys and queries, as the Hopper kernel computes it.

    S: [V, K]   Q, K, alpha: [C, K]   V: [C, V]   beta, k_factor, q_factor: [C]   returns (S, O [C, V]).
    Implements fused-chunk.

    >>> import numpy as np
    >>> K = np.array([[1, 0], [0, 1], [1, 0]]); V = np.array([[5], [6], [7]]); one = np.ones(3)
    >>> kda(np.zeros((1, 2)), K, K, V, np.ones((3, 2)), one, one, one)[0]
    array([[7., 6.]])
    """
    m = middle_units(Q, K, alpha)
    S, _, O = step(S * m.entry, V, *factors(m, beta, k_factor, q_factor), m.write)
    return S * m.exit, O


def pair(S, Va, Vb, a, b, write_a, write_b, between):
    """Two chunks with three dependent products instead of four: both read the old state at once.

    S: [V, K] in a's units   Va, Vb: [C, V]   a, b: ``Factors``   write_a, write_b: [C, K], each in its own units
    between: [K], from a's middle to b's.   Returns (S in b's units, Oa, Ob [C, V]).
    The part of a's update that b reads is a product of two prepared factors, P = write_a Diag(between) [-W; Q]_b^T.
    Implements chunk-pair.

    >>> import numpy as np
    >>> one = np.ones((1, 1), int); f = Factors(one, one, one, one)
    >>> pair(one * 2, one * 5, one * 7, f, f, one, one, np.ones(1, int))     # 2 + 3 = 5, then 5 + 2 = 7
    (array([[7]]), array([[7]]), array([[12]]))
    """
    W, Q = b.W * between, b.Q * between  # [C, K] what b reads, in a's units
    Ua = a.T @ Va - a.W @ S.T  # [C, V] one product with the state for all four
    Oa = a.M @ Va + a.Q @ S.T
    Ub = b.T @ Vb - W @ S.T - (W @ write_a.T) @ Ua
    Ob = b.M @ Vb + Q @ S.T + (Q @ write_a.T) @ Ua
    return S * between + Ua.T @ (write_a * between) + Ub.T @ write_b, Oa, Ob

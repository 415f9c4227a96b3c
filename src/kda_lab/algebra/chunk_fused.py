"""The chunk form of the Hopper kernel: two dependent products a chunk instead of three.

The same rule as ``chunk.kda``, regrouped once more. The state is kept in units that change from chunk to chunk, so that
one array of write keys serves the scores and the update. What decays it on the way stands in the columns of the factors
that read it, and the state itself decays behind that product. The norms of keys and queries live in vectors of C; and
the residuals and the outputs are two halves of one product with the old state. Array algebra as in ``chunk``, and one
division by decays.
"""

from typing import Any, NamedTuple

from kda_lab.algebra import chunk


class Units(NamedTuple):
    """A chunk in units of its own.

    Q, read, write: [C, K]   A, M: [C, C] scores of read keys and of queries with write keys, j <= i; of A only j < i is
    used
    to_read, to_write, exit: [K] decays from the chunk's start to the units that it reads in, from there to those that
    it writes in, and from those to its end.

    >>> Units._fields
    ('Q', 'read', 'write', 'A', 'M', 'to_read', 'to_write', 'exit')
    """

    Q: Any
    read: Any
    write: Any
    A: Any
    M: Any
    to_read: Any
    to_write: Any
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


def gate_sums(*pieces):
    """The exponents of a chunk relative to its middle, and the sum up to there: one product with a matrix of -1, 0 and
    1.

    pieces: [C, K] arrays whose sum are the log decays g   returns d = G_i - G_middle [C, K] and G_middle [K], the
    middle being token (C + 1) // 2. A row adds only gates between its token and the middle: all have one sign, and
    nothing cancels.
    The middle's own row, of which nothing else is asked, adds the first half.   Implements gate-sums.

    >>> import numpy as np
    >>> d, middle = gate_sums(np.array([[-1], [-2], [-4], [-8]]))
    >>> d.T, middle
    (array([[  2,   0,  -4, -12]]), array([-3]))
    """
    C = len(pieces[0])
    middle = (C + 1) // 2 - 1
    signs = pieces[0] @ pieces[0].T * 0  # [C, C]
    signs[middle, : middle + 1] = 1
    for i in range(middle):
        signs[i, i + 1 : middle + 1] = -1
    for i in range(middle + 1, C):
        signs[i, middle + 1 : i + 1] = 1
    d = sum(signs @ piece for piece in pieces)  # [C, K]
    entry = d[middle] * 1
    d[middle] = entry * 0
    return d, entry


def two_pieces(g):
    """A gate as two numbers that bf16 holds: itself rounded to 8 binary digits, and what is left, rounded likewise.

    g: any shape, fp32   returns (top, rest). The two together miss at most 2^-16 of g, one alone up to 2^-8; and what
    is missed is the same in every sum that the gate enters.

    >>> import torch
    >>> g = torch.tensor([-0.1])
    >>> top, rest = two_pieces(g)
    >>> [(g.double() - kept).abs().item() / 0.1 < 2**-16 for kept in (top, top.double() + rest)]
    [False, True]
    """

    def kept(x):
        return x.bfloat16().float()

    top = kept(g)
    # exact: what was rounded off
    return top, kept(g - top)


def middle_units(Q, K, alpha):
    """A chunk in the units of the state after token (C + 1) // 2: it reads and writes in them.

    Q, K, alpha: [C, K]   returns ``Units``. Exponents reach over half a chunk only: 8 tokens of -5 are e^40, where a
    reference at the chunk's start would need e^80.   Implements middle-units.

    >>> import numpy as np
    >>> one = np.ones((4, 1)); m = middle_units(one, one, one / 2)
    >>> m.read.T, m.write.T, m.to_read
    (array([[2.  , 1.  , 0.5 , 0.25]]), array([[0.5, 1. , 2. , 4. ]]), array([0.25]))
    """
    expG = chunk.decay_from_start(alpha)  # [C, K]
    middle = expG[(len(alpha) + 1) // 2 - 1]  # [K]
    d = expG / middle  # [C, K] above 1 before the middle, below 1 behind it
    Q, read, write = Q * d, K * d, K / d
    A, M = chunk.tril(read @ write.T), chunk.tril(Q @ write.T)  # [C, C] each
    return Units(Q, read, write, A, M, middle, middle * 0 + 1, expG[-1] / middle)


def edge_units(Q, K, alpha):
    """A chunk whose gates are too strong for one reference: it reads in the units of its start and writes in those of
    its end.

    Q, K, alpha: [C, K]   returns ``Units``. No factor is above 1, and nothing is divided: for any gates, 0 among them.
    Implements edge-units.

    >>> import numpy as np
    >>> one = np.ones((4, 1)); m = edge_units(one, one, one / 2)
    >>> m.read.T, m.write.T, m.A[3]
    (array([[0.5   , 0.25  , 0.125 , 0.0625]]), array([[0.125, 0.25 , 0.5  , 1.   ]]), array([0.125, 0.25 , 0.5  ,
    1.   ]))
    """
    expG, one = chunk.decay_from_start(alpha), alpha[0] * 0 + 1  # [C, K], [K]
    write = K * chunk.decay_to_end(alpha)  # [C, K]
    return Units(Q * expG, K * expG, write, half_scores(K, K, alpha), half_scores(Q, K, alpha), one, expG[-1], one)


def half_scores(X, Y, alpha):
    """``chunk.decayed_scores`` by halves of a chunk: what lies below the two diagonal blocks is a product.

    X, Y, alpha: [C, K]   returns [C, C]. Between a token of the late half and one of the early half lies the middle:
    relative to it both factors are decays of whole tokens, and none is above 1. On the diagonal each pair of tokens has
    its own.

    >>> import numpy as np
    >>> one = np.ones((3, 1)); half_scores(one, one, one / 2)
    array([[1.  , 0.  , 0.  ],
           [0.5 , 1.  , 0.  ],
           [0.25, 0.5 , 1.  ]])
    """
    half = (len(alpha) + 1) // 2
    early, late = slice(None, half), slice(half, None)
    scores = (X * alpha) @ Y.T * 0  # [C, C]
    for part in (early, late):
        scores[part, part] = chunk.decayed_scores(X[part], Y[part], alpha[part])
    if half < len(alpha):
        x, y = X[late] * chunk.decay_from_start(alpha[late]), Y[early] * chunk.decay_to_end(alpha[early])
        scores[late, early] = x @ y.T
    return scores


def solve_rows(A, H, c):
    """The rows y of y (Diag(1/c) + A) = -H, each divided by c: all of them in one pass from the last column to the
    first.

    A: [C, C], used below its diagonal   H: [n, C] one right hand side a row   c: [C]   returns [n, C], to be multiplied
    by c
    or by a part of it. A row never reads another, so a thread can own one.   Implements row-solve.

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


def folded_decays(units, before):
    """What a chunk's factors and its state are multiplied by, when the state comes in the units of the chunk before.

    units: ``Units``   before: [K] exit of the chunk before, or ones   returns (fold, keep) [K]: the state decays on its
    way to where this chunk reads it, and again to where it writes. Implements folded-decays.

    >>> import numpy as np
    >>> one = np.ones((4, 1)); half = one[0] / 2
    >>> folded_decays(middle_units(one, one, one / 2), half), folded_decays(edge_units(one, one, one / 2), half)
    ((array([0.125]), array([0.125])), (array([0.5]), array([0.03125])))
    """
    fold = before * units.to_read
    return fold, fold * units.to_write


def factors(units, beta, k_factor, q_factor, fold):
    """The four small factors of a chunk, with the norms and the decays of the old state folded in.

    units: ``Units`` of raw queries and keys   beta: [C]   k_factor: [C] 1/``|k|``   q_factor: [C] scale/``|q|``   fold:
    [K].
    Returns ``Factors``.   Implements folded-norms.

    >>> import numpy as np
    >>> one = np.ones((2, 1), int); raw = Units(one, one, one, np.tri(2, dtype=int), np.tri(2, dtype=int), 1, 1, 1)
    >>> f = factors(raw, one[:, 0], one[:, 0], one[:, 0], one[0] * 5)
    >>> f.T, f.W.T
    (array([[ 1,  0],
           [-1,  1]]), array([[5, 0]]))
    """
    M = units.M * q_factor[:, None]  # [C, C]
    one = M * 0
    for i in range(len(beta)):
        one[i, i] = 1
    b = beta * k_factor  # [C]
    c = b * k_factor  # [C]
    y, x = solve_rows(units.A, one, c), solve_rows(units.A, M, c)  # [C, C] each; 2C rows of one solve
    W = (y * c[None, :]) @ units.read * (-1)  # [C, K]
    Q = units.Q * q_factor[:, None] + (x * c[None, :]) @ units.read  # [C, K]
    return Factors(y * b[None, :] * (-1), x * b[None, :] * (-1), W * fold, Q * fold)


def step(S, V, T, M, W, Q, write, keep):
    """One chunk on the state: U and O out of one accumulator, the state decays behind that product, then the update.

    S: [V, K]   V: [C, V]   T, M: [C, C]   W, Q, write: [C, K]   keep: [K]   returns (S, U [C, V], O [C, V]).
    U are the residuals, already divided by the norms of the keys; O never waits for them, and neither of them for the
    decay.
    Implements one-accumulator.

    >>> import numpy as np
    >>> one = np.ones((1, 1), int)
    >>> step(one * 2, one * 5, one, one, one, one, one, one[0] * 3)  # r = 5 - 2 is written: 3 * 2 + 3 = 9; o = 5 + 2
    (array([[9]]), array([[3]]), array([[7]]))
    """
    U = T @ V - W @ S.T  # [C, V]
    O = M @ V + Q @ S.T  # [C, V] the same two products with other rows
    return S * keep + U.T @ write, U, O


def kda(S, Q, K, V, alpha, beta, k_factor, q_factor, C=16, edges=()):
    """Kimi Delta Attention over chunks of raw keys and queries, as the Hopper kernel computes it.

    S: [V, K]   Q, K, alpha: [T, K]   V: [T, V]   beta, k_factor, q_factor: [T]   edges: the chunks with gates too
    strong for
    one reference   returns (S, [rows of O]). Implements fused-chunk.

    >>> import numpy as np
    >>> K = np.array([[1, 0], [0, 1], [1, 0]]); V = np.array([[5], [6], [7]]); one = np.ones(3)
    >>> kda(np.zeros((1, 2)), K, K, V, np.ones((3, 2)), one, one, one, C=2)[0]
    array([[7., 6.]])
    """
    rows = []
    before = alpha[0] * 0 + 1  # [K] from the units of S to the end of the chunk before
    for n, start in enumerate(range(0, len(K), C)):
        part = slice(start, start + C)
        units = (edge_units if n in edges else middle_units)(Q[part], K[part], alpha[part])
        fold, keep = folded_decays(units, before)
        S, _, O = step(S, V[part], *factors(units, beta[part], k_factor[part], q_factor[part], fold), units.write, keep)
        before = units.exit
        rows.extend(O)
    return S * before, rows

"""The affine view of a delta rule: S_t = S_(t-1) T_t + H_t, and how such steps compose.

Transitions multiply from the right, so products read left to right in time. Plain array algebra, like ``rules``.
"""

from kda_lab.rules import outer


def eye(k):
    """The identity matrix [K, K] in the number system of the vector k [K].

    >>> import numpy as np
    >>> eye(np.array([7, 7]))
    array([[1, 0],
           [0, 1]])
    """
    I = outer(k, k) * 0
    for c in range(len(k)):
        I[c, c] = 1
    return I


def transition(k, alpha, beta):
    """T = Diag(alpha) (I - beta k k^T).   k: [K]   alpha: [K] or a scalar   beta: scalar   returns [K, K].

    Implements kda-transition.

    >>> import numpy as np
    >>> transition(np.array([1, 1]), np.array([2, 3]), 1)
    array([[ 0, -2],
           [-3,  0]])
    """
    erase = eye(k) - outer(k, k) * beta
    return erase * (k * 0 + alpha)[:, None]


def increment(k, v, beta):
    """H = beta v k^T.   k: [K]   v: [V]   beta: scalar   returns [V, K].

    >>> import numpy as np
    >>> increment(np.array([1, 2]), np.array([3]), 2)
    array([[ 6, 12]])
    """
    return outer(v, k) * beta


def compose(first, second):
    """The one step that does what two do: (T1, H1) * (T2, H2) = (T1 T2, H1 T2 + H2).

    Each argument is (T [K, K], H [V, K]).   Implements affine-composition.

    >>> import numpy as np
    >>> compose((np.array([[2]]), np.array([[1]])), (np.array([[3]]), np.array([[5]])))
    (array([[6]]), array([[8]]))
    """
    (T1, H1), (T2, H2) = first, second
    return T1 @ T2, H1 @ T2 + H2


def fold(K, V, alpha, beta):
    """Compose the steps of all tokens of a chunk, in order.

    K: [C, K]   V: [C, V]   alpha: [C, K] or [C]   beta: [C]   returns (T [K, K], H [V, K]).   Implements affine-chunk.

    >>> import numpy as np
    >>> one = np.ones((2, 1), int)
    >>> fold(one, one * 4, one, np.array([1, 1]))          # a full overwrite keeps nothing of the past
    (array([[0]]), array([[4]]))
    """
    total = None
    for k, v, a, b in zip(K, V, alpha, beta):
        step = transition(k, a, b), increment(k, v, b)
        total = step if total is None else compose(total, step)
    return total

"""What a matrix can hold: keys to store under, what each rule answers afterwards, and what to expect.

All errors are squared lengths of (answer - value), for values of squared length one on average. The expectations need
keys that are drawn independently of each other with E[k k^T] = I / K, such as uniform unit keys, and values of mean
zero that are drawn independently of the keys and of each other: a common part of all values can be stored better, or
disturb more. torch tensors; n pairs, keys [n, K], values [n, V].
"""

from fractions import Fraction

import torch

from kda_lab import rules


def random_keys(n, K, generator):
    """Unit keys, uniform on the sphere: E[k k^T] = I / K.   returns [n, K], float64.

    >>> random_keys(3, 4, torch.Generator().manual_seed(0)).norm(dim=-1).round(decimals=9).tolist()
    [1.0, 1.0, 1.0]
    """
    return torch.nn.functional.normalize(torch.randn(n, K, generator=generator, dtype=torch.float64), dim=-1)


def cone_keys(n, K, rho, generator):
    """Unit keys around the first axis: k = (sqrt(rho), sqrt(1 - rho) z), z a random unit vector of K - 1 numbers.

    Two different keys have the expected cosine rho.   returns [n, K], float64.

    >>> cone_keys(2, 3, 0.25, torch.Generator().manual_seed(0))[:, 0].tolist()
    [0.5, 0.5]
    """
    axis = torch.full((n, 1), rho, dtype=torch.float64).sqrt()
    return torch.cat([axis, (1 - rho) ** 0.5 * random_keys(n, K - 1, generator)], -1)


def random_values(n, V, generator):
    """Values of mean zero and squared length one on average.   returns [n, V], float64."""
    return torch.randn(n, V, generator=generator, dtype=torch.float64) / V**0.5


def write(rule, keys, values, passes=1, S=None):
    """The state after the pairs were written in order, ``passes`` times.   rule: (S, k, v) -> S   returns [V, K].

    >>> one = torch.eye(2, dtype=torch.float64)
    >>> write(lambda S, k, v: rules.delta(S, k, k, v, 1.0)[0], one, one)
    tensor([[1., 0.],
            [0., 1.]], dtype=torch.float64)
    """
    S = values.new_zeros(values.shape[1], keys.shape[1]) if S is None else S
    for _ in range(passes):
        for k, v in zip(keys, values):
            S = rule(S, k, v)
    return S


def recall_errors(S, keys, values):
    """``|S k_i - v_i|^2`` of each pair.   returns [n].

    >>> recall_errors(torch.zeros(1, 2), torch.eye(2), torch.tensor([[3.0], [4.0]])).tolist()
    [9.0, 16.0]
    """
    return (keys @ S.T - values).square().sum(-1)


def average_errors(rule, keys, values, passes=1):
    """``recall_errors`` after ``write``, averaged over draws.   keys: [draws, n, K]   values: [draws, n, V]   returns
    [n].

    rule None is ``least_squares``.

    >>> one = torch.eye(2, dtype=torch.float64)[None]
    >>> average_errors(lambda S, k, v: rules.linear(S, k, k, v)[0], one, one).tolist()
    [0.0, 0.0]
    """
    if rule is None:
        return torch.stack([recall_errors(least_squares(k, v), k, v) for k, v in zip(keys, values)]).mean(0)
    return torch.vmap(lambda k, v: recall_errors(write(rule, k, v, passes), k, v))(keys, values).mean(0)


def least_squares(keys, values):
    """The state with the smallest total error, and of those the smallest: V^T K (K^T K)^+.   returns [V, K].

    >>> least_squares(torch.tensor([[2.0, 0.0]]), torch.tensor([[6.0]])).tolist()
    [[3.0, 0.0]]
    """
    return (torch.linalg.pinv(keys) @ values).T


def additive_error(n, K):
    """Expected error of any of n pairs when values are added up: (n - 1) / K.   Implements additive-interference.

    >>> additive_error(17, 16)
    Fraction(1, 1)
    """
    return Fraction(n - 1, K)


def cone_overlap(rho, K):
    """Expected cosine of two keys of a cone, and its expected square.   Implements cone-interference.

    >>> cone_overlap(Fraction(1, 2), 3)
    (Fraction(1, 2), Fraction(3, 8))
    """
    return rho, rho**2 + (1 - rho) ** 2 / (K - 1)


def retained(later, K, beta=1, alpha=1):
    """Expected share of its answer that a key still reads after ``later`` more writes: (alpha (1 - beta / K))^later.

    The share counts from the answer after the pair's own write, which from an empty memory is beta v. Implements
    delta-retention.

    >>> retained(2, 4), retained(2, 4, alpha=Fraction(1, 2))
    (Fraction(9, 16), Fraction(9, 64))
    """
    return (alpha * (1 - Fraction(1, K) * beta)) ** later


def read_weights(keys, q):
    """What q reads from DeltaNet (beta = 1) as weights on the values, and the part of q that still reads the first
    state.

    From the last key to the first: the weight is k_t . w, and w loses its part along k_t.
    keys: [n, K]   q: [K]   returns (weights, a list of n numbers; w [K]).   Implements delta-energy.

    >>> import numpy as np
    >>> weights, rest = read_weights(np.array([[1, 0], [0, 1]]), np.array([2, 3]))
    >>> [int(c) for c in weights], rest.tolist()
    ([2, 3], [0, 0])
    """
    weights, w = [], q
    for t in reversed(range(len(keys))):
        c = keys[t] @ w
        weights.insert(0, c)
        w = w - keys[t] * c
    return weights, w


def floor(n, K):
    """The least mean error of n pairs in any state, averaged over draws: 1 - K / n, and zero for n <= K.   Implements
    capacity-floor.

    For K of the keys independent, and values of mean zero and squared length one that are unrelated to each other and
    the keys.

    >>> floor(64, 16), floor(8, 16)
    (Fraction(3, 4), Fraction(0, 1))
    """
    return max(Fraction(0), 1 - Fraction(K, n))


def after_pass(D, keys, beta):
    """What one more pass of the delta rule leaves of D, the state's distance from one that answers every key exactly.

    D: [V, K]   keys: [n, K]   beta: scalar   returns D (I - beta k_1 k_1^T) ... (I - beta k_n k_n^T).   Implements
    passes-error.

    >>> import numpy as np
    >>> after_pass(np.array([[4, 2]]), np.array([[1, 0]]), 1)
    array([[0, 2]])
    """
    for k in keys:
        D = D - rules.outer(D @ k, k) * beta
    return D

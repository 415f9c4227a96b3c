"""Softmax attention of one head, in two passes and online. torch tensors.

The online form keeps three numbers for every query: the largest score so far, the sum of the weights, and the
weighted sum of the values. Two such partial results combine in any order, so tiles may come in any order too.
"""

import math
from typing import NamedTuple

import torch


class Partial(NamedTuple):
    """Softmax over some of the tokens: largest score m [], sum of weights l [], weighted sum of values o [V].

    >>> Partial._fields
    ('m', 'l', 'o')
    """

    m: torch.Tensor
    l: torch.Tensor
    o: torch.Tensor


def two_pass(s, V):
    """sum_j e^(s_j) v_j / sum_j e^(s_j): one pass for the largest score, one for the sums.

    s: [T] scores   V: [T, V]   returns [V].   Implements softmax-attention (Vaswani et al. 2017).

    >>> two_pass(torch.tensor([500.0, 500.0]), torch.tensor([[1.0], [3.0]]))
    tensor([2.])
    """
    weights = (s - s.max()).exp()  # [T] shifted by the largest score: no exponent is positive
    return weights @ V / weights.sum()


def attention(Q, K, V):
    """Causal softmax attention: row i sees tokens 1..i.

    Q, K: [T, K]   V: [T, V]   returns [T, V]. Queries arrive already scaled.   Implements softmax-attention.

    >>> one = torch.ones(2, 1)
    >>> attention(one, one, torch.tensor([[1.0], [3.0]])).T
    tensor([[1., 2.]])
    """
    return torch.stack([two_pass(K[: i + 1] @ Q[i], V[: i + 1]) for i in range(len(Q))])


def partial(s, V):
    """The partial result of one tile of tokens; a tile that is masked out as a whole (all -inf) weighs nothing.

    s: [T] scores   V: [T, V]   returns (m, l, o [V]).

    >>> partial(torch.tensor([-math.inf]), torch.tensor([[1.0]])).o
    tensor([0.])
    """
    m = s.max()
    weights = (s - _shift(m)).exp()  # [T]
    return Partial(m, weights.sum(), weights @ V)


def combine(first, second):
    """The partial result of two tiles together: both are brought to the larger of the two maxima.

    first, second: (m, l, o [V]).   Implements softmax-combine (Milakov and Gimelshein 2018).

    >>> low = partial(torch.tensor([0.0]), torch.tensor([[1.0]]))
    >>> high = partial(torch.tensor([800.0]), torch.tensor([[3.0]]))
    >>> combine(low, high).o
    tensor([3.])
    """
    m = torch.maximum(first.m, second.m)
    a, b = (first.m - _shift(m)).exp(), (second.m - _shift(m)).exp()
    return Partial(m, first.l * a + second.l * b, first.o * a + second.o * b)


def online_softmax(s, V, tile=1):
    """The same answer as ``two_pass`` from one pass over tiles of tokens.

    s: [T] scores   V: [T, V]   returns [V].   Implements online-softmax (Milakov and Gimelshein 2018; Dao et al. 2022).

    >>> s, V = torch.tensor([1.0, 2.0, 3.0]), torch.eye(3)
    >>> torch.allclose(online_softmax(s, V), two_pass(s, V))
    True
    """
    total = Partial(s.new_tensor(-math.inf), s.new_zeros(()), V.new_zeros(V.shape[-1]))
    for start in range(0, len(s), tile):
        total = combine(total, partial(s[start : start + tile], V[start : start + tile]))
    return total.o / total.l


def _shift(m):
    # -inf minus -inf is nan; while nothing has been seen, shift by zero instead
    return m.masked_fill(m == -math.inf, 0.0)

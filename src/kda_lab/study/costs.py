"""What the rules cost: floating point operations, bytes, and the lengths at which one form overtakes another.

All numbers are for one head. A multiplication and an addition are two operations; exponentials are not counted.
K, V: channels of a key and of a value   C: tokens of a chunk   n: tokens that softmax attention looks back on.
"""

from collections import Counter
from fractions import Fraction

import numpy as np


class Counted(np.ndarray):
    """An array that tallies the arithmetic done with it: run the code itself, and read off what it cost.

    tally: a Counter by operation. A product counts 2 m n k operations, an elementwise one its entries. Multiplications
    by zero are no work: that is what a triangle saves.

    >>> A, B = counted(np.ones((2, 3)), np.ones((3, 4)))
    >>> (A @ B).tally
    Counter({'matmul': 48})
    """

    tally = None

    def __array_finalize__(self, other):
        self.tally = getattr(other, "tally", None)

    def __array_ufunc__(self, ufunc, method, *inputs, **options):
        out = getattr(ufunc, method)(*(np.asarray(x) for x in inputs), **options)
        if ufunc is np.matmul:
            self.tally["matmul"] += 2 * np.shape(inputs[0])[-1] * np.size(out)
        else:
            self.tally[ufunc.__name__] += int(np.count_nonzero(out)) if ufunc is np.multiply else np.size(out)
        out = np.asarray(out).view(Counted)
        out.tally = self.tally
        return out


def counted(*arrays):
    """The arrays as ``Counted``, with one tally for all of them.

    >>> a, b = counted(np.ones(3), np.ones(3))
    >>> a.tally is b.tally
    True
    """
    tally = Counter()
    out = []
    for x in arrays:
        x = np.array(x).view(Counted)
        x.tally = tally
        out.append(x)
    return out


def recurrent_flops(K, V):
    """Operations of one token, one after the other: 7 K V + 2 V.

    Decay K V, read 2 K V, residual 2 V, write 2 K V, readout 2 K V.   Implements recurrent-flops.

    >>> recurrent_flops(128, 128)
    114944
    """
    return 7 * K * V + 2 * V


def chunk_flops(C, K, V, inverse="substitution"):
    """Operations in the matrix products of one chunk of C tokens, full squares, and in the triangular inverse.

    6 C^2 K + 4 C^2 V + 6 C K V, and C (C^2 - 1) / 3 for substitution, or 2 C^3 for each product of doubling. A token
    costs a C-th: about 6 C K + 4 C V + 6 K V + C^2 / 3.   Implements chunk-flops.

    >>> chunk_flops(64, 128, 128) / 64, round(chunk_flops(64, 128, 128) / 64 / recurrent_flops(128, 128), 2)
    (181589.0, 1.58)
    """
    solve = C * (C * C - 1) // 3 if inverse == "substitution" else 2 * C**3 * doubling_products(C)
    return 6 * C * C * K + 4 * C * C * V + 6 * C * K * V + solve


def doubling_products(C):
    """Full matrix products of the inverse by doubling: 2 ceil(log2 C) - 2, half of them powers, half to build the sum.

    Implements doubling-products.

    >>> doubling_products(64), doubling_products(16)
    (10, 6)
    """
    return max(0, 2 * (C - 1).bit_length() - 2)


def softmax_flops(n, K, V):
    """Operations of one query over n tokens: n scores of 2 K, n values of 2 V.   Implements softmax-flops.

    >>> softmax_flops(709, 128, 128)
    363008
    """
    return 2 * n * (K + V)


def causal_softmax_flops(N, K, V):
    """Operations a token, on average over a causal sequence of N tokens: (N + 1)(K + V).   Implements softmax-flops.

    >>> causal_softmax_flops(709, 128, 128)
    181760
    """
    return (N + 1) * (K + V)


def crossover(C, K, V):
    """The shortest causal sequence for which softmax attention needs more operations than the chunk form.

    Implements crossover-softmax.

    >>> crossover(64, 128, 128)
    709
    """
    # (N + 1)(K + V) > chunk_flops / C
    return chunk_flops(C, K, V) // (C * (K + V))


def state_bytes(K, V, state=4):
    """Bytes of one state.   state: bytes of an entry.

    >>> state_bytes(128, 128)
    65536
    """
    return K * V * state


def cache_bytes(n, K, V, cache=2):
    """Bytes of the keys and values of n tokens.   cache: bytes of an entry.

    >>> cache_bytes(128, 128, 128)
    65536
    """
    return n * (K + V) * cache


def parity(K, V, state=4, cache=2, traffic=False):
    """The number of tokens whose keys and values are as large as the state; or, read once, as large as a state read and
    written.

    Implements decode-parity.

    >>> parity(128, 128), parity(128, 128, traffic=True)
    (Fraction(128, 1), Fraction(256, 1))
    """
    return Fraction(state_bytes(K, V, state) * (2 if traffic else 1), cache_bytes(1, K, V, cache))


def layer_bytes(heads, K, V, state=4, width=4, convolution=2):
    """Bytes that one sequence keeps in one layer: states, and the last width - 1 inputs of the convolutions of q, k and
    v.

    >>> layer_bytes(8, 128, 128)
    542720
    """
    return heads * (state_bytes(K, V, state) + (width - 1) * (2 * K + V) * convolution)


def latent_parity(heads, K, V, latent=1024):
    """The number of tokens whose compressed cache, ``latent`` bytes each, is as large as what the layer keeps.

    Implements latent-parity.

    >>> latent_parity(8, 128, 128)
    Fraction(530, 1)
    """
    return Fraction(layer_bytes(heads, K, V), latent)


def recurrent_intensity(K, V, state=4):
    """Operations a byte of one decoded token, whatever the batch: each sequence has a state of its own.   Implements
    intensity.

    >>> round(float(recurrent_intensity(128, 128)), 2)
    0.88
    """
    return Fraction(recurrent_flops(K, V), 2 * state_bytes(K, V, state))


def softmax_intensity(K, V, cache=2, group=1):
    """Operations a byte of one decoded token, with ``group`` query heads for each cached one.   Implements intensity.

    >>> softmax_intensity(128, 128)
    Fraction(1, 1)
    """
    return Fraction(softmax_flops(1, K, V) * group, cache_bytes(1, K, V, cache))


def chunk_intensity(C, K, V, activations=2, gates=4, state=4):
    """Operations a byte of a fused chunk: q, k, v, o and g once, the state read and written once.   Implements
    intensity.

    >>> [round(float(chunk_intensity(C, 128, 128))) for C in (16, 32, 64, 128)]
    [12, 25, 51, 105]
    """
    moved = C * (2 * (K + V) * activations + K * gates) + 2 * state_bytes(K, V, state)
    return Fraction(chunk_flops(C, K, V), moved)


def combine_flops(K, V):
    """Operations in the products that compose two affine steps: 2 K^3 + 2 V K^2.   Implements scan-flops.

    >>> combine_flops(128, 128) // dense_apply_flops(128, 128)
    2
    """
    return 2 * K**3 + 2 * V * K**2


def dense_apply_flops(K, V):
    """Operations that pass a state through a transition that was multiplied out: 2 V K^2.   Implements scan-flops.

    >>> dense_apply_flops(128, 128) == low_rank_apply_flops(64, 128, 128)
    True
    """
    return 2 * V * K**2


def low_rank_apply_flops(C, K, V):
    """Operations that pass a state through W and K_g instead: 4 C K V, the same at C = K / 2.   Implements scan-flops.

    >>> low_rank_apply_flops(16, 128, 128)
    1048576
    """
    return 4 * C * K * V


def checkpoint_saving(K, V):
    """How many times larger a state is than the residual, key and log decay that remake it, for each token.

    Implements checkpoint-size.

    >>> round(float(checkpoint_saving(128, 128)), 1)
    42.7
    """
    return Fraction(K * V, 2 * K + V)

"""A hybrid model small enough to run twice: once through the cache, once from scratch.

Each group is one layer with one head: softmax attention, or Kimi Delta Attention behind a short convolution. A layer's
inputs depend on the token ids alone. Only elementwise operations and sums over three or four numbers stand between a
token and its state, so where a chunk is cut changes no bit of it, and equality can be exact.
"""

import functools
import hashlib

import numpy as np

from kda_lab.rules import kda

K, V, TAPS, WIDTH = 3, 2, 4, 2
# channels that go through the convolution: q, k, v; after them the gates
MIXED = K + K + V
CHANNELS = MIXED + K + 1
# how far a channel can decay in one token, and how much of a key it gets: the first channel forgets in thousands of
# tokens, the last in a few, so that a state from the wrong place stays wrong for the rest of a prompt
SPANS = np.array([2.0**-12, 1 / 4, 1.0])
SHARES = np.array([1 / 16, 1.0, 1.0])
CONVOLUTION = np.array([0.25, -0.5, 0.75, 1.0])


def embed(tokens, group, channels):
    """Numbers in [-1, 1) for each token and channel of a group, from a hash of the three.

    tokens: sequence of int   returns [T, channels] float64, read only.

    >>> a = embed([5, 7, 5], 0, 4); a.shape, bool((a[0] == a[2]).all()), bool((a[0] == embed([5], 1, 4)[0]).any())
    ((3, 4), True, False)
    """
    return hashed(tuple(tokens), group, channels)


@functools.lru_cache(4096)
def hashed(tokens, group, channels):
    """The numbers of ``embed``; a step asks for the same few tokens many times."""
    x = np.array(tokens, dtype=np.int64).astype(np.uint64)[:, None] * np.uint64(4096)
    x = x + (np.arange(channels, dtype=np.uint64) + np.uint64(64 * (group + 1)))
    # splitmix64
    x = x * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x = ((x ^ (x >> np.uint64(31))) >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1.0
    x.flags.writeable = False
    return x


def squash(x):
    """``x / (1 + |x|)``, in place of SiLU: without exp it rounds the same everywhere."""
    return x / (1.0 + np.abs(x))


def unit_length(x):
    """x over its length along the last axis."""
    return x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6)


def layer_inputs(window, raw):
    """What the recurrence reads of T tokens.

    window: [TAPS - 1, MIXED], the inputs of the tokens before   raw: [T, CHANNELS] from ``embed``.
    Returns q, k [T, K], v [T, V], alpha [T, K] in (0, 1], beta [T] in [0, 1).

    >>> [x.shape for x in layer_inputs(np.zeros((3, 8)), embed(range(5), 1, CHANNELS))]
    [(5, 3), (5, 3), (5, 2), (5, 3), (5,)]
    """
    inputs = np.concatenate([window, raw[:, :MIXED]])  # [TAPS - 1 + T, MIXED]
    T = len(raw)
    mixed = squash(sum(inputs[a : a + T] * CONVOLUTION[a] for a in range(TAPS)))  # [T, MIXED]
    gates = (raw[:, MIXED:] + 1.0) * 0.5  # [T, K + 1] in [0, 1)
    alpha = 1.0 - gates[:, :K] * SPANS
    return unit_length(mixed[:, :K]), unit_length(mixed[:, K : 2 * K] * SHARES), mixed[:, 2 * K :], alpha, gates[:, K]


def run_state(S, window, raw):
    """The recurrence over T tokens: every state and output.

    S: [V, K]   window: [TAPS - 1, MIXED]   raw: [T, CHANNELS].   Returns states [T, V, K], outputs [T, V].

    >>> raw = embed(range(9), 1, CHANNELS); zero = np.zeros((V, K)), np.zeros((TAPS - 1, MIXED))
    >>> whole, _ = run_state(*zero, raw); first, _ = run_state(*zero, raw[:4])
    >>> rest, _ = run_state(first[-1], raw[1:4, :MIXED], raw[4:]); bool((rest == whole[4:]).all())
    True
    """
    states, outputs = np.empty((len(raw), V, K)), np.empty((len(raw), V))
    for t, token in enumerate(zip(*layer_inputs(window, raw), strict=True)):
        S, o = kda(S, *token)
        states[t], outputs[t] = S, o
    return states, outputs


def attention_rows(tokens, group):
    """The cached row of each token: key and value, [T, 2 WIDTH].

    >>> attention_rows([1, 2, 3], 0).shape
    (3, 4)
    """
    return embed(tokens, group, 2 * WIDTH)


def draft_row(token, following, group):
    """What a drafter caches at a token: it has also seen the next one, which a prefix does not determine.

    token, following: sequences of int   returns [T].

    >>> bool(draft_row([1], [2], 0) == draft_row([1], [3], 0))
    False
    """
    return embed(token, group, 5)[:, 4] * embed(following, group, 6)[:, 5]


def attend(rows, token, group):
    """Softmax attention of one token over the rows up to its own.

    rows: [n, 2 WIDTH]   token: int   returns [WIDTH].

    >>> attend(attention_rows([1, 2, 3], 0), 3, 0).shape
    (2,)
    """
    q = embed([token], group, 2 * WIDTH + 2 + WIDTH)[0, -WIDTH:]
    scores = (rows[:, :WIDTH] * q).sum(-1)
    weights = np.exp(scores - scores.max())  # [n]
    return (rows[:, WIDTH:] * weights[:, None]).sum(0) / weights.sum()


def pool_key(rows):
    """The pooled key of a few tokens: their mean; each token must still be there when the last one comes.

    >>> pool_key(np.array([[1.0], [3.0]]))
    array([2.])
    """
    return rows.sum(0) / len(rows)


def next_token(output, vocabulary=997):
    """A greedy sample that any changed bit of the output changes.

    >>> next_token(np.array([0.1])) == next_token(np.array([np.nextafter(0.1, 1)]))
    False
    """
    return (
        int.from_bytes(hashlib.blake2b(np.ascontiguousarray(output).tobytes(), digest_size=8).digest(), "little")
        % vocabulary
    )

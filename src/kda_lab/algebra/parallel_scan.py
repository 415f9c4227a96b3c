"""The state from chunk to chunk as a prefix scan: affine steps composed in pairs, in logarithmic depth.

A chunk is one step S -> S T + H. The sequential way applies n steps one after the other; the scan composes them as a
tree. It does more work and has less depth. Plain array algebra, like ``affine``.
"""

from kda_lab.algebra import affine, chunk
from kda_lab.rules import outer


def prefix_scan(steps, compose=affine.compose):
    """All prefixes: entry i is the composition of steps 0..i, in order.

    steps: list of (T [K, K], H [V, K])   compose: any associative operation   returns a list of the same length.
    Neighbours are composed, their scan is taken, and the places in between are filled: at most 2 n compositions, in
    about 2 log2(n) rounds.   Implements prefix-scan (Blelloch 1990).

    >>> prefix_scan(["a", "b", "c", "d", "e"], lambda first, second: first + second)
    ['a', 'ab', 'abc', 'abcd', 'abcde']
    """
    if not steps:
        return []
    pairs = [compose(steps[i], steps[i + 1]) for i in range(0, len(steps) - 1, 2)]
    odd = prefix_scan(pairs, compose)  # prefixes that end at 1, 3, 5, ...
    out = [steps[0]]
    for i in range(1, len(steps)):
        out.append(odd[i // 2] if i % 2 else compose(odd[i // 2 - 1], steps[i]))
    return out


def chunk_steps(C, K, V, alpha, beta):
    """Each chunk as one affine step (D - W^T K_g, U^T K_g), from its own tokens alone.

    K, alpha: [T, K]   V: [T, V]   beta: [T]   returns a list of (T [K, K], H [V, K]).   Implements chunk-step.

    >>> import numpy as np
    >>> one = np.ones((4, 1), int)
    >>> chunk_steps(2, one, one * 4, one, np.array([1, 1, 1, 1]))  # full overwrites: nothing of the past is left
    [(array([[0]]), array([[4]])), (array([[0]]), array([[4]]))]
    """
    steps = []
    for start in range(0, len(K), C):
        k, v, a, b = (X[start : start + C] for X in (K, V, alpha, beta))
        # any state will do: no term that is used reads it
        terms = chunk.kda(outer(v[0], k[0]), k, k, v, a, b)
        steps.append((affine.eye(k[0]) * terms.D - terms.W.T @ terms.K_g, terms.U.T @ terms.K_g))
    return steps


def scan_chunks(S, steps):
    """The state behind every chunk, from one scan over all of them.   S: [V, K]   steps: list of (T, H)   returns a
    list of [V, K].

    Implements scan-over-chunks.

    >>> import numpy as np
    >>> one = np.ones((1, 1), int)
    >>> scan_chunks(one, [(one * 2, one), (one * 3, one)])
    [array([[3]]), array([[10]])]
    """
    return [S @ T + H for T, H in prefix_scan(steps)]

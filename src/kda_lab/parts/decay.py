"""Decays in the log domain: gate parameterisations, prefix sums, and ratios whose exponents stay finite.

g = ln alpha <= 0 is the natural logarithm of the decay; G_i is its sum over tokens 1..i of a chunk. The decay over
tokens j+1..i is exp(G_i - G_j). torch tensors, tokens on the second to last axis, channels on the last.
"""

import math

import torch

BLOCK = 16


def bounded_gate(x, A_log, dt_bias=None, lower_bound=-5.0):
    """g = lower_bound * sigmoid(exp(A_log) (x + dt_bias)): a log decay between lower_bound and 0.

    x: [..., H, K] raw gate   A_log: [H]   dt_bias: [H, K] or None   returns g [..., H, K].
    Implements gate-bounded (Kimi K3, GLM-5.3-Flash).

    >>> bounded_gate(torch.zeros(1, 2), torch.zeros(1)).tolist()
    [[-2.5, -2.5]]
    """
    x = x if dt_bias is None else x + dt_bias
    # a rate beyond e^80 saturates like e^80, and inf * 0 cannot occur
    return lower_bound * torch.sigmoid(A_log[:, None].clamp(max=80).exp() * x)


def softplus_gate(x, A_log, dt_bias=None):
    """g = -exp(A_log) softplus(x + dt_bias): a log decay without a floor.

    x: [..., H, K] raw gate   A_log: [H]   dt_bias: [H, K] or None   returns g [..., H, K].
    Implements gate-softplus (Kimi Linear, Mamba-2).

    >>> softplus_gate(torch.tensor([[100.0]]), torch.zeros(1)).tolist()
    [[-100.0]]
    """
    x = x if dt_bias is None else x + dt_bias
    A_log = A_log[:, None]
    # far below zero softplus(x) = e^x to the last digit, and one exponential of a sum cannot give inf * 0
    far = (A_log + x).clamp(max=80).exp()
    near = A_log.clamp(max=80).exp() * torch.nn.functional.softplus(x)
    return -torch.where(x < -40, far, near)


def half_life(g):
    """Tokens until a channel has halved: ``ln 2 / |g|``.   Implements gate-half-life.

    >>> round(half_life(torch.tensor(-0.001)).item(), 1)
    693.1
    """
    return math.log(2) / g.abs()


def clear_floor(dtype):
    """The log decay from which on exp is exactly 0 in this dtype; a stronger gate (also -inf) acts the same.

    Implements gate-clear-floor.

    >>> clear_floor(torch.float32), torch.tensor(clear_floor(torch.float32)).exp().item()
    (-104.0, 0.0)
    """
    return -746.0 if dtype == torch.float64 else -104.0


def prefix_sums(g):
    """G: the running sum of g over tokens.   g: [..., C, K]; same shape back.   Implements decay-prefix.

    >>> prefix_sums(torch.tensor([[-1.0], [-2.0]])).tolist()
    [[-1.0], [-3.0]]
    """
    return g.cumsum(-2)


def later_sums(g):
    """G_C - G_j: the sum of g over tokens j+1..C, added up from the end.   g: [..., C, K]; same shape back.

    A difference of prefix sums would carry the rounding of every strong gate before j.

    >>> later_sums(torch.tensor([[-1e9], [-1.0], [-2.0]])).tolist()
    [[-3.0], [-2.0], [0.0]]
    """
    later = torch.cat([g[..., 1:, :], torch.zeros_like(g[..., :1, :])], dim=-2)
    return later.flip(-2).cumsum(-2).flip(-2)


def pairwise_scores(X, Y, g):
    """Gamma(X, Y) by one sum of gates for each pair of tokens; right for every g <= 0, at C^2 K exponentials.

    X, Y, g: [..., C, K]   returns [..., C, C], zero above the diagonal.   Implements decayed-scores.

    >>> one = torch.ones(2, 1)
    >>> pairwise_scores(one, one, torch.tensor([[-9.0], [-1e4]])).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    C = g.shape[-2]
    lower = torch.ones(C, C, dtype=torch.bool, device=g.device).tril()[..., None]  # j <= i
    after = torch.ones(C, C, dtype=torch.bool, device=g.device).tril(-1)[..., None]  # j < i
    # gates of tokens j+1..i only: a difference of prefix sums would carry the rounding of strong gates before j
    sums = g[..., :, None, :].masked_fill(~after, 0).cumsum(-3)  # [..., C, C, K]
    # mask before exp: above the diagonal nothing may reach the result, nor its gradient
    decay = sums.masked_fill(~lower, -math.inf).exp()
    return torch.einsum("...ic,...jc,...ijc->...ij", X, Y, decay)


def blocked_scores(X, Y, g, block=BLOCK):
    """Gamma(X, Y) by blocks: products of matrices off the diagonal, pairs on it. Every exponent formed is <= 0.

    A block of rows refers its decays to its own first token n: exp(G_i - G_n) on the left, exp(G_n - G_j) on the right.
    Sums are taken inside blocks, so a strong gate does not cost the digits of the weak ones behind it.
    X, Y, g: [..., C, K], g <= 0 and finite   returns [..., C, C], zero above the diagonal.   Implements block-scores.

    >>> x, g = torch.randn(2, 40, 3, dtype=torch.float64), -torch.rand(40, 3, dtype=torch.float64)
    >>> torch.allclose(blocked_scores(x[0], x[1], g), pairwise_scores(x[0], x[1], g))
    True
    """
    C = g.shape[-2]
    starts = range(0, C, block)
    cut = lambda Z: [Z[..., n : n + block, :] for n in starts]
    Xb, Yb, gb = cut(X), cut(Y), cut(g)
    local = [prefix_sums(x) for x in gb]  # sums inside a block
    rows = []
    for a in range(len(gb)):
        left = Xb[a] * (local[a] - local[a][..., :1, :]).exp()  # tokens n+1..i
        between = gb[a][..., :1, :]  # from the end of block b to token n
        row = [pairwise_scores(Xb[a], Yb[a], gb[a])]
        for b in range(a - 1, -1, -1):
            right = Yb[b] * (later_sums(gb[b]) + between).exp()  # tokens j+1..n
            row.insert(0, left @ right.mT)
            between = between + local[b][..., -1:, :]
        empty = row[0].new_zeros(*row[0].shape[:-2], row[0].shape[-2], C - sum(r.shape[-1] for r in row))
        rows.append(torch.cat([*row, empty], dim=-1))
    return torch.cat(rows, dim=-2)


def largest_exponent(lower_bound, span):
    """The largest exponent that a factor exp(-sum g) over ``span`` tokens can reach; fp32 overflows above 88.7.

    Implements gate-largest-exponent.

    >>> largest_exponent(-5.0, 15), largest_exponent(-5.0, 31)
    (75.0, 155.0)
    """
    return abs(lower_bound) * span


def tokens_before_overflow(g, dtype):
    """How many tokens of log decay g a factor exp(-G) survives in a dtype: one more, and it is infinite.

    g: a negative number   dtype: torch.float16, bfloat16, float32 or float64.   Implements factor-overflow.

    >>> tokens_before_overflow(-5.0, torch.float32)
    17
    """
    return int(math.log(torch.finfo(dtype).max) / -g)

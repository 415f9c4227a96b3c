"""Exercises of the chapter on order and position."""

import torch

from kda_lab import position, softmax


def by_hand():
    """The third output of the second layer for A, B, C, and for B, A, C."""
    # <solution>
    return 11.0, 5.0
    # </solution>


def check_by_hand(by_hand):
    blank, want = torch.zeros(3, 1), []
    for tokens in ([18.0, 0.0, 0.0], [0.0, 18.0, 0.0]):
        X = torch.tensor(tokens)[:, None]
        for _ in range(2):
            X = softmax.attention(blank, blank, X)  # equal weights
        want.append(round(X[2].item(), 4))
    assert list(by_hand()) == want, "average over the first 1, 2, 3 tokens; then average these averages once more"


def skip(W, X):
    """M and b with h_T = M h_0 + b, for the linear RNN h_t = W h_(t-1) + x_t.   W: [N, N]   X: [T, N]   M [N, N], b
    [N].
    """
    M, b = torch.eye(len(W), dtype=W.dtype), torch.zeros(len(W), dtype=W.dtype)
    for x in X:
        # <solution>
        M, b = W @ M, W @ b + x
        # </solution>
    return M, b


def check_skip(skip):
    generator = torch.Generator().manual_seed(4)
    W, X, h = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((3, 3), (5, 3), (3,)))
    M, b = skip(W, X)
    end = h
    for x in X:
        end = position.linear_rnn_step(end, x, W)
    assert torch.allclose(M @ h + b, end), (
        f"off by {(M @ h + b - end).abs().max():.2g}; both M and b pass through W at each token"
    )


def rotate_halves(x, c, s):
    """The turn of many codes: channel i is paired with channel i + K/2, not with its neighbour.

    x: [K]   c, s: [K / 2]   returns [K].
    """
    first, second = x.chunk(2)
    # <solution>
    return torch.cat([first * c - second * s, first * s + second * c])
    # </solution>


def check_rotate_halves(rotate_halves):
    x = torch.randn(6, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    turn = position.angles(3, 6)
    order = torch.tensor([0, 3, 1, 4, 2, 5])  # partners side by side
    got = rotate_halves(x, turn.cos(), turn.sin())
    want = position.rotate(x[order], turn.cos(), turn.sin())
    assert torch.allclose(got[order], want), (
        "with partners side by side it should be position.rotate: even' = even c - odd s, odd' = even s + odd c"
    )


def blind_step(h, x):
    """A step that is nonlinear in the state h and still blind to the order of its tokens.   h, x: scalars > 0."""
    # <solution>
    return (h * h + x * x).sqrt()
    # </solution>


def check_blind_step(blind_step):
    a, b, c = torch.tensor([0.3, 1.7, 2.9], dtype=torch.float64)
    one, other = blind_step(blind_step(c, a), b), blind_step(blind_step(c, b), a)
    assert abs(one - other) < 1e-12, f"the two orders give {one:.6f} and {other:.6f}; think of f^-1(f(h) + f(x))"
    bend = blind_step(2 * c, a) + blind_step(0 * c, a) - 2 * blind_step(c, a)
    assert abs(bend) > 1e-3, "this step is affine in h; the state should pass through a function that is not"
    # tokens below and above the state: max(h, x) ignores the former, min(h, x) the latter
    looks = abs(blind_step(c, a) - blind_step(c, b)) + abs(blind_step(a, b) - blind_step(a, c))
    assert looks > 1e-3, "the step should look at its token"

"""Exercises of the chapter on the CUDA kernel."""

import torch

from kda_lab import decay, triangular


def by_hand():
    """The reference token n, and the exponents of the left and of the right factor."""
    # <solution>
    return 32, -10.0, -46.0
    # </solution>


def check_by_hand(by_hand):
    i, j, g = 37, 9, -2.0
    n, left, right = by_hand()
    assert n % 16 == 0 and j < n <= i < n + 16, f"n is the first token of the row block that holds token {i}, got {n}"
    assert (left, right) == ((i - n) * g, (n - j) * g), f"tokens {n + 1}..{i} stand in the left exponent, tokens {j + 1}..{n} in the right one"


def far_block(X, Y, G):
    """Scores [16, 16] of rows X with G[16:] and columns Y with G[:16], as one product.   X, Y: [16, K]   G: [32, K]."""
    # <solution>
    n = 16
    left = X * (G[n:] - G[n]).exp()
    right = Y * (G[n] - G[:n]).exp()
    return left @ right.T
    # </solution>


def check_far_block(far_block):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(32, 6, generator=generator)
    for rate in (0.1, 5.0, 30.0):
        g = -rate * torch.rand(32, 6, generator=generator, dtype=torch.float64)
        want = decay.pairwise_scores(x.double(), x.double(), g)[16:, :16]
        got = far_block(x[16:], x[:16], g.cumsum(0).float()).double()
        assert got.isfinite().all(), f"gates down to -{rate}: not finite; both exponents should be at most zero"
        # 1e-3: prefix sums up to 1000 carry an error of 1000 * 2^-24 into each exponent
        assert (got - want).norm() <= 1e-3 * want.norm(), f"gates down to -{rate}: off by {(got - want).abs().max():.1e}"


def third_block(A, R11, R21, R33):
    """R31 of three block rows.   A: [3 n, 3 n] strictly lower triangular   R11, R21, R33: [n, n] blocks of (I + A)^-1."""
    # <solution>
    n = len(R11)
    A31, A32 = A[2 * n :, :n], A[2 * n :, n : 2 * n]
    return -R33 @ (A31 @ R11 + A32 @ R21)
    # </solution>


def check_third_block(third_block):
    generator = torch.Generator().manual_seed(1)
    A = torch.randn(12, 12, generator=generator, dtype=torch.float64).tril(-1)
    R = triangular.substitution(A)
    got = third_block(A, R[:4, :4], R[4:8, :4], R[8:, 8:])
    assert torch.allclose(got, R[8:, :4]), "the sum runs over both blocks A31 and A32, each times the block of R in its column"


def hostile_gates():
    """Log decays [16], none above 0, for which the masked result is finite and its gradient is not."""
    # <solution>
    return torch.full((16,), -6.0)
    # </solution>


def check_hostile_gates(hostile_gates):
    g = hostile_gates().float().requires_grad_()
    assert g.shape == (16,) and (g <= 0).all() and g.isfinite().all(), "16 finite log decays, none above 0"
    G = g.cumsum(0)
    difference = G[:, None] - G[None, :]
    late = torch.where(torch.ones(16, 16).tril().bool(), difference.exp(), 0.0)  # mask after exp
    assert late.isfinite().all(), "the forward pass should be finite"
    (gradient,) = torch.autograd.grad(late.sum(), g, retain_graph=True)
    assert not gradient.isfinite().all(), f"the gradient is finite; the largest exponent above the diagonal is {difference.max():.1f}, fp32 ends at 88.7"
    early = difference.masked_fill(torch.ones(16, 16).triu(1).bool(), -torch.inf).exp()  # mask before exp
    assert torch.autograd.grad(early.sum(), g)[0].isfinite().all(), "masked before exp, the same gates have a finite gradient"

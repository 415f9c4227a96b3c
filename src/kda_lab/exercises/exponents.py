"""Exercises of the chapter on exponents that stay finite."""

import math

import torch

from kda_lab import decay, triangular


def by_hand():
    """For gates of -2 in fp16: how many tokens e^(-G) survives, and the bound that 16 rows allow.

    Returns (tokens, the largest |g| as a number with one decimal, rounded down).
    """
    # <solution>
    return 5, 0.7
    # </solution>


def check_by_hand(by_hand):
    tokens, bound = by_hand()
    assert tokens == decay.tokens_before_overflow(-2.0, torch.float16), "fp16 ends at e^11.09, and each token adds 2"
    limit = math.log(torch.finfo(torch.float16).max)
    assert abs(bound - math.floor(10 * limit / 15) / 10) < 1e-9, (
        "15 gates lie between the first and the last of 16 tokens"
    )


def far_block(X, Y, g, n):
    """Gamma of the rows from n on against the columns before n, by one product of matrices.

    X, Y, g: [C, K], g <= 0 and finite   returns [C - n, n]. Form no exponent above zero.
    """
    # <solution>
    G = decay.prefix_sums(g)
    left = X[n:] * (G[n:] - G[n]).exp()  # [C - n, K]
    right = Y[:n] * (G[n] - G[:n]).exp()  # [n, K]
    return left @ right.T
    # </solution>


def check_far_block(far_block):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, 12, 3, generator=generator, dtype=torch.float64)
    for strength in (0.1, 90.0):
        g = -strength * (0.5 + torch.rand(12, 3, generator=generator, dtype=torch.float64))
        want = decay.pairwise_scores(x[0], x[1], g)[5:, :5]
        got = far_block(x[0], x[1], g, 5)
        assert got.shape == want.shape, f"expected shape {tuple(want.shape)}, got {tuple(got.shape)}"
        assert torch.allclose(got, want), (
            f"gates of about -{strength:g}: off by {(got - want).abs().max():.1e}; the reference is row n"
        )


def lucky_and_unlucky():
    """Two 16 by 16 strictly lower triangles whose entries differ by at most 0.01.

    Doubling in fp16 inverts the first exactly, and is off by more than 0.5 on the second; substitution is within 0.01
    on both.
    """
    # <solution>
    A = torch.ones(16, 16, dtype=torch.float64).tril(-1)
    return A, A * 0.9997
    # </solution>


def check_lucky_and_unlucky(lucky_and_unlucky):
    pair = lucky_and_unlucky()
    assert (pair[0] - pair[1]).abs().max() <= 0.01, "the two triangles should differ by at most 0.01"
    errors = []
    for A in pair:
        assert A.shape == (16, 16) and (A.triu() == 0).all(), "a triangle of 16 rows with zeros on the diagonal"
        exact = torch.linalg.inv(torch.eye(16, dtype=torch.float64) + A.double())
        off = [
            (form(A.half()).double() - exact).abs().max().item()
            for form in (triangular.doubling, triangular.substitution)
        ]
        assert off[1] <= 0.01, f"substitution is off by {off[1]:.2g}; the entries should be at most 1"
        errors.append(off[0])
    assert errors[0] <= 1e-9, (
        f"doubling is off by {errors[0]:.2g} on the first; integers up to 2048 survive, and even ones up to 4096"
    )
    assert errors[1] > 0.5, f"doubling is off by {errors[1]:.2g} on the second only"

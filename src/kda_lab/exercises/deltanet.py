"""Exercises of the chapter on DeltaNet."""

import torch

from kda_lab import chunk, rules


def by_hand():
    """The answers of the keys (1, 1) and (0, 1) at the end."""
    # <solution>
    return 2.5, 0.0
    # </solution>


def check_by_hand(by_hand):
    S = torch.tensor([[2.0, 0.0]])
    diagonal, second = torch.tensor([1.0, 1.0]), torch.tensor([0.0, 1.0])
    S, _ = rules.delta(S, diagonal, diagonal, torch.tensor([3.0]), 0.5)
    S, _ = rules.delta(S, second, second, torch.tensor([0.0]), 1.0)
    want = ((S @ diagonal).item(), (S @ second).item())
    assert tuple(by_hand()) == want, "follow the table of the chapter: read, residual, new state"


def erase(S, k):
    """The state S [V, K] without its answer to the unit key k [K]."""
    # <solution>
    zero = torch.zeros_like(S[:, 0])  # [V]
    S, _ = rules.delta(S, k, k, zero, 1.0)
    return S
    # </solution>


def check_erase(erase):
    generator = torch.Generator().manual_seed(1)
    S = torch.randn(2, 3, generator=generator, dtype=torch.float64)
    k, other = torch.tensor([[0.6, 0.8, 0.0], [0.8, -0.6, 0.0]], dtype=torch.float64)
    after = erase(S, k)
    assert (after @ k).abs().max() < 1e-12, "the key should answer zero"
    assert torch.allclose(after @ other, S @ other), "a key at a right angle should answer as before"


def hostile_key(S):
    """A unit key [2] for the next token, from the state S [1, 2].

    The first state is zero.
    """
    # <solution>
    row = S[0]
    if row.norm() == 0:
        return torch.tensor([1.0, 0.0], dtype=S.dtype)
    return torch.stack([-row[1], row[0]]) / row.norm()
    # </solution>


def check_hostile_key(hostile_key):
    S, one = torch.zeros(1, 2, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    for t in range(1, 101):
        k = hostile_key(S)
        assert abs(k.norm().item() - 1) < 1e-9, (
            f"the key of token {t} has length {k.norm():.3f}; it should have length 1"
        )
        S, _ = rules.delta(S, k, k, one, 1.0)
        assert abs(S.norm().item() - t**0.5) < 1e-6, (
            f"after {t} tokens the state has length {S.norm():.3f}, not {t**0.5:.3f}"
        )


def two_residuals(S, k1, k2, v1, v2, beta1, beta2):
    """r_1 and r_2 [V] of two tokens that start from S [V, K].

    k1, k2: [K]   v1, v2: [V]   beta1, beta2: scalars.
    """
    # <solution>
    r1 = (v1 - S @ k1) * beta1
    r2 = (v2 - S @ k2 - r1 * (k1 @ k2)) * beta2
    return r1, r2
    # </solution>


def check_two_residuals(two_residuals):
    generator = torch.Generator().manual_seed(2)
    options = {"generator": generator, "dtype": torch.float64}
    K, V, S = torch.randn(2, 4, **options), torch.randn(2, 3, **options), torch.randn(3, 4, **options)
    beta = torch.tensor([0.7, 1.3], dtype=torch.float64)
    want = chunk.delta(S, K, K, V, beta).E
    got = torch.stack(two_residuals(S, *K, *V, *beta))
    assert torch.allclose(got, want), f"the residuals should be {want.tolist()}, got {got.tolist()}"

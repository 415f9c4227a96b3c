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


def overwriting_gate(k):
    """The gate beta with which a write under k [K] makes k answer exactly v."""
    # <solution>
    return 1 / (k @ k)
    # </solution>


def check_overwriting_gate(overwriting_gate):
    generator = torch.Generator().manual_seed(0)
    for length in (0.3, 1.0, 4.0):
        S = torch.randn(3, 5, generator=generator, dtype=torch.float64)
        k = torch.nn.functional.normalize(torch.randn(5, generator=generator, dtype=torch.float64), dim=0) * length
        v = torch.randn(3, generator=generator, dtype=torch.float64)
        S, _ = rules.delta(S, k, k, v, overwriting_gate(k))
        assert torch.allclose(S @ k, v), f"a key of length {length} should answer {v.tolist()}, it answers {(S @ k).tolist()}"


def erase(S, k):
    """The state S [V, K] without its answer to the unit key k [K]."""
    # <solution>
    return rules.delta(S, k, k, S[:, 0] * 0, 1.0)[0]
    # </solution>


def check_erase(erase):
    generator = torch.Generator().manual_seed(1)
    S = torch.randn(2, 3, generator=generator, dtype=torch.float64)
    k, other = torch.tensor([[0.6, 0.8, 0.0], [0.8, -0.6, 0.0]], dtype=torch.float64)
    after = erase(S, k)
    assert (after @ k).abs().max() < 1e-12, "the key should answer zero"
    assert torch.allclose(after @ other, S @ other), "a key at a right angle should answer as before"


def hostile_key(S):
    """A unit key [2] for the next token, chosen from the state S [1, 2]; the first state is zero."""
    # <solution>
    row = S[0]
    return torch.stack([-row[1], row[0]]) / row.norm() if row.norm() > 0 else torch.tensor([1.0, 0.0], dtype=S.dtype)
    # </solution>


def check_hostile_key(hostile_key):
    S, one = torch.zeros(1, 2, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    for t in range(1, 101):
        k = hostile_key(S)
        assert abs(k.norm().item() - 1) < 1e-9, f"the key of token {t} has length {k.norm():.3f}; it should have length 1"
        S, _ = rules.delta(S, k, k, one, 1.0)
        assert abs(S.norm().item() - t**0.5) < 1e-6, f"after {t} tokens the state has length {S.norm():.3f}, not {t**0.5:.3f}"


def two_residuals(k1, k2, v1, v2, beta1, beta2):
    """u_1 and u_2 [V] of a chunk of two tokens that starts from a zero state. k1, k2: [K]   v1, v2: [V]."""
    # <solution>
    u1 = v1 * beta1
    u2 = (v2 - u1 * (k1 @ k2)) * beta2
    return u1, u2
    # </solution>


def check_two_residuals(two_residuals):
    generator = torch.Generator().manual_seed(2)
    K, V = torch.randn(2, 4, generator=generator, dtype=torch.float64), torch.randn(2, 3, generator=generator, dtype=torch.float64)
    beta = torch.tensor([0.7, 1.3], dtype=torch.float64)
    want = chunk.delta(torch.zeros(3, 4, dtype=torch.float64), K, K, V, beta).U
    got = torch.stack(two_residuals(*K, *V, *beta))
    assert torch.allclose(got, want), f"U should be {want.tolist()}, got {got.tolist()}"

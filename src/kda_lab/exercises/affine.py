"""Exercises of the chapter on affine steps."""

import torch

from kda_lab import affine, rules


def by_hand():
    """T [2, 2] and H [1, 2] of both tokens together."""
    # <solution>
    return [[0, 0], [0, 0.25]], [[1.5, 2]]
    # </solution>


def check_by_hand(by_hand):
    k, v = torch.eye(2), torch.tensor([[3.0], [4.0]])
    T, H = affine.fold(k, v, torch.tensor([[1, 0.5], [0.5, 1]]), torch.tensor([1, 0.5]))
    got = [torch.as_tensor(part, dtype=torch.float32) for part in by_hand()]
    assert got[0].shape == (2, 2) and torch.equal(got[0], T), (
        "T is the first transition times the second, in this order"
    )
    assert got[1].shape == (1, 2) and torch.equal(got[1], H), (
        "H is the first increment through the second transition, plus the second increment"
    )


def tree(steps, compose):
    """One step that does what all steps do, joined in as few rounds as possible.

    steps: a list of one or more   compose: takes an earlier and a later step.
    """
    # <solution>
    while len(steps) > 1:
        pairs = [compose(a, b) for a, b in zip(steps[::2], steps[1::2])]
        steps = pairs + steps[2 * len(pairs) :]
    return steps[0]
    # </solution>


def check_tree(tree):
    for n in (1, 2, 5, 8, 13):
        # a step is the text of its tokens and the rounds that it took
        text, rounds = tree([(chr(97 + i), 0) for i in range(n)], lambda a, b: (a[0] + b[0], 1 + max(a[1], b[1])))
        assert text == "abcdefghijklm"[:n], f"{n} steps came out as {text}; keep them all, earlier ones first"
        assert rounds == (n - 1).bit_length(), f"{n} steps took {rounds} rounds; {(n - 1).bit_length()} are enough"


def segment(k, v, alpha, beta):
    """T [K, K] and H [V, K] of all tokens.

    k, alpha: [C, K]   v: [C, V]   beta: [C].
    """
    # <solution>
    zero = torch.zeros_like(v[0])[:, None] * k[0]  # [V, K]
    identity = torch.eye(k.shape[1], dtype=k.dtype)
    H, _ = rules.scan(rules.kda, zero, k, k, v, alpha, beta)
    T, _ = rules.scan(rules.kda, identity, k, k, torch.zeros_like(k), alpha, beta)
    return T, H
    # </solution>


def check_segment(segment):
    generator = torch.Generator().manual_seed(1)
    k, alpha = torch.rand(2, 5, 3, generator=generator, dtype=torch.float64)
    v, beta = (
        torch.rand(5, 2, generator=generator, dtype=torch.float64),
        torch.rand(5, generator=generator, dtype=torch.float64),
    )
    for name, got, want in zip("TH", segment(k, v, alpha, beta), affine.fold(k, v, alpha, beta)):
        assert got.shape == want.shape, f"{name} should have the shape {tuple(want.shape)}, got {tuple(got.shape)}"
        assert torch.allclose(got, want), (
            f"{name} should be {want.tolist()}, got {got.tolist()}; run the loop from zero for H, from the "
            "identity for T"
        )


def blind_tokens():
    """Keys [2, 2], values [2, 2] and write gates [2] of two tokens."""
    # <solution>
    k = torch.tensor([[0.6, 0.8], [0.6, 0.8]])
    return k, 2 * k, torch.tensor([0.5, 0.5])
    # </solution>


def check_blind_tokens(blind_tokens):
    k, v, beta = (torch.as_tensor(x, dtype=torch.float64) for x in blind_tokens())
    X1, M2 = affine.increment(k[0], v[0], beta[0]), affine.transition(k[1], 1.0, beta[1])
    assert X1.abs().max() > 0.1, "the first token should write something"
    assert (M2 - torch.eye(2, dtype=torch.float64)).abs().max() > 0.1, (
        "the second transition should not be the identity"
    )
    off = (X1 @ M2 - M2 @ X1).abs().max()
    assert off < 1e-6, f"the printed form is off by {off:.2f} on these tokens; X1 and M2 have to commute"

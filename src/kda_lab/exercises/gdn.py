"""Exercises of the chapter on Gated DeltaNet and its relatives."""

import math

import torch

from kda_lab import chunk, rules


def by_hand():
    """What the keys (1, 0) and (0, 1) answer at the end."""
    # <solution>
    return 3.0, 1.5
    # </solution>


def check_by_hand(by_hand):
    S, first, second = torch.tensor([[4.0, 4.0]]), torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    S, _ = rules.gated_delta(S, first, first, torch.tensor([6.0]), 0.5, 1.0)
    S, _ = rules.gated_delta(S, second, second, torch.tensor([2.0]), 0.5, 0.5)
    assert tuple(by_hand()) == (S[0, 0].item(), S[0, 1].item()), (
        "follow the table of the chapter: decay, read, residual, new state"
    )


def decay_mask(g):
    """D [C, C] from log decays g [C]: exp(g_(j+1) + ... + g_i) for j <= i.

    Zero above the diagonal. D and its gradient are finite for all g <= 0
    whose sums are finite.
    """
    # <solution>
    G = g.cumsum(0)
    exponents = G[:, None] - G[None, :]  # [C, C]
    upper = torch.ones(len(g), len(g), dtype=torch.bool).triu(1)
    return exponents.masked_fill(upper, -math.inf).exp()
    # </solution>


def check_decay_mask(decay_mask):
    g = -torch.rand(6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert torch.allclose(decay_mask(g), chunk.decay_between(g.exp())), (
        "D_ij is the product of the decays of tokens j+1..i"
    )
    strong = torch.full((64,), -5.0, requires_grad=True)
    D = decay_mask(strong)
    assert torch.isfinite(D).all(), "64 gates of -5 should give a finite D: no factor may be exp of something positive"
    D.sum().backward()
    assert torch.isfinite(strong.grad).all(), "the gradient is not finite: mask the exponents, not the exponentials"


def largest_safe_chunk(bound):
    """The largest C for which exp(G_i) exp(-G_j), j <= i, is always finite.

    In float32, for any C log decays in [bound, 0]; bound < 0.
    """
    # <solution>
    largest = math.log(torch.finfo(torch.float32).max)
    return math.floor(largest / -bound)
    # </solution>


def check_largest_safe_chunk(largest_safe_chunk):
    for bound in (-5.0, -1.0, -2.5, -0.3):
        C = largest_safe_chunk(bound)
        for tokens in (C, C + 1):
            G = torch.full((tokens,), bound, dtype=torch.float64).cumsum(0).float()
            finite = bool(torch.isfinite((G.exp()[:, None] * (-G).exp()[None, :]).tril()).all())
            assert finite == (tokens == C), (
                f"bound {bound}: {tokens} tokens are {'still safe' if finite else 'not safe'}, exp(-G) reaches "
                f"{(-G).exp().max():.2g}"
            )

"""Exercises of the chapter on Kimi Delta Attention."""

import math

import torch

from kda_lab import chunk, decay, rules


def by_hand():
    """The state (S_1, S_2) after both tokens."""
    # <solution>
    return 4.0, 1.5
    # </solution>


def check_by_hand(by_hand):
    """Two steps of the rule on these numbers."""
    S, alpha = torch.tensor([[2.0, 8.0]]), torch.tensor([1.0, 0.5])
    for key, beta in (([1.0, 1.0], 0.5), ([1.0, 0.0], 1.0)):
        k = torch.tensor(key)
        S, _ = rules.kda(S, k, k, torch.tensor([4.0]), alpha, beta)
    got = tuple(by_hand())
    assert got == tuple(S[0].tolist()), f"decay each channel first, then read: the state is not {got}"


def raw_gate(half_life, lower_bound):
    """The raw gate x of a half life, in tokens; A_log and bias are 0."""
    # <solution>
    share = math.log(2) / (half_life * -lower_bound)  # g / lower_bound
    return math.log(share / (1 - share))
    # </solution>


def check_raw_gate(raw_gate):
    """Four half lives under two bounds, through the library's gate."""
    for half_life, bound in ((2.0, -5.0), (0.2, -5.0), (4096.0, -5.0), (10.0, -1.0)):
        x = torch.tensor([[raw_gate(half_life, bound)]], dtype=torch.float64)
        g = decay.bounded_gate(x, torch.zeros(1, dtype=torch.float64), lower_bound=bound)
        got = decay.half_life(g).item()
        assert abs(got / half_life - 1) < 1e-9, (
            f"bound {bound}: wanted a half life of {half_life} tokens, got {got:.4g}"
        )


def turned_score():
    """k_1, k_2 and alpha_2, two numbers each, alpha_2 in (0, 1]."""
    # <solution>
    return (2, -1), (1, 1), (0.25, 1)
    # </solution>


def check_turned_score(turned_score):
    """The plain score is positive, the decayed one negative."""
    k1, k2, alpha = (torch.tensor(x, dtype=torch.float64) for x in turned_score())
    assert all(x.shape == (2,) for x in (k1, k2, alpha)), "each of the three has two numbers"
    assert (alpha > 0).all() and (alpha <= 1).all(), f"a decay lies in (0, 1], got {alpha.tolist()}"
    plain = (k2 @ k1).item()
    assert plain > 0, f"k_2 . k_1 should be positive, got {plain:g}"
    K = torch.stack([k1, k2])
    decayed = chunk.decayed_scores(K, K, torch.stack([torch.ones_like(alpha), alpha]))[1, 0].item()
    assert decayed < 0, f"Gamma_21 is {decayed:g}: let alpha_2 shrink what is positive in the sum over channels"

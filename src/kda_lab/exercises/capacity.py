"""Exercises of the chapter on what the memory can hold."""

from fractions import Fraction

import torch

from kda_lab import capacity, rules


def by_hand():
    """For 9 pairs in K = 4 dims, random unit keys and unrelated
    values, what to expect: the error of adding, the least mean
    error of any state, and the share of a value that is left
    after 2 more writes of the delta rule with beta = 1.
    """
    # <solution>
    return Fraction(8, 4), 1 - Fraction(4, 9), Fraction(3, 4) ** 2
    # </solution>


def check_by_hand(by_hand):
    want = capacity.additive_error(9, 4), capacity.floor(9, 4), capacity.retained(2, 4)
    for name, got, right in zip(
        ("the error of adding", "the least error", "the share kept"), by_hand(), want, strict=True
    ):
        assert abs(float(got) - float(right)) < 1e-9, (
            f"{name} is not {got}; put n and K into the equation with that name"
        )


def best_gate(m, K):
    """The write gate, at most 1, that leaves most of a value
    on average: of the part beta that its own write stored, the
    share that m later writes through the same gate spare.

    m: int from 0   K: int   returns a number.
    """
    # <solution>
    return min(1, Fraction(K, m + 1))
    # </solution>


def check_best_gate(best_gate):
    for m, K in ((0, 4), (3, 4), (9, 4), (100, 16), (7, 16)):
        shares = {b: b * (1 - b / K) ** m for b in [float(best_gate(m, K)), *(i / 1000 for i in range(1, 1001))]}
        best, top = float(best_gate(m, K)), max(shares.values())
        assert 0 < best <= 1 and shares[best] > top * (1 - 1e-9), (
            f"m = {m}, K = {K}: the gate {best:.3f} keeps {shares[best]:.4f}, another keeps {top:.4f}"
        )


def two_pairs():
    """Keys [2, 2] of length one and values [2, 1], for which
    adding errs by less in total than one pass of the delta
    rule with beta = 1.
    """
    # <solution>
    keys = torch.tensor([[1.0, 0.0], [0.8, 0.6]])
    values = torch.tensor([[1.0], [-1.0]])
    return keys, values
    # </solution>


def check_two_pairs(two_pairs):
    keys, values = (x.double() for x in two_pairs())
    assert keys.shape == (2, 2) and values.shape == (2, 1), (
        f"keys are [2, 2] and values [2, 1], got {tuple(keys.shape)} and {tuple(values.shape)}"
    )
    assert (keys.norm(dim=-1) - 1).abs().max() < 1e-6, "both keys should have length one"
    added = capacity.write(lambda S, k, v: rules.linear(S, k, k, v)[0], keys, values)
    delta = capacity.write(lambda S, k, v: rules.delta(S, k, k, v, 1.0)[0], keys, values)
    a, b = (capacity.recall_errors(S, keys, values).sum().item() for S in (added, delta))
    assert a < b - 1e-9, (
        f"adding errs by {a:.3f} and the delta rule by {b:.3f}; let the second value pull the first answer the "
        "wrong way"
    )

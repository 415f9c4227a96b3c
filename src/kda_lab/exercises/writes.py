"""Exercises of the chapter on what a chunk writes."""

import torch

from kda_lab import chunk, triangular


def by_hand():
    """u_1, u_2, u_3."""
    # <solution>
    return 4, 2, 3
    # </solution>


def check_by_hand(by_hand):
    one = torch.ones(3, 1)
    v, alpha, beta = torch.tensor([[4.0], [6.0], [5.0]]), one / 2, torch.tensor([1, 0.5, 1])
    want = chunk.kda(torch.zeros(1, 1), one, one, v, alpha, beta).U[:, 0].tolist()
    assert list(by_hand()) == want, (
        "each token reads what is left of all writes before it: halved once for each token since"
    )


def next_row(R, a):
    """The inverse [n+1, n+1] of one more token.

    R: [n, n]   a: [n], the new row of A, without its zero on the diagonal.
    """
    # <solution>
    n = len(R)
    out = torch.zeros(n + 1, n + 1, dtype=R.dtype)
    out[:n, :n] = R
    out[n, :n] = -a @ R
    out[n, n] = 1
    return out
    # </solution>


def check_next_row(next_row):
    A = torch.rand(6, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64).tril(-1)
    got, want = next_row(triangular.substitution(A[:5, :5]), A[5, :5]), triangular.substitution(A)
    assert got.shape == want.shape, f"the shape should be {tuple(want.shape)}, got {tuple(got.shape)}"
    assert torch.allclose(got, want), f"the last row should be {want[-1].tolist()}, got {got[-1].tolist()}"


def other_order(i, j, C):
    """Four ranges: the tokens whose decays stand in A_ij (j < i), row j of K_g, row i of K_in, and D_C."""
    # <solution>
    return range(j + 1, i), range(j + 1, C + 1), range(1, i), range(1, C + 1)
    # </solution>


def check_other_order(other_order):
    for i, j, C in ((4, 1, 5), (2, 1, 2), (6, 3, 8)):
        events = [(t, what) for t in range(1, C + 1) for what in ("read", "decay", "write")]
        read, write, end = events.index((i, "read")), events.index((j, "write")), len(events)
        spans = {"A_ij": (write, read), "row j of K_g": (write, end), "row i of K_in": (0, read), "D_C": (0, end)}
        for got, (name, (start, stop)) in zip(other_order(i, j, C), spans.items(), strict=True):
            want = [t for t, what in events[start:stop] if what == "decay"]
            assert list(got) == want, (
                f"i = {i}, j = {j}, C = {C}: {name} takes the decays of tokens {want}, got {list(got)}; write the "
                "events in a line"
            )


def large_inverse(C):
    """A strictly lower triangular A [C, C] with entries between -1 and 1."""
    # <solution>
    return -torch.ones(C, C, dtype=torch.float64).tril(-1)
    # </solution>


def check_large_inverse(large_inverse):
    for C in (3, 8, 40):
        A = large_inverse(C)
        assert A.shape == (C, C) and torch.equal(A, A.tril(-1)), "A should be strictly lower triangular"
        assert A.abs().max() <= 1, "no entry of A may exceed 1 in size"
        top = triangular.substitution(A.double()).abs().max().item()
        assert top >= 2.0 ** (C - 2), (
            f"with {C} tokens the largest entry of R is {top:.3g}; every way from the first token to the last "
            "can add up"
        )

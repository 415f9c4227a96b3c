"""Exercises of the chapter on the backward pass."""

import torch

from kda_lab import chunk_backward, rules


def by_hand():
    """dv_1, dv_2 and dS_0 of the chapter's two tokens, when the loss is o_1 + o_2."""
    # <solution>
    return 0.625, 0.5, 0.3125
    # </solution>


def check_by_hand(by_hand):
    one, half = torch.ones(2, 1), torch.full((2, 1), 0.5)
    x = torch.tensor([[8.0]]), one, one, torch.tensor([[8.0], [5.0]]), half, half[:, 0]
    d = chunk_backward.loop(*x, one, torch.zeros(1, 1))
    want = d.dV[0].item(), d.dV[1].item(), d.dS.item()
    assert tuple(by_hand()) == want, (
        "go back token by token: Lambda = dS + do q, dr = Lambda k, dv = beta dr, and dS = (Lambda - beta dr k) alpha"
    )


def transposed_solve(A, dE):
    """Z with (I + A)^T Z = dE, without an inverse: row by row from the last.

    A: [C, C] strictly lower triangular   dE: [C, V]   returns [C, V].
    """
    # <solution>
    Z = dE.clone()
    for i in range(len(A) - 2, -1, -1):
        Z[i] = dE[i] - A[i + 1 :, i] @ Z[i + 1 :]
    return Z
    # </solution>


def check_transposed_solve(transposed_solve):
    generator = torch.Generator().manual_seed(1)
    A = torch.randn(6, 6, generator=generator, dtype=torch.float64).tril(-1)
    dE = torch.randn(6, 3, generator=generator, dtype=torch.float64)
    Z = transposed_solve(A, dE)
    off = ((torch.eye(6, dtype=torch.float64) + A).T @ Z - dE).abs().max().item()
    assert off < 1e-9, f"(I + A)^T Z is off dE by {off:.1e}; the last row of Z is that of dE"


def same_after():
    """Two states [1, 2] that differ by at least 1 and are equal after one token.

    The token has k = (1, 0), alpha = (1/2, 1), beta = 1, v = 3.
    """
    # <solution>
    S = torch.tensor([[2.0, 5.0]])
    return S, S + torch.tensor([2.0, 0.0])  # k / alpha
    # </solution>


def check_same_after(same_after):
    k, v, alpha = torch.tensor([1.0, 0.0]), torch.tensor([3.0]), torch.tensor([0.5, 1.0])
    a, b = same_after()
    assert (a - b).abs().max() >= 1, "the two states should differ by at least 1"
    after = [rules.kda(S, k, k, v, alpha, 1.0)[0] for S in (a, b)]
    assert torch.equal(*after), (
        f"the states after the token are {after[0].tolist()} and {after[1].tolist()}; move along k / alpha"
    )

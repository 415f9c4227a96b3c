"""Exercises of the chapter on the CUDA kernel."""

import torch


def by_hand():
    """The reference token n, and the exponents of the left and of the right factor."""
    # <solution>
    return 32, -10.0, -46.0
    # </solution>


def check_by_hand(by_hand):
    i, j, g = 37, 9, -2.0
    n, left, right = by_hand()
    assert n % 16 == 0 and j < n <= i < n + 16, f"n is the first token of the row block that holds token {i}, got {n}"
    assert (left, right) == ((i - n) * g, (n - j) * g), (
        f"tokens {n + 1}..{i} stand in the left exponent, tokens {j + 1}..{n} in the right one"
    )


def bank_conflicts(line, side):
    """Lanes that share a bank, at most, when 32 lanes load a factor's first entries from rows of `line` words.   side:
    "left" or "right".
    """
    # <solution>
    words = []
    for lane in range(32):
        g, t = lane // 4, lane % 4
        row, column = (g, t) if side == "left" else (t, g)
        words.append(row * line + column)
    banks = [word % 32 for word in words]
    return max(banks.count(bank) for bank in banks)
    # </solution>


def check_bank_conflicts(bank_conflicts):
    # rows [64, 128 + padding] of W (left) and K_g (right), and of E, whose columns are the rows of a left factor
    for side, want in {"left": {128: 8, 132: 1, 136: 2}, "right": {128: 4, 132: 2, 136: 1, 24: 1}}.items():
        for line, lanes in want.items():
            got = bank_conflicts(line, side)
            assert got == lanes, (
                f"rows of {line} words, {side}: expected {lanes}, got {got}; lane {'4 g + t'} reads row "
                f"{'g, column t' if side == 'left' else 't, column g'}"
            )


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
    assert not gradient.isfinite().all(), (
        f"the gradient is finite; the largest exponent above the diagonal is {difference.max():.1f}, fp32 ends at 88.7"
    )
    early = difference.masked_fill(torch.ones(16, 16).triu(1).bool(), -torch.inf).exp()  # mask before exp
    assert torch.autograd.grad(early.sum(), g)[0].isfinite().all(), (
        "masked before exp, the same gates have a finite gradient"
    )

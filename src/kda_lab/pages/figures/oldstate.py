"""Pictures of the chapter on what a chunk does to the old state."""

import torch

from kda_lab.algebra import chunk, triangular
from kda_lab.pages.figures import Board, axes, show, style


def erased_once(tokens=8, beta=0.5):
    """What the old state still answers to one unit key that is written so many times with value 0: exactly, and by two
    short cuts.   beta: the write gate, 0 to 2.

    >>> erased_once(tokens=4)
    <figure: What is left of an old answer against the number of tokens: ...>
    """
    K, V = torch.ones(tokens, 1, dtype=torch.float64), torch.zeros(tokens, 1, dtype=torch.float64)
    gates, S = torch.full((tokens,), beta, dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64)
    lines = {"each token erases on its own": [1.0], "the decays alone": [1.0], "exact": [1.0]}
    for n in range(1, tokens + 1):
        terms = chunk.kda(S, K[:n], K[:n], V[:n], K[:n], gates[:n])
        own = terms.K_in * gates[:n, None]
        lines["each token erases on its own"].append((terms.D - (own.T @ terms.K_g)).item())
        lines["the decays alone"].append(terms.D.item())
        lines["exact"].append(terms.S.item())
    fig, ax = axes(height=2.8)
    ax.axhline(0, color=style("decay")["color"], linewidth=0.8)
    for (label, line), role in zip(lines.items(), ("error", "decay", "state")):
        ax.plot(range(tokens + 1), line, label=label, **style(role))
    ax.set(xlabel="tokens of the chunk", ylabel="what is left of 1")
    ax.legend(loc="lower left")
    return show(
        fig,
        "What is left of an old answer against the number of tokens: exactly it halves each time, with the decays "
        "alone it stays at 1, "
        "and if each token erases on its own it falls along a straight line to minus 3.",
    )


def thin_transition(C=5, K=12):
    """The transition of a chunk as a diagonal minus a thin product.

    C: tokens   K: channels of a key.

    >>> thin_transition(C=3, K=6)
    <figure: The transition of a chunk, a full K by K matrix, equals a ...>
    """
    board, cell = Board(560, 200), 11
    x, y = 8, 34
    _, _, w, h = board.matrix(
        x,
        y,
        K,
        K,
        role="state",
        cell=cell,
        label="T_1 ⋯ T_C",
        shape="[K, K]",
        shade=lambda i, j: 0.9 if i == j else 0.35,
    )
    x += w + 22
    board.text(x - 9, y + h / 2, "=")
    x += 6
    board.matrix(x, y, K, K, role="decay", cell=cell, label="D_C", shape="diagonal", shade=lambda i, j: float(i == j))
    x += w + 22
    board.text(x - 9, y + h / 2, "−")
    x += 6
    board.matrix(x, y, K, C, role="key", cell=cell, label="W^T", shape="[K, C]")
    x += C * cell + 8
    board.matrix(x, y, C, K, role="key", cell=cell, label="K_g", shape="[C, K]")
    return board.show(
        "The transition of a chunk, a full K by K matrix, equals a diagonal matrix minus the product of a tall thin "
        "matrix W transposed and a flat one, K_g."
    )


def inverse_entries(C=64):
    """The largest entry of R below the diagonal against beta |k|^2: equal keys and random ones, and the bound.

    C: tokens of a chunk.

    >>> inverse_entries(C=8)
    <figure: The largest entry of the inverse against beta times the ...>
    """
    generator = torch.Generator().manual_seed(0)
    draw = torch.nn.functional.normalize(torch.randn(C, 16, generator=generator, dtype=torch.float64), dim=-1)
    same = draw[:1].expand(C, 16)
    gates = [0.1 * n for n in range(1, 31)]
    fig, ax = axes(height=3.0)
    for label, role, keys in [("equal keys", "query", same), ("random keys, K = 16", "key", draw)]:
        largest = []
        for b in gates:
            R = triangular.substitution(chunk.tril(keys @ keys.T, -1) * b)
            largest.append(R.tril(-1).abs().max().item())
        ax.plot(gates, largest, label=label, markevery=3, **style(role))
    ax.plot(
        [g for g in gates if g <= 2],
        [g for g in gates if g <= 2],
        label="bound",
        color=style("decay")["color"],
        linewidth=4,
        alpha=0.35,
    )
    ax.axvline(2, color=style("decay")["color"], linewidth=1)
    ax.set(yscale="log", xlabel="β |k|²", ylabel="largest |R_ij|, i > j")
    ax.legend(loc="upper left")
    return show(
        fig,
        "The largest entry of the inverse against beta times the squared length of the keys, logarithmic: below the "
        "bound up to 2, and "
        "for equal keys many orders of magnitude above it beyond 2.",
    )


def conditions(C=64, K=128):
    """The condition number of I + A in the maximum norm, by the kind of unit keys; no decay, every gate one.

    C: tokens   K: channels of a key.

    >>> round(conditions(C=4)["equal keys"], 6)
    8.0
    """
    generator = torch.Generator().manual_seed(0)
    noise, one = (torch.randn(n, K, generator=generator, dtype=torch.float64) for n in (C, 1))
    found = {}
    for name, keys in [
        ("random keys", noise),
        ("one key with jitter", one + 0.3 * noise),
        ("equal keys", one.expand(C, K)),
    ]:
        keys = torch.nn.functional.normalize(keys, dim=-1)
        A = chunk.tril(keys @ keys.T, -1)
        sums = [
            X.abs().sum(-1).max().item() for X in (A + torch.eye(C, dtype=torch.float32), triangular.substitution(A))
        ]
        found[name] = sums[0] * sums[1]
    return found

"""Pictures of the chapter on what a chunk writes."""

import torch

from kda_lab.algebra import chunk
from kda_lab.pages.figures import Board, Picture, axes, show, style
from kda_lab.parts import inputs
from kda_lab.proof.equations.chunk.mutants import CHUNK_MUTANTS

SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)


def rounds(K=16, V=8, draws=20):
    """The relative error of a chunk's increment when the corrections are left out, or carried through a few rounds
    only.

    K, V: channels of a key and of a value   draws: over which the mean is taken.
    """
    generator = torch.Generator().manual_seed(0)
    lines = [
        ("no correction", "error", "weak", 0),
        ("one round, I − A", "value", "weak", 1),
        ("two rounds, I − A + A²", "key", "weak", 2),
        ("no correction, fast decay", "decay", "strong", 0),
    ]
    errors = {label: [] for label, *_ in lines}
    decays = {"weak": [], "strong": []}
    for C in SIZES:
        sums = dict.fromkeys(errors, 0.0)
        for _ in range(draws):
            for gates in ("weak", "strong"):
                x = inputs.head(C, K, V, generator, gates=gates)
                decays[gates].append(x.g.exp().flatten())
                terms = chunk.kda(x.S * 0, x.q, x.k, x.v, x.g.exp(), x.beta)
                partial, power = 0, x.v * x.beta[:, None]
                for n in range(3):
                    partial, power = partial + power, -terms.A @ power
                    off = (partial - terms.U).T @ terms.K_g
                    for label, _, family, count in lines:
                        if (family, count) == (gates, n):
                            sums[label] += (off.norm() / (terms.U.T @ terms.K_g).norm()).item() / draws
        for label, series in errors.items():
            series.append(sums[label])
    slow, fast = (torch.cat(decays[gates]) for gates in ("weak", "strong"))
    assert slow.min() > 0.97 and fast.median() < 0.05, "the caption says so"
    fig, ax = axes(height=3.2)
    for label, role, *_ in lines:
        ax.plot(SIZES, errors[label], label=label, **style(role))
    ax.set(xscale="log", xlabel="tokens in the chunk", ylabel="relative error of the increment", ylim=(0, None))
    ax.set_xticks([1, 2, 4, 8, 16, 32, 64], ["1", "2", "4", "8", "16", "32", "64"])
    ax.minorticks_off()
    ax.legend(loc="upper left")
    return show(
        fig,
        "Relative error of the increment against the size of the chunk: without corrections and with one or two "
        "rounds of them it passes 1 "
        "at 64 tokens; with fast decay it stays near zero.",
    )


def intervals() -> Picture:
    """Which decays stand between a write and a read: four tokens, four factors.

    >>> intervals()
    <figure: Four tokens on a line, each with a decay, a read and a write ...>
    """
    board = Board(480, 262)
    left, step = 108, 92
    decay = lambda t: left + step * (t - 1) + 13
    read = lambda t: left + step * (t - 1) + 43
    write = lambda t: left + step * (t - 1) + 75
    for t in range(1, 5):
        board.text(read(t), 10, f"token {t}", size=12, bold=True)
        board.text(decay(t), 32, f"α_{t}", role="decay")
        board.text(read(t), 32, "read", size=11, role="key")
        board.text(write(t), 32, "write", size=11, role="value")
    bars = [
        ("A_{31}, M_{31}", write(1), read(3), (2, 3)),
        ("K_g, row 2", write(2), left + 4 * step, (3, 4)),
        ("K_{in}, row 3", left - 6, read(3), (1, 2, 3)),
        ("D_C", left - 6, left + 4 * step, (1, 2, 3, 4)),
    ]
    for n, (label, start, end, covered) in enumerate(bars):
        y = 62 + 52 * n
        board.text(4, y + 14, label, anchor="start", bold=True)
        board.arrow((start, y + 14), (end, y + 14), role="state")
        for t in covered:
            board.box(decay(t) - 14, y, 28, 28, f"α_{t}", role="decay")
    return board.show(
        "Four tokens on a line, each with a decay, a read and a write in this order. Arrows below show which decays "
        "lie between "
        "the write of token 1 and the read of token 3, between a write and the end, the start and a read, and over "
        "the whole chunk."
    )


def blind_spots() -> Picture:
    """Mistakes against inputs: a filled cell where the increment of the chunk gives the mistake away.

    >>> blind_spots()
    <figure: A table of 12 mistakes against 6 kinds of input. Generic ...>
    """
    x = inputs.head(8, K=8, V=3, generator=torch.Generator().manual_seed(0), gates="long")
    plain = {"k": x.k, "v": x.v, "alpha": x.g.exp(), "beta": x.beta}
    tests = {
        "generic": plain,
        "α = 1": plain | {"alpha": x.g * 0 + 1},
        "one β": plain | {"beta": x.beta * 0 + 0.7},
        "β = 1": plain | {"beta": x.beta * 0 + 1},
        "right angles": plain | {"k": torch.eye(8, dtype=torch.float64)},
        "2 tokens": {name: y[:2] for name, y in plain.items()},
    }
    mistakes = [m for m in CHUNK_MUTANTS if m.name.startswith(("A ", "I -", "R ", "B R V", "K_g"))]

    def increment(function, k, v, alpha, beta):
        terms = function(x.S * 0, k, k, v, alpha, beta)
        return terms.U.T @ terms.K_g

    seen = [
        [(increment(m.subject, **t) - increment(chunk.kda, **t)).abs().max().item() > 1e-9 for t in tests.values()]
        for m in mistakes
    ]
    assert all(row[0] for row in seen) and [row[4] for row in seen].count(False) == 9 and len(seen) == 12, (
        "the caption counts them"
    )
    cell, left, step = 24, 222, 41
    board = Board(left + step * len(tests) + 4, 40 + cell * len(mistakes) + 6)
    for j, name in enumerate(tests):
        first, _, rest = name.partition(" ")
        lines = [first, rest] if len(name) > 7 else [name]
        for n, word in enumerate(lines):
            board.text(left + step * j + 18, 26 - 14 * (len(lines) - 1 - n), word, size=11)
    for i, mistake in enumerate(mistakes):
        y = 40 + cell * i
        board.text(
            left - 10,
            y + 11,
            mistake.name.replace("beta", "β").replace(" - ", " − ").replace("K_g", "K_{g}"),
            size=11,
            anchor="end",
        )
        for j, caught in enumerate(seen[i]):
            board.matrix(
                left + step * j + 8,
                y + 1,
                1,
                1,
                role="state" if caught else "error",
                cell=20,
                shade=lambda i, j, full=caught: float(full),
            )
            board.text(left + step * j + 18, y + 11, "✓" if caught else "–", size=12)
    return board.show(
        f"A table of {len(mistakes)} mistakes against {len(tests)} kinds of input. Generic inputs catch every "
        "mistake; each easy input misses some."
    )

"""Pictures of the chapter on order and position."""

import torch

from kda_lab.pages.figures import Board, axes, show, style
from kda_lab.pages.table import Table
from kda_lab.parts import position


def who_waits():
    """Three ways to four outputs: a chain of states, rows that read only inputs, and a tree of composed steps.

    >>> who_waits()
    <figure: Three graphs over four tokens. The states of an RNN form a ...>
    """
    board = Board(540, 352)
    x = [150 + 95 * i for i in range(4)]

    board.text(10, 40, "RNN", anchor="start", bold=True)
    board.text(10, 60, "T steps, one by one", anchor="start", size=12)
    for i, at in enumerate(x):
        board.box(at - 24, 30, 48, 30, f"h_{i + 1}", role="state")
        board.text(at, 84, f"x_{i + 1}")
        board.arrow((at, 76), (at, 62))
        if i:
            board.arrow((x[i - 1] + 24, 45), (at - 24, 45), role="state")

    board.text(10, 144, "attention", anchor="start", bold=True)
    board.text(10, 164, "one sum a row", anchor="start", size=12)
    for i, at in enumerate(x):
        board.box(at - 24, 118, 48, 30, f"o_{i + 1}", role="value")
        board.text(at, 204, f"x_{i + 1}")
        for j in range(i + 1):
            board.arrow((x[j], 194), (at - 6 * (i - j), 150), role="key")

    board.text(10, 262, "affine steps", anchor="start", bold=True)
    board.text(10, 282, "a scan: log T levels", anchor="start", size=12)
    for i, at in enumerate(x):
        board.box(at - 36, 318, 72, 28, f"T_{i + 1}, H_{i + 1}", role="decay")
    for i, name in ((0, "1-2"), (2, "3-4")):
        middle = (x[i] + x[i + 1]) / 2
        board.box(middle - 30, 272, 60, 28, name, role="state")
        for at in (x[i], x[i + 1]):
            board.arrow((at, 318), (middle + (12 if at > middle else -12), 302))
    middle = (x[0] + x[3]) / 2
    board.box(middle - 30, 226, 60, 28, "1-4", role="state")
    for i in (0, 2):
        half = (x[i] + x[i + 1]) / 2
        board.arrow((half, 272), (middle + (12 if half > middle else -12), 256))
    return board.show(
        "Three graphs over four tokens. The states of an RNN form a chain of four. Each output of attention "
        "reads inputs "
        "only. Affine steps are composed in pairs, two levels for four tokens."
    )


def distance(reach=160):
    """The weight of a write over its distance, up to `reach` tokens: turned keys, decaying keys, and a softmax that
    knows no distance.

    >>> distance(reach=20)
    <figure: The score of a key with an equal query over their distance: ...>
    """
    d = torch.arange(reach + 1)
    one = torch.ones(64, dtype=torch.float64) / 8
    fig, ax = axes(height=3.3)
    turned = []
    for n in d.tolist():
        turn = position.angles(-n, 64)
        turned.append(position.relative_score(one, one, turn.cos(), turn.sin()).item())
    pair = (0.1 * d).cos()
    ax.axhline(0, color=style("decay")["color"], linewidth=0.8)
    ax.plot(d, torch.ones(len(d), dtype=torch.float32), label="NoPE", markevery=20, **style("decay"))
    ax.plot(d, turned, label="RoPE, 32 pairs", markevery=20, **style("key"))
    ax.plot(d, pair, label="one pair", markevery=20, linewidth=1, **style("query"))
    ax.plot(d, 0.97**d, label="decay 0.97", markevery=20, **style("state"))
    ax.set(xlabel="tokens between key and query", ylabel="score of equal vectors", ylim=(-1.1, 1.15))
    fig.legend(loc="outside lower center", ncols=4)
    return show(
        fig,
        "The score of a key with an equal query over their distance: constant without position, falling with a "
        "decay, waving up and "
        "down with rotations.",
    )


def table(entries):
    """The models as a table: layers of each kind, what attention rotates, fields that look like rotation and are
    unused.

    >>> table(position.models()[:1]).rows[0][:3]
    ['Kimi-Linear-48B-A3B', '20 KDA', '7 MLA']
    """
    rows = []
    for m in entries:
        part, whole = position.rotated(m)
        what = "RoPE, " + (f"{part} of {whole}" if whole else f"{part}") if part else "NoPE"
        linear = f"{m['linear_layers']} {m['linear']}" if m["linear_layers"] else "\u2013"
        linear += f" ({m['linear_position']})" if "RoPE" in m["linear_position"] else ""
        fields = ", ".join(f"`{name}`" for name in position.decoys(m)) or "\u2013"
        rows.append([m["model"], linear, f"{m['attention_layers']} {m['attention']}", what, fields, m["confidence"]])
    return Table(
        ["model", "linear layers", "attention layers", "rotated dims", "rotary fields that rotate nothing", "sources"],
        rows,
    )

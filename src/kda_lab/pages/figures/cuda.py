"""Pictures of the chapter on the CUDA kernel."""

import torch

from kda_lab.algebra import triangular
from kda_lab.cuda import measure
from kda_lab.pages.figures import Board, axes, show, style
from kda_lab.parts import decay

HEIGHT = 1e12  # where a result that is no number is drawn


def two_exact_formulas(C=64, K=16):
    """Relative errors in fp32 of two formulas that are exact algebra, and of their forms by blocks of 16.

    C: tokens of a chunk, a multiple of 16   K: channels of a key.

    >>> two_exact_formulas(C=16, K=2)
    <figure: Two panels of relative errors. Left, the scores as one ...>
    """
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)
    fig, (left, right) = axes(1, 2, height=3.1, sharey=True)

    x, y, gates = draw(C, K), draw(C, K), [0.05, 0.2, 0.5, 0.8, 1, 1.2, 1.5, 2, 3, 5, 8]
    whole, blocks = [], []
    for rate in gates:
        g = torch.full((C, K), -rate, dtype=torch.float64)
        exact, G = decay.pairwise_scores(x, y, g), decay.prefix_sums(g).float()
        whole.append(_error(((x.float() * G.exp()) @ (y.float() * (-G).exp()).T).tril(), exact))
        blocks.append(_error(decay.blocked_scores(x.float(), y.float(), g.float()), exact))
    left.plot(gates, whole, **style("error"))
    left.plot(gates, blocks, **style("state"))
    left.set(
        xscale="log",
        yscale="log",
        ylim=(1e-8, 1e14),
        xlabel="log decay a token, −g",
        ylabel="relative error",
        title="scores",
    )
    left.set_xticks([0.1, 1, 5], ["0.1", "1", "5"])

    jitters = [10, 5, 3, 2, 1.0, 0.7, 0.5, 0.3, 0.2, 0.1, 0.05, 0.02, 0.01]  # the first: as good as random
    curves = {"error": [], "value": [], "state": []}
    for jitter in jitters:
        k = torch.nn.functional.normalize(draw(1, 64) + jitter * draw(C, 64), dim=-1)
        A = 0.9997 * (k @ k.T).tril(-1)
        exact = triangular.substitution(A)
        curves["error"].append(_error(triangular.doubling(A.float()), exact))
        curves["value"].append(_error(triangular.doubling(A[:16, :16].half()), exact[:16, :16]))
        curves["state"].append(_error(triangular.blocked(A.float()), exact))
    for role, errors in curves.items():
        right.plot(jitters, errors, **style(role))
    right.set(xscale="log", xlim=(14, 0.007), xlabel="keys: one direction + jitter", title="inverse of I + A")
    right.set_xticks([10, 1, 0.1, 0.01], ["random", "1", "0.1", "0.01"])
    for ax in (left, right):
        ax.axhline(HEIGHT, color=style("decay")["color"], linewidth=1)
    left.text(gates[0], HEIGHT * 3, "not a number", fontsize=8)
    handles = [right.lines[i] for i in (0, 1, 2)]
    fig.legend(
        handles,
        ["one product; power series of 64 rows", "power series of 16 rows, in fp16", "16 × 16 blocks"],
        loc="outside lower center",
        ncols=2,
    )
    return show(
        fig,
        "Two panels of relative errors. Left, the scores as one product turn into not-a-number beyond a log decay of "
        "1.4, and the blocks "
        "stay near 1e-7. Right, the power series of 64 rows is exact to 1e-7 for random keys and loses everything "
        "for similar ones, "
        "the one of 16 rows in fp16 goes from 1e-4 to a fifth, and substitution with block merges stays near 1e-7.",
    )


def _error(x, exact):
    error = measure.relative_error(x, exact)
    return error if error < HEIGHT else HEIGHT


def three_stages():
    """The three kernels: what a thread block owns in each, and what passes between them.

    >>> three_stages()
    <figure: Three rows. In prepare and output each chunk is a box of its ...>
    """
    board = Board(560, 322)
    xs = [4, 80, 156, 232]
    rows = [
        (
            "prepare",
            20,
            "a chunk of a head",
            ["reads q, k, v, g, β  [64, 128]", "writes U, W, Q_{in}, K_g  [64, 128]", "M  [64, 64], decay  [128]"],
        ),
        (
            "state",
            122,
            "16 value rows, in order",
            ["reads U, W, K_g, decay", "writes E  [64, 16], and at each", "entry S  [16, 128]"],
        ),
        ("output", 240, "a chunk of a head", ["reads Q_{in}, M, E, S", "writes O  [64, 128]"]),
    ]
    for name, y, owner, lines in rows:
        board.text(318, y, name, anchor="start", bold=True)
        board.text(386, y, owner, anchor="start", size=12)
        for n, line in enumerate(lines):
            board.text(318, y + 20 + 18 * n, line, anchor="start", size=12, role="" if n else "decay")
    for n, x in enumerate(xs):
        board.box(x, 16, 62, 44, f"chunk {n + 1}", role="key")
        board.box(x, 236, 62, 44, f"chunk {n + 1}", role="value")
        board.matrix(x + 4, 112, 8, 4, role="state", cell=9, shade=lambda i, j: 0.9 if i == 2 else 0.1)
        if n < 3:
            board.arrow((x + 42, 134), (x + 78, 134), role="state")
        board.arrow((x + 22, 62), (x + 22, 108), dashed=True)
        board.arrow((x + 22, 188), (x + 22, 233), dashed=True)
        board.arrow((x + 54, 62), (x + 54, 233), dashed=True, role="key")
    board.text(4, 304, "time", anchor="start", size=12)
    board.arrow((36, 304), (296, 304))
    return board.show(
        "Three rows. In prepare and output each chunk is a box of its own, without arrows between them. In state "
        "the state, cut into eight slices of 16 value rows, passes from chunk to chunk along arrows. Dashed arrows "
        "lead from each chunk of prepare to state, "
        "and past it to output, and from state to output."
    )


def stage_times(run, T=8192, H=32):
    """Milliseconds of each kernel, as recorded, beside the time that its own traffic needs, and beside what the call
    has to move at all.

    run: {kernel: ms, "call": ms, "floor": ms, "rate": bytes a second}   T, H: tokens and heads of that run.
    """
    names = list(measure.TRAFFIC)
    floors = [b * T * H / run["rate"] * 1e3 for b in measure.stage_bytes().values()]
    fig, ax = axes(height=2.5)
    for y, name, floor in zip((2, 1, 0), names, floors):
        ax.barh(y + 0.2, run[name], 0.36, color=style("key")["color"], label="recorded" if y == 2 else None)
        ax.barh(
            y - 0.2,
            floor,
            0.36,
            color=style("decay")["color"],
            hatch="..",
            label="its traffic at the rate of a copy" if y == 2 else None,
        )
        ax.text(run[name], y + 0.2, f" {run[name]:.2f} ms", va="center", fontsize=9)
        ax.text(floor, y - 0.2, f" {floor:.2f}", va="center", fontsize=9)
    ax.axvline(
        run["floor"],
        color=style("error")["color"],
        linestyle="--",
        linewidth=1.4,
        label="arguments and results, moved once",
    )
    ax.set(yticks=(2, 1, 0), xlabel="milliseconds", xlim=(0, 1.18 * max(run[name] for name in names)))
    ax.set_yticklabels(names)
    ax.legend(loc="lower right")
    return show(
        fig,
        "Bars for the three kernels: the recorded time of each, and the shorter time that its traffic alone would "
        "take. The first "
        "kernel takes most of the time; a dashed line near zero marks what the whole call has to move.",
    )

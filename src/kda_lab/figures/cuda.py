"""Pictures of the chapter on the CUDA kernel."""

import torch

from kda_lab import decay, triangular
from kda_lab.cuda import measure
from kda_lab.figures import Board, axes, show, style

HEIGHT = 1e12  # where a result that is no number is drawn


def two_exact_formulas(C=64, K=16):
    """Errors in fp32 of two formulas that are exact algebra, and of their forms by blocks of 16."""
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
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
    left.set(xscale="log", yscale="log", ylim=(1e-8, 1e14), xlabel="log decay a token, −g", ylabel="relative error", title="scores")
    left.set_xticks([0.1, 1, 5], ["0.1", "1", "5"])

    jitters = [1.0, 0.7, 0.5, 0.3, 0.2, 0.1, 0.05, 0.02, 0.01]
    curves = {"error": [], "value": [], "state": []}
    for jitter in jitters:
        k = torch.nn.functional.normalize(draw(1, K) + jitter * draw(C, K), dim=-1)
        A = 0.9997 * (k @ k.T).tril(-1)
        exact = triangular.substitution(A)
        curves["error"].append(_error(triangular.doubling(A.float()), exact))
        curves["value"].append(_error(triangular.doubling(A[:16, :16].half()), exact[:16, :16]))
        curves["state"].append(_error(triangular.blocked(A.float()), exact))
    for role, errors in curves.items():
        right.plot(jitters, errors, **style(role))
    right.set(xscale="log", xlabel="jitter of one key direction", title="inverse of I + A")
    right.set_xticks([0.01, 0.1, 1], ["0.01", "0.1", "1"])
    for ax in (left, right):
        ax.axhline(HEIGHT, color=style("decay")["color"], linewidth=1)
    left.text(gates[0], HEIGHT * 3, "not a number", fontsize=8)
    handles = [right.lines[i] for i in (0, 1, 2)]
    fig.legend(handles, ["one product / power series, 64 rows", "power series, 16 rows, fp16", "16 × 16 blocks"], loc="outside lower center", ncols=2)
    return show(fig, "Two panels of relative errors. Left, the scores as one product turn into not-a-number beyond a log decay of 1.4, and the blocks "
                     "stay near 1e-7. Right, the power series of 64 rows loses everything for similar keys, the one of 16 rows in fp16 is off by "
                     "a fifth, and substitution with block merges stays near 1e-7.")  # fmt: skip


def _error(x, exact):
    error = measure.relative_error(x, exact)
    return error if error < HEIGHT else HEIGHT


def three_stages():
    """The three kernels: what a thread block owns in each, and what passes between them."""
    board = Board(560, 372)
    xs = [20, 105, 190, 275]
    rows = [("prepare", 40, "q, k, v, g, β  [64, 128]", "U, W, Q_{in}, K_g  [64, 128]", "M  [64, 64], decay  [128]"),
            ("state", 160, "U, W, K_g, decay", "E  [64, 16], and at each", "entry S  [16, 128]"),
            ("output", 292, "Q_{in}, M, E, S", "O  [64, 128]", "")]  # fmt: skip
    owners = ["a block: a chunk of a head; no order", "a block: 16 value rows, chunk after chunk", "a block: a chunk of a head; no order"]
    for (name, y, reads, *writes), owner in zip(rows, owners):
        board.text(20, y - 20, name, anchor="start", bold=True)
        board.text(84, y - 20, owner, anchor="start", size=12)
        board.text(366, y + 4, f"reads {reads}", anchor="start", size=12, role="decay")
        for n, line in enumerate(filter(None, writes)):
            board.text(366, y + 24 + 18 * n, ("writes " if n == 0 else "") + line, anchor="start", size=12)
    for n, x in enumerate(xs):
        board.box(x, 40, 62, 44, f"chunk {n + 1}", role="key")
        board.box(x, 292, 62, 44, f"chunk {n + 1}", role="value")
        board.matrix(x + 13, 160, 8, 4, role="state", cell=9, shade=lambda i, j: 0.9 if i == 2 else 0.1)
        if n < 3:
            board.arrow((x + 51, 182), (x + 96, 182), role="state")
        board.arrow((x + 31, 88), (x + 31, 126), dashed=True)
        board.arrow((x + 31, 236), (x + 31, 258), dashed=True)
    board.text(20, 356, "time", anchor="start", size=12)
    board.arrow((52, 356), (337, 356))
    return board.show("Three rows. In prepare and output each chunk is a box of its own, without arrows between them. In state "
                      "the state, cut into eight slices of 16 value rows, passes from chunk to chunk along arrows.")  # fmt: skip


def stage_times(run, T=8192, H=32):
    """Recorded time of each kernel beside the time that its own traffic needs, and beside what the call has to move at all."""
    names = list(measure.TRAFFIC)
    floors = [b * T * H / run["rate"] * 1e3 for b in measure.stage_bytes().values()]
    fig, ax = axes(height=2.5)
    for y, name, floor in zip((2, 1, 0), names, floors):
        ax.barh(y + 0.2, run[name], 0.36, color=style("key")["color"], label="recorded" if y == 2 else None)
        ax.barh(y - 0.2, floor, 0.36, color=style("decay")["color"], hatch="..", label="its traffic at the rate of a copy" if y == 2 else None)
        ax.text(run[name], y + 0.2, f" {run[name]:.2f} ms", va="center", fontsize=9)
        ax.text(floor, y - 0.2, f" {floor:.2f}", va="center", fontsize=9)
    ax.axvline(run["floor"], color=style("error")["color"], linestyle="--", linewidth=1.4, label="arguments and results, moved once")
    ax.set(yticks=(2, 1, 0), xlabel="milliseconds", xlim=(0, 1.18 * max(run[name] for name in names)))
    ax.set_yticklabels(names)
    ax.legend(loc="lower right")
    return show(fig, "Bars for the three kernels: the recorded time of each, and the shorter time that its traffic alone would take. The first "
                     "kernel takes most of the time; a dashed line near zero marks what the whole call has to move.")  # fmt: skip

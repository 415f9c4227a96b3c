"""Pictures of the chapter on the Hopper kernel: from its own source, from a document of `kda-lab bench`, from figures
kept beside it.
"""

import ast
import itertools
import json
import re

from kda_lab.cuda import compile as cuda_compile
from kda_lab.cuda import hopper, measure, workloads
from kda_lab.data import BENCHMARKS
from kda_lab.pages.figures import Board, axes, show, style
from kda_lab.study import intensity

BENCH, BESIDE, STEPS, MACHINE = (
    BENCHMARKS / f"{name}.json" for name in ("h200", "h200-fla", "hopper-steps", "machine")
)
D, C = workloads.D, hopper.C
GATES = ("strong", "long", "weak")


def steps():
    """What was measured while the kernel was made and no command repeats: profile in cycles, single products, versions
    and trials in milliseconds.

    >>> steps()["device"]
    'NVIDIA H200'
    """
    return json.loads(STEPS.read_text(encoding="utf-8"))


def layout(variant=None):
    """The whole numbers that hopper_layout.cuh defines for a variant -> {name: number}, those of a struct also as
    "Slot.TM".

    What is not made of +, -, *, /, ==, ?: and sizeof is left out.

    >>> found = layout()
    >>> found["C"], found["Slot.BYTES"] - found["Slot.V"] == found["TILE"] == 16 * 64 * 2
    (16, True)
    """
    known = dict((variant or hopper.Constants()).defines())
    bytes_of = {"float": 4, "__nv_bfloat16": 2}
    text = re.sub(r"//[^\n]*", "", (cuda_compile.HERE / "hopper_layout.cuh").read_text(encoding="utf-8"))
    # a default that the compiler's constants do not replace
    known = {name: int(n) for name, n in re.findall(r"#define (\w+) (\d+)\b", text)} | known

    def value(node):
        if isinstance(node, ast.Call):
            (inner,) = node.args
            if node.func.id == "sizeof":
                return bytes_of[known[inner.id]]
            return hopper.whole_lines(value(inner)) if node.func.id == "whole_lines" else value(inner)
        if isinstance(node, ast.Attribute):
            return known[f"{node.value.id}.{node.attr}"]
        if isinstance(node, ast.Name):
            return known[node.id]
        if isinstance(node, ast.IfExp):
            return value(node.body if value(node.test) else node.orelse)
        if isinstance(node, ast.Compare):
            return value(node.left) == value(node.comparators[0])
        if isinstance(node, ast.BinOp):
            x, y = value(node.left), value(node.right)
            return {ast.Add: x + y, ast.Sub: x - y, ast.Mult: x * y, ast.Div: x // (y or 1)}[type(node.op)]
        return node.value

    owner = ""
    for struct, body in re.findall(r"struct (\w+) \{|constexpr int ([^;]+);", text):
        owner = struct or owner
        for name, formula in re.findall(r"(\w+) = ((?:[^,(]|\([^)]*\)(?:[^,()]*\))*)+)", body):
            formula = re.sub(
                r"^(.+?)\?(.+?):([^:]+)$", r"(\2) if (\1) else (\3)", " ".join(formula.replace("::", ".").split())
            )
            try:
                known[name] = known[f"{owner}.{name}"] = value(ast.parse(formula, mode="eval").body)
            except (SyntaxError, AttributeError, KeyError):
                continue
    return known


def machine():
    """What a Hopper answered to `benchmarks/machine` -> {part: rows}.

    >>> machine()["code"][-1]["values"]["132 SMs"] > 4 * machine()["code"][-2]["values"]["132 SMs"]
    True
    """
    found = {}
    for row in json.loads(MACHINE.read_text(encoding="utf-8"))["rows"]:
        found.setdefault(row["part"], []).append(row)
    return found


def places():
    """Where the kernel's files mark each equation -> {slug: "file:first-last, ..."}, in the order in which a block
    meets them.

    >>> places()["one-accumulator"].split(":")[0]
    'hopper_state.cuh'
    """
    found, names = (
        {},
        ["hopper_slices.cuh", "hopper_prepare.cuh", "hopper_edges.cuh", "hopper_state.cuh", hopper.SOURCE],
    )
    for name in names:
        opened = {}
        for number, line in enumerate((cuda_compile.HERE / name).read_text(encoding="utf-8").splitlines(), 1):
            if mark := re.match(r"\s*// \[(/?)([a-z0-9-]+)\]", line):
                if mark[1]:
                    found.setdefault(mark[2], {}).setdefault(name, []).append(f"{opened[mark[2]]}-{number - 1}")
                else:
                    opened[mark[2]] = number
    return {
        slug: ", ".join(f"{name}:{','.join(lines)}" for name, lines in files.items()) for slug, files in found.items()
    }


def work(document, shape, gates="long", by="graph"):
    """Kernels and their milliseconds on a workload -> {implementation: ms}: of a graph if there is one, or by="call" of
    a call.

    >>> row = {"shape": "a", "gates": "long", "impl": "hopper", "graph": None, "call": {"median": 2.0}}
    >>> work({"rows": [row, row | {"impl": "fla", "call": None}]}, "a")
    {'hopper': 2.0}
    """
    rows = [row for row in document["rows"] if (row["shape"], row["gates"]) == (shape, gates)]
    return {row["impl"]: time["median"] for row in rows if (time := row[by] or row["call"])}


def counted():
    """Operations and bytes of a token and head in the Hopper kernel, by the unit that does or moves them.

    >>> counted()["bytes"], counted()["exponentials"]
    (1282, 512)
    """
    state = 2 * 2 * C * (C + D) * D / C + 2 * D * D  # X [2C, V] and the update
    scores, sums, fold = 2 * 2 * C * D, 2 * 2 * C * D, 2 * 2 * C * D
    moved = workloads.bytes_moved(1, 1) - 8 * D * D
    return {"bytes": moved, "state": state, "prepare": scores + sums + fold, "exponentials": 4 * D}


def roofline(document, shape="T=8192 H=64"):
    """Rate of operations over their ratio to bytes, both as each kernel itself has them, under the roofs of an H200.

    document: of `kda-lab bench`   shape: a workload of it, by its name.
    """
    size, kept, mine = workloads.shape(shape), steps(), counted()
    tokens = size["T"] * size["H"]
    peak, rate = intensity.gpus()["H200"].flops, document["environment"]["copy_rate"]
    ours = (mine["state"] + mine["prepare"], mine["bytes"])
    plain = lambda chunk: 6 * chunk * D + 4 * chunk * D + 6 * D * D
    traffic = {"chunk": (plain(64), sum(measure.stage_bytes().values())), "hopper": ours}
    traffic |= {name: (plain(chunk), moved) for name, (chunk, moved) in kept["traffic"].items()}
    times = {g: work(document, shape, g) for g in ("long", "strong")}
    fig, ax = axes(width=4.5, height=3.6)
    x = [10, peak / rate, 1000]
    ax.plot(x, [min(peak, rate * n) / 1e12 for n in x], color=style("decay")["color"], linewidth=1.6)
    ax.text(30, rate * 40 / 1e12, "memory", rotation=33, fontsize=9)
    ax.text(990, peak / 1e12 * 1.06, "tensor cores", ha="right", fontsize=9)
    names = {"chunk": "readable", "hopper": "this kernel", "fla": "FLA", "flashkda": "FlashKDA", "cudnn": "cuDNN"}
    points = [(names[n], n, times["long"][n]) for n in names if n in times["long"]]
    if times["strong"].get("cudnn", 9e9) < 0.7 * times["long"].get("cudnn", 0):
        points.append(("cuDNN, strong gates", "cudnn", times["strong"]["cudnn"]))
    points.append(("with barriers", "hopper", first_version(shape)))
    told = {row["impl"] for row in document["rows"] if row["shape"] == shape and row["level"] == "reported"}
    said = []
    for label, name, ms in points:
        flop, moved = traffic[name]
        at, high = flop / moved, flop * tokens / ms / 1e9
        role = "state" if name in ("chunk", "hopper") else "key"
        hollow = {"markerfacecolor": "none"} if name in told else {}
        ax.plot(
            at, high, linestyle="", markersize=7, marker=style(role)["marker"], color=style(role)["color"], **hollow
        )
        ax.text(at * 1.13, high * (0.9 if label == "with barriers" else 1), label, fontsize=9, va="center")
        said.append(f"{label} {high / min(peak / 1e12, rate * at / 1e12):.0%}")
    steps_on_the_way = [ours[0] * tokens / ms / 1e9 for name, ms in times["long"].items() if name.startswith("hopper-")]
    ax.plot(
        [ours[0] / ours[1]] * len(steps_on_the_way),
        steps_on_the_way,
        linestyle="",
        markersize=3,
        marker="o",
        color=style("state")["color"],
    )
    ax.set(
        xscale="log",
        yscale="log",
        xlim=(10, 1000),
        ylim=(5, 2000),
        xlabel="operations a byte that the kernel itself moves",
        ylabel="TFLOP/s",
    )
    ax.grid(alpha=0.15)
    return show(
        fig,
        "Points below a roof that rises with the memory's rate up to the peak of the tensor cores. Share of its own "
        f"roof: {'; '.join(said)}.",
    )


def first_version(shape, gates="long"):
    """Milliseconds of the kernel before this one, two thread blocks a head, as recorded then.

    >>> 0.4 < first_version("T=8192 H=64") < 0.45
    True
    """
    rows = json.loads((BENCHMARKS / "hopper-blocks.json").read_text(encoding="utf-8"))["timing"]
    return min(row["graph"] for row in rows if (row["shape"], row["gates"]) == (shape, gates))


def _path(board, points, role):
    """A line through points with an arrow at its end."""
    for start, end in itertools.pairwise(points[:-1]):
        paint = f"var(--kda-{role}, {style(role)['color']})"
        board.parts.append(
            f'<path d="M{start[0]} {start[1]}L{end[0]} {end[1]}" style="fill: none; stroke: {paint}; '
            'stroke-width: 1.6"/>'
        )
    board.arrow(points[-2], points[-1], role=role)


def roles():
    """The two thread blocks of a cluster: warps and registers, the two rings of slots, and who passes what to whom.

    >>> roles()
    <figure: Two thread blocks side by side. In each, 8 prepare warps ...>
    """
    n = layout()
    board, own, sent, wide = Board(420, 366), n["OWN_SLOTS"], n["SENT_SLOTS"], 200
    pitch = (wide - 10) / (own + sent)
    left = (2, 218)
    for rank, x in enumerate(left):
        ring = {"own": x + rank * (pitch * sent + 10), "sent": x + (1 - rank) * (pitch * own + 10)}
        board.text(x + wide / 2, 12, f"thread block {rank}", bold=True)
        board.box(x, 26, wide, 56, role="state")
        board.text(x + wide / 2, 44, f"{n['STATE_WARPS']} state warps, {n['STATE_REGISTERS']} registers")
        board.text(x + wide / 2, 64, f"rows {64 * rank} to {64 * rank + 63} of S, fp32")
        for name, count, role in (("own", own, "key"), ("sent", sent, "value")):
            at, middle = ring[name], ring[name] + pitch * count / 2
            for i in range(count):
                board.box(at + pitch * i, 122, pitch - 3, 26, role=role)
            board.arrow((middle, 118), (middle, 86), role=role)
            board.text(middle + 7, 102, name, anchor="start")
        board.box(x, 218, wide, 56, role="key")
        board.text(
            x + wide / 2, 236, f"{n['PREPARE_WARPS']} prepare warps, {n['PREPARE_REGISTERS']} registers", size=12
        )
        board.text(x + wide / 2, 256, f"{('even', 'odd')[rank]} blocks, two warps each")
        board.box(x, 296, wide, 66, role="decay")
        for i, line in enumerate(("2 loaders: q, k, g; v", "2 storers: o", f"{n['MOVE_REGISTERS']} registers")):
            board.text(x + wide / 2, 310 + 19 * i, line)
        outer = ring["own"] + (12 if rank == 0 else pitch * own - 15)
        board.arrow((outer, 215), (outer, 152), role="key")
    a, b = left[0] + pitch * own - 30, left[1] + pitch * sent / 2
    _path(board, [(a, 150), (a, 168), (b, 168), (b, 152)], "value")
    a, b = left[1] + pitch * sent + 40, left[0] + pitch * own + 10 + pitch * sent / 2
    _path(board, [(a, 150), (a, 188), (b, 188), (b, 152)], "value")
    board.text(210, 203, "finished factors")
    return board.show(
        f"Two thread blocks side by side. In each, {n['PREPARE_WARPS']} prepare warps fill {own} slots with blocks "
        "of their own, which are "
        f"read by {n['STATE_WARPS']} state warps above and copied into {sent} slots of the other thread block."
    )


def slot_life():
    """One slot of shared memory through the life of a block: what each part of it holds after whom.

    >>> slot_life()
    <figure: Six rows, one for each owner of a slot from loader to ...>
    """
    n = layout()
    board = Board(436, 296)
    at = [n[f"Slot.{x}"] for x in ("WQ", "TM", "SCALE", "WRITE", "V", "BYTES")]
    edges, left = (0, 128, 166, 204, 284, 314), 60
    rows = [
        ("loader", "k, q", "", "", "g", "V", "TOKENS", "decay"),
        ("units", "read keys", "", "G_m", "write keys", "V", "EXITS", "key"),
        ("solve", "read keys", "T, M", "G_m", "write keys", "V", "", "key"),
        ("fold", "−W, Q", "T, M", "f", "write keys", "V", "FULL", "key"),
        ("state", "−W, Q", "T, M", "f", "write keys", "O", "OUT", "state"),
        ("storer", "free", "", "", "", "", "EMPTY", "decay"),
    ]
    for r, (who, *held, signal, role) in enumerate(rows):
        y = 30 + 44 * r
        board.text(left - 8, y + 16, who, anchor="end", role=role, bold=True)
        for i, label in enumerate(held):
            # V comes by a copy of its own, which FULL counts
            new = label != "V" if r == 0 else label != rows[r - 1][1 + i]
            board.box(
                left + edges[i], y, edges[i + 1] - edges[i] - 3, 32, role=role if new and label != "free" else "decay"
            )
            board.text(left + (edges[i] + edges[i + 1] - 3) / 2, y + 16, label, bold=new and label != "free", size=12)
        if signal:
            board.text(left + 318, y + 16, signal, anchor="start", size=12)
    for i in range(5):
        board.text(left + (edges[i] + edges[i + 1] - 3) / 2, 14, f"{(at[i + 1] - at[i]) / 1024:g} kB", size=12)
    return board.show(
        "Six rows, one for each owner of a slot from loader to storer, with the mbarrier that each ends. Keys and "
        "queries turn into minus W "
        "and Q, gates into write keys, and V into O, each in the bytes where it lay."
    )


def accumulator(lane, register):
    """Row and column of the 16 x 16 tile that a lane holds in an accumulator's register 0 to 7.

    >>> accumulator(5, 0), accumulator(5, 7)
    ((1, 2), (9, 11))
    """
    return lane // 4 + 8 * (register // 2 % 2), 8 * (register // 4) + 2 * (lane % 4) + register % 2


def left_factor(lane, word, half):
    """Row and column of the tile that a lane holds in a half of word 0 to 3 of a left factor.

    >>> left_factor(5, 3, 1)
    (9, 11)
    """
    return lane // 4 + 8 * (word % 2), 8 * (word // 2) + 2 * (lane % 4) + half


def fragments(lane=5):
    """What one lane, 0 to 31, holds of a tile of S as accumulator, and as left factor: the same places.

    >>> fragments(lane=5)
    <figure: Two grids of 16 by 16. The eight places that lane 5 holds as ...>
    """
    board, cell, top = Board(430, 244), 11, 46
    registers = {accumulator(lane, i): f"{i}" for i in range(8)}
    words = {left_factor(lane, i, h): "" if h else f"{i}" for i in range(4) for h in range(2)}
    for x, title, names, single in (
        (22, "accumulator: register", registers, True),
        (250, "left factor: word", words, False),
    ):
        board.matrix(
            x, top, 16, 16, role="state", cell=cell, shade=lambda i, j, names=names: 0.5 if (i, j) in names else 0.0
        )
        for (i, j), name in names.items():
            board.text(x + (j + (0.5 if single else 1)) * cell, top + (i + 0.5) * cell, name, bold=True, size=12)
        board.text(x + 8 * cell, 12, title, bold=True)
        # rows and columns of which the lane holds something
        for i in sorted({i for i, _ in names}):
            board.text(x - 4, top + (i + 0.5) * cell, f"{i}", anchor="end", size=12)
        for j in sorted({j for _, j in names if j % 2 == 0}):
            board.text(x + (j + 1) * cell, top - 10, f"{j}, {j + 1}", size=12)
    board.arrow((202, 150), (228, 150))
    board.text(215, 134, "pack", size=12)
    return board.show(
        f"Two grids of 16 by 16. The eight places that lane {lane} holds as an accumulator are those that it holds "
        "as a left factor."
    )


def cycles():
    """A block's cycles by what the state warps and the two warps of a team do.

    >>> cycles()
    <figure: Bars of cycles. The state warps take 1,132 a block, half of ...>
    """
    kept = steps()
    parallel = 2 * kept["teams"]
    titles = {"state": "state", "prepare": "first of a team", "other": "second"}
    fig, axs = axes(3, 1, width=4.8, height=7.6, height_ratios=[len(kept[name]) for name in titles])
    for ax, (name, title) in zip(axs, titles.items()):
        names, values = zip(*kept[name])
        busy = [0 if what.startswith("wait") else n for what, n in kept[name]]
        role = "state" if name == "state" else "key"
        for y, (n, b) in enumerate(zip(values, busy)):
            look = (
                {"color": style(role)["color"]}
                if b
                else {"facecolor": "none", "edgecolor": style("decay")["color"], "hatch": ".."}
            )
            ax.barh(-y, n, 0.7, **look)
            ax.text(n, -y, f" {n:,}", va="center", fontsize=9)
        ax.set(yticks=[-y for y in range(len(names))], xlim=(0, 1.2 * max(values)))
        ax.set_yticklabels(names)
        whole = (
            f"{sum(values):,} a block"
            if name == "state"
            else f"{sum(busy):,} of {sum(values):,} busy; {sum(values) / parallel:,.0f} a block"
        )
        ax.set_title(f"{title}: {whole}", loc="right")
    axs[-1].set_xlabel("cycles")
    return show(
        fig,
        f"Bars of cycles. The state warps take {sum(n for _, n in kept['state']):,} a block, half of them for "
        "packing, issuing and scaling. "
        "The first warp of a team is busy nine tenths of the time, the second three quarters of it.",
    )

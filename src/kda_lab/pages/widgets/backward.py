"""Things to move in the chapter on the backward pass."""

from kda_lab.pages.widgets import Range, Static, Widget

# what is made, from what, and in words what it says
STEPS = [
    ("dE", "M, dO, K_g, dS", "how much the loss wants from each residual"),
    ("Z", "R, dE", "the same, with later tokens' corrections taken into account"),
    ("dM", "dO, E", "from the outputs, j up to i"),
    ("dA", "Z, E", "from the solve, j before i"),
    ("dV", "B, Z", "a value is scaled by its gate"),
    ("dQ_in", "dO, S_0", "queries that read the old state"),
    ("dK_in", "B, Z, S_0", "keys that read the old state"),
    ("dK_g", "E, dS", "keys that the new state keeps"),
    ("dS", "dS, D, dO, Q_in, dV, K_in", "for the chunk before"),
    ("dQ", "dQ_in, dM", "the two readers of a query"),
    ("dK", "dK_in, dK_g, dA, dM", "a key as it reads plus a key as it is written"),
    ("dG", "q dq, k (row − col), S_C dS", "for the prefix sums"),
    ("dg", "dG", "sums from the end"),
]


def _example():
    """The adjoint of one chunk with C = 4, K = 2, V = 1, its inputs of one digit."""
    import torch

    from kda_lab.algebra import chunk, chunk_backward

    f = lambda *rows: torch.tensor(rows, dtype=torch.float64)
    K, Q = f([1, 0], [0.6, 0.8], [0, 1], [0.8, 0.6]), f([1, 0], [0, 1], [0.6, 0.8], [1, 1])
    V, S, alpha = f([3], [1], [-2], [4]), f([2, -1]), f([1, 0.5], [0.5, 1], [1, 0.5], [0.5, 0.5])
    beta = torch.tensor([1, 0.5, 1, 0.5], dtype=torch.float64)
    x = S, Q, K, V, alpha, beta
    return chunk_backward.kda(*x, chunk.kda(*x), f([1], [0], [-1], [1]), f([0.5, 0]))


def order():
    """Step through the backward pass of a chunk of four tokens: every adjoint, its shape, and where it comes from.

    Control: the step, 1 to 13.

    >>> order()
    <widget: The order of the backward pass>
    """
    draw = """
      const s = data[v.step - 1], shape = `${s.rows.length} by ${s.rows[0].length}`;
      let svg = "";
      data.forEach((t, i) => {
        const y = 14 + 15.4 * i, now = i === v.step - 1;
        if (now) svg += kit.bar(2, y - 8, 66, 16, { role: "value", opacity: 0.25 });
        svg += kit.text(8, y, t.name, { size: 12, anchor: "start", role: i < v.step ? "" : "decay" });
        if (i < v.step - 1) svg += kit.text(60, y, "✓", { size: 12, role: "state" });
      });
      svg += kit.text(90, 22, `${s.name} from ${s.from}`, { anchor: "start", size: 14 });
      svg += kit.matrix(90, 48, s.rows, { cell: 38, digits: 2, role: "value", negative: "key" });
      const say = `Step ${v.step} of ${data.length}: ${s.name}, ${shape}, from ${s.from}: ${s.words}.`;
      return { svg, say };
    """
    made = _example()
    data = [
        {"name": name, "from": origin, "words": words, "rows": getattr(made, name).tolist()}
        for name, origin, words in STEPS
    ]
    static = Static(
        "backward-order",
        "The order of the backward pass",
        [Range("step", "step", 1, len(STEPS), 1, 1)],
        data,
        draw,
        size=(420, 215),
    )
    return Widget(static, live=_live_order)


def _live_order():
    import ipywidgets

    made = _example()

    def show(step=1):
        name, origin, words = STEPS[step - 1]
        print(f"{name} from {origin}: {words}")
        print(getattr(made, name).numpy().round(2))

    return ipywidgets.interactive(show, step=(1, len(STEPS)))

"""Things to move in the chapter on what the memory can hold."""

import torch

from kda_lab import rules
from kda_lab.pages.widgets import Choice, Static, Widget
from kda_lab.study import capacity

K, DRAWS = 16, 40
COUNTS = (2, 4, 8, 12, 16, 20, 24, 32)
RHO = (0.0, 0.2, 0.5, 0.8)


def _add(S, k, v, alpha=1.0):
    return rules.linear(S * alpha, k, k, v)[0]


def _correct(S, k, v, alpha=1.0):
    return rules.gated_delta(S, k, k, v, alpha, 1.0)[0]


WAYS = {
    "linear attention": (_add, 1),
    "linear attention, decay 0.9": (lambda S, k, v: _add(S, k, v, 0.9), 1),
    "delta rule": (_correct, 1),
    "delta rule, decay 0.9 (GDN)": (lambda S, k, v: _correct(S, k, v, 0.9), 1),
    "delta rule, five passes": (_correct, 5),
    "least squares": (None, 1),
}


def _errors(rho, n, generator):
    """The errors of n pairs, oldest first, for each way.   returns [ways][n]."""
    draw = (
        (lambda: capacity.cone_keys(n, K, rho, generator)) if rho else (lambda: capacity.random_keys(n, K, generator))
    )
    keys, values = (
        torch.stack([draw() for _ in range(DRAWS)]),
        torch.stack([capacity.random_values(n, 16, generator) for _ in range(DRAWS)]),
    )
    return [
        [round(e, 3) for e in capacity.average_errors(rule, keys, values, passes).tolist()]
        for rule, passes in WAYS.values()
    ]


def recall_errors():
    """The squared error of each pair after all were written, oldest first, as a share of the value's squared length.

    Controls: the rule; the number of pairs; the expected cosine of two keys, 0 to 0.8.
    """
    draw = """
      const n = data.counts[v.n], rho = data.rho[v.rho], e = data.errors[v.rho][v.n][v.rule], x0 = 44, y0 = 178, top = 4, w = 500 / n;
      const y = (a) => y0 - 150 * Math.min(a, top) / top, mean = e.reduce((a, b) => a + b, 0) / n, floor = Math.max(0, 1 - data.K / n);
      let svg = kit.line(x0, y0, x0 + 500, y0, { width: 1 });
      for (let t = 0; t <= top; ++t) svg += kit.line(x0 - 4, y(t), x0, y(t), { width: 1 }) + kit.text(x0 - 8, y(t), t, { size: 11, anchor: "end" });
      e.forEach((a, i) => {
        svg += kit.bar(x0 + w * i + 1, y(a), Math.max(2, w - 2), y0 - y(a), { role: a > top ? "error" : "state", opacity: 0.55 });
        if (a > top) svg += kit.text(x0 + w * (i + 0.5), 16, "\\u2191", { size: 11, role: "error" });
      });
      if (floor > 0) svg += kit.line(x0, y(floor), x0 + 500, y(floor), { role: "key", dash: "5 4" }) + kit.text(x0 + 502, y(floor), "1 \\u2212 K/n", { size: 11, anchor: "start", role: "key" });
      const over = mean > top, near = Math.abs(y(mean) - y(floor)) < 12 && floor > 0;
      // a mean beyond the axis gets an arrow and its number, not a line at the wrong height
      if (!over) svg += kit.line(x0, y(mean), x0 + 500, y(mean), { role: "value" });
      svg += kit.text(x0 + 502, over ? 30 : y(mean) + (near ? -12 : 0), over ? `\\u2191 ${kit.fmt(mean, 2)}` : "mean", { size: 11, anchor: "start", role: "value" });
      if (over) svg += kit.text(x0 + 502, 16, "mean", { size: 11, anchor: "start", role: "value" });
      svg += kit.text(x0 + 4, y0 + 14, "oldest", { size: 12, anchor: "start" }) + kit.text(x0 + 496, y0 + 14, "newest", { size: 12, anchor: "end" });
      const say = `${n} pairs in ${data.K} key dims, expected cosine ${rho}, ${data.ways[v.rule]}: the mean error is ${kit.fmt(mean, 2)}; ` +
        `the oldest pair has ${kit.fmt(e[0], 2)}, the newest ${kit.fmt(e[n - 1], 2)}.` + (Math.max(...e) > top ? ` Arrows mark what leaves the picture, which ends at ${top}.` : "");
      return { svg, say };
    """
    generator = torch.Generator().manual_seed(0)
    data = {
        "K": K,
        "counts": COUNTS,
        "rho": RHO,
        "ways": list(WAYS),
        "errors": [[_errors(rho, n, generator) for n in COUNTS] for rho in RHO],
    }
    controls = [
        Choice("rule", "rule", list(WAYS), 2),
        Choice("n", "number of pairs", [str(n) for n in COUNTS], 5),
        Choice("rho", "expected cosine of two keys", [f"{rho:g}" for rho in RHO], 0),
    ]
    return Widget(
        Static("recall-errors", "What each key reads after all were written", controls, data, draw, size=(600, 200)),
        live=_live_recall_errors,
    )


def _live_recall_errors():
    import ipywidgets

    def step(n=20, rho=0.0):
        for name, errors in zip(WAYS, _errors(rho, n, torch.Generator().manual_seed(0))):
            print(f"{name:28} mean {sum(errors) / n:6.2f}   oldest {errors[0]:6.2f}   newest {errors[-1]:6.2f}")

    return ipywidgets.interactive(step, n=(2, 48), rho=(0.0, 0.9, 0.1))

"""Things to move in the chapter on Gated DeltaNet and its relatives."""

import math

from kda_lab.pages.widgets import Range, Static, Widget

TOKENS = 100


def what_is_left():
    """One value, written once: how much of it four memories still answer after n more tokens.

    Controls: the half life of the decay, in tokens; the overlap of later keys with the first, a cosine; tokens
    since the write.

    >>> what_is_left()
    <widget: What is left of one value>
    """
    draw = """
      const alpha = Math.pow(2, -1 / v.half), keep = 1 - v.rho * v.rho, x0 = 60, y0 = 190, w = 300, h = 160;
      const curves = [["linear attention", 1, "linear attention"], ["decay alone (RetNet)", alpha, "RetNet"],
                      ["DeltaNet", keep, "DeltaNet"], ["Gated DeltaNet", alpha * keep, "GDN"]];
      let svg = kit.line(x0, y0, x0 + w, y0, { width: 1 }) + kit.line(x0, y0, x0, y0 - h, { width: 1 });
      svg += kit.text(x0 - 8, y0 - h, "1", { anchor: "end" }) + kit.text(x0 - 8, y0, "0", { anchor: "end" });
      svg += kit.text(x0, y0 + 16, "0") + kit.text(x0 + w, y0 + 16, String(data.tokens)) + kit.text(x0 + w / 2, y0 + 16, "tokens since the write");
      const at = (n) => x0 + w * n / data.tokens;
      svg += kit.line(at(v.age), y0, at(v.age), y0 - h - 10, { width: 1, dash: "3 3" });
      curves.forEach(([name, factor, rule], i) => {
        const points = [];
        for (let n = 0; n <= data.tokens; n++) points.push([kit.fmt(at(n), 1), (y0 - h * Math.pow(factor, n)).toFixed(1)]);
        const left = Math.pow(factor, v.age), y = 34 + 42 * i;
        svg += kit.path(points, kit.rule(rule)) + kit.dot(at(v.age), y0 - h * left);
        svg += kit.line(372, y, 408, y, kit.rule(rule));
        svg += kit.text(416, y, name, { anchor: "start" }) + kit.text(416, y + 17, kit.fmt(100 * left, 1) + " %", { anchor: "start" });
      });
      const percent = (factor) => kit.fmt(100 * Math.pow(factor, v.age), 1) + " %";
      const say = `Half life ${v.half} tokens, a decay of ${kit.fmt(alpha, 4)} per token. After ${v.age} tokens decay alone leaves ${percent(alpha)}, ` +
        `DeltaNet ${percent(keep)}, Gated DeltaNet ${percent(alpha * keep)}.`;
      return { svg, say };
    """
    static = Static(
        "what-is-left",
        "What is left of one value",
        [
            Range("half", "half life (tokens)", 1, 200, 1, 30),
            Range("rho", "overlap ρ of later keys", 0, 0.5, 0.05, 0.1),
            Range("age", "tokens since the write", 0, TOKENS, 1, 40),
        ],
        {"tokens": TOKENS},
        draw,
        size=(560, 225),
    )
    return Widget(static, live=_live_what_is_left)


def _live_what_is_left():
    import ipywidgets
    import torch

    from kda_lab import rules

    def left(half=30, rho=0.1, age=40):
        axes = torch.eye(age + 1, dtype=torch.float64)
        one, zero = torch.ones(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
        for name, alpha in (("DeltaNet", 1.0), ("Gated DeltaNet", 2 ** (-1 / half))):
            S, _ = rules.delta(torch.zeros(1, age + 1, dtype=torch.float64), axes[0], axes[0], one, 1.0)
            for n in range(1, age + 1):
                k = rho * axes[0] + math.sqrt(1 - rho**2) * axes[n]
                S, _ = rules.gated_delta(S, k, k, zero, alpha, 1.0)
            print(f"{name:15} after {age} tokens: {S[0, 0].item():.1%} of the value is left")

    return ipywidgets.interactive(left, half=(1, 200), rho=(0.0, 0.5, 0.05), age=(0, TOKENS))

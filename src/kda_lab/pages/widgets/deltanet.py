"""Things to move in the chapter on DeltaNet."""

import math

from kda_lab.pages.widgets import Range, Static, Widget

STATE = [1.0, 2.0]  # one value row over two key dimensions


def two_keys():
    """Write under one unit key and watch another: the gate and the angle decide how far both answers move.

    Controls: the write gate, 0 to 2; the angle between the keys, in degrees.

    >>> two_keys()
    <widget: One write, two keys>
    """
    draw = """
      const a = v.angle * Math.PI / 180, dot = Math.cos(a), x0 = 110, y0 = 120, r = 80;
      const own0 = data.S[0], other0 = data.S[0] * dot + data.S[1] * Math.sin(a);
      const own = own0 + v.beta * (data.value - own0), other = other0 + v.beta * (data.value - own0) * dot;
      let svg = kit.text(x0, 14, "the two keys");
      svg += kit.arrow(x0, y0, x0 + r, y0, { role: "key" }) + kit.text(x0 + r + 14, y0, "k", { role: "key" });
      svg += kit.arrow(x0, y0, x0 + r * dot, y0 - r * Math.sin(a), { role: "decay" });
      svg += kit.text(x0 + (r + 14) * dot, y0 - (r + 14) * Math.sin(a), "k'", { role: "decay" });
      const bars = [["k before", own0, "key", 0.25], ["k after", own, "key", 0.8], ["k' before", other0, "decay", 0.25], ["k' after", other, "decay", 0.8]];
      const zero = 128, unit = 8.5;
      svg += kit.text(390, 14, "what the state answers");
      svg += kit.line(250, zero - unit * data.value, 540, zero - unit * data.value, { role: "value", dash: "5 4" });
      svg += kit.text(246, zero - unit * data.value, "v", { role: "value", anchor: "end" });
      svg += kit.line(250, zero, 540, zero, { width: 1 });
      bars.forEach(([name, h, role, opacity], i) => {
        const x = 262 + 72 * i;
        svg += kit.bar(x, h >= 0 ? zero - unit * h : zero, 40, unit * Math.abs(h), { role, opacity });
        svg += kit.text(x + 20, h >= 0 ? zero - unit * h - 10 : zero + unit * Math.abs(h) + 10, kit.fmt(h, 1), { size: 12 });
        svg += kit.text(x + 20, 200, name, { size: 12 });
      });
      const say = `Gate ${kit.fmt(v.beta, 2)}, angle ${v.angle} degrees: the written key answers ${kit.fmt(own, 1)} (wanted ${data.value}); ` +
        `the other key moves from ${kit.fmt(other0, 1)} to ${kit.fmt(other, 1)}.`;
      return { svg, say };
    """
    data = {"S": STATE, "value": 6.0}
    static = Static(
        "two-keys",
        "One write, two keys",
        [
            Range("beta", "write gate β", 0, 2, 0.05, 1),
            Range("angle", "angle between the keys (degrees)", 0, 180, 5, 60),
        ],
        data,
        draw,
        size=(560, 215),
    )
    return Widget(static, live=_live_two_keys)


def _live_two_keys():
    import ipywidgets
    import torch

    from kda_lab import rules

    def step(beta=1.0, angle=60):
        k = torch.tensor([1.0, 0.0])
        other = torch.tensor([math.cos(math.radians(angle)), math.sin(math.radians(angle))])
        S = torch.tensor([STATE])
        after, _ = rules.delta(S, k, k, torch.tensor([6.0]), beta)
        print(f"k : {(S @ k).item():.2f} -> {(after @ k).item():.2f}   (wanted 6)")
        print(f"k': {(S @ other).item():.2f} -> {(after @ other).item():.2f}")

    return ipywidgets.interactive(step, beta=(0.0, 2.0, 0.05), angle=(0, 180, 5))

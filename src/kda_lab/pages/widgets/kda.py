"""Things to move in the chapter on Kimi Delta Attention."""

from kda_lab.pages.widgets import Range, Static, Widget

BOUND = -5.0


def gate():
    """A raw gate, a slope and a bias become a decay and a half life in tokens, by both parameterisations.

    Controls: the raw gate x; A_log, the logarithm of the slope; dt_bias.

    >>> gate()
    <widget: From a raw gate to a half life>
    """
    draw = """
      const softplus = (z) => Math.max(z, 0) + Math.log1p(Math.exp(-Math.abs(z)));
      const rate = Math.exp(v.slope);
      const forms = [
        ["bounded", "decay", "", (x) => data.bound / (1 + Math.exp(-rate * (x + v.bias)))],
        ["softplus", "decay", "6 4", (x) => -rate * softplus(x + v.bias)],
      ];
      const x0 = 40, x1 = 330, y0 = 195, y1 = 25, lo = -10, hi = 10;
      const px = (x) => x0 + (x1 - x0) * (x - lo) / (hi - lo), py = (a) => y0 - (y0 - y1) * a;
      const life = (g) => {
        const n = Math.LN2 / Math.abs(g);
        return n > 1e6 ? "over a million" : kit.fmt(n, n < 10 ? 2 : 0);
      };
      let svg = kit.line(x0, y0, x1, y0, { width: 1 }) + kit.line(x0, y0, x0, y1, { width: 1 });
      for (const a of [0, 0.5, 1]) svg += kit.text(x0 - 6, py(a), kit.fmt(a, 1), { size: 11, anchor: "end" });
      for (const x of [-10, 0, 10]) svg += kit.text(px(x), y0 + 13, String(x).replace("-", "\\u2212"), { size: 11 });
      svg += kit.text((x0 + x1) / 2, y0 + 28, "raw gate x", { size: 12 }) + kit.text(x0 + 8, 10, "decay α = exp(g)", { size: 12, anchor: "start" });
      svg += kit.line(px(v.x), y0, px(v.x), y1, { role: "decay", width: 1, dash: "3 3" });
      const words = [];
      forms.forEach(([name, role, dash, g], i) => {
        const points = [];
        for (let x = lo; x <= hi + 1e-9; x += 0.1) points.push([px(x).toFixed(1), py(Math.exp(g(x))).toFixed(1)]);
        const now = g(v.x), y = 42 + 84 * i;
        svg += kit.path(points, { role, dash }) + kit.dot(px(v.x), py(Math.exp(now)), { role });
        svg += kit.line(352, y, 378, y, { role, width: 2.5, dash }) + kit.text(386, y, name, { role, anchor: "start" });
        svg += kit.text(386, y + 20, `g = ${kit.fmt(now, 3)}`, { anchor: "start", size: 12 });
        svg += kit.text(386, y + 37, `α = ${kit.fmt(Math.exp(now), 4)}`, { anchor: "start", size: 12 });
        svg += kit.text(386, y + 54, `half life ${life(now)}`, { anchor: "start", size: 12 });
        words.push(`the ${name} gate keeps ${kit.fmt(100 * Math.exp(now), 1)} % a token (half life ${life(now)} tokens)`);
      });
      return { svg, say: `With x = ${kit.fmt(v.x, 1)}, ${words.join("; ")}.` };
    """
    controls = [
        Range("x", "raw gate x", -10, 10, 0.5, -3),
        Range("slope", "A_log", -2, 2, 0.25, 0),
        Range("bias", "dt_bias", -6, 6, 0.5, 0),
    ]
    return Widget(
        Static("gate", "From a raw gate to a half life", controls, {"bound": BOUND}, draw, size=(540, 232)),
        live=_live_gate,
    )


def _live_gate():
    import ipywidgets
    import torch

    from kda_lab.parts import decay

    def step(x=-3.0, A_log=0.0, dt_bias=0.0):
        raw, rate, bias = torch.tensor([[x]]), torch.tensor([A_log]), torch.tensor([[dt_bias]])
        for name, g in (
            ("bounded", decay.bounded_gate(raw, rate, bias, BOUND)),
            ("softplus", decay.softplus_gate(raw, rate, bias)),
        ):
            print(
                f"{name:8}  g {g.item():8.3f}   alpha {g.exp().item():.4f}   half life "
                f"{decay.half_life(g).item():.2f} tokens"
            )

    return ipywidgets.interactive(step, x=(-10.0, 10.0, 0.5), A_log=(-2.0, 2.0, 0.25), dt_bias=(-6.0, 6.0, 0.5))

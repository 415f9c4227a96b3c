"""Things to move in the chapter on the layer."""

from kda_lab.pages.widgets import Choice, Range, Static, Widget

BOUNDS = (-1.0, -5.0, -20.0)


def clocks():
    """Raw gates that differ from channel to channel, and the half lives in tokens that a head then has, by both
    parameterisations.

    Controls: mean and spread of the raw gates with their bias; A_log, the logarithm of the slope; the bound of the
    bounded gate, a log decay of a token.

    >>> clocks()
    <widget: The clocks of a head>
    """
    draw = """
      const softplus = (z) => Math.max(z, 0) + Math.log1p(Math.exp(-Math.abs(z)));
      const rate = Math.exp(v.rate), bound = data.bounds[v.bound];
      const forms = [
        ["bounded", "state", (x) => bound / (1 + Math.exp(-rate * x))],
        ["softplus", "value", (x) => -rate * softplus(x)],
      ];
      const lo = -2, hi = 6, x0 = 96, x1 = 500;
      const life = (g) => Math.LN2 / Math.abs(g);
      const px = (n) => x0 + (x1 - x0) * (Math.min(hi, Math.max(lo, Math.log10(n))) - lo) / (hi - lo);
      const say = (n) => n >= 1e6 ? "over a million" : n < 0.01 ? "under 0.01" : kit.fmt(n, n < 10 ? 2 : 0);
      let svg = "";
      for (let p = lo; p <= hi; p += 2) {
        const x = x0 + (x1 - x0) * (p - lo) / (hi - lo);
        svg += kit.line(x, 20, x, 132, { role: "decay", width: 1, dash: "2 4" });
        svg += kit.text(x, 146, p < 0 ? "0.01" : String(10 ** p).replace(/(\\d)(?=(\\d{3})+$)/g, "$1,").replace("1,000,000", "10\u2076"), { size: 11 });
      }
      svg += kit.text((x0 + x1) / 2, 166, "half life in tokens", { size: 12 });
      const words = forms.map(([name, role, g], i) => {
        const y = 48 + 56 * i;
        const at = [1.645, 0, -1.645].map((z) => life(g(v.centre + z * v.spread)));
        svg += kit.text(88, y, name, { role, anchor: "end" });
        svg += kit.bar(px(at[0]), y - 9, Math.max(2, px(at[2]) - px(at[0])), 18, { role, opacity: 0.35 });
        svg += kit.dot(px(at[1]), y, { role, r: 5 });
        return `${name} ${say(at[0])} to ${say(at[2])} tokens, median ${say(at[1])}`;
      });
      const floor = life(bound);
      svg += kit.line(px(floor), 30, px(floor), 66, { role: "error", width: 2, dash: "5 3" });
      return { svg, say: `Half lives of nine channels in ten: ${words.join("; ")}. The bound ${kit.fmt(bound, 0)} allows none below ${kit.fmt(floor, 2)}.` };
    """
    controls = [
        Range("centre", "mean x + dt_bias", -12, 6, 0.5, -6),
        Range("spread", "its spread", 0, 4, 0.25, 2),
        Range("rate", "A_log", -3, 3, 0.25, 0),
        Choice("bound", "lower_bound", [f"\u2212{-b:g}" for b in BOUNDS], 1),
    ]
    return Widget(
        Static("clocks", "The clocks of a head", controls, {"bounds": list(BOUNDS)}, draw, size=(540, 178)),
        live=_live_clocks,
    )


def _live_clocks():
    import ipywidgets
    import torch

    from kda_lab.parts import decay

    def head(centre=-6.0, spread=2.0, A_log=0.0, lower_bound=-5.0):
        raw, rate = (centre + spread * torch.tensor([[1.645, 0.0, -1.645]])), torch.tensor([A_log])
        for name, g in (
            ("bounded", decay.bounded_gate(raw, rate, None, lower_bound)),
            ("softplus", decay.softplus_gate(raw, rate)),
        ):
            print(
                name,
                "half lives of 5, 50, 95 % of the channels:",
                [f"{n:.3g}" for n in decay.half_life(g).flatten().tolist()],
            )

    return ipywidgets.interactive(
        head, centre=(-12.0, 6.0, 0.5), spread=(0.0, 4.0, 0.25), A_log=(-3.0, 3.0, 0.25), lower_bound=list(BOUNDS)
    )

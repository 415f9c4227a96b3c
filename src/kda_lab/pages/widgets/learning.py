"""Things to move in the chapter on learning."""

from kda_lab.pages.widgets import Range, Static, Widget

START, VALUE = 0.0, 2.0  # one weight, one target


def one_step():
    """One weight under its loss: a step of some rate from the same point, explicit and implicit.

    Controls: the rate; the length of the key.

    >>> one_step()
    <widget: One weight, one step>
    """
    draw = """
      const loss = (s) => 0.5 * (v.key * s - data.value) ** 2, top = 6;
      const gap = data.value - v.key * data.start, size = v.key * v.key;
      const explicit = data.start + v.rate * gap * v.key, implicit = data.start + v.rate / (1 + v.rate * size) * gap * v.key;
      const lo = -2, hi = 8, x = (s) => 20 + 500 * (s - lo) / (hi - lo), y = (l) => 190 - 160 * Math.min(l, top) / top;
      let svg = kit.line(20, 190, 520, 190, { width: 1 }) + kit.text(526, 190, "s", { anchor: "start" });
      for (let s = lo; s <= hi; s += 2) svg += kit.line(x(s), 187, x(s), 193, { width: 1 }) + kit.text(x(s), 204, kit.fmt(s, 0), { size: 11 });
      const curve = [];
      for (let i = 0; i <= 200; i++) { const s = lo + (hi - lo) * i / 200; if (loss(s) <= top) curve.push([x(s).toFixed(1), y(loss(s)).toFixed(1)]); }
      svg += kit.path(curve, { role: "decay" });
      const target = data.value / v.key;
      svg += kit.line(x(target), 30, x(target), 190, { role: "value", dash: "5 4" }) + kit.text(x(target), 20, "fits", { role: "value", size: 12 });
      svg += kit.dot(x(data.start), y(loss(data.start)), { r: 5 }) + kit.text(x(data.start) - 8, y(loss(data.start)), "start", { anchor: "end", size: 12 });
      const inside = explicit >= lo && explicit <= hi && loss(explicit) <= top;
      svg += inside ? kit.dot(x(explicit), y(loss(explicit)), { role: "error", r: 6 }) + kit.text(x(explicit) + 10, y(loss(explicit)) - 6, "explicit", { role: "error", size: 12, anchor: "start" })
                    : kit.text(510, 40, "explicit: off the picture", { role: "error", size: 12, anchor: "end" });
      svg += kit.dot(x(implicit), y(loss(implicit)), { role: "state", r: 6 }) + kit.text(x(implicit) - 10, y(loss(implicit)) + 8, "implicit", { role: "state", size: 12, anchor: "end" });
      const share = v.rate * size, word = share > 2 ? "and the loss grows" : share > 1 ? "past the target" : "short of the target";
      const exact = Math.abs(share - 1) < 0.005 ? "exactly on the target" : Math.abs(share - 2) < 0.005 ? "as far beyond as it was before" : word;
      const say = `Rate ${kit.fmt(v.rate, 2)}, key of length ${kit.fmt(v.key, 2)}: the explicit step closes ${kit.fmt(100 * share, 0)} % of the gap, ${exact}; ` +
        `the implicit step closes ${kit.fmt(100 * share / (1 + share), 0)} %.`;
      return { svg, say };
    """
    static = Static(
        "one-step",
        "One weight, one step",
        [Range("rate", "rate η", 0, 3, 0.05, 0.5), Range("key", "length of the key", 0.5, 2, 0.05, 1)],
        {"start": START, "value": VALUE},
        draw,
        size=(560, 215),
    )
    return Widget(static, live=_live_one_step)


def _live_one_step():
    import ipywidgets
    import torch

    from kda_lab.study import learning

    def step(rate=0.5, key=1.0):
        S, k, v = torch.tensor([[START]]), torch.tensor([key]), torch.tensor([VALUE])
        explicit = learning.step(S, learning.reconstruction_gradient(S, k, v), rate)
        implicit = learning.implicit_step(S, k, v, rate)
        for name, X in (("start", S), ("explicit", explicit), ("implicit", implicit)):
            print(f"{name:9s} answers {(X @ k).item():6.2f}, loss {learning.reconstruction_loss(X, k, v).item():.3f}")

    return ipywidgets.interactive(step, rate=(0.0, 3.0, 0.05), key=(0.5, 2.0, 0.05))

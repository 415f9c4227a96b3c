"""Things to move in the chapter on order and position."""

import math

from kda_lab.pages.widgets import Range, Static, Widget

TURN = 12  # degrees a token, of the pair that is drawn


def turned_pair():
    """A query and a key in one channel pair, each turned by its position: the score sees the distance alone.

    Controls: the positions of query and key, in tokens.

    >>> turned_pair()
    <widget: A turned query and a turned key>
    """
    draw = """
      const rad = (deg) => deg * Math.PI / 180, x0 = 130, y0 = 125, r = 90;
      const q = v.t * data.turn + data.q, k = v.j * data.turn + data.k, d = v.t - v.j;
      const score = Math.cos(rad(k - q));
      let svg = `<circle cx="${x0}" cy="${y0}" r="${r}" style="fill:none;stroke:currentColor;stroke-opacity:.25"/>`;
      svg += kit.arrow(x0, y0, x0 + r * Math.cos(rad(k)), y0 - r * Math.sin(rad(k)), { role: "key" });
      svg += kit.arrow(x0, y0, x0 + r * Math.cos(rad(q)), y0 - r * Math.sin(rad(q)), { role: "query" });
      svg += kit.text(x0 + (r + 14) * Math.cos(rad(k)), y0 - (r + 14) * Math.sin(rad(k)), "k", { role: "key" });
      svg += kit.text(x0 + (r + 14) * Math.cos(rad(q)), y0 - (r + 14) * Math.sin(rad(q)), "q", { role: "query" });
      const X = (n) => 290 + 7.5 * (n + 15), Y = (s) => 125 - 80 * s, curve = [];
      for (let n = -15; n <= 15; n += 0.5) curve.push([X(n).toFixed(1), Y(Math.cos(rad(data.k - data.q - n * data.turn))).toFixed(1)]);
      svg += kit.line(X(-15), Y(0), X(15), Y(0), { width: 1 }) + kit.path(curve, { role: "decay" });
      svg += kit.text(X(0), 232, "distance t \u2212 j", { size: 12 }) + kit.text(X(0), 22, "score", { size: 12 });
      [-15, 0, 15].forEach((n) => { svg += kit.text(X(n), 216, kit.fmt(n, 0), { size: 11 }); });
      svg += kit.dot(X(d), Y(score), { role: "state", r: 6 });
      const say = `Query at ${v.t}, key at ${v.j}: distance ${kit.fmt(d, 0)}, score ${kit.fmt(score, 2)}. ` +
        (d === 0 ? "At distance zero the score is that of the unturned vectors." : "Move both by the same number of tokens: the arrows turn, the score stays.");
      return { svg, say };
    """
    static = Static(
        "turned-pair",
        "A turned query and a turned key",
        [Range("t", "position t of the query", 0, 15, 1, 9), Range("j", "position j of the key", 0, 15, 1, 4)],
        {"turn": TURN, "q": 20, "k": 50},
        draw,
        size=(560, 245),
    )
    return Widget(static, live=_live_turned_pair)


def _live_turned_pair():
    import ipywidgets
    import torch

    from kda_lab.parts import position

    def show(t=9, j=4):
        angle = torch.tensor([math.radians(20.0)]), torch.tensor([math.radians(50.0)])
        q, k = (torch.cat([a.cos(), a.sin()]) for a in angle)
        turn = [torch.tensor([math.radians(TURN * n)]) for n in (t, j)]
        q, k = (position.rotate(x, a.cos(), a.sin()) for x, a in zip((q, k), turn))
        print(f"query at {t}, key at {j}: score {(q @ k).item():.3f}")

    return ipywidgets.interactive(show, t=(0, 15), j=(0, 15))

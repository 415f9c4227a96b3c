"""Things to move in the chapter on what a chunk does to the old state."""

import math

from kda_lab.pages.widgets import Range, Static, Widget


def two_erasures():
    """Two unit keys at an angle: what token 2 takes out of the old state, on its own and after token 1; and what is
    left of a circle.

    Controls: the angle, in degrees; the write gate of both tokens; the decay of channel 1 at token 2, a factor.

    >>> two_erasures()
    <widget: Two tokens erase an old state>
    """
    draw = """
      const t = v.angle * Math.PI / 180, b = v.beta, a = v.alpha, k2 = [Math.cos(t), Math.sin(t)];
      const p2 = [a * k2[0], k2[1]], A21 = b * a * k2[0], w1 = [b, 0], own = [b * p2[0], b * p2[1]], w2 = [own[0] - A21 * b, own[1]];
      const left = (w) => [[a - w1[0] * a - w[0] * k2[0], -w[0] * k2[1]], [-w[1] * k2[0], 1 - w[1] * k2[1]]];
      const f = (x) => kit.fmt(x, 2), at = (x, y, s) => (p) => [x + s * p[0], y - s * p[1]];
      const L = at(126, 112, 44), R = at(418, 112, 44);
      let svg = kit.text(126, 12, "what token 2 takes out") + kit.text(418, 12, "what is left of a circle");
      const arrow = (from, to, role) => kit.arrow(...L(from), ...L(to), { role });
      svg += kit.line(...L([-2, 0]), ...L([2, 0]), { width: 0.6 }) + kit.line(...L([0, -2]), ...L([0, 2]), { width: 0.6 });
      svg += kit.path([L([0, 0]), L(own)], { role: "error", dash: "5 4" }) + kit.dot(...L(own), { role: "error" });
      svg += arrow(own, w2, "decay") + arrow([0, 0], w2, "key");
      svg += kit.line(14, 212, 34, 212, { role: "error", dash: "5 4" }) + kit.text(40, 212, "on its own", { size: 12, anchor: "start" });
      svg += kit.line(112, 212, 132, 212, { role: "decay" }) + kit.text(138, 212, "token 1 took", { size: 12, anchor: "start" });
      svg += kit.line(222, 212, 242, 212, { role: "key", width: 3 }) + kit.text(248, 212, "w of token 2", { size: 12, anchor: "start" });
      const ring = (T) => { const out = []; for (let n = 0; n <= 72; n++) { const x = Math.cos(n * Math.PI / 36), y = Math.sin(n * Math.PI / 36);
        out.push(R([T[0][0] * x + T[0][1] * y, T[1][0] * x + T[1][1] * y])); } return out; };
      svg += kit.path(ring([[1, 0], [0, 1]]), { role: "decay", width: 1, dash: "2 3" });
      svg += kit.path(ring(left(own)), { role: "error", dash: "5 4" }) + kit.path(ring(left(w2)), { role: "state", width: 3 });
      svg += kit.line(352, 212, 372, 212, { role: "decay", dash: "2 3" }) + kit.text(378, 212, "before", { size: 12, anchor: "start" });
      svg += kit.line(426, 212, 446, 212, { role: "state", width: 3 }) + kit.text(452, 212, "after", { size: 12, anchor: "start" });
      svg += kit.line(488, 212, 508, 212, { role: "error", dash: "5 4" }) + kit.text(513, 212, "own w", { size: 12, anchor: "start" });
      // the half axes of the ellipse that a matrix makes of the unit circle
      const axes = (T) => { const q = T.flat().reduce((n, x) => n + x * x, 0), d = T[0][0] * T[1][1] - T[0][1] * T[1][0];
        const root = Math.sqrt(Math.max(0, q * q - 4 * d * d)); return [Math.sqrt((q + root) / 2), Math.sqrt(Math.max(0, (q - root) / 2))].map(f).join(" and "); };
      const say = `On its own token 2 would take out (${f(own[0])}, ${f(own[1])}). Token 1 took ${f(A21)} times (${f(b)}, 0) of it, so w of token 2 is ` +
        `(${f(w2[0])}, ${f(w2[1])}). What is left of the circle has the half axes ${axes(left(w2))}; on its own, ${axes(left(own))}.`;
      return { svg, say };
    """
    controls = [
        Range("angle", "angle between the keys (degrees)", 0, 180, 5, 40),
        Range("beta", "write gate β of both", 0, 2, 0.05, 1),
        Range("alpha", "decay of channel 1 at token 2", 0, 1, 0.05, 1),
    ]
    return Widget(
        Static("two-erasures", "Two tokens erase an old state", controls, {}, draw, size=(564, 226)),
        live=_live_two_erasures,
    )


def _live_two_erasures():
    import ipywidgets
    import torch

    from kda_lab.algebra import chunk

    def step(angle=40, beta=1.0, alpha=1.0):
        K = torch.tensor([[1.0, 0.0], [math.cos(math.radians(angle)), math.sin(math.radians(angle))]])
        terms = chunk.kda(
            torch.eye(2, dtype=torch.float32),
            K,
            K,
            K * 0,
            torch.tensor([[1.0, 1.0], [alpha, 1.0]]),
            torch.tensor([beta, beta]),
        )
        print(
            f"on its own {(terms.K_in[1] * beta).tolist()}, A_21 = {terms.A[1, 0].item():.2f}, w_2 = "
            f"{terms.W[1].tolist()}"
        )
        print(f"left of the identity: {terms.S.tolist()}")

    return ipywidgets.interactive(step, angle=(0, 180, 5), beta=(0.0, 2.0, 0.05), alpha=(0.0, 1.0, 0.05))

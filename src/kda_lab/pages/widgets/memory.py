"""Things to move in the chapter on linear attention."""

import torch

from kda_lab import rules
from kda_lab.pages.widgets import Choice, Range, Static, Widget

LETTER = ["####.", "#...#", "####.", "#.#..", "#..##"]  # the value under the first key, 25 signs
KINDS = [("random keys, K = 16", 16), ("random keys, K = 64", 64), ("right angles, K = 16", 16)]
MOST = 64  # keys


def _stored():
    """Values [64, 25] of plus and minus one, the first one the letter; for each kind of keys, keys [64, K]."""
    generator = torch.Generator().manual_seed(23)
    letter = torch.tensor([[1.0 if c == "#" else -1.0 for c in row] for row in LETTER]).flatten()
    values = torch.cat([letter[None], torch.randint(0, 2, (MOST - 1, 25), generator=generator) * 2.0 - 1])
    keys = [
        torch.nn.functional.normalize(torch.randn(MOST, K, generator=generator, dtype=torch.float32), dim=1)
        for _, K in KINDS[:2]
    ]
    return values, [*keys, torch.eye(16, dtype=torch.float32).repeat(4, 1)]


def stored_keys():
    """A letter is stored under the first key, noise under the others: what the first key reads as more are stored.

    Controls: how many keys are stored, 1 to 64; which keys, random ones of K = 16 or 64 channels, or keys at right
    angles.

    >>> stored_keys()
    <widget: Recall of one value against the number of stored keys>
    """
    draw = """
      const w = data.weights[v.keys], K = data.K[v.keys], letter = data.values[0];
      const error = (n) => {
        let square = 0;
        for (let c = 0; c < 25; c++) {
          let noise = 0;
          for (let j = 1; j < n; j++) noise += w[j] * data.values[j][c];
          square += noise * noise;
        }
        return Math.sqrt(square / 25);
      };
      const got = letter.map((_, c) => { let s = 0; for (let j = 0; j < v.n; j++) s += w[j] * data.values[j][c]; return s; });
      const rows = (x) => [0, 1, 2, 3, 4].map((i) => x.slice(5 * i, 5 * i + 5));
      const look = { cell: 28, role: "value", negative: "key", top: 2 };
      let svg = kit.matrix(8, 34, rows(letter), { ...look, digits: 0, label: "v under the first key" });
      svg += kit.matrix(172, 34, rows(got), { ...look, label: "what S k reads" });
      const x = (n) => 372 + 180 * n / 64, y = (e) => 174 - 60 * Math.min(e, 2.3);
      svg += kit.text(462, 16, "error / length of v") + kit.line(x(0), y(0), x(64), y(0), { width: 1 }) + kit.line(x(0), y(0), x(0), y(2.3), { width: 1 });
      for (const e of [0, 1, 2]) svg += kit.text(x(0) - 8, y(e), String(e), { size: 11, anchor: "end" });
      for (const n of [1, 16, 32, 64]) svg += kit.text(x(n), y(0) + 13, String(n), { size: 11 });
      svg += kit.line(x(0), y(1), x(64), y(1), { role: "decay", width: 1, dash: "4 4" });
      const points = [], formula = [];
      for (let n = 1; n <= 64; n++) { points.push([x(n), y(error(n))]); formula.push([x(n), y(Math.sqrt((n - 1) / K))]); }
      if (v.keys < 2) svg += kit.path(formula, { role: "decay", dash: "5 4" }) + kit.text(x(64), y(0.25), "dashed: √((n − 1)/K)", { role: "decay", size: 11, anchor: "end" });
      svg += kit.path(points, { role: "state" }) + kit.dot(x(v.n), y(error(v.n)), { role: "error", r: 5 });
      const right = got.filter((g, c) => g * letter[c] > 0).length;
      const say = `${v.n} keys stored, K = ${K}: ${right} of 25 cells read the right sign, error ${kit.fmt(error(v.n))} of the value's length` +
        (v.keys < 2 ? `; expected for random keys ${kit.fmt(Math.sqrt((v.n - 1) / K))}.` : v.n <= K ? "; all keys are at right angles." : "; the first key came again, and its values add up.");
      return { svg, say };
    """
    values, keys = _stored()
    data = {
        "values": values.int().tolist(),
        "weights": [[round(x, 4) for x in (k @ k[0]).tolist()] for k in keys],
        "K": [K for _, K in KINDS],
    }
    static = Static(
        "stored-keys",
        "Recall of one value against the number of stored keys",
        [Range("n", "keys stored", 1, MOST, 1, 8), Choice("keys", "which keys", [name for name, _ in KINDS])],
        data,
        draw,
        size=(560, 200),
    )
    return Widget(static, live=_live_stored_keys)


def _live_stored_keys():
    import ipywidgets

    values, keys = _stored()

    def step(n=8, kind=0):
        k = keys[kind][:n]
        S, _ = rules.scan(rules.linear, torch.zeros(25, k.shape[1], dtype=torch.float32), k, k, values[:n])
        read = S @ k[0]
        for row in read.view(5, 5):
            print(" ".join(f"{x:5.1f}" for x in row))
        print(
            f"error {(read - values[0]).norm() / 5:.2f} of the value's length, {(read * values[0] > 0).sum()} of 25 "
            "signs are right"
        )

    choices = [(name, i) for i, (name, _) in enumerate(KINDS)]
    return ipywidgets.interactive(step, n=(1, MOST), kind=ipywidgets.Dropdown(options=choices, description="keys"))

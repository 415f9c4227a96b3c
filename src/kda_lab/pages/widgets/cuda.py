"""Things to move in the chapter on the CUDA kernel."""

from kda_lab.pages.widgets import Range, Static, Widget

C, BLOCK = 64, 16
TOP = 88.7228  # ln of the largest fp32 number


def reference():
    """A pair of tokens and a gate: which block of scores it lies in, which reference it has, and which exponents are
    formed; and those of one reference for the whole chunk.

    Controls: the tokens i and j of a chunk, from 0; the log decay of a token, natural, -6 to 0.

    >>> reference()
    <widget: Which exponents a score needs>
    """
    draw = """
      const n = data.block * Math.floor(v.i / data.block), b = Math.floor(v.j / data.block), a = n / data.block;
      const x0 = 34, y0 = 20, s = 2.9, size = s * data.C;
      let svg = "";
      for (let r = 0; r < 4; ++r) for (let c = 0; c <= r; ++c)
        svg += kit.bar(x0 + c * 16 * s, y0 + r * 16 * s, 16 * s, 16 * s, { role: r === c ? "value" : "key", opacity: v.j <= v.i && r === a && c === b ? 0.55 : 0.12 });
      svg += kit.text(x0 + size * 0.72, y0 + 20, "never formed", { size: 11 });
      svg += kit.text(x0 + size / 2, y0 - 10, "j", { size: 12 }) + kit.text(x0 - 26, y0 + size / 2, "i", { size: 12 });
      const cx = x0 + (v.j + 0.5) * s, cy = y0 + (v.i + 0.5) * s;
      svg += kit.line(x0, cy, cx, cy, { width: 0.8, dash: "2 3" }) + kit.line(cx, cy, cx, y0 + size, { width: 0.8, dash: "2 3" });
      svg += kit.dot(cx, cy, { role: v.j <= v.i ? "state" : "error", r: 5 });
      const pair = v.j <= v.i, far = pair && a > b;
      if (far) svg += kit.line(x0, y0 + n * s, x0 + (n + 16) * s, y0 + n * s, { role: "state", width: 2 }) + kit.text(x0 - 4, y0 + n * s, n, { size: 11, anchor: "end", role: "state" });
      const rows = [["needed: G\\u1d62 \\u2212 G\\u2c7c", (v.i - v.j) * v.g]];
      if (far) rows.push(["here: row i to n", (v.i - n) * v.g], ["here: n to column j", (n - v.j) * v.g]);
      else rows.push(["here: one difference", (v.i - v.j) * v.g]);
      rows.push(["for all: row i", (v.i + 1) * v.g], ["for all: column j", -(v.j + 1) * v.g]);
      const mid = 486, unit = 68 / 390;
      if (pair) {
        svg += kit.text(414, 10, "exponents x", { size: 12, anchor: "end" });
        for (const t of [-data.top, data.top]) svg += kit.line(mid + unit * t, 22, mid + unit * t, 192, { role: "error", width: 1, dash: "4 3" });
        svg += kit.text(mid + 8, 205, "e\\u02e3 = \\u221e", { size: 11, anchor: "start", role: "error" }) + kit.text(mid - 8, 205, "e\\u02e3 = 0", { size: 11, anchor: "end" });
        svg += kit.line(mid, 22, mid, 192, { width: 1 });
        rows.forEach(([name, e], r) => {
          const y = 28 + 33 * r, over = e > data.top;
          svg += kit.text(228, y + 8, name, { size: 12, anchor: "start" });
          svg += kit.bar(Math.min(mid, mid + unit * e), y, Math.abs(unit * e), 16, { role: over ? "error" : r === 0 ? "decay" : "key", opacity: 0.6 });
          svg += kit.text(414, y + 8, kit.fmt(e, 1), { size: 12, anchor: "end", role: over ? "error" : "" });
        });
      }
      const f = (e) => kit.fmt(e, 1), late = -(v.j + 1) * v.g;
      const say = !pair ? `Token ${v.j} comes after token ${v.i}: no score, and no exponent is formed.` :
        (far ? `Row block ${a}, column block ${b}: the reference is token ${n}, and the exponents ${f((v.i - n) * v.g)} and ${f((n - v.j) * v.g)} are both at most zero. `
             : `A diagonal block: the pair takes its own exponent ${f((v.i - v.j) * v.g)}. `) +
        `One reference for the whole chunk forms ${f((v.i + 1) * v.g)} and ${f(late)}${late > data.top ? ", which overflows fp32" : ""}.`;
      return { svg, say };
    """
    controls = [
        Range("i", "row: token i", 0, C - 1, 1, 37),
        Range("j", "column: token j", 0, C - 1, 1, 20),
        Range("g", "log decay g a token", -6, 0, 0.25, -5),
    ]
    return Widget(
        Static(
            "reference",
            "Which exponents a score needs",
            controls,
            {"C": C, "block": BLOCK, "top": TOP},
            draw,
            size=(560, 216),
        ),
        live=_live_reference,
    )


def _live_reference():
    import ipywidgets

    def step(i=37, j=20, g=-5.0):
        if j > i:
            print("no score: token j comes later")
            return
        n = i // BLOCK * BLOCK
        formed = [(i - n) * g, (n - j) * g] if j < n else [(i - j) * g]
        print(
            f"needed {(i - j) * g:.1f}; formed here: {formed}; one reference forms {(i + 1) * g:.1f} and "
            f"{-(j + 1) * g:.1f} (fp32 ends at {TOP:.1f})"
        )

    return ipywidgets.interactive(step, i=(0, C - 1), j=(0, C - 1), g=(-6.0, 0.0, 0.25))

"""Things to move in the chapter on exponents that stay finite."""

import math

from kda_lab.pages.widgets import Choice, Range, Static, Widget

BLOCKS = [8, 16, 32, 64]
DTYPES = ["float16", "bfloat16", "float32", "float64"]
REFERENCES = ["first token", "middle token"]


def _limits(name):
    """Above the first exponent exp is infinite, at and below the second it is zero."""
    import torch

    limits = torch.finfo(getattr(torch, name))
    return math.log(limits.max), math.log(limits.tiny) + math.log(limits.eps) - math.log(2)


def diagonal_block():
    """The exponents of both factors of a diagonal block, and which of them a format can hold.

    Controls: the log decay of every token, natural, without its sign; tokens in the block; the format of the
    factors; the reference, the first or the middle token.

    >>> diagonal_block()
    <widget: The factors of a diagonal block>
    """
    draw = """
      const n = data.blocks[v.block], g = -v.gate, [high, low] = data.limits[v.dtype], ref = v.reference ? n / 2 : 0;
      const left = [], right = [];
      for (let i = 0; i < n; i++) { left.push(g * (i - ref)); right.push(g * (ref - i)); }
      const most = Math.max(...left, ...right), zero = 112, unit = 88 / Math.max(1.15 * most, 1.15 * Math.min(high, 2 * most), 1);
      const x0 = 92, width = 450 / n;
      let over = 0, under = 0, svg = kit.text(x0 + 225, 10, "exponents, in pairs: the row factor left, the column factor right", { size: 12 });
      const bar = (x, e) => {
        const bad = e > high || e <= low;
        over += e > high; under += e <= low;
        const role = bad ? "error" : e > 0 ? "value" : "state", h = unit * Math.abs(e);
        return kit.bar(x, e >= 0 ? zero - h : zero, Math.max(1, width / 2 - 1), h, { role, opacity: bad ? 0.85 : 0.4 });
      };
      for (let i = 0; i < n; i++) svg += bar(x0 + i * width, left[i]) + bar(x0 + i * width + width / 2, right[i]);
      svg += kit.line(x0, zero, 542, zero, { width: 1 });
      for (const [e, name] of [[high, "infinite"], [low, "zero"]]) {
        const y = zero - unit * e;
        if (y > 16 && y < 208) svg += kit.line(x0, y, 542, y, { role: "decay", dash: "5 4" }) + kit.text(x0 - 6, y, name, { size: 12, anchor: "end" });
      }
      svg += kit.text(x0 - 6, zero, "e\\u2070 = 1", { size: 12, anchor: "end" });
      const say = `Gate ${kit.fmt(g, 1)}, ${n} tokens, ${data.names[v.dtype]}: exponents up to ${kit.fmt(most, 1)}, the format ends at ${kit.fmt(high, 1)}; ` +
        `${over} of ${2 * n} factors are infinite, ${under} are stored as zero.`;
      return { svg, say };
    """
    data = {"blocks": BLOCKS, "limits": [_limits(name) for name in DTYPES], "names": DTYPES}
    static = Static(
        "diagonal-block",
        "The factors of a diagonal block",
        [
            Range("gate", "gate −g of every token", 0.1, 8, 0.1, 5),
            Choice("block", "tokens in the block", [str(n) for n in BLOCKS], 1),
            Choice("dtype", "format of the factors", DTYPES, 2),
            Choice("reference", "reference", REFERENCES),
        ],
        data,
        draw,
        size=(560, 215),
    )
    return Widget(static, live=_live_diagonal_block)


def _live_diagonal_block():
    import ipywidgets

    def show(gate=5.0, block=16, dtype="float32", reference=REFERENCES[0]):
        high, low = _limits(dtype)
        n = block // 2 if reference == REFERENCES[1] else 0
        exponents = [sign * gate * (i - n) for i in range(block) for sign in (-1, 1)]
        print(f"exponents up to {max(exponents):.1f}, the format ends at {high:.1f}")
        print(
            f"{sum(e > high for e in exponents)} of {2 * block} factors are infinite, "
            f"{sum(e <= low for e in exponents)} are zero"
        )

    return ipywidgets.interactive(show, gate=(0.1, 8.0, 0.1), block=BLOCKS, dtype=DTYPES, reference=REFERENCES)

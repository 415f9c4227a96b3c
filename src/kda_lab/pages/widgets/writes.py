"""Things to move in the chapter on what a chunk writes."""

from kda_lab.pages.widgets import Choice, Range, Static, Widget

ALPHA = [0.8, 0.5, 0.9, 0.4, 0.75, 0.6]  # the decays of one channel
KINDS = ["score: write of j, read of i", "K_g: write of j, end of the chunk", "K_in: start of the chunk, read of i"]
MISTAKES = ["no mistake", "one decay too early", "one decay too late", "last decay missing"]


def interval():
    """Which decays stand between two events of a chunk, and what an interval that is off by one makes of their
    product.

    Controls: the factor, a score or one of K_g or K_in; the tokens j and i, 1 to 6; the mistake.

    >>> interval()
    <widget: The decays between two events of a chunk>
    """
    draw = """
      const C = data.alpha.length, clamp = (t) => Math.max(1, t);
      const lo = v.kind == 2 ? 1 : v.j + 1, hi = v.kind == 1 ? C : v.i;
      const from = v.mistake == 1 ? clamp(lo - 1) : v.mistake == 2 ? lo + 1 : lo, to = v.mistake == 3 ? hi - 1 : hi;
      const product = (a, b) => data.alpha.slice(a - 1, Math.max(a - 1, b)).reduce((p, x) => p * x, 1);
      const range = (a, b) => a > b ? "no decay" : a == b ? `the decay of token ${a}` : `the decays of tokens ${a} to ${b}`;
      const right = product(lo, hi), got = product(from, to), x = (t) => 8 + 72 * (t - 1);
      const above = v.kind == 0 && v.i < v.j;
      let svg = "";
      data.alpha.forEach((a, n) => {
        const t = n + 1, wanted = t >= lo && t <= hi && !above, used = t >= from && t <= to && !above;
        svg += kit.text(x(t) + 32, 12, `token ${t}`);
        svg += kit.bar(x(t), 30, 26, 40, { role: used ? (wanted ? "decay" : "error") : "decay", opacity: used ? 0.55 : 0.05 });
        svg += kit.text(x(t) + 13, 50, String(a), { size: 11 });
        if (wanted && !used) svg += kit.line(x(t), 30, x(t) + 26, 70, { role: "error", width: 2.5 });
        const reads = v.kind != 1 && t == v.i, writes = v.kind != 2 && t == v.j;
        svg += kit.dot(x(t) + 38, 50, { role: reads ? "key" : "decay", r: reads ? 7 : 2 });
        svg += kit.dot(x(t) + 54, 50, { role: writes ? "value" : "decay", r: writes ? 7 : 2 });
        if (reads) svg += kit.text(x(t) + 38, 82, "read", { role: "key", size: 12 });
        if (writes) svg += kit.text(x(t) + 56, 82, "write", { role: "value", size: 12 });
      });
      const shown = above ? "0" : kit.fmt(got, 3);
      svg += kit.text(8, 118, `factor ${shown}`, { anchor: "start", size: 15, role: got == right || above ? "state" : "error" });
      if (!above && got != right) svg += kit.text(180, 118, `should be ${kit.fmt(right, 3)}`, { anchor: "start", size: 15 });
      const say = above ? `Token ${v.i} reads before token ${v.j} writes: the entry is zero.`
        : v.mistake && (from == lo && to == hi || from > to && lo > hi) ? `With this choice the mistake takes ${range(from, to)} as it should, and nothing shows.`
        : v.mistake ? `The mistake takes ${range(from, to)} instead of ${range(lo, hi)}` +
          (got == right ? ", and here nothing shows." : `: ${kit.fmt(got, 3)} instead of ${kit.fmt(right, 3)}.`)
        : `Between the two stands ${range(lo, hi)}: ${kit.fmt(right, 3)}.`.replace("stands the decays", "stand the decays");
      return { svg, say };
    """
    tokens = [Range("j", "token j", 1, len(ALPHA), 1, 2), Range("i", "token i", 1, len(ALPHA), 1, 5)]
    controls = [Choice("kind", "factor", KINDS), *tokens, Choice("mistake", "mistake", MISTAKES)]
    return Widget(
        Static(
            "interval", "The decays between two events of a chunk", controls, {"alpha": ALPHA}, draw, size=(440, 134)
        ),
        live=_live_interval,
    )


def _live_interval():
    import ipywidgets
    import torch

    from kda_lab.algebra import chunk

    alpha = torch.tensor(ALPHA, dtype=torch.float64)

    def factors(j=2, i=5):
        print(f"score      {chunk.decay_between(alpha)[i - 1, j - 1].item():.3f}   (zero above the diagonal)")
        print(f"K_g row j  {chunk.decay_to_end(alpha)[j - 1].item():.3f}")
        print(f"K_in row i {chunk.decay_from_start(alpha)[i - 1].item():.3f}")

    return ipywidgets.interactive(factors, j=(1, len(ALPHA)), i=(1, len(ALPHA)))

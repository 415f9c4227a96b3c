"""Things to move in the chapter on the Hopper kernel."""

from kda_lab.widgets import Range, Static, Widget

BLOCKS = 32  # of a head


def cuts():
    """Heads over clusters: ranges of equal length, worked from the end to the start, beside a head at a time."""
    draw = """
      const B = data.blocks, total = v.heads * B, share = Math.max(Math.ceil(total / v.clusters), B);
      const waves = Math.ceil(v.heads / v.clusters), most = Math.max(share, waves * B);
      const wide = 214 / most, row = 16, top = 42;
      let svg = kit.text(26, 10, "ranges, end first", { size: 12, anchor: "start" }) + kit.text(310, 10, "a head at a time", { size: 12, anchor: "start" });
      let cut = [], idle = 0;
      const part = (x, y, length, head, split) => kit.bar(x, y, length * wide - 1, row - 4, { role: split ? "value" : "state", opacity: split ? 0.45 : 0.25 }) +
        (length * wide > 16 ? kit.text(x + length * wide / 2, y + 7, head + 1, { size: 11 }) : "");
      for (let c = 0; c < v.clusters; ++c) {
        const y = top - 20 + row * c, low = Math.min(c * share, total), end = Math.min(low + share, total);
        svg += kit.text(20, y + 7, c + 1, { size: 11, anchor: "end" }) + kit.text(304, y + 7, c + 1, { size: 11, anchor: "end" });
        let high = end, x = 26;
        while (high > low) {
          const head = Math.floor((high - 1) / B), from = Math.max(head * B, low), split = high - from < B;
          svg += part(x, y, high - from, head, split);
          if (split && high < (head + 1) * B) cut.push([head, c, high - from]);
          x += (high - from) * wide;
          high = from;
        }
        if (end === low) ++idle;
        for (let w = 0, head = c; head < v.heads; ++w, head += v.clusters) svg += part(310 + w * B * wide, y, B, head, false);
      }
      const n = (x) => kit.fmt(x / B, 2), heads = `${v.heads} head${v.heads > 1 ? "s" : ""} on ${v.clusters} clusters`;
      let say = `${heads}: a range takes ${n(share)} heads' time, a head at a time ${waves}. ` +
        (cut.length ? `${cut.length} head${cut.length > 1 ? "s are" : " is"} cut. ` : "No head is cut. ");
      if (cut.length) {
        const [head, c, length] = cut[0];
        say += `Head ${head + 1} is begun by cluster ${c + 1} from 0 to ${n(length)} and ended by cluster ${c + 2} from ${n(share - B + length)} on: it does not wait.`;
      } else if (idle) say += `${idle} cluster${idle > 1 ? "s have" : " has"} nothing to do.`;
      return { svg, say };
    """
    controls = [Range("heads", "heads", 1, 24, 1, 9), Range("clusters", "clusters", 2, 10, 1, 6)]
    title = "How heads are cut between clusters"
    return Widget(Static("cuts", title, controls, {"blocks": BLOCKS}, draw, size=(560, 186)), live=_live_cuts)


def _live_cuts():
    import ipywidgets

    def step(heads=9, clusters=6):
        share = max(-(-heads * BLOCKS // clusters), BLOCKS)
        print(f"a range takes {share / BLOCKS:.2f} heads' time, a head at a time {-(-heads // clusters)}")
        for c in range(clusters):
            low, high = (min(n * share, heads * BLOCKS) for n in (c, c + 1))
            parts = [f"{h + 1}: {max(h * BLOCKS, low) % BLOCKS}.." for h in range((high - 1) // BLOCKS, low // BLOCKS - 1, -1)] if low < high else []
            print(f"cluster {c + 1}: head and first block {', '.join(parts) or '-'}")

    return ipywidgets.interactive(step, heads=(1, 24), clusters=(2, 10))

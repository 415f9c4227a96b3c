"""Things to move in the chapter on the Hopper kernel."""

from kda_lab.pages.widgets import Range, Static, Widget

BLOCKS = 32  # of a head


def cuts():
    """Heads over clusters: ranges of equal length, worked from the end to the start, beside a head at a time.

    Controls: heads and clusters. Lengths are in blocks of a head, times in those that a head takes.

    >>> cuts()
    <widget: How heads are cut between clusters>
    """
    draw = """
      const B = data.blocks, total = v.heads * B, share = Math.max(Math.ceil(total / v.clusters), B);
      const waves = Math.ceil(v.heads / v.clusters), most = Math.max(share, waves * B);
      const wide = 180 / most, row = Math.min(60, 240 / v.clusters), top = 26, right = 238;
      const titles = [[18, "ranges, end first"], [right, "a head at a time"]];
      let svg = titles.map(([x, title]) => kit.text(x, 10, title, { size: 13, anchor: "start" })).join("");
      // first: for each cut head where its beginning ran and how long; waits: for the worst one
      let first = {}, cut = 0, idle = 0, worst = null;
      const part = (x, y, length, head, split) => kit.bar(x, y + 2, length * wide - 1, row - 4, { role: split ? "value" : "state", opacity: split ? 0.45 : 0.25 }) +
        (length * wide > 17 ? kit.text(x + length * wide / 2, y + row / 2, head + 1, { size: 13 }) : "");
      for (let c = 0; c < v.clusters; ++c) {
        const y = top + row * c, low = Math.min(c * share, total), end = Math.min(low + share, total);
        for (const x of [14, right - 4]) svg += kit.text(x, y + row / 2, c + 1, { size: 13, anchor: "end" });
        let high = end, now = 0;
        while (high > low) {
          const head = Math.floor((high - 1) / B), from = Math.max(head * B, low), split = high - from < B;
          if (split && high < (head + 1) * B) first[head] = [c, high - from];
          if (split && from > head * B) {
            const [by, there] = first[head], wait = Math.max(0, there - now);
            ++cut;
            if (!worst || wait > worst.wait) worst = { head, by, there, start: now, wait };
            now += wait;
          }
          svg += part(18 + now * wide, y, high - from, head, split);
          now += high - from;
          high = from;
        }
        if (end === low) ++idle;
        for (let w = 0, head = c; head < v.heads; ++w, head += v.clusters) svg += part(right + w * B * wide, y, B, head, false);
      }
      const n = (x) => kit.fmt(x / B, 2), heads = `${v.heads} head${v.heads > 1 ? "s" : ""} on ${v.clusters} clusters`;
      let say = `${heads}: a range takes ${n(share)} heads' time, a head at a time ${waves}. ` +
        (cut ? `${cut} head${cut > 1 ? "s are" : " is"} cut. ` : "No head is cut. ");
      if (worst) {
        const { head, by, there, start, wait } = worst;
        say += `Head ${head + 1} is begun by cluster ${by + 1} from 0 to ${n(there)}; cluster ${by + 2} comes to the rest of it at ${n(start)}` +
          (wait ? ` and waits for ${n(wait)}: its range is the last, and shorter. ` : ". Nobody waits. ");
      }
      if (idle) say += `${idle} cluster${idle > 1 ? "s have" : " has"} nothing to do.`;
      return { svg, say };
    """
    controls = [Range("heads", "heads", 1, 24, 1, 9), Range("clusters", "clusters", 2, 10, 1, 6)]
    title = "How heads are cut between clusters"
    return Widget(Static("cuts", title, controls, {"blocks": BLOCKS}, draw, size=(424, 270)), live=_live_cuts)


def _live_cuts():
    import ipywidgets

    def step(heads=9, clusters=6):
        share = max(-(-heads * BLOCKS // clusters), BLOCKS)
        print(f"a range takes {share / BLOCKS:.2f} heads' time, a head at a time {-(-heads // clusters)}")
        for c in range(clusters):
            low, high = (min(n * share, heads * BLOCKS) for n in (c, c + 1))
            parts = (
                [
                    f"{h + 1}: {max(h * BLOCKS, low) % BLOCKS}.."
                    for h in range((high - 1) // BLOCKS, low // BLOCKS - 1, -1)
                ]
                if low < high
                else []
            )
            print(f"cluster {c + 1}: head and first block {', '.join(parts) or '-'}")

    return ipywidgets.interactive(step, heads=(1, 24), clusters=(2, 10))

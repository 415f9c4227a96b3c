"""Things to move in the chapter on speculation and rollback."""

from kda_lab.pages.widgets import Range, Static, Widget
from kda_lab.serving.drafts.speculation import boundary_copy, running_column, slot, window_offset

BLOCK, DRAFTS = 16, 3
# slots in columns 3 to 7 of the state table; their numbers need not follow each other
TABLE = {3: 5, 4: 6, 5: 7, 6: 9, 7: 12}
STARTS = range(57, 65)


def case(start, accepted):
    """What one verification of three drafts does, from ``serving.speculation``.

    >>> case(60, 4)
    {'running': 3, 'pre': None, 'copy': [6, 3], 'source': 3, 'offset': 3}
    """
    running = running_column(start, 1 + DRAFTS, BLOCK)
    # the step before ended in the column that holds token ``start``
    before = (start - 1) // BLOCK
    after = boundary_copy(start, 1 + DRAFTS, DRAFTS, accepted, BLOCK)
    return {
        "running": running,
        "pre": [before, running] if before != running else None,
        "copy": list(after.copy) if after.copy else None,
        "source": slot(range(running, running + 1 + DRAFTS), after.accepted),
        "offset": window_offset(accepted),
    }


def verification():
    """One verification with blocks of 16: which slot holds which state, which inputs of the window are read, what is
    copied.

    Controls: tokens before the step, 57 to 64; how many of three drafts are accepted.

    >>> verification()
    <widget: One verification>
    """
    draw = """
      const a = v.accepted, n = a + 1, c = data.cases[v.start - data.first][a], T = data.drafts + 1, p = v.start;
      const w = 86, x = (column) => 2 + w * (column - 3), y = 92;
      let svg = kit.text(2, 10, "slots", { anchor: "start" });
      const mean = {};
      for (let j = 0; j < T; j++) mean[c.running + j] = [p + 1 + j, j < n ? "state" : "error"];
      if (c.running > 3) mean[3] = [p < 64 ? p : 64, p < 64 ? "decay" : "key"];
      if (c.copy) mean[c.copy[1]] = [64, "key"];
      for (let column = 3; column <= 7; column++) {
        const [at, role] = mean[column] || [0, "decay"], used = column in mean, middle = x(column) + w / 2 - 4;
        svg += kit.bar(x(column), y, w - 8, 42, { role, opacity: used ? 0.25 : 0 });
        svg += kit.text(middle, y + 13, used ? `S after ${at}` : "unused");
        svg += kit.text(middle, y + 30, `slot ${data.table[column]}`, { size: 12 });
        svg += kit.text(middle, y + 53, `column ${column}`, { size: 12, role: "decay" });
      }
      // the copy after sampling goes around the earlier one: both may join the same two columns
      const hop = (from, to, height, out, label) => {
        const x0 = x(from) + w / 2 - 4 + out, x1 = x(to) + w / 2 - 4 - out;
        return kit.line(x0, y, x0, y - height) + kit.line(x0, y - height, x1, y - height) + kit.arrow(x1, y - height, x1, y - 2) +
          kit.text((x0 + x1) / 2, y - height - 9, label);
      };
      if (c.pre) svg += hop(c.pre[0], c.pre[1], 16, 0, "before");
      if (c.copy) svg += hop(c.copy[0], c.copy[1], 48, 16, "after sampling");
      svg += kit.dot(x(c.source) + w / 2 - 4, y + 68, { role: "state", r: 4 }) + kit.text(x(c.source) + w / 2 - 4, y + 82, "next step", { size: 12 });
      const row = (top, label, first, count, on, off) => {
        let out = kit.text(2, top, label, { anchor: "start" });
        for (let j = 0; j < count; j++) {
          const good = on(j);
          out += kit.bar(2 + 71 * j, top + 12, 65, 24, { role: good ? "state" : off, opacity: good ? 0.3 : 0.06 });
          out += kit.text(34 + 71 * j, top + 24, `token ${first + j}`);
        }
        return out;
      };
      svg += row(200, "rows of the window (green: read next)", p - 1, 6, (j) => j >= c.offset && j < c.offset + 3, "decay");
      svg += row(254, "records (green: they count)", p + 1, T, (j) => j < n, "error");
      const ids = [...Array(T).keys()].map((j) => data.table[c.running + j]).join(", ");
      const say = `The state has seen ${p} tokens. The step verifies tokens ${p + 1} to ${p + T}, writes slots ${ids}, and ${n} of its tokens count. ` +
        (c.pre ? `Before it, slot ${data.table[c.pre[0]]} is copied to ${data.table[c.pre[1]]}. ` : "") +
        (c.copy ? `After sampling, slot ${data.table[c.copy[0]]} is copied to ${data.table[c.copy[1]]}, whose cache key will promise 64 tokens. ` : "Nothing is copied after sampling. ") +
        `The next step reads slot ${data.table[c.source]} and window rows ${c.offset} to ${c.offset + 2}, counted from 0` + (c.copy && c.copy[1] === c.running ? ", which were copied with it. " : ". ") + `ReplaySSM keeps ${n} of ${T} records; RecoverSSM makes S after ${p + n} from them.`;
      return { svg, say };
    """
    cases = [[case(start, accepted) for accepted in range(1, DRAFTS + 2)] for start in STARTS]
    data = {"cases": cases, "first": STARTS[0], "table": TABLE, "drafts": DRAFTS}
    controls = [
        Range("start", "tokens before the step", STARTS[0], STARTS[-1], 1, 60),
        Range("accepted", "drafts accepted", 0, DRAFTS, 1, DRAFTS),
    ]
    return Widget(
        Static("verification", "One verification", controls, data, draw, size=(432, 294)), live=_live_verification
    )


def _live_verification():
    import ipywidgets

    def step(start=60, accepted=DRAFTS):
        print(f"{accepted + 1} of {DRAFTS + 1} tokens count:", case(start, accepted + 1))

    return ipywidgets.interactive(step, start=(STARTS[0], STARTS[-1]), accepted=(0, DRAFTS))

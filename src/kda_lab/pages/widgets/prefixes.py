"""Things to move in the chapter on shared prefixes."""

from kda_lab.pages.figures.prefixes import family, found
from kda_lab.pages.widgets import Choice, Range, Static, Widget
from kda_lab.pages.widgets.timeline import timeline
from kda_lab.serving.blocks.scheduler import hybrid
from kda_lab.serving.run.engine import Engine
from kda_lab.serving.run.timeline import record
from kda_lab.serving.trials.scenarios import fresh

TOKENS, STEP = 2000, 20
UNITS = [640, 128, 64]
# what a step may run, and which boundaries keep their state
STATES = [
    ("8,192 tokens a step", {}),
    ("640 a step, default retention", {"budget": 640}),
    ("640 a step, every state kept", {"budget": 640, "retention": None}),
]


def three_requests():
    """Requests A, B and C, step by step: blocks of 640 tokens, a finer unit, and the drop under eagle.

    Controls: the run, and its step.

    >>> three_requests()
    <widget: Requests that share a prefix, step by step>
    """
    three = [{name: prompt} for name, prompt in zip("ABC", family(3), strict=True)]
    tail = [{"A": range(TOKENS)}, {"B": [*range(TOKENS), *fresh(300, 2)]}]
    fine = {"unit": 64, "eagle": True}
    runs = {
        "A, B, C share 1,300 tokens": record(Engine(hybrid()), *three, outputs=1),
        "the same, eagle, unit 64": record(Engine(hybrid(**fine)), *three, outputs=1),
        "the same, junction kept": record(Engine(hybrid(checkpoint_junction=True, **fine)), *three, outputs=1),
        "B goes on where A ended, unit 64": record(Engine(hybrid(unit=64)), *tail, outputs=1),
    }
    return timeline("requests", runs, title="Requests that share a prefix, step by step")


def hit_lengths():
    """What the second and the third request of a family find, in tokens, against the length that they share.

    Controls: shared tokens; tokens of a hash; whether a drafter gives up a unit; whether a junction inside a block
    gets a state; tokens a step and which states are kept.
    """
    draw = """
      const h = data.units[v.unit], run = data.runs[v.unit][v.eagle][v.flag][v.states], k = Math.floor(v.shared / h), [b, c] = run[k];
      const x0 = 76, x1 = 384, px = (t) => x0 + (x1 - x0) * t / data.tokens, n = (x) => String(x).replace(/\\B(?=(\\d{3})+$)/g, ",");
      let svg = kit.line(298, 12, 318, 12, { role: "error", width: 1.2, dash: "3 3" }) + kit.text(324, 12, "prompts part", { anchor: "start" });
      // a request: what each group has, and what both have
      [["second request", b, 6], ["third request", c, 82]].forEach(([name, r, y]) => {
        svg += kit.text(4, y + 6, name, { anchor: "start", size: 12 });
        [["rows", r[0], "key"], ["states", r[1], "state"], ["hit", r[2], "value"]].forEach(([label, length, role], i) => {
          const at = y + 16 + 18 * i;
          svg += kit.text(x0 - 6, at + 6, label, { anchor: "end", size: 12, role }) + kit.bar(x0, at, px(length) - x0, 12, { role, opacity: i === 2 ? 0.8 : 0.35 });
          // in a column of their own, where no line crosses them
          svg += kit.text(426, at + 6, n(length), { anchor: "end", size: 12 });
        });
        svg += kit.line(px(v.shared), y + 12, px(v.shared), y + 68, { role: "error", width: 1.2, dash: "3 3" });
      });
      // the hits against every shared length
      const y0 = 290, y1 = 184, py = (t) => y0 - (y0 - y1) * t / data.tokens;
      svg += kit.line(x0, y0, x1, y0, { width: 1 }) + kit.line(x0, y0, x0, y1, { width: 1 });
      for (const t of [0, 640, 1280, 1920]) {
        svg += kit.text(px(t), y0 + 12, n(t), { size: 11 }) + kit.text(x0 - 6, py(t), n(t), { size: 11, anchor: "end" });
        svg += kit.line(x0, py(t), x1, py(t), { width: 0.3 });
      }
      svg += kit.text((x0 + x1) / 2, y0 + 28, "shared tokens", { size: 12 }) + kit.text(x0 - 6, y1 - 12, "hit", { size: 12, anchor: "end" });
      [[1, "value", 2.4, ""], [0, "decay", 1.8, "5 4"]].forEach(([i, role, width, dash]) => {
        const points = [];
        run.forEach((r, j) => { for (const t of [j * h, Math.min((j + 1) * h, data.tokens)]) points.push([px(t).toFixed(1), py(r[i][2]).toFixed(1)]); });
        svg += kit.path(points, { role, width, dash });
        svg += kit.dot(px(v.shared), py(run[k][i][2]), { role });
        // above the plot
        const at = x0 + 90 * (1 - i);
        svg += kit.line(at, y1 - 12, at + 24, y1 - 12, { role, width, dash }) + kit.text(at + 30, y1 - 12, i ? "third" : "second", { size: 11, anchor: "start" });
      });
      const drop = !v.eagle || !c[3] ? "" : c[3] === v.shared ? " The block or unit that eagle drops here ends with a draft row that saw another token: the drop is needed."
        : " What eagle drops here would have been right.";
      const stop = b[4] ? `; it notes a junction at ${n(b[4])} and ends chunks at ${b[5].join(", ")}` : "";
      const say = `${n(v.shared)} shared tokens: the second request finds rows for ${n(b[0])} and a state after ${n(b[1])}, hits ${n(b[2])}${stop}. ` +
        `The third finds ${n(c[0])} and ${n(c[1])} and hits ${n(c[2])}.${drop}`;
      return { svg, say };
    """
    runs = [
        [[[_facts(settings) for settings in row] for row in flags] for flags in switches] for switches in _settings()
    ]
    controls = [
        Range("shared", "shared tokens", 0, TOKENS, STEP, 1300),
        Choice("unit", "tokens a hash", [f"{h}, a block" if h == 640 else str(h) for h in UNITS], 0),
        Choice("eagle", "drafter", ["none", "eagle: the last unit of rows is dropped"], 0),
        Choice("flag", "a junction inside a block", ["is floored to the block", "gets a state"], 0),
        Choice("states", "states", [name for name, _ in STATES], 0),
    ]
    data = {"units": UNITS, "tokens": TOKENS, "runs": runs}
    return Widget(
        Static("hit-lengths", "What a second and a third request hit", controls, data, draw, size=(430, 326)),
        live=_live,
    )


def _settings():
    """unit -> eagle -> flag -> states."""
    return [
        [
            [[hybrid(unit=h, eagle=e, checkpoint_junction=f, **more) for _, more in STATES] for f in (False, True)]
            for e in (False, True)
        ]
        for h in UNITS
    ]


def _facts(settings):
    """For each number of shared units: (rows, states, hit, rows without a drop, junction, ends) of the second and the
    third request.
    """
    # tokens beyond a shared unit change no hash
    return [_pair(settings, shared) for shared in range(0, TOKENS, settings.splitting.unit)]


def _pair(settings, shared):
    """What the drawing needs of the second and the third of three prompts."""
    groups = [group._replace(eagle=False) for group in settings.groups]
    prompts = family(3, shared, TOKENS)
    kept = found(settings._replace(groups=tuple(groups)), *prompts) if settings.splitting.eagle else [None] * 3
    return [
        [f.attention, f.state, f.hit, full.attention if full else 0, f.junction, f.ends]
        for f, full in zip(found(settings, *prompts)[1:], kept[1:], strict=True)
    ]


def _live():
    import ipywidgets

    def step(shared=1300, unit=640, eagle=False, junction_kept=False, states=STATES[0][1]):
        settings = hybrid(unit=unit, eagle=eagle, checkpoint_junction=junction_kept, **states)
        for name, f in zip(("first", "second", "third"), found(settings, *family(3, shared)), strict=True):
            print(
                f"{name:7} rows {f.attention:5}  state {f.state:5}  hit {f.hit:5}  junction {f.junction:5}  chunks "
                f"end at {f.ends}"
            )

    return ipywidgets.interactive(step, shared=(0, TOKENS, STEP), unit=UNITS, states=STATES)

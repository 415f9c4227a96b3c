"""A run of the serving simulator, to be stepped through: tokens, block tables, which S is where, who holds it, what a
key promises.
"""

from kda_lab.pages.widgets import Choice, Range, Static, Widget
from kda_lab.serving.run.timeline import lines

WIDTH, CELL, BOX = 430, 46, 92
_DRAW = """
  const run = data.runs[v.run], frames = run.frames;
  // the slider ends with the run, and another run begins at its first step
  const root = document.querySelector(`[data-kda="${data.name}"]`), slider = root.querySelector("[name=step]");
  if (root.dataset.run !== String(v.run)) {
    slider.max = frames.length;
    if (root.dataset.run !== undefined) slider.value = 1;
    slider.parentElement.querySelector("output").textContent = slider.value;
    root.dataset.run = v.run;
  }
  const f = frames[Number(slider.value) - 1];
  const x0 = 46, x1 = 426, px = (t) => x0 + (x1 - x0) * t / run.span, at = {};
  // the largest size up to `most` at which a label fits a box
  const fit = (label, w, most) => Math.min(most, (w - 6) / (0.54 * Math.max(label.length, 1)));
  // one block: its id and references, what it holds, what its keys promise; curves to and from it run at the height `lane`
  const cell = (x, y, w, id, role, lane) => {
    const b = f.blocks[id], most = w < 56 ? 10 : w < 80 ? 11 : 12;
    if (!b) return "";
    const paint = kit.color(b.bad ? "error" : role), name = `#${id}${b.refs < 2 ? "" : w < 80 ? ` \u00d7${b.refs}` : `, ${b.refs} holders`}`;
    if (!(id in at)) at[id] = { x, y, w, lane };
    return `<rect x="${x + 1}" y="${y}" width="${w - 2}" height="42" rx="4" style="fill:${paint};fill-opacity:${b.written ? 0.16 : 0.03};stroke:${paint};stroke-width:${b.bad ? 2 : 1.2}"/>` +
      kit.text(x + w / 2, y + 8, name, { size: fit(name, w, most) }) +
      kit.text(x + w / 2, y + 21, b.holds, { size: fit(b.holds, w, most), role: b.bad ? "error" : "" }) +
      b.keys.slice(-2).map((k, i, all) => kit.text(x + w * (2 * i + 1) / (2 * all.length), y + 34, all.length > 1 ? k.split(":")[1] : k, { size: most, role: "value" })).join("");
  };
  let svg = "", y = 8;
  for (const [name, groups] of Object.entries(f.tables)) {
    const c = f.chunks.find((c) => c.request === name);
    svg += kit.text(4, y + 8, name, { anchor: "start" });
    svg += `<rect x="${x0}" y="${y + 2}" width="${px(run.lengths[name]) - x0}" height="12" style="fill:none;stroke:currentColor;stroke-opacity:.4"/>`;
    if (c) {
      const bar = (a, b, role, opacity) => b > a ? kit.bar(px(a), y + 2, Math.max(px(b) - px(a), 1.5), 12, { role, opacity }) : "";
      svg += bar(0, c.start, c.hit ? "key" : "decay", c.hit ? 0.55 : 0.25) + bar(c.start, c.end, "value", 0.75);
      if (c.checkpoint !== null) svg += kit.line(px(c.checkpoint), y - 2, px(c.checkpoint), y + 18, { role: "state", width: 2.5 });
      if (c.junction) svg += kit.line(px(c.junction), y - 2, px(c.junction), y + 18, { role: "error", width: 2, dash: "3 2" });
    }
    y += 20;
    groups.forEach((ids, g) => {
      const role = run.kinds[g] === "state" ? "state" : "key", B = data.block;
      svg += kit.text(2, y + 21, run.kinds[g] === "state" ? "states" : "rows", { anchor: "start", role });
      ids.forEach((id, column) => {
        const x = px(column * B), w = px(B) - x0;
        svg += id ? cell(x, y, w, id, role, y - 2) : `<rect x="${x + 1}" y="${y}" width="${w - 2}" height="42" rx="4" style="fill:none;stroke:currentColor;stroke-opacity:.35;stroke-dasharray:3 4"/>` + kit.text(x + w / 2, y + 21, "null", { size: 12 });
      });
      y += data.cell;
    });
    y += 8;
  }
  const idle = f.idle.slice(0, run.idle);
  // the way of the curves from and to the blocks below
  if (idle.length) y += 6;
  idle.forEach((id, i) => {
    svg += cell(4 + data.box * (i % 4), y + data.cell * Math.floor(i / 4), data.box, id, run.kinds[f.blocks[id].group] === "state" ? "state" : "key", y - 4);
  });
  y += data.cell * Math.ceil(idle.length / 4);
  svg += kit.text(4, y + 7, idle.length ? "kept without a holder, first to be evicted on the left" : "no block is kept without a holder", { anchor: "start" });
  f.copies.forEach(([source, target], i) => {
    const a = at[source], b = at[target];
    if (!a || !b) return;
    const style = `fill:none;stroke:${kit.color("error")};stroke-width:1.6;stroke-opacity:.8`;
    if (a.y === b.y) {
      // over the top of what lies between
      const xa = a.x + a.w / 2, xb = b.x + b.w / 2 - 10 * Math.sign(b.x - a.x);
      svg += `<path d="M${xa} ${a.y}Q${(xa + xb) / 2} ${a.y - 14} ${xb} ${a.y}" style="${style}"/>` + kit.dot(xb, b.y, { role: "error", r: 3 });
      return;
    }
    // along the left edges and the gap above the lower block, so that no word is struck through
    const [low, high] = a.y > b.y ? [a, b] : [b, a], lane = low.lane - 4 * i, end = b === low ? low.y : high.y + 42;
    svg += `<path d="M${low.x + 9} ${low.y}Q${low.x} ${low.y} ${low.x} ${low.y - 3}V${lane}H${high.x}V${high.y + 46}Q${high.x} ${high.y + 42} ${high.x + 9} ${high.y + 42}" style="${style}"/>` + kit.dot(b.x + 9, end, { role: "error", r: 3 });
  });
  return { svg, say: f.say };
"""


def timeline(name, runs, block=640, title="A run of the scheduler, step by step", run=0, step=1):
    """A widget that steps through runs of the simulator.

    name: unique on its page   runs: title -> frames of ``kda_lab.serving.run.timeline.record``   block: tokens of a
    block, for
    all groups alike   run, step: what is shown first.   The bar of a request shows what the cache had (blue), what ran
    before (grey) and what runs now (orange); a tick in it is an exported state, a dashed one the end of a shared
    prefix; a curve is a copy. A red block holds another state than its key promises, or none of its request.

    >>> from kda_lab.serving.run.engine import Engine
    >>> from kda_lab.serving.blocks.scheduler import hybrid
    >>> from kda_lab.serving.run.timeline import record
    >>> timeline("steps", {"A": record(Engine(hybrid(block=16)), {"A": range(40)}, outputs=1)}, block=16)
    <widget: A run of the scheduler, step by step>
    """
    made = [_run(frames, block) for frames in runs.values()]
    longest = max(len(frames) for frames in runs.values())
    data = {"name": name, "runs": made, "block": block, "cell": CELL, "box": BOX}
    controls = [Choice("run", "run", list(runs), run), Range("step", "step", 1, longest, 1, step)]
    height = max(one.pop("height") for one in made)
    return Widget(Static(name, title, controls, data, _DRAW, size=(WIDTH, height)), live=lambda: _live(runs))


def _run(frames, block):
    """What the drawing needs of a run."""
    kinds = {}
    for frame in frames:
        for content in frame["blocks"].values():
            state = content["holds"].startswith(("S@", "?"))
            kinds[content["group"]] = "state" if state or kinds.get(content["group"]) == "state" else "attention"
    reduced = [_frame(frame, kinds) for frame in frames]
    columns = max(len(ids) for frame in frames for groups in frame["tables"].values() for ids in groups)
    lengths = {}
    for frame in frames:
        for chunk in frame["chunks"]:
            lengths[chunk["request"]] = max(chunk["end"], lengths.get(chunk["request"], 0))
    idle = max(len(frame["idle"]) for frame in reduced)
    tables = max(sum(28 + CELL * len(groups) for groups in frame["tables"].values()) for frame in frames)
    height = 8 + tables + 6 + CELL * -(-idle // 4) + 18
    return {
        "frames": reduced,
        "kinds": kinds,
        "span": columns * block,
        "lengths": lengths,
        "idle": idle,
        "height": height,
    }


def _frame(frame, kinds):
    """One step, with its words."""
    blocks = {}
    for number, content in frame["blocks"].items():
        blocks[number] = {
            "group": content["group"],
            "refs": content["refs"],
            "keys": content["keys"],
            "holds": content["holds"].removeprefix("tokens "),
            "written": bool(content["holds"]),
            "bad": kinds[content["group"]] == "state" and _broken(content),
        }
    idle = [number for number in frame["free"] if number in blocks]
    copies = [[copy["source"], copy["target"]] for copy in frame["copies"]]
    shown = {key: frame[key] for key in ("chunks", "tables")}
    return shown | {"blocks": blocks, "idle": idle, "copies": copies, "say": words(frame, kinds)}


def _broken(content):
    """Whether a state's block holds none of its request's states, or another one than a key promises."""
    return content["holds"] == "?" or any(content["holds"] != f"S@{key.rsplit(':', 1)[1]}" for key in content["keys"])


def words(frame, kinds):
    """A step in sentences.

    frame: of ``kda_lab.serving.run.timeline``   kinds: group -> "state" or "attention".

    >>> step = {"step": 1, "chunks": [], "copies": [], "tables": {}, "blocks": {}, "free": [7], "waiting": ["B"], "wrong": [], "preempted": []}
    >>> words(step, {})
    'Step 1. B waits. Next to be reused: block 7.'
    """
    said = [f"Step {frame['step']}."]
    for chunk in frame["chunks"]:
        hit = f" ({chunk['hit']} tokens came from the cache)" if chunk["hit"] else ""
        first, last = chunk["start"], chunk["end"] - 1
        text = f"{chunk['request']} runs " + (
            f"tokens {first} to {last}{hit}" if first < last else f"token {first}{hit}"
        )
        if chunk["checkpoint"] is not None:
            text += f" and exports S@{chunk['checkpoint']} on the way"
        if chunk["junction"]:
            text += f"; some group knows its first {chunk['junction']} tokens"
        said.append(text + ".")
    said += [f"{request} is preempted." for request in frame["preempted"]]
    said += [
        f"Block {c['source']} is copied to block {c['target']} ({_why(c, frame['tables'])})." for c in frame["copies"]
    ]
    for request, groups in frame["tables"].items():
        for group, ids in enumerate(groups):
            if kinds.get(group) == "state":
                held = [_state(number, frame["blocks"][number]) for number in ids if number]
                said.append(f"{request} holds {' and '.join(held)}.")
    idle = [
        _state(number, frame["blocks"][number])
        for number in frame["free"]
        if number in frame["blocks"] and kinds[frame["blocks"][number]["group"]] == "state"
    ]
    if idle:
        said.append(f"Nobody holds {', '.join(idle)}.")
    said += [f"{request} waits." for request in frame["waiting"]]
    said += [f"Wrong: {sentence}." for sentence in frame["wrong"]]
    return " ".join(said + [f"Next to be reused: block {frame['free'][0]}." if frame["free"] else "No block is free."])


def _why(copy, tables):
    """What a copy is for; a writer of a published block keeps the original, a reader gets the copy."""
    if copy["why"] != "copy on write":
        return copy["why"]
    held = any(copy["target"] in ids for groups in tables.values() for ids in groups)
    return (
        "copy on write: the cached block stays as it is"
        if held
        else "copy on write: the key goes with the copy, the original is written on"
    )


def _state(number, content):
    """A state's block in words."""
    keys = f", promised by {', '.join(content['keys'])}" if content["keys"] else ""
    holds = {"": "nothing yet", "?": "no state of its sequence"}.get(content["holds"], content["holds"])
    return f"block {number} with {holds}{keys}"


def _live(runs):
    import ipywidgets

    def step(run, step=1):
        frames = runs[run]
        kinds = _run(frames, 1)["kinds"]
        print("\n".join(lines(frames[:step])))
        print(words(frames[min(step, len(frames)) - 1], kinds))

    choice = ipywidgets.Dropdown(options=list(runs))
    slider = ipywidgets.IntSlider(1, 1, len(runs[choice.value]))

    def restart(_):
        slider.value, slider.max = 1, len(runs[choice.value])

    choice.observe(restart, "value")
    return ipywidgets.interactive(step, run=choice, step=slider)

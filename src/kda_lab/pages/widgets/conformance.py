"""Things to move in the chapter on whether public kernels agree."""

from kda_lab.conformance import CASES, chosen
from kda_lab.pages.widgets import Choice, Static, Widget

START = "extreme-gates"
# what the words of a case leave open
NOTES = {
    "gates-just-beyond-the-usual-bound": "The -5.55 is that of 1/e^G in plain fp32, -88.7 in 16 tokens; where small "
    "numbers are "
    "flushed to zero it is -5.46, and -87.3."
}
_DRAW = """
  const x0 = 8, w = 4, y0 = 34, row = 36, n = data.say.length, px = (i) => x0 + w * i;
  const bottom = y0 + row * data.rows.length - 4;
  const mark = (x, y, o) => ({
    p: () => kit.bar(x + 0.6, y, 2.4, 16, { role: "state", opacity: 0.25 }),
    f: () => kit.bar(x, y - 2, 3.4, 20, { role: "error", opacity: 1 }),
    r: () => kit.bar(x + 0.6, y, 2.4, 8, { role: "value", opacity: 1 }),
    e: () => kit.bar(x + 0.6, y + 8, 2.4, 8, { role: "key", opacity: 1 }),
    u: () => kit.line(x + 0.4, y + 8, x + 3.4, y + 8, { role: "decay", width: 1.4 }),
  })[o]();
  let svg = "";
  data.kinds.forEach(([kind, first, count], i) => {
    const last = i === data.kinds.length - 1;
    svg += kit.text(last ? px(n) : px(first) + 2, i % 2 ? 20 : 7, kind, { size: 11, anchor: last ? "end" : "start" });
    svg += kit.line(px(first) - 0.5, i % 2 ? 26 : 13, px(first) - 0.5, bottom, { role: "decay", width: 0.7 });
  });
  data.rows.forEach(([name, marks], r) => {
    const y = y0 + row * r;
    svg += kit.text(x0, y + 2, name, { size: 12, anchor: "start" });
    [...marks].forEach((o, i) => { svg += mark(px(i), y + 12, o); });
  });
  svg += `<rect x="${px(v.case) - 1.5}" y="${y0 + 6}" width="${w + 3}" height="${bottom - y0 - 6}" style="fill:none;stroke:currentColor;stroke-width:1.2"/>`;
  let x = x0;
  for (const [o, word, width] of [["p", "pass", 48], ["f", "FAIL", 50], ["r", "refused", 72], ["e", "error", 58], ["u", "unsupported", 90]]) {
    svg += mark(x, bottom + 10, o) + kit.text(x + 9, bottom + 19, word, { size: 12, anchor: "start" });
    x += width;
  }
  // a line for each kernel: the words are one element
  svg += `<style>[data-kda="outcomes"] .kda-say { white-space: pre-line; }</style>`;
  return { svg, say: data.say[v.case] };
"""


def matrix(records):
    """Implementations by cases; the chosen case says whom it catches, by which input, and what became of everybody.

    records: {name: document of ``conformance.study.run``}, all of the same cases.
    """
    kept = next(iter(records.values()))["cases"]
    names = [case.name for case in chosen("kda") if case.name in kept]
    kinds = [CASES[name].kind for name in names]
    data = {
        "rows": [
            [name, "".join(document["cases"][n]["outcome"][0] for n in names)] for name, document in records.items()
        ],
        "kinds": [[kind, kinds.index(kind), kinds.count(kind)] for kind in dict.fromkeys(kinds)],
        "say": [words(name, records) for name in names],
    }
    # a longer line would leave a narrow screen; the words have the whole name
    labels = [name if len(name) <= 34 else name[:33] + "…" for name in names]
    controls = [Choice("case", "case", labels, names.index(START))]
    size = (440, 34 + 36 * len(records) + 26)
    static = Static("outcomes", "What became of each case in each implementation", controls, data, _DRAW, size=size)
    return Widget(static, live=lambda: _live(names, records))


def words(name, records):
    """A case and its outcomes as sentences: a line for the case, and one for each implementation."""
    case = CASES[name]
    about = f"{name} ({case.kind}) catches: {case.fault} The case's input: {case.input}. The clause: {case.clause}."
    if name in NOTES:
        about += f" {NOTES[name]}"
    if case.report:
        about += f" Reported: {', '.join(case.report)}."
    said = [about]
    for who, document in records.items():
        row = document["cases"][name]
        text = {"pass": "passes", "fail": "FAILS", "refused": "refuses", "error": "ends in an error"}.get(
            row["outcome"], row["outcome"]
        )
        if row["outcome"] == "pass" and isinstance(row["error"], float):
            text += f" with an error of {row['error']:.2g} where {row['budget']:.2g} is allowed"
        elif row["reason"]:
            text += f" ({shorten(row['reason'])})"
        said.append(f"{who}: {text}.")
    if any(isinstance(d["cases"][name]["error"], float) for d in records.values()):
        said.append("Errors are those of o, a state or a gradient, whichever comes nearest to its own limit.")
    return "\n".join(said)


def shorten(reason, most=150):
    """The reason up to the end of a word.

    >>> shorten("one two three", 9)
    'one two ...'
    """
    return reason if len(reason) <= most else reason[:most].rsplit(" ", 1)[0] + " ..."


def _live(names, records):
    import textwrap

    import ipywidgets

    def step(case=START):
        for line in words(case, records).splitlines():
            print(textwrap.fill(line, 100))

    return ipywidgets.interactive(step, case=ipywidgets.Dropdown(options=names, value=START))

"""Things to move in the chapter on reading out: one chunk of four tokens, step by step, every number exact."""

from collections.abc import Callable
from fractions import Fraction
from html import escape
from typing import Any

import numpy as np

from kda_lab.pages.look import tokens
from kda_lab.pages.widgets import Widget
from kda_lab.pages.widgets.worked import STEPS, Step, example, matrices, work_out, written

# what the page takes from here
__all__ = ["STEPS", "chunk_steps", "example", "matrices", "work_out"]

ROLE = (
    dict.fromkeys(["K", "K_in", "K_g", "W"], "key")
    | dict.fromkeys(["Q", "Q_in"], "query")
    | dict.fromkeys(["V", "U", "O"], "value")
)
ROLE |= dict.fromkeys(["α", "β", "G", "e^G", "e^{G_C}", "e^{G_C−G}"], "decay") | dict.fromkeys(
    ["S_0", "S_0^⊤", "S_C"], "state"
)
ROLE |= {"E": "value", "E^⊤": "value"}
SHAPE = {
    "K": "[C, K]",
    "Q": "[C, K]",
    "V": "[C, V]",
    "α": "[C, K]",
    "β": "[C]",
    "S_0": "[V, K]",
    "S_0^⊤": "[K, V]",
    "G": "[C, K], in ln 2",
    "e^G": "[C, K]",
    "e^{G_C}": "[K]",
    "e^{G_C−G}": "[C, K]",
    "E^⊤": "[V, C]",
    "S_C": "[V, K]",
}
SHAPE |= (
    dict.fromkeys(["K_in", "Q_in", "K_g", "W"], "[C, K]")
    | dict.fromkeys(["A", "M", "R"], "[C, C]")
    | dict.fromkeys(["U", "E", "O"], "[C, V]")
)
SHELF = ["K", "Q", "V", "α", "β", "S_0", "G", "e^G", "K_in", "Q_in", "K_g", "A", "M", "R", "U", "W", "E", "O", "S_C"]


def _label(text: str) -> str:
    """HTML of a label with _ and ^: "S_0^⊤", "e^{G_C−G}"; a subscript of two letters or more, such as in, needs no
    braces.
    """
    out, i = "", 0
    while i < len(text):
        mark = text[i]
        if mark not in "_^":
            out, i = out + escape(mark), i + 1
            continue
        if text[i + 1] == "{":
            depth, j = 1, i + 2
            while depth:
                depth += {"{": 1, "}": -1}.get(text[j], 0)
                j += 1
            inner = _label(text[i + 2 : j - 1])
        else:
            j = i + 3 if text[i + 1 : i + 3] == "in" else i + 2
            inner = escape(text[i + 1 : j])
        tag = "sub" if mark == "_" else "sup"
        out, i = f"{out}<{tag}>{inner}</{tag}>", j
    return out


def _matrix(name: str, X: np.ndarray, cell: int, outlined: set[tuple[int, int]] = frozenset()) -> str:
    """A matrix as SVG: opacity for the size, stacked fractions, an outline around cells that count."""
    rows, columns = X.shape
    top = max(abs(x) for x in X.ravel()) or 1
    role = ROLE.get(name, "")
    paint = tokens.variable(role) if role else "currentColor"
    body, numbers, frame = "", "", ""
    for i in range(rows):
        for j in range(columns):
            x, y, a = j * cell + 1, i * cell + 1, X[i, j]
            full = (0.5 if role else 0.3) * float(abs(a) / top)
            body += f'<rect x="{x}" y="{y}" width="{cell}" height="{cell}" fill-opacity="{full:.2g}"/>'
            numbers += _number(a, x + cell / 2, y + cell / 2, cell)
            if (i + 1, j + 1) in outlined:
                frame += f'<rect x="{x + 1}" y="{y + 1}" width="{cell - 2}" height="{cell - 2}" rx="3"/>'
    w, h = columns * cell + 2, rows * cell + 2
    said = "; ".join(" ".join(written(a) for a in row) for row in X)
    plain = name.replace("^⊤", " transposed").replace("{", "").replace("}", "")
    return (
        f'<svg viewBox="0 0 {w} {h}" width="{w}" height="{h}" role="img" aria-label="{escape(plain)}: {said}" '
        'fill="currentColor" font-family="inherit">'
        f'<rect class="kda-ghost" x="1" y="1" width="{w - 2}" height="{h - 2}"/><g class="kda-ink"><g '
        f'style="fill:{paint};stroke:{paint};stroke-opacity:.55">{body}</g>'
        f'<g class="kda-numbers">{numbers}</g><g class="kda-frame">{frame}</g></g></svg>'
    )


def _number(a: Fraction, x: float, y: float, cell: int) -> str:
    """A fraction in a cell: above and below a bar, the sign before it; zeros are pale."""

    def text(s: object, dx: float, dy: float, size: int, pale: str = "") -> str:
        return f'<text x="{x + dx:g}" y="{y + dy:g}" font-size="{size}"{pale}>{s}</text>'

    if a.denominator == 1:
        return text(written(a), 0, 0, round(cell * 0.4), "" if a else ' opacity=".6"')
    small, shift, dx = round(cell * 0.34), cell * 0.2, cell * 0.08 if a < 0 else 0
    bar = f'<path d="M{x + dx - cell * 0.14:g} {y:g}h{cell * 0.28:g}"/>'
    sign = text("−", -cell * 0.26, 0, small) if a < 0 else ""
    return sign + text(abs(a.numerator), dx, -shift, small) + bar + text(a.denominator, dx, shift, small)


def _figure(
    name: str, m: dict[str, np.ndarray], cell: int, outlined: set[tuple[int, int]] = frozenset(), shape: bool = True
) -> str:
    below = f"<small>{SHAPE[name]}</small>" if shape else ""
    return f'<span class="kda-m"><b>{_label(name)}</b>{_matrix(name, m[name], cell, outlined)}{below}</span>'


def _panel(number: int, step: Step, m: dict[str, np.ndarray]) -> str:
    cells = (
        [c for product in step.worked.sum for c in product] + [step.worked.head or step.worked.cell, step.worked.cell]
        if step.worked
        else []
    )
    row, sign = "", ""
    for part in step.row:
        if part not in m:
            sign = f"<i>{part}</i>"
            continue
        new = " kda-new" if part in step.new and number else ""
        row += (
            f'<span class="kda-part{new}">{sign}{_figure(part, m, 34, {c[1:] for c in cells if c[0] == part})}</span>'
        )
        sign = ""
    worked = ""
    if step.worked:
        name, i, j = step.worked.cell
        text, value = work_out(step.worked, m)
        if value != m[name][i - 1, j - 1]:
            raise AssertionError(f"step {number}: {name}[{i}, {j}] is {m[name][i - 1, j - 1]}, worked out {value}")
        worked = f'<p class="kda-worked">Outlined: row {i}, column {j} of {_label(name)} is {text} = <b>{written(value)}</b>.</p>'
    return (
        f'<section data-step="{number}" data-say="Step {number} of {len(STEPS) - 1}: {escape(step.title)}."><p '
        f'class="kda-formula">{_label(step.formula)}</p>'
        f'<div class="kda-row">{row}</div><p>{_words(step.words)}</p>{worked}</section>'
    )


def _words(text: str) -> str:
    """Words with the names in them set as labels."""
    return " ".join(_label(word) if any(mark in word for mark in "_^") else escape(word) for word in text.split(" "))


def chunk_steps() -> Widget:
    """All the terms of a chunk of four tokens, one step after the other, with the operands of the step and one entry
    worked out.

    Control: the step, 0 to 10. AssertionError where an entry, worked out by itself, is not that of the matrix.

    >>> 'aria-label="K_in: ' in chunk_steps().static
    True
    """
    m = matrices()
    panels = "".join(_panel(n, step, m) for n, step in enumerate(STEPS))
    since = {name: n for n, step in enumerate(STEPS) for name in step.new}
    used: Callable[[str], str] = lambda name: " ".join(
        str(n) for n, step in enumerate(STEPS) if n and _operand(name, step)
    )
    shelf = "".join(
        f'<span data-since="{since[name]}" data-used="{used(name)}">{_figure(name, m, 26, shape=False)}</span>'
        for name in SHELF
    )
    title = "A chunk of four tokens, step by step"
    return Widget(
        '<div class="kda-widget kda-steps" data-kda="chunk-steps" role="group" '
        f'aria-label="{title}"><style>{_CSS}</style><div class="kda-controls">'
        f'<label><span>step</span> <input type="range" name="step" min="0" max="{len(STEPS) - 1}" step="1" value="0" '
        'autocomplete="off"> <output></output></label>'
        '<div class="kda-go"><button type="button" data-go="-1">◂ back</button><button type="button" '
        'data-go="1">next ▸</button>'
        '<button type="button" data-play>play</button></div></div><p class="kda-say" aria-live="polite">With '
        "JavaScript, one step is shown at a time.</p>"
        f'<div class="kda-panels">{panels}</div><p class="kda-shelf-title">All matrices so far. Framed: what this '
        "step takes. Underlined: what it makes.</p>"
        f'<div class="kda-shelf">{shelf}</div><script>{_JS}</script></div>'
    )


def _operand(name: str, step: Step) -> bool:
    """Whether a step reads a matrix, as it stands or transposed or by its last row."""
    parts: Any = {part.removesuffix("^⊤") for part in step.row} - set(step.new)
    return name in parts or (name == "G" and "e^{G_C−G}" in parts) or (name == "e^G" and "e^{G_C}" in parts)


_CSS = """.kda-steps{margin:1em 0}.kda-numbers text{text-anchor:middle;dominant-baseline:central}.kda-numbers path,.kda-frame,.kda-ghost{stroke:currentColor}.kda-frame,.kda-ghost{fill:none}
.kda-frame{stroke-width:2}.kda-ghost{stroke-opacity:.35;stroke-dasharray:3 3}.kda-steps label{display:flex;flex-wrap:wrap;gap:.2em .6em;align-items:center}
.kda-steps input{flex:1 1 9em;min-height:1.6em}.kda-steps output{min-width:4em;font-variant-numeric:tabular-nums}
.kda-go{display:flex;gap:.5em;margin:.4em 0}.kda-go button{font:inherit;color:inherit;background:none;border:1px solid currentColor;border-radius:.4em;padding:.25em .9em;min-height:2.2em;cursor:pointer}
.kda-go button:hover{background:rgba(127,127,127,.18)}.kda-steps .kda-say{color:inherit;font-weight:600;margin:.4em 0}
.kda-steps[data-alive] .kda-panels{display:grid}.kda-steps[data-alive] section{grid-area:1/1;min-width:0;visibility:hidden;opacity:0;transition:opacity .35s}
.kda-steps[data-alive] section.kda-now{visibility:visible;opacity:1}.kda-steps section p{margin:.4em 0;line-height:1.5}
.kda-steps .kda-formula{font-style:italic}.kda-steps sub,.kda-steps sup{font-size:.72em;line-height:0;font-style:inherit}
.kda-row{display:flex;flex-wrap:wrap;align-items:center;gap:.5em .45em;margin:.3em 0}.kda-part{display:inline-flex;align-items:center;gap:.45em}.kda-part i{font-style:normal;font-size:1.2em}
.kda-m{display:inline-flex;flex-direction:column;align-items:center;line-height:1.35}.kda-steps .kda-m svg{display:block;margin:0;max-width:none}.kda-m b{font-weight:600;white-space:nowrap}.kda-m small{font-size:.72em;white-space:nowrap}
.kda-part .kda-ghost,.kda-shelf .kda-ghost{visibility:hidden}.kda-new .kda-m b{text-decoration:underline;text-decoration-thickness:3px;text-underline-offset:3px}
.kda-shelf{display:flex;flex-wrap:wrap;gap:.5em .7em;align-items:flex-end;font-size:.85em}.kda-shelf>span{padding:2px 4px;border:2px solid transparent;border-radius:.4em}
.kda-steps .kda-shelf-title{font-size:.85em;margin:.8em 0 .3em;border-top:1px solid rgba(127,127,127,.4);padding-top:.5em}
.kda-shelf .kda-used{border-color:currentColor}.kda-shelf .kda-made b{text-decoration:underline;text-decoration-thickness:3px;text-underline-offset:3px}
.kda-shelf .kda-later .kda-ink{visibility:hidden}.kda-shelf .kda-later .kda-ghost{visibility:visible}.kda-shelf .kda-later b{opacity:.65}
@media (max-width:600px){.kda-steps[data-alive] section{display:none}.kda-steps[data-alive] section.kda-now{display:block}}
@media (prefers-reduced-motion:reduce){.kda-steps section{transition:none!important}}""".replace("\n", "")

_JS = """(function () {
document.querySelectorAll('[data-kda="chunk-steps"]:not([data-alive])').forEach((root) => {
  root.dataset.alive = "1";
  const range = root.querySelector("input"), last = Number(range.max), play = root.querySelector("[data-play]");
  const panels = [...root.querySelectorAll("section")], shelf = [...root.querySelectorAll("[data-since]")];
  let timer = 0;
  const update = () => {
    const n = Number(range.value);
    root.querySelector("output").textContent = `${n} of ${last}`;
    root.querySelector(".kda-say").textContent = panels[n].dataset.say;
    panels.forEach((panel, i) => panel.classList.toggle("kda-now", i === n));
    shelf.forEach((part) => {
      const since = Number(part.dataset.since);
      part.classList.toggle("kda-later", since > n);
      part.classList.toggle("kda-made", n > 0 && since === n);
      part.classList.toggle("kda-used", part.dataset.used.split(" ").includes(String(n)));
    });
  };
  const go = (n) => { range.value = n; update(); };
  const stop = () => { clearInterval(timer); timer = 0; play.textContent = "play"; };
  range.addEventListener("input", () => { stop(); update(); });
  root.querySelectorAll("[data-go]").forEach((b) => b.addEventListener("click", () => { stop(); go(Number(range.value) + Number(b.dataset.go)); }));
  play.addEventListener("click", () => {
    if (timer) return stop();
    if (Number(range.value) === last) go(0);
    play.textContent = "stop";
    timer = setInterval(() => { go(Number(range.value) + 1); if (Number(range.value) === last) stop(); }, 4000);
  });
  update();
});
})();"""

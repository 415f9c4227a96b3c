"""Figures that read in light and in dark: inline SVG, one colour and one shape per role, alt text always.

All looks come from `kda_lab.pages.look.tokens`. Text and axes take the colour of the page's text; the roles are CSS
variables (``--kda-key`` and so on), which the book's style sheet sets for both themes and which fall back to the light
ones in a notebook. ``axes`` gives matplotlib axes in the house style, ``rule`` and ``name_lines`` draw the lines of
rules, ``Board`` draws matrices and arrows, ``show`` and ``Board.show`` make the picture.
"""

from __future__ import annotations

import hashlib
import io
import math
import re
from collections.abc import Callable, Sequence
from html import escape
from typing import Any, NamedTuple

from kda_lab.data.lazy import modules, names
from kda_lab.pages.look import tokens, variables
from kda_lab.pages.look.lines import INK, MEASURE, face, measure
from kda_lab.pages.look.lines import name_lines as name_lines
from kda_lab.pages.look.lines import rule as rule


class Role(NamedTuple):
    """How a role looks: its colour on white and on black, and its marker, line and hatch where colour is not enough."""

    light: str
    dark: str
    marker: str
    line: str
    hatch: str


# colours are those of the tokens; a form for each, so that nothing rests on colour alone
_FORMS = {
    "key": ("o", "-", "//"),
    "query": ("^", (0, (9, 2)), "\\\\"),
    "value": ("s", "--", "--"),
    "state": ("D", "-.", "xx"),
    "decay": ("v", ":", ".."),
    "error": ("X", (0, (5, 1, 1, 1, 1, 1)), "++"),
}
ROLES = {name: Role(*tokens.SYMBOLS[name], *form) for name, form in _FORMS.items()}
# stands for the colour of the page's background
PAPER = "#fdfeff"
_PAINT = {INK: "currentColor", "#000000": "currentColor", PAPER: tokens.variable("paper")}
_PAINT |= {role.light: tokens.variable(name) for name, role in ROLES.items()}

WIDTH = 5.6  # inches, so 538 px
_STYLE: dict[str, Any] = {
    "svg.hashsalt": "kda",
    # text stays text; 10.5 points are 14 px
    "svg.fonttype": "none",
    "font.size": 10.5,
    "font.family": [MEASURE, "DejaVu Serif"],
    "mathtext.fontset": "custom",
    "mathtext.rm": MEASURE,
    "mathtext.it": f"{MEASURE}:italic",
    **{f"mathtext.{kind}": MEASURE for kind in ("bf", "bfit", "cal", "sf", "tt")},
    "mathtext.fallback": "stix",
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.titlesize": 10.5,
    "axes.labelsize": 10.5,
    "xtick.labelsize": 9.5,
    "ytick.labelsize": 9.5,
    "legend.fontsize": 10.5,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "legend.facecolor": "none",
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": INK,
    "grid.alpha": 0.15,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "figure.constrained_layout.use": True,
    "patch.edgecolor": INK,
    "hatch.color": INK,
    "hatch.linewidth": 0.5,
}


class Picture:
    """An SVG with its alt text; a notebook shows it inline."""

    def __init__(self, svg: str, alt: str) -> None:
        self.svg, self.alt = svg, alt

    def _repr_html_(self) -> str:
        return f'<div class="kda-figure">{self.svg}</div>'

    def __repr__(self) -> str:
        return f"<figure: {self.alt}>"


def style(role: str) -> dict[str, Any]:
    """Colour, marker and line of a role, for ``ax.plot(x, y, **style("key"))``.

    >>> style("state")["marker"]
    'D'
    """
    look = _role(role)
    return {"color": look.light, "marker": look.marker, "linestyle": look.line}


def axes(
    rows: int = 1, columns: int = 1, *, width: float = WIDTH, height: float = 3.0, **options: Any
) -> tuple[Any, Any]:
    """A matplotlib figure and its axes in the house style, one or an array of them as ``subplots`` gives them.

    width, height: inches   options: as for ``subplots``.   Sets matplotlib's defaults for this process, so that what is
    added to the axes later has the style too.

    >>> fig, panels = axes(1, 3, height=2)
    >>> panels.shape, fig.get_size_inches()[1].item()
    ((3,), 2.0)
    """
    import matplotlib
    from matplotlib.figure import Figure

    measure()
    matplotlib.rcParams.update(_STYLE)
    fig = Figure(figsize=(width, height))
    return fig, fig.subplots(rows, columns, **options)


def show(fig: Any, alt: str) -> Picture:
    """The picture of a matplotlib figure; `alt` says in one or two sentences what is to be seen in it.

    ValueError for an `alt` of fewer than three words.

    >>> fig, ax = axes()
    >>> show(fig, "An empty pair of axes.")
    <figure: An empty pair of axes.>
    """
    import matplotlib

    _alt(alt)
    measure()
    matplotlib.rcParams.update({"svg.hashsalt": _STYLE["svg.hashsalt"], "svg.fonttype": _STYLE["svg.fonttype"]})
    drawn = io.StringIO()
    fig.savefig(drawn, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = drawn.getvalue()
    # matplotlib's own style element would reach the whole page: its line joins stand on our frame instead
    svg = re.sub(
        r"<metadata>.*?</metadata>\s*|<!--.*?-->\s*|<style.*?</style>\s*", "", svg[svg.index("<svg") :], flags=re.S
    )
    # laid out with a face of the same widths; the page draws it with its own
    svg = re.sub(rf"'?{MEASURE}'?(, '?DejaVu Serif'?)?", face(), svg)
    head, body = svg.split(">", 1)
    size = dict(re.findall(r'(width|height)="([\d.]+)pt"', head))
    width, height = float(size["width"]), float(size["height"])
    return _picture(body.rsplit("</svg>", 1)[0], width * 4 / 3, (0, 0, width, height), alt)


def heat(ax: Any, matrix: Any, *, positive: str = "value", negative: str = "key", numbers: str = "") -> None:
    """Draw a matrix as cells: colour for the sign, opacity for the size, so that both backgrounds serve as zero.

    matrix: [rows, columns]   positive, negative: roles   numbers: a format such as ".1f"; without numbers, negative
    cells are hatched, so that the sign does not rest on colour.   ValueError for no entry and for more than 4,096.

    >>> fig, ax = axes()
    >>> heat(ax, [[1.0, -0.25]], numbers=".2f")
    >>> [text.get_text() for text in ax.texts]
    ['1.00', '−0.25']
    """
    from matplotlib.patches import Rectangle

    rows = [[float(x) for x in row] for row in matrix]
    if not rows or not 1 <= len(rows) * len(rows[0]) <= 4096:
        raise ValueError(f"heat draws 1 to 4096 cells, got {len(rows)} rows; draw a part of the matrix")
    top = max((abs(x) for row in rows for x in row if math.isfinite(x)), default=0) or 1
    for i, row in enumerate(rows):
        for j, x in enumerate(row):
            look = _role(negative if x < 0 else positive)
            share = min(abs(x) / top, 1) if math.isfinite(x) else 1
            # under a number the colour stays pale enough to read it
            paint = (look.light, (0.5 if numbers else 0.85) * share)
            ax.add_patch(Rectangle((j, i), 1, 1, facecolor=paint, linewidth=0.4, edgecolor=(INK, 0.25)))
            if x < 0 and share > 0.02 and not numbers:
                ax.add_patch(Rectangle((j, i), 1, 1, fill=False, linewidth=0, edgecolor=(INK, 0.5), hatch=look.hatch))
            if numbers:
                ax.text(j + 0.5, i + 0.5, _number(x, numbers), ha="center", va="center", fontsize=9)
    ax.set(xlim=(0, len(rows[0])), ylim=(len(rows), 0), aspect="equal", xticks=[], yticks=[])
    ax.spines[:].set_visible(False)


def _number(x: float, form: str) -> str:
    """A number with a true minus sign, and no sign on a zero."""
    text = format(x, form)
    return text.replace("-", "\u2212") if float(text) else text.lstrip("-")


class Board:
    """A drawing of matrices, boxes, arrows and labels, in pixels, y downwards.

    Labels know ``_`` and ``^``: "S_{t-1}" and "K^T" are set as sub- and superscript. Each method returns the rectangle
    (x, y, width, height) that it filled, so that the next part can be placed beside it.
    """

    def __init__(self, width: int = 540, height: int = 240) -> None:
        self.width, self.height = width, height
        self.parts: list[str] = []

    def text(
        self,
        x: float,
        y: float,
        label: str,
        *,
        size: int = 13,
        anchor: str = "middle",
        role: str = "",
        bold: bool = False,
    ) -> None:
        """A label whose middle (or "start", "end") stands at x, y."""
        paint = _PAINT[_role(role).light] if role else "currentColor"
        weight = ' font-weight="600"' if bold else ""
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" dominant-baseline="central" '
            f'style="fill: {paint}"{weight}>{_markup(label, size)}</text>'
        )

    def matrix(
        self,
        x: float,
        y: float,
        rows: int,
        columns: int,
        *,
        role: str = "state",
        cell: float = 16,
        label: str = "",
        shade: Callable[[int, int], float] | None = None,
        shape: str = "",
    ) -> tuple[float, float, float, float]:
        """A grid of cells in a role's colour; `shade(i, j)` in [0, 1] fills the cell (1 everywhere if not given)."""
        paint = _PAINT[_role(role).light]
        for i in range(rows):
            for j in range(columns):
                full = 1.0 if shade is None else max(0.0, min(1.0, float(shade(i, j))))
                self.parts.append(
                    f'<rect x="{x + j * cell:g}" y="{y + i * cell:g}" width="{cell:g}" height="{cell:g}" '
                    f'style="fill: {paint}; fill-opacity: {0.06 + 0.62 * full:.3g}; stroke: {paint}; '
                    'stroke-width: 1"/>'
                )
        w, h = columns * cell, rows * cell
        if label:
            self.text(x + w / 2, y - 12, label, bold=True)
        if shape:
            self.text(x + w / 2, y + h + 12, shape, size=11)
        return x, y, w, h

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        label: str = "",
        *,
        role: str = "state",
        hollow: bool = False,
    ) -> tuple[float, float, float, float]:
        """A rounded box with a label in it; `hollow` for what is missing, such as a residual."""
        paint = _PAINT[_role(role).light]
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" '
            f'style="fill: {paint}; fill-opacity: {0 if hollow else 0.14:g}; stroke: {paint}; stroke-width: 1.5"/>'
        )
        if label:
            self.text(x + width / 2, y + height / 2, label)
        return x, y, width, height

    def arrow(
        self,
        start: tuple[float, float],
        end: tuple[float, float],
        label: str = "",
        *,
        role: str = "",
        dashed: bool = False,
    ) -> None:
        """An arrow from start to end with a label above its middle."""
        paint = _PAINT[_role(role).light] if role else "currentColor"
        (x0, y0), (x1, y1) = start, end
        length = math.hypot(x1 - x0, y1 - y0) or 1
        ux, uy = (x1 - x0) / length, (y1 - y0) / length
        bx, by = x1 - 9 * ux, y1 - 9 * uy
        dash = "; stroke-dasharray: 5 4" if dashed else ""
        self.parts.append(
            f'<path d="M{x0:g} {y0:g}L{bx:g} {by:g}" style="fill: none; stroke: {paint}; stroke-width: 1.6{dash}"/>'
            f'<path d="M{x1:g} {y1:g}L{bx - 4 * uy:g} {by + 4 * ux:g}L{bx + 4 * uy:g} {by - 4 * ux:g}Z" style="fill: '
            f'{paint}"/>'
        )
        if label:
            self.text(
                (x0 + x1) / 2 + 12 * abs(uy),
                (y0 + y1) / 2 - 12 * abs(ux),
                label,
                size=12,
                anchor="start" if abs(uy) > 0.7 else "middle",
            )

    def show(self, alt: str) -> Picture:
        """The picture; `alt` says in one or two sentences what is to be seen in it."""
        _alt(alt)
        return _picture("".join(self.parts), self.width, (0, 0, self.width, self.height), alt)


def _role(name: str) -> Role:
    if name not in ROLES:
        raise ValueError(f"a role is one of {', '.join(ROLES)}, got {name!r}")
    return ROLES[name]


def _alt(alt: str) -> None:
    if len(alt.split()) < 3:
        raise ValueError(f"alt text says what is to be seen in the figure, got {alt!r}; write a sentence")


def _markup(label: str, size: int) -> str:
    """Text with ``_x``, ``_{..}``, ``^x`` and ``^{..}`` as tspans; the baseline returns after each."""
    out, shift = "", 0.0
    for plain, mark, group, one in re.findall(r"([^_^]+)|([_^])(?:\{([^}]*)\}|(.))", label):
        move = {"": 0.0, "_": 0.3, "^": -0.4}[mark] * size
        small = f' font-size="{round(size * 0.72)}"' if mark else ""
        out += f'<tspan dy="{move - shift:g}"{small}>{escape(plain or group or one)}</tspan>'
        shift = move
    return out


def _picture(body: str, width: float, view: Sequence[float], alt: str) -> Picture:
    """Paint for two themes, ids of this picture's own, and a frame that shrinks with the page."""
    body = re.sub(r"#[0-9a-fA-F]{6}\b", lambda m: _PAINT.get(m[0].lower(), m[0]), body)
    mark = "f" + hashlib.sha256((alt + body).encode()).hexdigest()[:8]
    body = re.sub(r'\bid="([^"]+)"', rf'id="{mark}-\1"', body)
    body = re.sub(r'href="#([^"]+)"', rf'href="#{mark}-\1"', body)
    body = re.sub(r"url\(#([^)]+)\)", rf"url(#{mark}-\1)", body)
    box = " ".join(f"{x:g}" for x in view)
    return Picture(
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" role="img" '
        f'aria-label="{escape(alt)}" '
        f'viewBox="{box}" width="{width:g}" style="max-width: 100%; height: auto; font-family: {face()}" '
        'fill="currentColor" '
        f'stroke-linejoin="round" stroke-linecap="butt">{body}</svg>',
        alt,
    )


def colour_variables(theme: str) -> str:
    """The CSS variables of the tokens for the theme "light" or "dark", as the book's style sheet has them.

    >>> colour_variables("light").split(";")[0]
    '--kda-key: #0072b2'
    """
    return variables(theme)


# the figures of a chapter are imported when they are first used
__getattr__, __dir__ = names(__name__, modules(__file__))

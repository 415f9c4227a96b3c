"""The book's look in one place: colours, type, space and the line of each rule.

Style sheets, figures, widgets and formulas all take them from here, so that each is changed in this file alone.
"""

from typing import NamedTuple


class Colour(NamedTuple):
    """A colour on light and on dark paper."""

    light: str
    dark: str


# one colour a symbol, everywhere: formulas, drawings, widgets, tables. beta is written in ink
SYMBOLS = {
    "key": Colour("#0072b2", "#56b4e9"),
    "query": Colour("#7a3fb0", "#c59bf0"),
    "value": Colour("#a65900", "#f0a030"),
    "state": Colour("#00805e", "#2fc79a"),
    "decay": Colour("#475569", "#a9b6c8"),
    # what is wrong, and nothing else
    "error": Colour("#b5173b", "#ff7f92"),
}
SURFACES = {
    "paper": Colour("#fbfaf7", "#15171a"),
    "card": Colour("#ffffff", "#1b1e22"),
    "sunk": Colour("#f7f5f0", "#202429"),
}
INKS = {
    "ink": Colour("#1c2127", "#e8e6e0"),
    "soft": Colour("#545d69", "#a9adb4"),
    # lines only, never text
    "hair": Colour("#dcd8cd", "#343940"),
    "edge": Colour("#8b8f96", "#727983"),
}
# the shades of code, on `sunk`; a comment is `soft`, a keyword `ink`
CODE = {
    "word": Colour("#7a3fb0", "#c59bf0"),
    "name": Colour("#005f96", "#7cc4ee"),
    "string": Colour("#00694d", "#52d0a8"),
    "number": Colour("#8a4a00", "#f0b050"),
}
# what is written on which surface; a test computes the contrast of each pair in both themes
TEXT = {
    surface: ("ink", "soft", *SYMBOLS) + (tuple(f"code-{name}" for name in CODE) if surface == "sunk" else ())
    for surface in SURFACES
}


class Line(NamedTuple):
    """How a rule is drawn: the lengths of dashes and gaps in px, none for a solid line, and the width in px.

    Caps are round, so that a dash of almost no length is a dot.
    """

    dash: tuple[float, ...]
    width: float


# a rule is a line in ink with its name beside it, never a colour; the same line in every chapter
RULES = {
    "softmax": Line((), 1.0),
    "linear attention": Line((0.1, 6), 3.0),
    "RetNet": Line((3, 7), 1.6),
    "DeltaNet": Line((8, 6), 2.2),
    "GDN": Line((12, 5, 0.1, 5), 2.4),
    "KDA": Line((), 3.6),
    "GDN-2": Line((20, 7), 3.6),
}

FAMILIES = {
    "text": '"Source Serif 4", Georgia, "DejaVu Serif", serif',
    "mono": '"JetBrains Mono", ui-monospace, Menlo, "DejaVu Sans Mono", monospace',
}
# family, file in book/_static/fonts, range of weights, slant
FACES = [
    ("Source Serif 4", "source-serif-4.var.woff2", "400 600", "normal"),
    ("Source Serif 4", "source-serif-4-italic.var.woff2", "400 600", "italic"),
    ("JetBrains Mono", "jetbrains-mono.var.woff2", "100 800", "normal"),
]
# size and line, px
SIZES = {
    "text": (17, 28),
    "h1": (36, 42),
    "h2": (26, 34),
    "h3": (20, 28),
    "caption": (15, 23),
    "code": (14.5, 22),
    "small": (15, 22),
    "widget": (15, 22),
}
# px: text in a drawing, on a desk and on a phone
SMALLEST = {"desk": 14, "phone": 12}
MEASURE = "66ch"
# px
SPACE = {"section": 64, "block": 28, "gutter": 16, "corner": 9, "corner-data": 4}


def colours() -> dict[str, Colour]:
    """All colours by the name of their CSS variable, without "--kda-".

    >>> colours()["key"].light
    '#0072b2'
    """
    return SYMBOLS | SURFACES | INKS | {f"code-{name}": colour for name, colour in CODE.items()}


def variable(name: str) -> str:
    """A colour for CSS and SVG: the variable, and the light colour where no style sheet sets it, as in a notebook.

    >>> variable("state")
    'var(--kda-state, #00805e)'
    """
    return f"var(--kda-{name}, {colours()[name].light})"


def macros() -> dict[str, str | list[str | int]]:
    r"""MathJax macros that give a symbol its colour through a class: ``\key{k_t}``, and ``\kk`` for the letter alone.

    >>> macros()["key"], macros()["kS"]
    (['\\class{kda-key}{#1}', 1], '\\class{kda-state}{S}')
    """
    wraps: dict[str, str | list[str | int]] = {
        command: [rf"\class{{kda-{name}}}{{#1}}", 1]
        for command, name in {
            "key": "key",
            "query": "query",
            "val": "value",
            "state": "state",
            "decay": "decay",
            "wrong": "error",
        }.items()
    }
    letters = {
        "kk": ("key", "k"),
        "kq": ("query", "q"),
        "kv": ("value", "v"),
        "kS": ("state", "S"),
        "ka": ("decay", r"\alpha"),
        "kK": ("key", r"\mathbf K"),
        "kQ": ("query", r"\mathbf Q"),
        "kV": ("value", r"\mathbf V"),
    }
    return wraps | {command: rf"\class{{kda-{name}}}{{{tex}}}" for command, (name, tex) in letters.items()}

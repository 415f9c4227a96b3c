"""Lines of rules and the text face, for matplotlib."""

from pathlib import Path
from typing import Any

from kda_lab.pages.look import tokens

INK = "#010203"  # stands for the colour of the page's text
MEASURE = "KDA measure"  # the text face under a name of its own: figures are laid out with its widths


def rule(name: str) -> dict[str, Any]:
    """The line of a rule, in ink, for ``ax.plot(x, y, label="KDA", **rule("KDA"))``; a rule has no colour.

    >>> rule("KDA")["linestyle"], len(rule("GDN")["linestyle"][1])
    ('-', 4)
    """
    if name not in tokens.RULES:
        raise ValueError(f"a rule is one of {', '.join(tokens.RULES)}, got {name!r}")
    line = tokens.RULES[name]
    # matplotlib counts dashes in widths of the line, the tokens in px
    dash = (0, tuple(part / line.width for part in line.dash)) if line.dash else "-"
    return {"color": INK, "linestyle": dash, "linewidth": line.width * 0.75, "marker": "", "dash_capstyle": "round"}


def name_lines(ax: Any, *, gap: float = 1.2) -> None:
    """Write the label of each line beside its right end, in ink; labels that would meet share the room around them.

    gap: least distance of two labels, in heights of a line of text.

    >>> from kda_lab import figures
    >>> fig, ax = figures.axes()
    >>> _ = ax.plot([0, 1], [0, 1], label="KDA", **rule("KDA"))
    >>> name_lines(ax)
    >>> [text.get_text() for text in ax.texts]
    ['KDA']
    """
    from matplotlib import rcParams

    ax.get_xlim(), ax.get_ylim()  # settles limits that are not yet computed
    step = gap * rcParams["font.size"] / (ax.figure.get_size_inches()[1] * 72 * ax.get_position().height)
    found = []
    for line in ax.lines:
        if not line.get_label().startswith("_"):
            end = ax.transData.transform((line.get_xdata()[-1], float(line.get_ydata()[-1])))
            found.append((float(ax.transAxes.inverted().transform(end)[1]), line.get_label()))
    for height, label in zip(apart([h for h, _ in sorted(found)], step), [label for _, label in sorted(found)]):
        ax.annotate(
            label, (1, height), xycoords="axes fraction", xytext=(5, 0), textcoords="offset points", va="center"
        )


def apart(heights: list[float], step: float) -> list[float]:
    """Ascending heights moved as little as need be, so that neighbours are `step` apart.

    >>> apart([0.0, 0.0, 1.0], 0.5)
    [-0.25, 0.25, 1.0]
    """
    # groups of (sum of where each wishes the group's first to be, members)
    groups: list[tuple[float, int]] = []
    for height in heights:
        total, count = height, 1
        while groups and groups[-1][0] / groups[-1][1] + step * groups[-1][1] > total / count:
            before, members = groups.pop()
            total, count = before + total - step * members * count, members + count
        groups.append((total, count))
    return [total / count + step * i for total, count in groups for i in range(count)]


def measure() -> None:
    """Give matplotlib the text face to lay out with."""
    from matplotlib import font_manager

    if all(font.name != MEASURE for font in font_manager.fontManager.ttflist):
        for path in sorted(Path(__file__).parent.glob("*.ttf")):
            font_manager.fontManager.addfont(path)


def face() -> str:
    """The text face for an attribute of an SVG: the page's variable, else the stack of the tokens.

    >>> face().startswith("var(--kda-text, 'Source Serif 4'")
    True
    """
    return f"var(--kda-text, {tokens.FAMILIES['text']})".replace('"', "'")

"""A document as bars: milliseconds on a logarithmic axis, each bar from what memory allows to what was measured."""

from kda_lab.bench.peers import data
from kda_lab.bench.table import time_of
from kda_lab.pages import figures

# who a bar belongs to: role of its colour, whether it is filled, words of the legend
KINDS = {
    "ours": ("state", True, "ours, measured"),
    "peer": ("key", True, "others, measured"),
    "reported": ("decay", False, "others, reported"),
}
ROW, GAP = 0.2, 0.34  # inches of a bar and above a workload


def kind(row):
    """The key of KINDS for a row."""
    if row["level"] == "reported":
        return "reported"
    return "peer" if row["impl"] in data()["versions"] else "ours"


def bars(document):
    """What is drawn -> [(shape, [(implementation, kind, floor, {gates: ms})])], in the order of the rows.

    >>> row = {"shape": "a", "impl": "hopper", "gates": "long", "level": "measured", "floor": 1.0, "call": None}
    >>> bars({"rows": [row | {"graph": {"median": 2.0}}, row | {"gates": "weak", "graph": None}]})
    [('a', [('hopper', 'ours', 1.0, {'long': 2.0})])]
    """
    groups = {}
    for row in document["rows"]:
        if time := time_of(row):
            at = groups.setdefault(row["shape"], {}).setdefault((row["impl"], kind(row)), (row["floor"], {}))
            at[1][row["gates"]] = time["median"]
    return [(shape, [(*name, *found) for name, found in group.items()]) for shape, group in groups.items()]


def words(times):
    """Times of some gates as a label.

    >>> words({"strong": 0.6, "long": 0.601}), words({"strong": 1.094, "long": 2.341})
    ('0.601', '1.09 to 2.34')
    """
    low, high = min(times.values()), max(times.values())
    return f"{low:.3g} to {high:.3g}" if spread(times) else f"{high:.3g}"


def spread(times):
    """Whether the gates make a difference that can be seen."""
    return max(times.values()) >= 1.03 * min(times.values())


def draw(document):
    """The picture.

    A bar begins at the floor of its row, so that on this axis its length is the ratio to the floor. It ends at the
    slowest gates, and a line in it leads there from the fastest. Raises ValueError where no row has a time.
    """
    groups = bars(document)
    if not groups:
        raise ValueError("no row has a time, so there is nothing to draw; measure at least one workload")
    count = sum(len(group) for _, group in groups)
    fig, ax = figures.axes(height=0.9 + ROW * count + GAP * len(groups))
    ends = [x for _, group in groups for bar in group for x in (bar[2], *bar[3].values())]
    left, right = min(ends) / 1.25, max(ends) * 4
    y, ticks, seen = 0.0, [], {}
    for shape, group in groups:
        y -= GAP
        ax.text(left, y + 0.55 * ROW, f" {shape}", fontsize=9, va="bottom")
        for name, what, floor, times in group:
            handle = bar(ax, y, what, floor, times)
            seen.setdefault(KINDS[what][2], handle)
            ticks.append((y, name))
            y -= ROW
    mark = ax.plot([], [], color=figures.INK, marker="|", linestyle="", markersize=8)[0]
    ax.set(xscale="log", xlim=(left, right), ylim=(y + 0.4 * ROW, 0.05), xlabel="milliseconds")
    ax.set_yticks([at for at, _ in ticks], [name for _, name in ticks], fontsize=8)
    ax.set_xticks(decades(left, right), [f"{x:g}" for x in decades(left, right)])
    ax.minorticks_off()
    ax.grid(axis="x")
    handles = {"floor: bytes at the rate of a copy": mark, **seen}
    if any(spread(times) for _, group in groups for *_, times in group):
        handles["fastest to slowest gates"] = ax.plot([], [], color=figures.INK, linewidth=1)[0]
    fig.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=2)
    return figures.show(fig, alt(groups, document))


def bar(ax, y, what, floor, times):
    """One bar with its floor, its range over the gates and its label; returns the bar."""
    role, filled, _ = KINDS[what]
    look = figures.ROLES[role]
    low, high = min(times.values()), max(times.values())
    ends = sorted((floor, high))
    paint = (
        {"facecolor": look.light, "alpha": 0.75}
        if filled
        else {"facecolor": "none", "edgecolor": look.light, "hatch": look.hatch}
    )
    (drawn,) = ax.barh(y, ends[1] - ends[0], 0.72 * ROW, left=ends[0], linewidth=1, **paint)
    ax.plot([floor] * 2, [y - 0.42 * ROW, y + 0.42 * ROW], color=figures.INK, linewidth=1.6)
    if spread(times):
        ax.plot([low, high], [y, y], color=figures.INK, linewidth=1, marker="|", markersize=5)
    ax.text(ends[1] * 1.06, y, words(times), fontsize=8, va="center")
    return drawn


def decades(left, right):
    """Ticks at 1, 2 and 5 within an interval, at most nine: else the ones alone.

    >>> decades(0.3, 6)
    [0.5, 1.0, 2.0, 5.0]
    """
    found = [float(f"{m}e{e}") for e in range(-6, 7) for m in (1, 2, 5)]
    inside = [x for x in found if left <= x <= right]
    return inside if len(inside) <= 9 else [x for x in inside if f"{x:e}".startswith("1")]


def alt(groups, document):
    """What is to be seen, in words."""
    fastest = [f"{shape}, {min(group, key=lambda b: max(b[3].values()))[0]}" for shape, group in groups]
    return (
        f"Bars on a logarithmic axis of milliseconds for {len(groups)} workloads, each from its memory floor to its "
        "time, on "
        f"{document['environment']['device']}. Shortest over the slowest gates: {'; '.join(fastest)}."
    )


def standalone(picture):
    """The text of an SVG file with a style of its own, dark where the reader's system is."""
    light = f"svg {{ color: #1a1a1a; background: #ffffff; --kda-paper: #ffffff; {figures.colour_variables('light')} }}"
    dark = f"svg {{ color: #e6e6e6; background: #121212; --kda-paper: #121212; {figures.colour_variables('dark')} }}"
    style = f"<style>{light} @media (prefers-color-scheme: dark) {{ {dark} }}</style>"
    opening, rest = picture.svg.split(">", 1)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{opening}>{style}{rest}\n'

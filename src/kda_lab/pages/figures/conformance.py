"""Pictures and listings of the chapter on whether public kernels agree."""

import re
import textwrap

from kda_lab.conformance import CASES
from kda_lab.pages.figures import axes, show, style

# beyond the axis of ratios: where failures without a ratio stand
INFINITE, OTHER = 250.0, 1250.0
# the largest ratio that is drawn
MOST = 100.0
LABELS = {"pass": "passes", "fail": "fails"}
# how the reason of a pass begins that is a refusal
ALLOWED = "refused, as the contract allows"
# the left end of the axis: what is better stands there
LEAST = 0.02


def margins(records):
    """The error of every case as a share of its budget, a row for each implementation.

    records: {name: document of ``conformance.study.run``}.
    """
    fig, ax = axes(height=0.6 + 0.5 * len(records))
    for row, (_name, document) in enumerate(reversed(records.items())):
        points = [(place(c), c["outcome"]) for c in document["cases"].values()]
        for outcome, role, size in (("pass", "state", 3.5), ("fail", "error", 7)):
            chosen = [x for x, o in points if o == outcome and x is not None]
            # a few heights, so that equal ratios do not cover each other
            heights = [row + 0.3 * ((7 * i) % 11 / 10 - 0.5) for i in range(len(chosen))]
            look = style(role) | {"linestyle": "", "markersize": size, "alpha": 0.55 if outcome == "pass" else 1}
            ax.plot(chosen, heights, label=LABELS[outcome] if row == 0 else None, **look)
    ax.axvline(1, linewidth=1, **{k: v for k, v in style("decay").items() if k != "marker"})
    ax.set(xscale="log", xlabel="error / budget", ylim=(-0.6, len(records) - 0.4), yticks=range(len(records)))
    ax.set_yticklabels(list(reversed(records)))
    ax.set_xlim(LEAST, 2.5 * OTHER)
    ax.set_xticks([0.1, 1, 10, INFINITE, OTHER], ["0.1", "1", "10", "not\nfinite", "other"])
    ax.minorticks_off()
    ax.legend(loc="lower center", bbox_to_anchor=(0.4, 1), ncol=3, handletextpad=0.1, columnspacing=1.2)
    measured = sum(place(c) < INFINITE for c in failures(records))
    return show(
        fig,
        f"Error over budget on a logarithmic axis, a row of dots for each of {len(records)} implementations. Passing "
        "cases lie around a "
        f"tenth and all below one. Of {len(failures(records))} failures {measured} have an error above one; the "
        "others are not finite or of "
        f"another kind.",
    )


def failures(records):
    """The rows of all failed cases.

    >>> failures({"mine": {"cases": {"plain-inputs": {"outcome": "fail"}, "weak-gates": {"outcome": "pass"}}}})
    [{'outcome': 'fail'}]
    """
    return [c for document in records.values() for c in document["cases"].values() if c["outcome"] == "fail"]


def place(case):
    """Where a case stands on the axis of `margins`: its error over its budget, or a place of its own for an error that
    is not finite or none; None if it measured nothing.

    case: {"outcome", "error", "budget"} of a document.

    >>> place({"outcome": "pass", "error": 0.5, "budget": 2.0}), place({"outcome": "refused", "error": None})
    (0.25, None)
    """
    if case["outcome"] == "fail":
        if case["error"] == "not finite":
            return INFINITE
        return (
            OTHER
            if case["error"] is None or case["error"] < case["budget"]
            else min(case["error"] / case["budget"], MOST)
        )
    if case["outcome"] != "pass" or not isinstance(case["error"], float):
        return None
    return max(case["error"] / case["budget"], LEAST)


def declared(records):
    """What was not asked of each implementation, and the refusals among its passes, in lines of 38 characters.

    records: {name: document of ``conformance.study.run``}.

    >>> case = {"outcome": "pass", "reason": "refused, as the contract allows: ValueError: K is odd"}
    >>> print(declared({"mine": {"implementation": {"sizes": None, "missing": ["varlen"]},
    ...     "cases": {"odd-head-sizes": case}}}))
    mine: sizes any; not asked: varlen; 1
        pass is a refused call, as the
        contract allows: odd-head-sizes
    """
    lines = []
    for who, document in records.items():
        made, cases = document["implementation"], document["cases"].items()
        only = ", ".join(f"{K}x{V}" for K, V in made["sizes"] or ()) or "any"
        text = f"{who}: sizes {only}; not asked: {', '.join(made['missing'])}"
        refused = [name for name, c in cases if c["outcome"] == "pass" and c["reason"].startswith(ALLOWED)]
        if refused:
            many = "1 pass is a refused call" if len(refused) == 1 else f"{len(refused)} passes are refused calls"
            text += f"; {many}, as the contract allows: {', '.join(refused)}"
        lines.append(narrow(text, ""))
    return "\n".join(lines)


def breaches(records):
    """Every case that somebody does not pass: its input, and how each of these came out, in lines of 38 characters.

    records: {name: document of ``conformance.study.run``}, all of the same cases.

    >>> case = {"outcome": "fail", "reason": "o is off by 0.2 where 0.1 is allowed (head 0)"}
    >>> print(breaches({"mine": {"cases": {"gates-of-zero": case}}}))
    gates-of-zero
      on: g=0 everywhere: nothing decays
      mine: o is off by 0.2 where 0.1 is
        allowed
    """
    lines = []
    for name in next(iter(records.values()))["cases"]:
        rows = [(who, document["cases"][name]) for who, document in records.items()]
        rows = [(who, c) for who, c in rows if c["outcome"] in ("fail", "refused", "error")]
        if rows:
            lines += [name, narrow(f"on: {CASES[name].input}", "  ")]
            lines += [narrow(f"{who}: {re.split(' [(]|[.] ', c['reason'])[0]}", "  ") for who, c in rows]
    return "\n".join(lines)


def narrow(text, indent):
    """Text in lines of 38 characters at most, which a narrow screen holds.

    indent: what the first line begins with; the others have four spaces.

    >>> print(narrow("a kernel that passes every case of the suite", "- "))
    - a kernel that passes every case of
        the suite
    """
    after = "    "
    return textwrap.fill(text, 38, initial_indent=indent, subsequent_indent=after, break_on_hyphens=False)

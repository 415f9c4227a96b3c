"""Things to move: HTML, SVG and a few lines of JavaScript with numbers that Python computed.

A `Static` needs no kernel, no network and no other file; it works in the built book, from ``file://`` and in a
notebook. Its controls are native inputs with labels, and what they change is also said in words. A `Widget` pairs a
`Static` with a live form (ipywidgets): a running notebook shows the live one, a build of the book (KDA_LAB_STATIC=1)
the static one, since a live widget on a static page would move a slider over a frozen output.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from kda_lab.data.lazy import modules, names
from kda_lab.pages.look import tokens

_KIT = Path(__file__).with_name("kit.js")


class Range:
    """A slider over lo, lo + step, ..., hi."""

    def __init__(self, name: str, label: str, lo: float, hi: float, step: float, start: float) -> None:
        _name(name)
        if not lo <= start <= hi or step <= 0:
            raise ValueError(
                f"the slider {name!r} must start between {lo} and {hi} with a step above 0, got start {start}, "
                f"step {step}"
            )
        self.name, self.label, self.lo, self.hi, self.step, self.start = name, label, lo, hi, step, start

    def html(self) -> str:
        return (
            f'<label><span>{escape(self.label)}</span> <input type="range" name="{self.name}" min="{self.lo:g}" '
            f'max="{self.hi:g}" '
            f'step="{self.step:g}" value="{self.start:g}" autocomplete="off"> <output></output></label>'
        )


class Choice:
    """A list of which one entry is chosen; its value is the entry's number, from 0."""

    def __init__(self, name: str, label: str, options: Sequence[str], start: int = 0) -> None:
        _name(name)
        if not 0 <= start < len(options):
            raise ValueError(f"the choice {name!r} has entries 0 to {len(options) - 1}, got start {start}")
        self.name, self.label, self.options, self.start = name, label, options, start

    def html(self) -> str:
        rows = "".join(
            f'<option value="{i}"{" selected" if i == self.start else ""}>{escape(o)}</option>'
            for i, o in enumerate(self.options)
        )
        return f'<label><span>{escape(self.label)}</span> <select name="{self.name}" autocomplete="off">{rows}</select></label>'


class Static:
    """A moving figure that needs no kernel.

    name: unique on its page. title: said to screen readers. controls: `Range` and `Choice`. data: JSON-able, finite.
    draw: the body of a JavaScript function of ``v`` (the controls' values by name), ``data`` and ``kit`` (helpers, see
    kit.js) that returns ``{svg: "...", say: "..."}``: what is drawn, and the same in words. size: (width, height) of
    the drawing.
    """

    def __init__(
        self,
        name: str,
        title: str,
        controls: Sequence[Range | Choice],
        data: Any,
        draw: str,
        size: tuple[int, int] = (540, 220),
    ) -> None:
        _name(name)
        if not controls:
            raise ValueError(f"the widget {name!r} has no control; draw a figure instead")
        self.name, self.title, self.controls, self.data, self.draw, self.size = name, title, controls, data, draw, size

    def _repr_html_(self) -> str:
        try:
            data = json.dumps(self.data, allow_nan=False, separators=(",", ":"))
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"the data of the widget {self.name!r} must be finite JSON ({error}); convert arrays with tolist()"
            ) from None
        # "</script" and "<!--" inside a script would end it early
        data = data.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
        if re.search(r"</script|<!--", self.draw, re.I):
            raise ValueError(f"the drawing of the widget {self.name!r} must not contain '</script' or '<!--'")
        width, height = self.size
        least = width * tokens.SMALLEST["phone"] / tokens.SMALLEST["desk"]
        controls = "".join(c.html() for c in self.controls)
        return (
            f'<div class="kda-widget" data-kda="{self.name}" role="group" aria-label="{escape(self.title)}">'
            f'<style>{_CSS}</style><div class="kda-controls">{controls}</div>'
            f'<div class="kda-drawing"><svg viewBox="0 0 {width} {height}" width="{width}" '
            # it shrinks as far as its text can be read, then it scrolls
            f'style="max-width: 100%; min-width: {least:.0f}px; height: auto" role="img" '
            f'aria-label="{escape(self.title)}" font-family="inherit" fill="currentColor"></svg></div>'
            f'<p class="kda-say" aria-live="polite">This figure moves with JavaScript.</p>'
            f'<script>(function () {{\n{kit()}\nkit.start("{self.name}", {data}, function '
            f"(v, data, kit) {{\n{self.draw}\n}});\n}})();</script></div>"
        )

    def __repr__(self) -> str:
        return f"<widget: {self.title}>"


def kit() -> str:
    """The drawing helpers of kit.js, with the colours and lines of the tokens.

    >>> "const tokens" in kit()
    True
    """
    paint = {name: tokens.variable(name) for name in (*tokens.SYMBOLS, "paper", "soft", "edge", "hair")}
    rules = {
        name: {"dash": " ".join(f"{part:g}" for part in line.dash), "width": line.width}
        for name, line in tokens.RULES.items()
    }
    look = {"paint": paint, "rules": rules, "smallest": tokens.SMALLEST["desk"]}
    return f"const tokens = {json.dumps(look)};\n{_KIT.read_text(encoding='utf-8')}"


class Widget:
    """The static form for pages, the live form for a running notebook.

    static: a `Static` or HTML. live: makes an ipywidgets object; called only where a kernel will answer.
    """

    def __init__(self, static: Static | str, live: Callable[[], Any] | None = None) -> None:
        self.static, self.live = static, live

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Mapping[str, Any]:
        if self.live is not None and _kernel():
            shown = self.live()
            made = shown._repr_mimebundle_()
            return made[0] if isinstance(made, tuple) else made
        html = self.static if isinstance(self.static, str) else self.static._repr_html_()
        return {"text/html": html, "text/plain": repr(self)}

    def __repr__(self) -> str:
        return "<widget>" if isinstance(self.static, str) else repr(self.static)


def _kernel() -> bool:
    """Whether a person's notebook is running: IPython with ipywidgets, and no build."""
    if os.environ.get("KDA_LAB_STATIC"):
        return False
    try:
        import ipywidgets  # noqa: F401
        from IPython import get_ipython
    except ImportError:
        return False
    return getattr(get_ipython(), "kernel", None) is not None


def _name(name: str) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9_-]*", name):
        raise ValueError(f"a name is a lower-case word such as beta or write-gate, got {name!r}")


# what the widget needs outside the book, where book/_static/lab.css is missing
_CSS = (
    ".kda-widget{margin:1em 0}.kda-widget label{display:flex;flex-wrap:wrap;gap:.2em "
    ".6em;align-items:center;margin:.2em 0}"
    ".kda-widget label span{min-width:11em}.kda-widget input[type=range]{flex:1 1 "
    "10em;max-width:20em;min-height:1.6em}"
    ".kda-widget output{min-width:3.5em;font-variant-numeric:tabular-nums}.kda-widget svg{display:block;margin:.4em 0}"
    ".kda-widget .kda-drawing{max-width:100%;overflow-x:auto}"
    ".kda-widget .kda-say{margin:.2em 0;min-height:1.5em}"
)


# the widgets of a chapter are imported when they are first used
__getattr__, __dir__ = names(__name__, modules(__file__))

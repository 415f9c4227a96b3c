"""The scene of the landing page: four memories hear the same few tokens and are asked the same four questions.

The rules are those of ``rules``; the rates are found by search, here and at every build. The page's script (in
book/_static/hero) plays the scene with its own copy of the rules, which a test holds to these.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np

from kda_lab import rules

VALUES = ("Rome", "Oslo", "417")
KEYS = {"Ada": (1.0, 0.0), "code": (0.0, 1.0)}
# what can be said: key, value, and the sentence in pieces, each with the role of its colour
FACTS = {
    "rome": ("Ada", "Rome", (("key", "Ada"), ("", "lives in"), ("value", "Rome"))),
    "oslo": ("Ada", "Oslo", (("key", "Ada"), ("", "moved to"), ("value", "Oslo"))),
    "code": ("code", "417", (("", "the"), ("key", "code"), ("", "is"), ("value", "417"))),
}
LASTS = {"code": 12}  # tokens after which nothing is the right answer; other facts last
STORY = ("rome", "oslo", "code", 2, 10)  # a number: tokens that say nothing
KEPT, GONE = 0.5, 0.1


class Check(NamedTuple):
    """A question of the story: about which key, after how many tokens, and what the scoreboard calls it."""

    key: str
    at: int
    name: str


# in the order of the columns
CHECKS = (
    Check("Ada", 2, "at once"),
    Check("Ada", 15, "at the end"),
    Check("code", 5, "in time"),
    Check("code", 15, "expired"),
)


class Memory(NamedTuple):
    """One of the four: its rule, its name in full, what it does in words, its terms and how its line is drawn."""

    id: str
    name: str
    full: str
    plain: str
    terms: tuple[str, ...]
    dash: str
    width: float


MEMORIES = (
    Memory("linear", "Linear attention", "", "adds whatever it hears", (), "0.1 7", 3),
    Memory("delta", "DeltaNet", "", "looks first, then writes the difference", ("look",), "9 6", 2.4),
    Memory("gdn", "GDN", "Gated DeltaNet", "looks first; the whole table fades at one rate", ("look", "fade"), "13 5 0.1 5", 2.6),
    Memory("kda", "KDA", "Kimi Delta Attention", "looks first; each column fades at its own rate", ("look", "fade", "own"), "", 4.5),
)  # fmt: skip


def tokens(story: Iterable[str | int] = STORY) -> list[str | None]:
    """A story token by token: a fact's name, or None where nothing is said.

    >>> tokens(["rome", 2])
    ['rome', None, None]
    """
    return [t for event in story for t in ([event] if isinstance(event, str) else [None] * event)]


def states(
    memory: str, rate: Any = None, beta: float = 1.0, heard: Sequence[str | None] | None = None
) -> list[np.ndarray]:
    """The state of a memory before the first token and after each, [tokens + 1][V, K].

    rate: one number for gdn, one a column for kda, unused by the others. beta: the strength of a write.

    >>> states("linear", heard=["rome", "oslo"])[-1][:, 0].tolist(), states("delta", heard=["rome", "oslo"])[-1][:, 0].tolist()
    ([1.0, 1.0, 0.0], [0.0, 1.0, 0.0])
    """
    S = np.zeros((len(VALUES), len(KEYS)))
    out = [S]
    for name in tokens() if heard is None else heard:
        key, value = FACTS[name][:2] if name else ("", "")
        k = np.array(KEYS.get(key, (0.0,) * len(KEYS)))
        v = np.array([float(x == value) for x in VALUES])
        if memory == "linear":
            S, _ = rules.linear(S, k, k, v)
        elif memory == "delta":
            S, _ = rules.delta(S, k, k, v, beta)
        elif memory == "gdn":
            S, _ = rules.gated_delta(S, k, k, v, rate, beta)
        else:
            S, _ = rules.kda(S, k, k, v, np.asarray(rate), beta)
        out.append(S)
    return out


def right(key: str, heard: Sequence[str | None]) -> str | None:
    """What a question deserves after these tokens: the last value said, or None for one that has expired.

    >>> right("Ada", ["rome", "oslo"]), right("code", ["code", *[None] * 12])
    ('Oslo', None)
    """
    said = [(i, FACTS[name][1]) for i, name in enumerate(heard) if name and FACTS[name][0] == key]
    if not said or len(heard) - 1 - said[-1][0] >= LASTS.get(key, np.inf):
        return None
    return said[-1][1]


def judge(answer: Sequence[float], want: str | None) -> str:
    """Whether an answer, a number a value, is "ok", "faint" or "bad" where `want` is right (None: nothing is).

    Kept: at least half of the right value and nothing else above half of that. Gone: nothing above a tenth.

    >>> judge([0, 0.9, 0], "Oslo"), judge([1, 1, 0], "Oslo"), judge([0, 0.3, 0], "Oslo"), judge([0, 0, 0.09], None)
    ('ok', 'bad', 'faint', 'ok')
    """
    if want is None:
        top = max(answer)
        return "ok" if top < GONE else "faint" if top < KEPT else "bad"
    o = answer[VALUES.index(want)]
    other = max(x for x, value in zip(answer, VALUES) if value != want)
    if o < GONE or other > o / 2:
        return "bad"
    return "ok" if o >= KEPT else "faint"


def verdict(answer: Sequence[float], want: str | None) -> str:
    """The same in words.

    >>> verdict([0, 0.9, 0], "Oslo"), verdict([1, 1, 0], "Oslo"), verdict([0, 0, 1], None)
    ('Oslo', 'Rome or Oslo?', 'still says 417')
    """
    mark, top = judge(answer, want), int(np.argmax(answer))
    if want is None:
        return {"ok": "let it go", "faint": f"{answer[top]:.2f} of {VALUES[top]} left"}.get(
            mark, f"still says {VALUES[top]}"
        )
    if mark != "bad":
        return want if mark == "ok" else f"{want}, but faint"
    o = answer[VALUES.index(want)]
    other, rival = max((x, value) for x, value in zip(answer, VALUES) if value != want)
    if other < GONE:
        return f"forgot {want}"
    return f"says {rival}" if other > o + 0.005 else f"{rival} or {want}?"


def marks(
    memory: str, rate: Any = None, beta: float = 1.0, checks: Sequence[Check] = CHECKS
) -> tuple[list[str], float]:
    """The verdict on each question of the story, and the squared error of all answers.

    >>> marks("delta")
    (['ok', 'ok', 'ok', 'bad'], 1.0)
    """
    heard, path = tokens(), states(memory, rate, beta)
    out, error = [], 0.0
    for check in checks:
        want, answer = right(check.key, heard[: check.at]), path[check.at] @ np.array(KEYS[check.key])
        out.append(judge(answer.tolist(), want))
        error += float(((answer - [float(v == want) for v in VALUES]) ** 2).sum())
    return out, error


@functools.cache
def best(memory: str, checks: tuple[Check, ...] = CHECKS) -> Any:
    """The rate with the most right answers and, among those, the least squared error; every hundredth is tried.

    Writes have full strength. None for a rule without a rate.

    >>> best("gdn"), best("gdn", (CHECKS[0], *CHECKS[2:]))      # with all questions; without the last one about Ada
    (0.95, 0.82)
    """
    hundredths = [n / 100 for n in range(101)]
    if memory in ("linear", "delta"):
        return None
    if memory == "gdn":
        rates: list[Any] = list(hundredths)
    else:
        rates = [(a, b) for a in hundredths for b in hundredths]

    def worth(rate: Any) -> tuple[int, float]:
        found, error = marks(memory, rate, checks=checks)
        return found.count("ok"), -error

    return max(rates, key=worth)


def data() -> dict[str, Any]:
    """Everything that the page's script needs to know: keys, facts, questions, rates found by search, verdicts.

    >>> sorted(data()["best"].items())
    [('delta', None), ('gdn', 0.95), ('kda', [1.0, 0.82]), ('linear', None)]
    """
    rate = {m.id: best(m.id) for m in MEMORIES}
    return {
        "values": VALUES,
        "keys": KEYS,
        "facts": {name: {"key": k, "value": v, "words": words} for name, (k, v, words) in FACTS.items()},
        "lasts": LASTS,
        "story": STORY,
        "checks": [c._asdict() for c in CHECKS],
        "memories": [m._asdict() for m in MEMORIES],
        "kept": KEPT,
        "gone": GONE,
        "best": {name: list(x) if isinstance(x, tuple) else x for name, x in rate.items()},
        "first": best("gdn", (CHECKS[0], *CHECKS[2:])),
        "table": {name: marks(name, x)[0] for name, x in rate.items()},
    }


MARKS = {
    "ok": "M2 7.5 5.5 11.5 12 2.5",
    "bad": "M3 3 11 11M11 3 3 11",
    "faint": "M1.5 8.5C3.5 4.5 5.5 5.5 7 7s3.5 2.5 5.5-1.500",
}


def _text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>'


def panel(memory: Memory) -> str:
    """The last state of one memory as SVG, with its rates and its answers to the two questions at the end.

    >>> panel(MEMORIES[0]).count("<svg")
    1
    """
    rate, cell, tall, left, top = best(memory.id), 56, 34, 56, 86
    S, heard = states(memory.id, rate)[-1], tokens()
    out = [
        f'<line x1="2" x2="218" y1="4" y2="4" class="line" stroke-width="{memory.width}" stroke-dasharray="{memory.dash}"/>',
        _text(0, 30, memory.name, "name"),
        _text(0, 48, memory.full, "soft"),
        *(_text(left + cell * (i + 0.5), top - 8, key, "key", "middle") for i, key in enumerate(KEYS)),
    ]
    for row, value in enumerate(VALUES):
        y = top + row * tall
        out.append(_text(left - 8, y + 22, value, "value", "end"))
        for column, x in enumerate(S[row]):
            x0, height = left + column * cell, min(1.0, abs(x)) * (tall - 2)
            out.append(f'<rect x="{x0 + 1}" y="{y + 1}" width="{cell - 2}" height="{tall - 2}" class="cell"/>')
            if x > 0.004:
                out.append(
                    f'<rect x="{x0 + 1}" y="{y + tall - 1 - height:.2f}" width="{cell - 2}" height="{height:.2f}" class="fill"/>'
                )
                out.append(_text(x0 + cell / 2, y + 22, f"{x:.2f}", "", "middle"))
    y = top + len(VALUES) * tall + 18
    if rate is None:
        out.append(_text(left + cell, y, "never fades", "decay", "middle"))
    elif isinstance(rate, tuple):
        out += [_text(left + cell * (i + 0.5), y, f"× {x:.2f}", "decay", "middle") for i, x in enumerate(rate)]
    else:
        out.append(_text(left + cell, y, f"both × {rate:.2f} a token", "decay", "middle"))
    said = []
    for line, (key, k) in enumerate(KEYS.items()):
        answer, want = (S @ np.array(k)).tolist(), right(key, heard)
        mark, words = judge(answer, want), verdict(answer, want)
        said.append(f"{key}? {words}")
        place = y + 26 + 24 * line
        out.append(_text(0, place, f"{key}?", "query"))
        out.append(f'<path d="{MARKS[mark]}" transform="translate(54 {place - 12})" class="mark {mark}"/>')
        out.append(_text(74, place, words, f"verdict {mark}"))
    alt = escape(f"{memory.full or memory.name}, after the story: {'; '.join(said)}.")
    return f'<svg viewBox="0 0 220 {y + 62:g}" role="img" aria-label="{alt}">{"".join(out)}</svg>'


def picture() -> str:
    """The last scene without a script: four panels, and what they heard.

    >>> "no one rate" in picture()
    True
    """
    return (
        f'<div class="hero-static"><div class="hero-panels">{"".join(panel(m) for m in MEMORIES)}</div>'
        f"<p>All four heard the same: Ada lives in Rome; Ada moved to Oslo; the code is 417. The code is good for "
        f"{LASTS['code']} tokens, and {LASTS['code']} tokens later they are asked “Ada?” (right: Oslo) and "
        f"“code?” (right: nothing, for it has expired). GDN is set to the best of all its rates, but no one rate "
        f"keeps Ada and drops the code, because whatever fades the code fades Ada as much. KDA has a rate for each column.</p></div>"
    )


class Scene:
    """The hero of the landing page: a static picture, the scene's constants, and the scripts that play it.

    folder: where the scripts stand, as the page sees it. Without them, in a notebook or on paper, the picture is left.
    """

    def __init__(self, folder: str = "../_static/hero") -> None:
        self.folder = folder

    def _repr_html_(self) -> str:
        constants = json.dumps(data(), allow_nan=False).replace("<", "\\u003c")
        scripts = "".join(f'<script src="{self.folder}/{name}.js"></script>' for name in ("rules", "parts", "page"))
        return (
            f'<div class="kda-hero"><link rel="stylesheet" href="{self.folder}/hero.css">{picture()}'
            f'<div class="hero-live" hidden></div><script type="application/json" class="hero-data">{constants}</script>'
            f"{scripts}</div>"
        )

    def __repr__(self) -> str:
        return "<widget: Four memories heard the same thing>"


def scene() -> Scene:
    """The hero of the landing page.

    >>> scene()
    <widget: Four memories heard the same thing>
    """
    return Scene()

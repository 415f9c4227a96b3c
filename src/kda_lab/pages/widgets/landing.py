"""What the landing page says about the book: doors, contents, one line of the registry, and the colophon.

Every number is counted while the page is built: from the book's files, from the registry, and by judging equations.
"""

from __future__ import annotations

import ast
import inspect
import json
import math
import re
import subprocess
import textwrap
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from kda_lab.proof.equations import EQUATIONS, index, prove

WORDS_A_MINUTE = 200
MINUTES_A_FORMULA = 0.5
# what a door is called, what is behind it, and the pages that one reads there, the first one first
DOORS = (
    ("Learn the rules", "From a sum to Kimi Delta Attention, one change at a time.", "memory deltanet gdn kda"),
    (
        "Read or port a kernel",
        "How a chain of corrections becomes a few matrix products, and these become threads and warps.",
        "affine writes oldstate readout exponents cuda hopper",
    ),
    (
        "Check your kernel",
        "Run the conformance suite on your own function, and see which mistakes it would catch.",
        "conformance errata",
    ),
    (
        "Run a hybrid model",
        "Which states a server keeps, how it shares and takes them back, and what fits.",
        "layer pages keeping prefixes speculation sizing",
    ),
)


class Html:
    """A piece of a page."""

    def __init__(self, html: str, name: str) -> None:
        self.html, self.name = html, name

    def _repr_html_(self) -> str:
        return f'<div class="kda-landing">{self.html}</div>'

    def __repr__(self) -> str:
        return f"<{self.name}>"


class Page(NamedTuple):
    """A chapter: the stem of its file, its title, its question in plain words ("" without one), minutes of reading."""

    stem: str
    title: str
    question: str
    minutes: int


def root(book: str | Path | None = None) -> Path:
    """The folder with _toc.yml: above `book`, or the nearest one above the current folder.

    >>> root("book") == Path("book").resolve().parent
    True
    """
    if book is not None:
        return Path(book).resolve().parent
    here = Path.cwd()
    return next((folder for folder in (here, *here.parents) if (folder / "_toc.yml").is_file()), here.parent)


def plain(text: str) -> str:
    """Markdown as plain words: roles give their text, emphasis and code their content, formulas stay without dollars.

    >>> plain("A {term}`hybrid model <hybrid>` keeps *two* kinds of `S`.")
    'A hybrid model keeps two kinds of S.'
    """
    text = re.sub(r"\{[\w:-]+\}`([^`<]*?)\s*(?:<[^`>]*>)?`", r"\1", text)
    text = re.sub(r"\*+([^*]+)\*+", r"\1", text.replace("`", ""))
    return " ".join(re.sub(r"\$([^$]+)\$", r"\1", text).replace("\\", "").split())


def minutes(text: str) -> int:
    """How long a page takes: its words outside of code and formulas at 200 a minute, and half a minute a formula.

    >>> minutes("word " * 400), minutes("word " * 400 + "$$x$$")
    (2, 3)
    """
    text = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.S)
    formulas = len(re.findall(r"^`{3,}\{math\}|\$\$.+?\$\$", text, re.S | re.M))
    text = re.sub(r"\$\$.+?\$\$", "", text, flags=re.S)
    text = re.sub(
        r"^(`{3,})\{?(?!note|warning|admonition|exercise|solution|glossary)[^\n]*\n.*?^\1$", "", text, flags=re.S | re.M
    )
    words = [w for w in text.split() if re.search(r"\w", w)]
    return math.ceil(len(words) / WORDS_A_MINUTE + MINUTES_A_FORMULA * formulas)


def read(stem: str, book: Path) -> Page:
    """A chapter from its file.

    >>> read("gdn", root("book") / "book").title
    'Forgetting: Gated DeltaNet and its relatives'
    """
    text = (book / f"{stem}.md").read_text(encoding="utf-8")
    title = re.search(r"^# (.+)$", text, re.M)
    asked = re.search(r"\{admonition\} Question\n(?::[^\n]*\n)*\n?(.+?)\n\s*\n", text, re.S)
    return Page(stem, plain(title[1]) if title else stem, plain(asked[1]) if asked else "", minutes(text))


def parts(book: str | Path | None = None) -> list[tuple[str, list[Page]]]:
    """The parts of _toc.yml with their chapters.

    >>> [caption for caption, _ in parts("book")][:2]
    ['Why', 'Four rules']
    """
    import yaml

    top = root(book)
    toc = yaml.safe_load((top / "_toc.yml").read_text(encoding="utf-8"))
    return [(p["caption"], [read(Path(c["file"]).name, top / "book") for c in p["chapters"]]) for p in toc["parts"]]


def doors(book: str | Path | None = None) -> Html:
    """Four ways in, as cards with minutes.

    >>> doors("book")
    <four ways in>
    """
    folder, cards = root(book) / "book", []
    for name, what, stems in DOORS:
        pages = [read(stem, folder) for stem in stems.split()]
        cards.append(
            f'<a class="card" href="{pages[0].stem}.html"><b>{name}</b><span>{what}</span>'
            f"<i>{len(pages)} pages · about {sum(p.minutes for p in pages)} min</i></a>"
        )
    return Html(f'<div class="cards">{"".join(cards)}</div>', "four ways in")


def contents(book: str | Path | None = None) -> Html:
    """The chapters as questions, with minutes; pages without a question are named in one line.

    >>> contents("book").html.count("<li>") >= 20
    True
    """
    shown, reference = [], []
    for caption, pages in parts(book):
        rows = [
            f'<li><a href="{p.stem}.html">{escape(p.question)}</a><i>{p.minutes} min</i><small>{escape(p.title)}</small></li>'
            for p in pages
            if p.question
        ]
        if rows:
            shown.append(f'<div class="part"><b class="caption">{escape(caption)}</b><ol>{"".join(rows)}</ol></div>')
        reference += [f'<a href="{p.stem}.html">{escape(p.title)}</a>' for p in pages if not p.question]
    rest = f'<p class="soft">To look things up: {" · ".join(reference)}.</p>' if reference else ""
    return Html(f'<div class="contents">{"".join(shown)}</div>{rest}', "contents as questions")


def code(function: Any) -> str:
    """The body of a function without its docstring.

    >>> code(root)[:10]
    'if book is'
    """
    source = textwrap.dedent(inspect.getsource(function))
    body = [
        n for n in ast.parse(source).body[0].body if not (isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant))
    ]
    return textwrap.dedent("\n".join(source.split("\n")[body[0].lineno - 1 :])).strip()


def rows(book: str | Path | None = None, equations: Sequence[Any] = EQUATIONS) -> list[dict[str, Any]]:
    """Rows of the registry that fit the landing page: equations of the update rules, each judged now.

    An equation or a mutant that does not come out as the registry says is an AssertionError: the page would be wrong.

    >>> [row["slug"] for row in rows("book", [e for e in EQUATIONS if e.slug == "kda-recurrence"])]
    ['kda-recurrence']
    """
    from kda_lab import rules

    told, out, functions = index.pages(root(book) / "book"), [], {}
    for name, function in vars(rules).items():
        if slug := re.search(r"Implements\s+([\w-]+)", getattr(function, "__doc__", "") or ""):
            functions[slug[1]] = name
    for equation in equations:
        if equation.slug not in functions or len(equation.mutants) < 3:
            continue
        name = functions[equation.slug]
        (verdict,) = prove(equation.slug)
        assert verdict.ok, f"{equation.slug} or one of its wrong versions does not come out as the registry says"
        page, anchor = told.get(equation.slug, ("equations", equation.slug))
        out.append(
            {
                "slug": equation.slug,
                "says": equation.sentence,
                "level": verdict.level,
                "tried": f"{verdict.engine}: {verdict.sizes}",
                "wrong": [wrong for wrong, _ in verdict.mutants],
                "function": f"rules.{name}",
                "code": code(getattr(rules, name)),
                "page": f"{page}.html#{anchor}" if anchor else f"{page}.html",
            }
        )
    return out


def _row(row: dict[str, Any]) -> str:
    some = ", ".join(row["wrong"][:3])
    return (
        f'<p class="says">{escape(row["says"])}</p><pre><code>{escape(row["code"])}</code></pre>'
        f'<p><a href="{row["page"]}"><code>{row["slug"]}</code></a>, <span class="kda-level kda-level-{row["level"]}">'
        f"{row['level']}</span>: {len(row['wrong'])} wrong versions were tried as well (among them: {escape(some)}), and "
        f"the checks rejected every one of them.</p>"
    )


# picks another row at each visit; the row of the page stays where there is no script or no storage
_PICK = """
(() => {
  const box = document.querySelector(".kda-landing .promise"), rows = JSON.parse(box.parentNode.querySelector("script").textContent);
  let visit = 0;
  try { visit = Number(localStorage.getItem("kda-row") || 0); localStorage.setItem("kda-row", visit + 1); } catch (error) { return; }
  box.innerHTML = rows[visit % rows.length];
})();
"""


def promise(book: str | Path | None = None, first: str = "kda-recurrence") -> Html:
    """One row of the registry, another one at each visit; without a script the row `first`.

    >>> promise("book")
    <one line of the book>
    """
    found = sorted(rows(book), key=lambda row: row["slug"] != first)
    shown = [_row(row) for row in found]
    stored = json.dumps(shown).replace("<", "\\u003c")
    note = f"one of {len(EQUATIONS)} equations, with {sum(len(e.mutants) for e in EQUATIONS)} wrong versions in all"
    return Html(
        f'<div class="promise">{shown[0]}</div><p class="soft">This is {note}. Another one stands here at your next visit; '
        f'<a href="equations.html">the index</a> has them all.</p><script type="application/json">{stored}</script>'
        f"<script>{_PICK}</script>",
        "one line of the book",
    )


def changed(top: Path) -> str:
    """The day of the last commit of the sources, "" where there is no history.

    >>> bool(re.fullmatch(r"(\\d{4}-\\d\\d-\\d\\d)?", changed(Path("."))))
    True
    """
    try:
        done = subprocess.run(["git", "log", "-1", "--format=%cs"], cwd=top, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()


def colophon(book: str | Path | None = None) -> Html:
    """Version, day of the sources, licence and how to cite, from CITATION.cff.

    >>> colophon("book")
    <colophon>
    """
    import yaml

    top = root(book)
    cite = yaml.safe_load((top / "CITATION.cff").read_text(encoding="utf-8"))
    day = changed(top)
    authors = ", ".join(a.get("name") or f"{a['given-names']} {a['family-names']}" for a in cite["authors"])
    year = f" ({day[:4]})" if day else ""
    return Html(
        f'<p class="soft">Version {escape(str(cite["version"]))}{f", sources of {day}" if day else ""}. Licence: '
        f"{escape(cite['license'])}. To cite: {escape(authors)}{year}. <cite>{escape(cite['title'])}</cite>, version "
        f"{escape(str(cite['version']))}. The file CITATION.cff has the same for machines.</p>",
        "colophon",
    )

"""The equation index: what holds, how far, where it is implemented and where it is told."""

import re
from html import escape
from pathlib import Path

from kda_lab.proof import display

PACKAGE = Path(__file__).resolve().parents[2]
SOURCES = (
    "rules.py",
    *(f"{floor}/*.py" for floor in ("algebra", "parts", "study", "study/recall", "ops", "layer")),
    "cuda/source/*.cu*",
)
# a word in a CUDA file's name, and the page that explains the file; without one it is the page on the readable kernel
CHAPTERS = {"hopper": "hopper", "decode": "layer"}


def implementations(slug, package=PACKAGE):
    """Places that say they implement a slug: (file, line, function) in Python docstrings, (file, line, "") in CUDA
    markers.

    >>> implementations("kda-recurrence")[0][::2]
    ('rules.py', 'kda')
    """
    found = []
    for path in [p for pattern in SOURCES for p in sorted(package.glob(pattern))]:
        name = str(path.relative_to(package))
        function, first, listing = "", 0, False
        for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if path.suffix in (".cu", ".cuh"):
                if re.match(rf"\s*//\s*\[{re.escape(slug)}\]", text):
                    found.append((name, number, ""))
                continue
            if opened := re.match(r"(?:def|class) (\w+)", text):
                function, first = opened[1], number
            listing = "Implements" in text or (listing and text.strip() and ">>>" not in text and '"""' not in text)
            if (
                listing
                and function
                and re.search(rf"(?<![\w-]){re.escape(slug)}(?![\w-])", text.split("Implements")[-1])
            ):
                found.append((name, first, function))
    return found


def pages(book):
    """For each slug, the page that labels it (or else proves it) and the anchor there.

    book: folder of the pages.   Returns {slug: (page, anchor)}.
    """
    labelled, proved = {}, {}
    for path in sorted(Path(book).glob("*.md")):
        text = path.read_text(encoding="utf-8")
        for slug in re.findall(r"^:label: ([\w-]+)$", text, re.M):
            labelled.setdefault(slug, (path.stem, f"equation-{slug}"))
        for call in re.findall(r"prove\((.*?)\)", text, re.S):
            for slug in re.findall(r'"([\w-]+)"', call):
                proved.setdefault(slug, (path.stem, ""))
    return {**proved, **labelled}


def quotations(book):
    """For each CUDA file and slug whose lines a page quotes, (file, slug), the page.   book: folder of the pages."""
    found = {}
    for path in sorted(Path(book).glob("*.md")):
        for place in re.findall(r"\{cuda-source\} (\S+) ([\w-]+)", path.read_text(encoding="utf-8")):
            found.setdefault(place, path.stem)
    return found


class Index:
    """The index as a table, from verdicts and the equations that they judge."""

    def __init__(self, verdicts, equations, book):
        self.verdicts, self.book = verdicts, book
        self.equations = {e.slug: e for e in equations}
        self.quoted = quotations(book)

    def _repr_html_(self):
        told = pages(self.book)
        head = "".join(f"<th>{h}</th>" for h in ("equation", "says", "tried on", "mistakes rejected", "implemented in"))
        rows = "".join(self._row(v, told) for v in self.verdicts)
        return (
            f"<div class='kda-verdicts kda-index' "
            f"tabindex='0'><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
        )

    def _row(self, v, told):
        page, anchor = told.get(v.slug, ("", ""))
        name = f"<code>{v.slug}</code>"
        if page:
            name = f"<a href='{page}.html{'#' + anchor if anchor else ''}'>{name}</a>"
        code = "<br>".join(_place(v.slug, *p, self.quoted) for p in implementations(v.slug)) or "&ndash;"
        says = escape(self.equations[v.slug].sentence)
        return (
            f"<tr id='{v.slug}'><td>{name}<br>{display.badge(v.level)}</td><td>{says}</td>"
            f"<td>{escape(v.engine)}: {escape(v.sizes)}<br>{v.seconds:.2f} "
            f"s</td><td>{display.mutants(v)}</td><td>{code}</td></tr>"
        )

    def __repr__(self):
        return repr(display.Verdicts(self.verdicts))


def _place(slug, name, line, function, quoted):
    """A Python place links to its listing in the API, CUDA lines to where the book quotes or explains them."""
    if function:
        module = name.removesuffix(".py").replace("/", ".")
        return f"<a href='../_modules/kda_lab/{module.replace('.', '/')}.html#{function}'>{module}.{function}</a>"
    page, anchor = quoted.get((Path(name).name, slug)), f"#cuda-{slug}"
    if page is None:
        page, anchor = next((told for word, told in CHAPTERS.items() if word in name), "cuda"), ""
    return f"<a href='{page}.html{anchor}'>{name}:{line}</a>"

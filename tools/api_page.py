"""Write book/api.md from the package's public surface: python tools/api_page.py [--check]

First every name of ``import kda_lab as kl``, with the first sentence of its docstring; then the modules behind them,
floor by floor, as Sphinx reads them. With --check nothing is written, and the exit status says whether it would change.
"""

import inspect
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "book" / "api.md"
PACKAGE = ROOT / "src" / "kda_lab"
FLOORS = {
    "rules": "The specification",
    "ops": "The rules over batches",
    "layer": "The layer",
    "algebra": "The chunk algebra",
    "parts": "Parts of a layer",
    "study": "What follows from the rules",
    "proof": "Proofs",
    "cuda": "Kernels",
    "conformance": "Conformance",
    "serving": "Serving",
    "bench": "Timing",
    "pages": "Pages",
    "data": "Data",
    "cli": "The command line",
}
# each equation and chapter has its own page; a record's adapters are told in the README of the suite
LEFT_OUT = (
    "proof.equations.",
    "pages.figures",
    "pages.widgets",
    "cuda.on_cpu",
    "conformance.cases",
    "conformance.report",
    # torch's docstrings come with its classes
    "ops.gradient",
)
HEAD = """(api)=
# API

Everything that the pages, and your code, need is a name of one module:

```python
>>> import kda_lab as kl
>>> kl.chunk_kda.__module__
'kda_lab.ops.kda'

```

Names are imported when they are first used, so `import kda_lab` loads no torch. This page is written by
`tools/api_page.py` from that list; the modules behind it follow, floor by floor.

"""


def first_sentence(thing):
    """The first sentence of a docstring, or what it is."""
    text = " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())
    end = text.find(". ")
    return (text[: end + 1] if end > 0 else text).replace("|", "\\|")


def names():
    """The table of public names: functions and classes first, then modules."""
    import kda_lab as kl

    rows = {name: getattr(kl, name) for name in kl.__all__}
    modules = [name for name, x in rows.items() if inspect.ismodule(x)]
    for title, chosen in (("function or class", [n for n in rows if n not in modules]), ("module", modules)):
        yield f"| {title} | what it is |\n|---|---|"
        yield from (f"| `kl.{name}` | {first_sentence(rows[name]).replace('``', '`')} |" for name in chosen)
        yield ""


def modules(floor):
    """The modules of a floor, the package itself first."""
    if (PACKAGE / f"{floor}.py").is_file():
        return [floor]
    found = [p.relative_to(PACKAGE).with_suffix("") for p in sorted((PACKAGE / floor).rglob("*.py"))]
    dotted = [".".join(p.parts).removesuffix(".__init__") for p in found if p.name != "__main__"]
    return sorted(name for name in dotted if not f"{name}.".startswith(tuple(f"{x.rstrip('.')}." for x in LEFT_OUT)))


def defines(name):
    """Whether a module has functions or classes of its own; a package that only names them is shown without."""
    path = PACKAGE / name.replace(".", "/")
    text = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8")
    return re.search(r"^(?:def|class) ", text, re.M) is not None


def page():
    """The text of the page."""
    lines = [HEAD.rstrip(), "", *names()]
    for floor, title in FLOORS.items():
        lines += [f"## {title}", ""]
        for name in modules(floor):
            lines += [
                f"### kda_lab.{name}",
                "",
                "```{eval-rst}",
                f".. automodule:: kda_lab.{name}",
                *(["   :members:"] if defines(name) else []),
                "```",
                "",
            ]
    return "\n".join(lines).rstrip() + "\n"


def main():
    """Write the page, or compare it."""
    text = page()
    if "--check" in sys.argv[1:]:
        same = PAGE.read_text(encoding="utf-8") == text
        print(f"{PAGE.name} is as the surface says" if same else f"{PAGE.name} is old; run python tools/api_page.py")
        return 0 if same else 1
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""``%%gpu NAME``: run a cell on a CUDA device and record it, or show its record where there is none.

A page says ``from kda_lab import gpucell`` once and then begins a cell with ``%%gpu NAME`` (names are lower-case words
with hyphens). With a CUDA device the cell runs and ``recordings/NAME.json`` is written; elsewhere, and in every build
of the book, the record is shown again under a banner that says where and when it was made. ``%%gpu NAME --bind x,y``
keeps the JSON-able variables x and y for later cells, when the record is shown too. ``kda-lab gpu record`` does the
same for whole pages with plain Python, without Jupyter: it runs each GPU cell and those earlier cells of its page that
it needs.

What a record depends on, and so what makes it stale:

* the cell, and the earlier cells of the page that it needs (`kda_lab.pages.pagecells`): recording runs exactly these.
* every module of ``kda_lab`` that was loaded when the cell finished. ``gpucell``, ``records``, ``pagecells`` and
  ``cli`` never count; ``figures`` and ``widgets`` count if the cell itself names them, since a record keeps the drawing
  as it was made; ``proof`` and ``conformance`` count if the cell, or a cell that it needs, uses a name of theirs.
* every CUDA file that was compiled (`kda_lab.data.sources.note`), with the files of ours that it includes.

All are compared without comments and docstrings. The rule errs on the safe side: a module that was loaded for another
cell of the page counts too.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import linecache
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kda_lab.data import RECORDINGS
from kda_lab.data.provenance import provenance
from kda_lab.data.sources import PACKAGE
from kda_lab.pages.fingerprint import cell_digest, used_sources
from kda_lab.pages.pagecells import Cell, PageError, arguments, needed, page_cells, parse_cell, tree
from kda_lab.pages.records import SCHEMA, RecordError, banner, changes, read_record, write_record

BOOK = PACKAGE.parents[1] / "book"

# ---------------------------------------------------------------- running a cell


def bundle(value: Any) -> dict[str, Any]:
    """The forms in which an object shows itself, by MIME type, as a notebook would keep them."""
    data: dict[str, Any] = {}
    if hasattr(value, "_repr_mimebundle_"):
        made = value._repr_mimebundle_()
        data |= made[0] if isinstance(made, tuple) else made or {}
    for kind, mime in (
        ("html", "text/html"),
        ("svg", "image/svg+xml"),
        ("png", "image/png"),
        ("markdown", "text/markdown"),
        ("latex", "text/latex"),
    ):
        show = getattr(value, f"_repr_{kind}_", None)
        if mime not in data and callable(show) and (form := show()) is not None:
            data[mime] = form
    data = {mime: base64.b64encode(form).decode() if isinstance(form, bytes) else form for mime, form in data.items()}
    return {"text/plain": repr(value)} | data


def run_cell(cell: Cell, space: dict[str, Any]) -> list[dict[str, Any]]:
    """Run a cell in a namespace; its prints, the objects that it gives to `display`, and its last value, in order."""
    code, outputs, printed = tree(cell), [], io.StringIO()
    name = f"<{cell.page}:{cell.line}>"
    # tracebacks and inspect.getsource find the cell's lines
    linecache.cache[name] = (len(cell.code), None, cell.code.splitlines(True), name)

    def flush() -> None:
        if text := printed.getvalue():
            outputs.append({"type": "stream", "text": text})
            printed.seek(0)
            printed.truncate()

    def display(*values: Any) -> None:
        flush()
        outputs.extend({"type": "data", "data": bundle(value)} for value in values)

    last = code.body.pop() if code.body and isinstance(code.body[-1], ast.Expr) else None
    kept = {key: space[key] for key in ("display",) if key in space}
    space["display"] = display
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(code, name, "exec"), space)
            if last is not None:
                value = eval(compile(ast.Expression(last.value), name, "eval"), space)
                quiet = cell.code.rstrip().endswith(";")
                if value is not None and not quiet:
                    display(value)
    finally:
        if space.get("display") is display:
            del space["display"]
            space.update(kept)
    flush()
    return outputs


def make_record(cells: list[Cell], space: dict[str, Any], where: Path | None = None) -> dict[str, Any]:
    """Run the last of the needed cells (the others have run in `space`) and write its record."""
    cell = cells[-1]
    outputs = run_cell(cell, space)
    if missing := [b for b in cell.bind if b not in space]:
        raise RecordError(f"{cell.page}:{cell.line}: --bind names {missing[0]!r}, which the cell does not set")
    record = {
        "schema": SCHEMA,
        "name": cell.name,
        "cell": cell_digest(cells),
        "sources": used_sources(cells),
        "provenance": provenance(),
        "bind": {b: space[b] for b in cell.bind},
        "outputs": outputs,
    }
    try:
        json.dumps(record, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise RecordError(
            f"{cell.page}:{cell.line}: a record holds JSON alone ({error}); bind plain finite numbers, strings, "
            "lists and dicts"
        ) from None
    write_record((where or RECORDINGS) / f"{cell.name}.json", record)
    return record


def mode() -> str:
    """'record' or 'show': a book build shows records, a machine with CUDA makes them; KDA_GPU decides if it is set.

    KDA_GPU: "record", "replay" to show records, or "record-cpu". RecordError for another value, and for "record" on a
    machine without CUDA.
    """
    asked = os.environ.get("KDA_GPU", "")
    if asked not in ("", "record", "replay", "record-cpu"):
        raise RecordError(f"KDA_GPU must be record, replay or record-cpu (for tests), got {asked!r}")
    if asked == "replay" or (not asked and os.environ.get("KDA_LAB_STATIC")):
        return "show"
    if asked == "record-cpu":
        return "record"
    import torch

    if torch.cuda.is_available():
        return "record"
    if asked == "record":
        raise RecordError(
            "recording needs a CUDA device and this machine has none; run it on one, or unset KDA_GPU to show records"
        )
    return "show"


# ---------------------------------------------------------------- in a notebook


def gpu(line: str, cell: str) -> None:
    """The cell magic ``%%gpu NAME [--bind x,y]``."""
    from IPython import get_ipython
    from IPython.display import display

    shell = get_ipython()
    name, bind = arguments(shlex.split(line), "this cell")
    here = Cell(Path("a cell"), 1, cell, name, bind)
    before = _history(shell)
    cells = needed([*before, here], len(before))
    if mode() == "show":
        record = read_record(RECORDINGS / f"{name}.json")
        shell.user_ns.update({b: record["bind"][b] for b in bind if b in record["bind"]})
        display(banner(record, changes(record, cells)), raw=True)
    else:
        record = make_record(cells, shell.user_ns)
    for output in record["outputs"]:
        if output["type"] == "stream":
            print(output["text"], end="")
        else:
            display(output["data"], raw=True)


def _history(shell: Any) -> list[Cell]:
    """The cells that this session ran before the present one; what is not plain Python cannot be needed."""
    cells = []
    for source in shell.history_manager.input_hist_raw[1:-1]:
        with contextlib.suppress(PageError):
            cell = parse_cell(source)
            tree(cell)
            cells.append(cell)
    return cells


def _register() -> None:
    """Make ``%%gpu`` known, if this module is imported in IPython."""
    if "IPython" in sys.modules and (shell := getattr(sys.modules["IPython"], "get_ipython", lambda: None)()):
        shell.register_magic_function(gpu, "cell", "gpu")


def load_ipython_extension(shell: Any) -> None:
    """``%load_ext kda_lab.pages.gpucell`` works too."""
    shell.register_magic_function(gpu, "cell", "gpu")


# ---------------------------------------------------------------- record and check, for the command line


def gpu_pages(folder: Path) -> dict[Path, list[Cell]]:
    """The pages of a folder that have GPU cells, with all their cells; a name that two cells use is an error."""
    pages, seen = {}, {}
    for page in (Path(os.path.relpath(path)) for path in sorted(Path(folder).rglob("*.md"))):
        if not re.search(r"^%%gpu\b", page.read_text(encoding="utf-8"), re.M):
            continue
        cells = page_cells(page)
        for cell in cells:
            if cell.name in seen:
                raise RecordError(
                    f"{page}:{cell.line}: the name {cell.name!r} is taken by {seen[cell.name]}; rename one of the cells"
                )
            if cell.name:
                seen[cell.name] = f"{page}:{cell.line}"
        if any(cell.name for cell in cells):
            pages[page] = cells
    return pages


def record(only: Iterable[str] = (), folder: str | os.PathLike[str] = BOOK) -> int:
    """Record all GPU cells of a folder's pages, or those that `only` names by page or by record; 0 if all were
    recorded.

    Each page runs in a process of its own, in plain Python, so that a record depends on its page's modules alone.
    """
    try:
        chosen = _choose(gpu_pages(Path(folder)), list(only))
        if os.environ.get("KDA_GPU") != "record-cpu":
            import torch

            if not torch.cuda.is_available():
                raise RecordError(
                    "recording needs a CUDA device and this machine has none; run 'kda-lab gpu record' on one"
                )
    except PageError as error:
        print(error, file=sys.stderr)
        return 1
    paths = os.pathsep.join([str(PACKAGE.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    results = [
        subprocess.run(
            [sys.executable, "-m", f"{PACKAGE.name}.pages.gpucell", str(page), *names],
            check=False,
            env={**os.environ, "PYTHONPATH": paths},
        ).returncode
        for page, names in chosen.items()
    ]
    return int(any(results))


def _choose(pages: dict[Path, list[Cell]], only: list[str]) -> dict[Path, list[str]]:
    """The names of the cells to record, by page."""
    chosen = {page: [c.name for c in cells if c.name] for page, cells in pages.items()}
    if not only:
        return chosen
    picked: dict[Path, set[str]] = {page: set() for page in chosen}
    for word in only:
        hits = {page: [n for n in names if n == word or _is_page(word, page)] for page, names in chosen.items()}
        if not any(hits.values()):
            there = ", ".join(name for page, names in chosen.items() for name in [str(page), *names]) or "none"
            raise RecordError(f"no page with GPU cells and no GPU cell is called {word!r}; there are: {there}")
        for page, names in hits.items():
            picked[page] |= set(names)
    return {page: [n for n in chosen[page] if n in names] for page, names in picked.items() if names}


def _is_page(word: str, page: Path) -> bool:
    path = Path(word).resolve()
    return (
        word in (page.stem, page.name)
        or path in (page.resolve(), page.resolve().with_suffix(""))
        or path in page.resolve().parents
    )


def record_page(page: Path, names: list[str]) -> None:
    """Run what the named GPU cells of a page need, in order and in one namespace, and write their records."""
    cells = page_cells(page)
    wanted = [i for i, cell in enumerate(cells) if cell.name in names]
    run = {id(cell) for i in wanted for cell in needed(cells, i)}
    space: dict[str, Any] = {"__name__": "__main__"}
    for i, cell in enumerate(cells):
        if i in wanted:
            print(f"{page}:{cell.line}: recording {cell.name} ... ", end="", flush=True)
            made = make_record(needed(cells, i), space)
            print(made["provenance"]["device"])
        elif id(cell) in run:
            try:
                run_cell(cell, space)
            except Exception:
                if "raises-exception" not in cell.tags:
                    raise


def check(folder: str | os.PathLike[str] = BOOK, allow_stale: bool = False) -> int:
    """0 if each GPU cell has a fresh record from a CUDA device and each record a cell; with `allow_stale`, stale ones
    pass.

    Runs no cell and needs no CUDA. Prints one line for each finding and one at the end.
    """
    bad, stale, names = [], [], set()
    try:
        pages = gpu_pages(Path(folder))
    except PageError as error:
        print(error)
        return 1
    for page, cells in pages.items():
        for i, cell in enumerate(cells):
            if not cell.name:
                continue
            names.add(cell.name)
            try:
                made = read_record(RECORDINGS / f"{cell.name}.json")
                changed = changes(made, needed(cells, i))
            except PageError as error:
                bad.append(f"{page}:{cell.line}: {error}")
                continue
            if not made["provenance"].get("cuda"):
                bad.append(f"{page}:{cell.line}: {cell.name}.json was not made on a CUDA device; record it on one")
            if changed:
                stale.append(
                    f"{page}:{cell.line}: {cell.name}.json is stale, changed since: {', '.join(changed)}; record "
                    "it again"
                )
    for path in sorted(RECORDINGS.rglob("*")):
        if path.is_file() and path.name not in (".gitkeep", "README.md"):
            if path.parent != RECORDINGS or path.suffix != ".json" or path.stem not in names:
                bad.append(f"recordings/{path.relative_to(RECORDINGS)}: no GPU cell uses this file; remove it")
    for found in bad + stale:
        print(found)
    print(
        f"{len(names)} GPU cell(s), {len(stale)} stale record(s){' (allowed)' if stale and allow_stale else ''}, "
        f"{len(bad)} other problem(s)"
    )
    return int(bool(bad or (stale and not allow_stale)))


_register()

if __name__ == "__main__":
    # one page, in this process: what `record` starts. The module is imported under its own name so that there is one
    # state.
    from kda_lab.pages import gpucell

    try:
        gpucell.record_page(Path(sys.argv[1]), sys.argv[2:])
    except gpucell.PageError as error:
        sys.exit(f"{error}")

"""What a recorded cell depends on, as hashes of code: Python without docstrings, CUDA without comments.

`kda_lab.gpucell` keeps these hashes in each record, and a record is stale when one of them changes.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kda_lab.pagecells import Cell, PageError, tree

PACKAGE = Path(__file__).resolve().parent
ROOT = PACKAGE.parents[1]

NEVER = {"fingerprint", "gpucell", "pagecells", "cli"}
IF_IMPORTED = {"figures", "widgets"}
IF_NAMED = {"proof", "equations", "conformance"}

# what a compiled file is made of: itself, and the files of ours that it includes
_compiled: dict[Path, set[Path]] = {}


def _plain(node: Any) -> Any:
    """A syntax tree as nested lists: docstrings and empty fields left out, so that all Python versions agree."""
    if isinstance(node, list):
        return [_plain(item) for item in node]
    if not isinstance(node, ast.AST):
        return [type(node).__name__, repr(node)]
    if isinstance(node, ast.JoinedStr):
        return ["JoinedStr", *_joined(node)]
    fields = []
    for name, value in ast.iter_fields(node):
        if name == "body" and isinstance(node, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            value = [s for s in value if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant)
                                              and isinstance(s.value.value, str))]
        if name not in ("kind", "type_comment", "type_ignores", "ctx") and value is not None and value != []:
            fields.append([name, _plain(value)])
    return [type(node).__name__, *fields]


def _joined(node: ast.JoinedStr) -> Iterator[Any]:
    """The parts of an f-string, neighbouring pieces of text joined."""
    text = ""
    for part in [*node.values, None]:
        if isinstance(part, ast.Constant):
            text += part.value
            continue
        if text:
            yield ["str", text]
            text = ""
        if part is not None:
            yield _plain(part)


def python_digest(code: str) -> str:
    """SHA-256 of Python code without its comments, docstrings and layout.

    >>> python_digest("x = 1  # one") == python_digest("x=1")
    True
    >>> python_digest("x = 1") == python_digest("x = 2")
    False
    """
    return hashlib.sha256(json.dumps(_plain(ast.parse(code))).encode()).hexdigest()


_CUDA_TOKEN = re.compile(r"""//(?:\\\n|[^\n])*|/\*.*?\*/|R"(?P<d>[^(\s]*)\(.*?\)(?P=d)"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'""", re.S)


def cuda_digest(code: str) -> str:
    r"""SHA-256 of CUDA code without its comments, blank lines and indentation.

    >>> cuda_digest("int  x; // one\n\n  int y;") == cuda_digest("int x;\nint y; /* two */")
    True
    >>> cuda_digest('s = "//a";') == cuda_digest('s = "//b";')
    False
    """
    bare = _CUDA_TOKEN.sub(lambda m: " " if m[0].startswith(("//", "/*")) else m[0], code.replace("\r\n", "\n"))
    lines = (re.sub(r"[ \t]+", " ", line).strip() for line in bare.split("\n"))
    return hashlib.sha256("\n".join(line for line in lines if line).encode()).hexdigest()


def source_digest(path: Path) -> str:
    """The digest of one source file, by its suffix."""
    text = path.read_text(encoding="utf-8")
    return python_digest(text) if path.suffix == ".py" else cuda_digest(text)


# ---------------------------------------------------------------- what a cell used

def cell_digest(cells: list[Cell]) -> str:
    """SHA-256 of the needed cells; the last is the GPU cell, whose name and --bind count too."""
    seen = dict.fromkeys(python_digest(cell.code) for cell in cells[:-1])
    last = [cells[-1].name, list(cells[-1].bind), python_digest(cells[-1].code)]
    return hashlib.sha256(json.dumps([*seen, last]).encode()).hexdigest()


def note_source(path: str | os.PathLike[str]) -> None:
    """Say that a CUDA file was compiled (or loaded from a cache of compiled files), so that records depend on it.

    The files of ours that it includes, and those that they include, are noted too.
    """
    path = Path(path).resolve()
    if path not in _compiled:
        _compiled[path] = with_includes(path)


_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"\n]+)"|<([^>\n]+)>)', re.M)


def with_includes(path: Path) -> set[Path]:
    """A CUDA file and all that it includes, directly or not, as far as it lies beside the file or in ``cuda/``.

    Headers of the system lie elsewhere. Folders are searched as compilers do: for ``"name"`` that of the including file first,
    for ``<name>`` that of the compiled file. So the stand-ins of ``cuda/on_cpu/`` never take the place of what a GPU runs.

    >>> sorted(found.name for found in with_includes(PACKAGE / "cuda" / "kda_chunk.cu"))
    ['kda_chunk.cu', 'ptx.cuh', 'tile.cuh']
    """
    folders = [path.parent, PACKAGE / "cuda"]
    found, todo = {path}, [path]
    while todo:
        source = todo.pop()
        for quoted, bracketed in _INCLUDE.findall(source.read_text(encoding="utf-8")):
            places = [source.parent, *folders] if quoted else folders
            headers = (place / (quoted or bracketed) for place in places)
            # one of the system is nowhere here, and adds nothing
            header = next((place.resolve() for place in headers if place.is_file()), source)
            if header not in found:
                found.add(header)
                todo.append(header)
    return found


def used_sources(cells: list[Cell]) -> dict[str, str]:
    """Digest of every source that counts for the last of these cells, by path from the folder above the package."""
    imports, names = _mentioned(cells[-1:])[0], _mentioned(cells)[1]
    paths = set().union(*_compiled.values())
    for name, module in list(sys.modules.items()):
        family = (name.split(".") + [""])[1]
        if name.split(".")[0] != PACKAGE.name or not getattr(module, "__file__", None) or family in NEVER:
            continue
        if family in IF_IMPORTED and family not in imports or family in IF_NAMED and family not in names:
            continue
        paths.add(Path(module.__file__).resolve())
    if foreign := [path for path in sorted(paths) if not path.is_relative_to(PACKAGE)]:
        raise PageError(f"{cells[-1].name}: a record can depend on files of {PACKAGE.name}/ alone, got {foreign[0]}; move it into the package")
    return {path.relative_to(PACKAGE.parent).as_posix(): source_digest(path) for path in sorted(paths)}


def _mentioned(cells: list[Cell]) -> tuple[set[str], set[str]]:
    """The words of all import statements in these cells, and all identifiers, imports included."""
    imports, names = set(), set()
    for node in (node for cell in cells for node in ast.walk(tree(cell))):
        if isinstance(node, ast.Import | ast.ImportFrom):
            dotted = [getattr(node, "module", None) or "", *(a.name for a in node.names)]
            imports |= {word for name in dotted for word in name.split(".")}
        elif isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Attribute):
            names.add(node.attr)
    return imports, names | imports


# ---------------------------------------------------------------- records

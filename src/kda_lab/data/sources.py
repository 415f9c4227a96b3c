"""What a result depends on, as hashes of code: Python without docstrings, CUDA without comments.

A recorded cell and a report of the conformance suite name the files that they used with these hashes, so that a reader
can tell when one of them has changed. Python modules are known to the interpreter; files that a compiler read are noted
here.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parents[1]

# what only finds names, runs cells or reads the command line changes no result
NEVER = (
    "",
    "cli",
    *(f"data{name}" for name in ("", ".files", ".lazy", ".provenance", ".sources")),
    *(f"pages{name}" for name in ("", ".fingerprint", ".gpucell", ".pagecells", ".records")),
)
IF_DRAWN = {"pages.look": "figures", "pages.figures": "figures", "pages.widgets": "widgets"}
IF_NAMED = {"proof": ("proof", "equations", "prove"), "conformance": ("conformance", "examine")}

_noted: set[Path] = set()


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
            value = [
                s
                for s in value
                if not (
                    isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant) and isinstance(s.value.value, str)
                )
            ]
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


_CUDA_TOKEN = re.compile(
    r"""//(?:\\\n|[^\n])*|/\*.*?\*/|R"(?P<d>[^(\s]*)\(.*?\)(?P=d)"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'""", re.S
)


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


def digest(path: Path) -> str:
    """The digest of one source file, by its suffix."""
    text = path.read_text(encoding="utf-8")
    return python_digest(text) if path.suffix == ".py" else cuda_digest(text)


def note(paths: Iterable[str | os.PathLike[str]]) -> None:
    """Say that files which are no Python modules were used, such as a CUDA source: records made from now on depend on
    them.
    """
    _noted.update(Path(path).resolve() for path in paths)


def used(drawn: Collection[str] = (), named: Collection[str] = ()) -> dict[str, str]:
    """Digest of every file of this package that this process used, by path from the folder above the package.

    drawn: identifiers that make figures and widgets count   named: those that make proofs and the conformance suite
    count.   Raises ValueError for a noted file outside of the package.

    >>> from kda_lab import rules
    >>> list(used()).count("kda_lab/rules.py") == list(used(["figures"], ["prove"])).count("kda_lab/rules.py") == 1
    True
    """
    paths = set(_noted)
    for name, module in list(sys.modules.items()):
        inner = name.removeprefix(PACKAGE.name).removeprefix(".")
        if name.split(".")[0] != PACKAGE.name or not getattr(module, "__file__", None) or inner in NEVER:
            continue
        if any(_below(inner, part) and word not in drawn for part, word in IF_DRAWN.items()):
            continue
        if any(_below(inner, part) and not set(words) & set(named) for part, words in IF_NAMED.items()):
            continue
        paths.add(Path(module.__file__).resolve())
    if foreign := [path for path in sorted(paths) if not path.is_relative_to(PACKAGE)]:
        raise ValueError(
            f"a record can depend on files of {PACKAGE.name}/ alone, got {foreign[0]}; move it into the package"
        )
    return {path.relative_to(PACKAGE.parent).as_posix(): digest(path) for path in sorted(paths)}


def _below(name: str, part: str) -> bool:
    return name == part or name.startswith(f"{part}.")

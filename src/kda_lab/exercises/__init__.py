"""Exercises whose starter is their solution with the solution's lines removed.

A chapter's module has functions whose body holds the solution between the lines ``# <solution>`` and ``# </solution>``,
and for each such function NAME a ``check_NAME(candidate)`` that raises AssertionError with a sentence that helps.
"""

from __future__ import annotations

import ast
import importlib
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).resolve().parent
OPEN, CLOSE = "# <solution>", "# </solution>"


def modules() -> list[str]:
    """The chapters that have exercises."""
    return sorted(path.stem for path in FOLDER.glob("*.py") if not path.stem.startswith("_"))


def names(module: str) -> list[str]:
    """The exercises of a chapter, in the order of its file."""
    return [
        node.name
        for node in ast.parse(_text(module)).body
        if isinstance(node, ast.FunctionDef) and OPEN in ast.get_source_segment(_text(module), node, padded=True)
    ]


def solution(module: str, name: str) -> str:
    """The source of the solved exercise, without the marker lines."""
    return "\n".join(line for line in _lines(module, name) if line.strip() not in (OPEN, CLOSE))


def starter(module: str, name: str) -> str:
    """The source of the exercise as the reader gets it: one line that raises stands for each solution."""
    out, hidden, count = [], False, 0
    for line in _lines(module, name):
        mark = line.strip()
        if mark == OPEN:
            hidden, count, indent = True, 0, line[: len(line) - len(line.lstrip())]
        elif mark == CLOSE:
            hidden = False
            lines = "your line" if count == 1 else f"your {count} lines"
            out.append(f'{indent}raise NotImplementedError("replace this line by {lines}")')
        elif not hidden:
            out.append(line)
        else:
            count += bool(mark) and not mark.startswith("#")
    return "\n".join(out)


def solved(module: str, name: str) -> Callable:
    """The solution as a function."""
    return getattr(_module(module), name)


def unsolved(module: str, name: str) -> Callable:
    """The starter as a function, in the namespace of its chapter."""
    space = dict(vars(_module(module)))
    exec(compile(starter(module, name), f"<starter of {module}.{name}>", "exec"), space)
    return space[name]


def check(module: str, name: str) -> Callable[[Callable], None]:
    """The check of an exercise: ``check("deltanet", "delta_step")(my_delta_step)`` returns None or raises
    AssertionError.
    """
    found = getattr(_module(module), f"check_{name}", None)
    if found is None:
        raise ValueError(f"exercises/{module}.py has no check_{name}; every exercise needs one")
    return found


def where(module: str, name: str) -> tuple[Path, int, int]:
    """The file of an exercise, and its first and last line."""
    node = _node(module, name)
    return _path(module), node.lineno, node.end_lineno


def _path(module: str) -> Path:
    path = FOLDER / f"{module}.py"
    if not path.is_file():
        raise ValueError(
            f"there is no exercises/{module}.py; the chapters with exercises are {', '.join(modules()) or 'none yet'}"
        )
    return path


def _text(module: str) -> str:
    return _path(module).read_text(encoding="utf-8")


def _module(module: str) -> ModuleType:
    _path(module)
    return importlib.import_module(f"{__name__}.{module}")


def _node(module: str, name: str) -> ast.FunctionDef:
    for node in ast.parse(_text(module)).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return node
    raise ValueError(
        f"exercises/{module}.py has no function {name!r}; it has {', '.join(names(module)) or 'no exercise'}"
    )


def _lines(module: str, name: str) -> list[str]:
    """The lines of one exercise, its markers checked."""
    node = _node(module, name)
    first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
    lines = textwrap.dedent(
        "\n".join(_text(module).split("\n")[first - 1 : node.end_lineno + _tail(module, node)])
    ).split("\n")
    marks = [line.strip() for line in lines if line.strip() in (OPEN, CLOSE)]
    if not marks or marks != [OPEN, CLOSE] * (len(marks) // 2):
        raise ValueError(
            f"exercises/{module}.py: {name} needs its solution between lines '{OPEN}' and '{CLOSE}', got {marks}"
        )
    return lines


def _tail(module: str, node: ast.FunctionDef) -> int:
    """1 if the line after the function is its closing marker (a comment ends no function), else 0."""
    lines = _text(module).split("\n")
    after = lines[node.end_lineno] if node.end_lineno < len(lines) else ""
    return int(after.strip() == CLOSE)

"""The code cells of a MyST page, and which of its earlier cells a cell needs.

A cell needs another if that one binds a name that it uses, or mentions such a name and so may change the object behind
it; an imported name that is merely mentioned is no need. What a cell binds itself before it uses it is its own.
"""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path
from typing import NamedTuple


class PageError(ValueError):
    """A page or a cell cannot be used; the message is one sentence that says what to do."""


class Cell(NamedTuple):
    """One code cell of a page; `name` is the record's if it is a GPU cell, else ''."""

    page: Path
    line: int
    code: str
    name: str = ""
    bind: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()


def parse_cell(source: str, page: Path = Path("a cell"), line: int = 1, tags: tuple[str, ...] = ()) -> Cell:
    """Take a cell's ``%%gpu NAME [--bind x,y]`` line apart; a cell without one is returned as it is.

    >>> parse_cell("%%gpu speed --bind ms,gb\\nms = 1").bind
    ('ms', 'gb')
    """
    lines = source.split("\n")
    skip = next((i for i, text in enumerate(lines) if text.strip()), 0)
    where = f"{page}:{line + skip}"
    if not lines or not lines[skip].startswith("%%"):
        return Cell(page, line, source, tags=tags)
    words = shlex.split(lines[skip][2:])
    if not words or words[0] != "gpu":
        raise PageError(f"{where}: the only cell magic of a page is %%gpu, got {lines[skip]!r}; use plain Python")
    name, bind = arguments(words[1:], where)
    return Cell(page, line, "\n" * (skip + 1) + "\n".join(lines[skip + 1 :]), name, bind, tags)


def arguments(words: list[str], where: str) -> tuple[str, tuple[str, ...]]:
    """Name and bound variables of a ``%%gpu`` line; PageError for a word that is none."""
    if (
        not words
        or not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", words[0])
        or not (len(words) == 1 or (len(words) == 3 and words[1] == "--bind"))
    ):
        raise PageError(
            f"{where}: expected '%%gpu NAME' or '%%gpu NAME --bind x,y' with a name such as chunk-speed, "
            f"got {' '.join(['%%gpu', *words])!r}"
        )
    bind = tuple(words[2].split(",")) if len(words) == 3 else ()
    if bad := [b for b in bind if not b.isidentifier()]:
        raise PageError(f"{where}: --bind takes variable names joined by commas, got {bad[0]!r}")
    return words[0], bind


def page_cells(page: Path) -> list[Cell]:
    """The code cells of a MyST page, in order; a `{code-cell}` inside another directive is no cell."""
    lines = page.read_text(encoding="utf-8").split("\n")
    cells, i = [], 0
    while i < len(lines):
        opened = re.match(r"(`{3,}|~{3,}|:{3,})(.*)$", lines[i])
        if not opened or (opened[1][0] == "`" and "`" in opened[2]):
            i += 1
            continue
        fence, first = opened[1], i + 1
        close = re.compile(rf"{re.escape(fence[0])}{{{len(fence)},}}\s*$")
        i = next((j for j in range(first, len(lines)) if close.match(lines[j])), len(lines))
        if opened[2].strip().startswith("{code-cell}"):
            start, tags = _options(lines, first, i)
            cells.append(parse_cell("\n".join(lines[start:i]), page, start + 1, tags))
        i += 1
    return cells


def _options(lines: list[str], first: int, end: int) -> tuple[int, tuple[str, ...]]:
    """Where the code begins after the cell's options, and its tags."""
    start = first
    if start < end and lines[start].strip() == "---":
        start = next((j + 1 for j in range(start + 1, end) if lines[j].strip() == "---"), end)
    else:
        while start < end and lines[start].startswith(":"):
            start += 1
    options = "\n".join(lines[first:start])
    return start, tuple(t for t in ("raises-exception", "skip-execution") if t in options)


def tree(cell: Cell) -> ast.Module:
    """A cell's syntax tree; PageError if it is not Python."""
    try:
        return ast.parse(cell.code)
    except SyntaxError as error:
        raise PageError(
            f"{cell.page}:{cell.line + (error.lineno or 1) - 1}: {error.msg}; a page with GPU cells holds plain "
            "Python, and %%gpu is its only magic"
        ) from None


def needed(cells: list[Cell], index: int) -> list[Cell]:
    """The cells that `cells[index]` needs, in order, itself last."""
    trees = [tree(cell) for cell in cells[: index + 1]]
    scopes = [_Scope.of(t.body) for t in trees]
    bound = set().union(*(s.binds for s in scopes[:-1]), *(c.bind for c in cells[:index]))
    imported = set().union(*(s.imports for s in scopes))
    wanted, chosen = _needs(trees[index].body, set()), [cells[index]]
    for cell, t, scope in zip(
        cells[index - 1 :: -1] if index else [], trees[index - 1 :: -1], scopes[index - 1 :: -1], strict=False
    ):
        live = wanted & bound
        if "skip-execution" in cell.tags or not (scope.binds & live or scope.loads & (live - imported)):
            continue
        chosen.append(cell)
        mine: set[str] = set()
        needs = _needs(t.body, mine)
        wanted = wanted - mine | needs
    return chosen[::-1]


class _Scope(ast.NodeVisitor):
    """What code binds and loads in its own scope; a function's local names are not its surroundings'."""

    def __init__(self) -> None:
        self.binds: set[str] = set()
        self.loads: set[str] = set()
        self.imports: set[str] = set()

    @classmethod
    def of(cls, nodes: list[ast.AST]) -> _Scope:
        scope = cls()
        for node in nodes:
            scope.visit(node)
        return scope

    def visit_Name(self, node: ast.Name) -> None:
        (self.loads if isinstance(node.ctx, ast.Load) else self.binds).add(node.id)

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> None:
        names = {(a.asname or a.name).split(".")[0] for a in node.names}
        self.binds |= names
        self.imports |= names

    visit_ImportFrom = visit_Import

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.generic_visit(node)
        if isinstance(node.target, ast.Name):
            self.loads.add(node.target.id)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        self.binds |= {node.name} - {None}
        self.generic_visit(node)

    def visit_Global(self, node: ast.Global) -> None:
        # a global that a function may set: bound outside, and perhaps read
        self.loads |= set(node.names)

    def _inner(self, outside: list[ast.AST], inside: list[ast.AST], own: set[str]) -> None:
        for node in outside:
            self.visit(node)
        scope = _Scope.of(inside)
        shared = {n for node in inside for g in ast.walk(node) if isinstance(g, ast.Global) for n in g.names}
        self.loads |= scope.loads - (scope.binds - shared) - own
        self.binds |= scope.binds & shared

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.binds.add(node.name)
        a = node.args
        every = [*a.posonlyargs, *a.args, *a.kwonlyargs, *filter(None, [a.vararg, a.kwarg])]
        notes = [n for n in [*(p.annotation for p in every), node.returns, *a.defaults, *a.kw_defaults] if n]
        self._inner([*node.decorator_list, *notes], node.body, {p.arg for p in every})

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> None:
        a = node.args
        every = [*a.posonlyargs, *a.args, *a.kwonlyargs, *filter(None, [a.vararg, a.kwarg])]
        self._inner([n for n in [*a.defaults, *a.kw_defaults] if n], [node.body], {p.arg for p in every})

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.binds.add(node.name)
        # a class body reads the names outside before it binds its own
        self._inner([*node.decorator_list, *node.bases, *(k.value for k in node.keywords)], [], set())
        self.loads |= _Scope.of(node.body).loads

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> None:
        self.visit(node.generators[0].iter)
        targets = _Scope.of([g.target for g in node.generators]).binds
        results = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        inside = _Scope.of(
            [*results, *(c for g in node.generators for c in g.ifs), *(g.iter for g in node.generators[1:])]
        )
        self.loads |= inside.loads - targets
        self.binds |= inside.binds

    visit_ListComp = visit_SetComp = visit_GeneratorExp = visit_DictComp = _comprehension


def _needs(body: list[ast.stmt], mine: set[str]) -> set[str]:
    """The names that statements use before they surely bind them; `mine` gains those that they surely bind."""
    out: set[str] = set()
    for node in body:
        if isinstance(node, ast.For | ast.AsyncFor):
            out |= _Scope.of([node.iter]).loads - mine
            out |= _needs(node.body, mine | _Scope.of([node.target]).binds) | _needs(node.orelse, set(mine))
        elif isinstance(node, ast.With | ast.AsyncWith):
            scope = _Scope.of(node.items)
            out |= scope.loads - mine
            mine |= scope.binds
            out |= _needs(node.body, mine)
        elif isinstance(node, ast.If | ast.While):
            out |= _Scope.of([node.test]).loads - mine
            out |= _needs(node.body, set(mine)) | _needs(node.orelse, set(mine))
        else:
            scope = _Scope.of([node])
            out |= scope.loads - mine
            if not isinstance(node, ast.Try | ast.Match):
                mine |= scope.binds
    return out

"""What a recorded cell depends on: the cell, the cells that it needs, and the files that they used, as hashes of code.

`kda_lab.pages.gpucell` keeps these hashes in each record, and a record is stale when one of them changes.
"""

from __future__ import annotations

import ast
import hashlib
import json

from kda_lab.data import sources
from kda_lab.data.sources import python_digest
from kda_lab.pages.pagecells import Cell, PageError, tree


def cell_digest(cells: list[Cell]) -> str:
    """SHA-256 of the needed cells; the last is the GPU cell, whose name and --bind count too."""
    seen = dict.fromkeys(python_digest(cell.code) for cell in cells[:-1])
    last = [cells[-1].name, list(cells[-1].bind), python_digest(cells[-1].code)]
    return hashlib.sha256(json.dumps([*seen, last]).encode()).hexdigest()


def used_sources(cells: list[Cell]) -> dict[str, str]:
    """Digest of every source that counts for the last of these cells, by path from the folder above the package."""
    try:
        return sources.used(_names(cells[-1:]), _names(cells))
    except ValueError as error:
        raise PageError(f"{cells[-1].name}: {error}") from None


def _names(cells: list[Cell]) -> set[str]:
    """All identifiers that these cells use, and the words of the imports that they come from."""
    nodes = [node for cell in cells for node in ast.walk(tree(cell))]
    used = {node.id for node in nodes if isinstance(node, ast.Name)}
    names = used | {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            home = [getattr(node, "module", None) or ""]
            dotted = [n for a in node.names if (a.asname or a.name).split(".")[0] in used for n in (*home, a.name)]
            names |= {word for name in dotted for word in name.split(".")}
    return names

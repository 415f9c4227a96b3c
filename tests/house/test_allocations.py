"""Every tensor that the package makes states its type: torch's default is the user's, not ours."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "kda_lab"
# those whose type is torch's default unless it is said
MADE = {"empty", "zeros", "ones", "full", "eye", "linspace", "rand", "randn"}
FILES = sorted(p for p in PACKAGE.rglob("*.py") if "exercises" not in p.parts)


def without_type(path):
    """Calls of torch.empty and its like that name no dtype, nor hand one on: [(line, name)]."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr not in MADE:
            continue
        if getattr(node.func.value, "id", "") == "torch" and not any(k.arg in ("dtype", None) for k in node.keywords):
            yield node.lineno, node.func.attr


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.relative_to(PACKAGE).as_posix())
def test_allocations_state_their_type(path):
    found = list(without_type(path))
    assert not found, f"{path.name}: {', '.join(f'line {line}: torch.{name}' for line, name in found)} without dtype="


def test_the_search_sees_one(tmp_path):
    (tmp_path / "a.py").write_text(
        "import torch\nx = torch.empty(3, device='cpu')\ny = torch.zeros(3, dtype=torch.int8)\n"
    )
    assert list(without_type(tmp_path / "a.py")) == [(2, "empty")]

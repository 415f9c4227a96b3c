"""The direction of imports, and other rules of the house that a machine can keep."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "kda_lab"
# a module may import from the lines above its own
ORDER = [
    ["notation", "rules", "pagecells", "intensity"],
    ["triangular", "affine", "features", "fingerprint", "learning", "position"],
    ["decay", "softmax", "chunk"],
    [
        "inputs",
        "chunk_dplr",
        "chunk_backward",
        "parallel_scan",
        "costs",
        "rollback",
        "capacity",
        "recall",
        "chunk_fused",
    ],
    ["proof", "records"],
    ["equations"],
    ["cuda"],
    ["ops"],
    ["layer"],
    ["conformance", "serving"],
    ["gpucell"],
    ["figures"],
    ["widgets", "bench"],
    ["cli"],
]
LINE = {name: i for i, names in enumerate(ORDER) for name in names}
FILES = sorted(p for p in PACKAGE.rglob("*.py") if p != PACKAGE / "__init__.py")


def home(path):
    """The module or folder of the package that a file belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path):
    """The modules and folders of the package that a file imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level:
            raise AssertionError(f"{path}:{node.lineno} imports relatively; name the module in full")
        elif isinstance(node, ast.ImportFrom):
            names = [node.module] if node.module != "kda_lab" else [f"kda_lab.{a.name}" for a in node.names]
        else:
            continue
        yield from ((n.split(".")[1], node.lineno) for n in names if n.startswith("kda_lab."))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_module_imports_only_from_lines_above_its_own(path):
    own = home(path)
    assert own in LINE, f"{own} has no place in the order of modules; add it to ORDER and to CONTRIBUTING.md"
    for name, line in imports(path):
        assert name == own or LINE[name] < LINE[own], (
            f"{path}:{line} imports {name}, which stands beside or below {own}"
        )


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_file_reads_in_one_sitting(path):
    lines = len(path.read_text().splitlines())
    assert lines <= 420, f"{path} has {lines} lines; split it by idea"


def test_the_order_of_modules_is_written_down():
    text = (PACKAGE.parents[1] / "CONTRIBUTING.md").read_text()
    missing = [name for name in LINE if f"`{name}`" not in text]
    assert not missing, f"CONTRIBUTING.md does not say where {missing} stand"


def test_data_is_never_evaluated():
    """No eval and no pickle, but for running the cells of a page, which are code."""
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            name = getattr(node, "id", getattr(node, "attr", ""))
            bare = isinstance(node, ast.Name) and name == "eval" and path.name not in ("gpucell.py", "pagecells.py")
            assert not bare and name != "pickle", f"{path}:{node.lineno} uses {name}"


def test_the_readme_stays_short():
    assert len((PACKAGE.parents[1] / "README.md").read_text().splitlines()) < 80


def test_the_parser_of_the_command_line_is_light():
    """`kda-lab plan` computes no tensor: torch is loaded by the commands that need it, not by all."""
    code = "import sys; from kda_lab import cli; cli.parser(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0, "some command's arguments import torch"

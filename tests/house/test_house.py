"""The direction of imports, the public surface, and other rules of the house that a machine can keep."""

import ast
import graphlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import kda_lab as kl

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "kda_lab"
# a module may import from the lines above its own, and within its own line without a circle
ORDER = [
    ["data"],
    ["rules"],
    ["parts"],
    ["algebra"],
    ["study"],
    ["proof"],
    ["proof.equations"],
    ["cuda"],
    ["cuda.accept"],
    ["ops"],
    ["layer"],
    ["conformance", "serving", "serving.plan"],
    ["serving.blocks"],
    ["serving.drafts"],
    ["serving.run"],
    ["serving.trials"],
    ["pages"],
    ["pages.look"],
    ["pages.figures"],
    ["pages.widgets"],
    ["bench", "exercises"],
    ["cli", "cuda.__main__"],
]
LINE = {name: i for i, names in enumerate(ORDER) for name in names}
FILES = sorted(p for p in PACKAGE.rglob("*.py") if p != PACKAGE / "__init__.py")
ENTRIES, FREE = 20, 4
# folders that may grow: a file a chapter or a kind of case, data, CUDA sources
GROWING = {"data", "cuda/source", "pages/figures", "pages/widgets", "exercises", "conformance/cases"}
GROWING |= {"data/configs", "data/recordings", "data/benchmarks"}


def module(path):
    """The dotted name of a file below the package.

    >>> module(PACKAGE / "ops" / "__init__.py"), module(PACKAGE / "rules.py")
    ('ops', 'rules')
    """
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module(p): p for p in FILES}


def floor(name):
    """The entry of ORDER that a module belongs to."""
    parts = name.split(".")
    return next((n for k in range(len(parts), 0, -1) if (n := ".".join(parts[:k])) in LINE), None)


def imports(path):
    """The modules of the package that a file imports, anywhere in it: (dotted name below the package, line)."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level:
            raise AssertionError(f"{path}:{node.lineno} imports relatively; name the module in full")
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{a.name}" for a in node.names]
        else:
            continue
        for name in (n.removeprefix("kda_lab.") for n in names if n.startswith("kda_lab.")):
            # a name that is no module belongs to the module before its last dot
            yield name if name in MODULES else name.rpartition(".")[0], node.lineno


@pytest.mark.parametrize("path", FILES, ids=module)
def test_a_module_imports_only_from_lines_above_its_own(path):
    own = floor(module(path))
    assert own, f"{module(path)} has no place in ORDER; add it here and to CONTRIBUTING.md"
    for name, line in imports(path):
        if own == "exercises":
            # readers' code, which imports as readers do
            continue
        assert name, f"{path}:{line} imports from the public surface, which is for users; name the module"
        above = floor(name)
        assert above == own or LINE[above] < LINE[own], (
            f"{path}:{line} imports {name}, which stands beside or below {own}"
        )


def test_no_circle_of_imports_at_any_level():
    graph = {name: {n for n, _ in imports(path) if n and n != name} for name, path in MODULES.items()}
    # to import a.b.c is to import a.b first, and what that file imports; a package's file may list its own modules
    for name in MODULES:
        for parent in (name.rpartition(".")[0],):
            if parent in MODULES and not any(n.startswith(f"{parent}.") for n in graph[parent]):
                graph[name].add(parent)
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail("a circle of imports: " + " <- ".join(error.args[1]))


def test_the_search_for_circles_sees_them():
    with pytest.raises(graphlib.CycleError):
        graphlib.TopologicalSorter({"cuda.compile": {"cuda.chunk"}, "cuda.chunk": {"cuda.compile"}}).prepare()
    seen = {name for name, _ in imports(PACKAGE / "ops/run.py")}
    # imports inside of functions count
    assert {"ops.gradient", "cuda.kernels", "cuda.decode"} <= seen


@pytest.mark.parametrize("path", FILES, ids=module)
def test_a_file_reads_in_one_sitting(path):
    lines = len(path.read_text().splitlines())
    assert lines <= 420, f"{path} has {lines} lines; split it by idea"


def test_the_package_has_room():
    entries = [p.name for p in PACKAGE.iterdir() if p.name not in ("__pycache__", "py.typed")]
    assert len(entries) <= ENTRIES - FREE, f"src/kda_lab has {len(entries)} entries, keep {FREE} of {ENTRIES} free"
    for folder in (p for p in PACKAGE.rglob("*") if p.is_dir() and p.name != "__pycache__"):
        files = [p for p in folder.iterdir() if p.is_file() and p.suffix != ".pyc"]
        name = folder.relative_to(PACKAGE).as_posix()
        assert name in GROWING or len(files) <= 15, f"{name} has {len(files)} files; part it by idea"


def test_the_floors_are_written_down():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    missing = [name for name in LINE if f"`{name.split('.')[0]}" not in text]
    assert not missing, f"CONTRIBUTING.md does not say where {missing} stand"


PAGES = [*sorted((ROOT / "book").glob("*.md")), ROOT / "README.md", *sorted((PACKAGE / "exercises").glob("*.py"))]


@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.name)
def test_pages_import_from_the_public_surface(path):
    for number, line in enumerate(path.read_text().splitlines(), 1):
        deep = re.match(r"\s*(?:>>> )?(?:from kda_lab\.\w+\.[\w.]+ import|import kda_lab\.)", line)
        assert not deep, f"{path}:{number} imports a deep path; take it from kda_lab: {line.strip()}"


def test_tests_import_public_names_from_the_public_surface():
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kda_lab."):
                for a in node.names:
                    full = f"{node.module}.{a.name}".removeprefix("kda_lab.")
                    public = "" in kl._HOMES.get(full, ()) or a.name in kl._HOMES.get(full.rpartition(".")[0], ())
                    assert not public, f"{path}:{node.lineno} imports {node.module}.{a.name}; take it from kda_lab"


@pytest.mark.parametrize("name", kl.__all__)
def test_each_public_name_is_there(name):
    assert getattr(kl, name) is not None


def test_an_unknown_public_name_names_the_near_ones():
    with pytest.raises(AttributeError, match="chunk_kda"):
        kl.chunk_kdaa  # noqa: B018


def test_data_is_never_evaluated():
    """No eval and no pickle, but for running the cells of a page, which are code."""
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            name = getattr(node, "id", getattr(node, "attr", ""))
            bare = isinstance(node, ast.Name) and name == "eval" and path.name not in ("gpucell.py", "pagecells.py")
            assert not bare and name != "pickle", f"{path}:{node.lineno} uses {name}"


def test_the_readme_stays_short():
    assert len((ROOT / "README.md").read_text().splitlines()) < 90


def test_torch_is_loaded_when_it_is_needed():
    """Neither the package nor the parser of the command line loads torch; `kda-lab plan` computes no tensor."""
    code = (
        "import sys, kda_lab as kl; from kda_lab import cli; cli.parser(); kl.rules; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0, "some command's arguments import torch"

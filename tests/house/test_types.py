"""The public surface says its types: to checkers, to editors, and in the signatures themselves."""

import ast
import importlib
import inspect
import subprocess
import sys
import textwrap
import typing
from pathlib import Path

import pytest
import torch

import kda_lab as kl

ROOT = Path(__file__).resolve().parents[2]
FILES = (p.relative_to(ROOT / "src").with_suffix("") for p in (ROOT / "src/kda_lab").rglob("*.py"))
MODULES = {".".join(p.parts).removesuffix(".__init__") for p in FILES}


def typed_imports(package="kda_lab"):
    """What a package's block for type checkers imports: {public name: (module, name in it)}."""
    tree = ast.parse((ROOT / "src" / package.replace(".", "/") / "__init__.py").read_text())
    (block,) = (n for n in tree.body if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING")
    found = {}
    for node in block.body:
        # a floor that has a block of its own
        star = [a.name for a in node.names] == ["*"]
        found |= typed_imports(node.module) if star else {a.asname: (node.module, a.name) for a in node.names}
    return found


def test_the_block_for_checkers_and_the_lazy_table_name_the_same_things():
    block = typed_imports()
    assert sorted(block) == sorted(kl.__all__)
    for public, (module, name) in block.items():
        home = importlib.import_module(module)
        there = getattr(home, name, None) if module != "kda_lab" else importlib.import_module(f"kda_lab.{name}")
        # a submodule need not be an attribute of its package yet
        found = importlib.import_module(f"{module}.{name}") if there is None else there
        assert getattr(kl, public) is found, f"{public} is {module}.{name} in the block, and another in the table"


USER = """\
from typing import assert_type
import torch
import kda_lab as kl
from kda_lab.conformance.case import Result
from kda_lab.serving.plan.plan import Plan
x = torch.ones(1, 4, 2, 8)
o, S = kl.chunk_kda(x, x, x, -x, x[..., 0], initial_state=None, output_final_state=True)
layer = kl.KimiDeltaAttention(hidden_size=16, head_dim=8, num_heads=2)
assert_type(o, torch.Tensor)
assert_type(S, torch.Tensor | None)
assert_type(layer, kl.KimiDeltaAttention)
assert_type(layer.prefill(torch.ones(1, 4, 16)), torch.Tensor)
assert_type(kl.plan("glm-5.3-flash", tp=8), Plan)
assert_type(kl.examine(kl.chunk_kda, only=["plain-inputs"]), list[Result])
assert_type(kl.rules.__name__, str)
with kl.trusted_values():
    assert_type(kl.naive_delta_rule(x, x, x, x[..., 0], dtype=torch.float32)[0], torch.Tensor)
"""
WRONG = """\
import torch
import kda_lab as kl
x = torch.ones(1, 4, 2, 8)
kl.chunk_kda(x, x, x, -x, x[..., 0], chunksize=64)
kl.chunk_kdaa(x, x, x, -x, x[..., 0])
kl.KimiDeltaAttention(hiden_size=16)
kl.plan("glm-5.3-flash", tpp=8)
kl.examine(kl.chunk_kda, onlyy=["plain-inputs"])
kl.chunk_kda("x", x, x, -x, x[..., 0])
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What mypy says about the two scripts: {(file, line): sentence}."""
    folder = tmp_path_factory.mktemp("types")
    for name, text in (("user.py", USER), ("wrong.py", WRONG)):
        (folder / name).write_text(text)
    # the project's settings, as `mypy` at its root has them
    words = ["--cache-dir", str(folder / "cache"), "--no-error-summary", "--hide-error-context"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *words, str(folder / "user.py"), str(folder / "wrong.py")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and not done.stderr, done.stdout + done.stderr
    lines = [line.split(":", 3) for line in done.stdout.splitlines()]
    return {(Path(file).name, int(n)): text.strip() for file, n, kind, text in lines if kind.strip() == "error"}


def numbered(script):
    """Lines of a script that say something of the package, with their numbers."""
    lines = list(enumerate(script.splitlines(), 1))
    return [pytest.param(n, id=text.strip()) for n, text in lines if "kl." in text or "assert_type(" in text]


@pytest.mark.parametrize("line", numbered(USER))
def test_a_checker_knows_the_types_of_a_users_script(line, said):
    assert ("user.py", line) not in said, said["user.py", line]


def test_a_checker_has_nothing_else_to_say(said):
    known = {p.values[0] for p in numbered(USER)}
    assert not [text for (file, n), text in said.items() if file == "user.py" and n not in known]


@pytest.mark.parametrize("line", numbered(WRONG))
def test_a_checker_rejects_a_wrong_call(line, said):
    assert ("wrong.py", line) in said


def subject(name):
    """A public function, or a layer's method by 'class.method'."""
    first, _, method = name.partition(".")
    return getattr(getattr(kl, first), method) if method else getattr(kl, first)


# by how names are written: to collect the tests imports nothing
HOMES = {name: module for name, (module, _) in typed_imports().items()}
FUNCTIONS = [name for name, module in HOMES.items() if name.islower() and f"{module}.{name}" not in MODULES]
LAYERS = [name for name, module in HOMES.items() if module == "kda_lab.layer" and name[0].isupper()]
METHODS = [f"{layer}.{method}" for layer in LAYERS for method in ("__init__", "forward", "prefill", "decode")]


def test_functions_and_layers_are_told_from_modules():
    assert [inspect.isroutine(subject(name)) for name in FUNCTIONS] == [True] * len(FUNCTIONS)
    assert {"chunk_kda", "examine", "plan", "prove", "replay", "load_checkpoint"} <= set(FUNCTIONS)
    assert {"DeltaNet", "GatedDeltaNet", "KimiDeltaAttention"} <= set(LAYERS)


@pytest.mark.parametrize("name", [*FUNCTIONS, *METHODS])
def test_every_argument_and_result_has_a_type(name):
    signature = inspect.signature(inspect.unwrap(subject(name)))
    bare = [p.name for p in signature.parameters.values() if p.annotation is p.empty and p.name != "self"]
    if signature.return_annotation is signature.empty and not name.endswith("__init__"):
        bare.append("return")
    assert not bare, textwrap.fill(f"{name} has no type for {', '.join(bare)}", 100)


RULES = [name for name in FUNCTIONS if name.startswith(("chunk_", "recurrent_", "naive_"))]


@pytest.mark.parametrize("name", RULES)
def test_a_rule_returns_outputs_and_maybe_states(name):
    assert typing.get_type_hints(subject(name)).get("return") == tuple[torch.Tensor, torch.Tensor | None]

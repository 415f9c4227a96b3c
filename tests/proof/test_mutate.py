"""The tool that changes one operator at a time: its sites, and the list of mutants that compute the same."""

import ast
import importlib.util
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SPEC = importlib.util.spec_from_file_location("mutate", ROOT / "tools" / "mutate.py")
mutate = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(mutate)
LISTED = tomllib.loads(mutate.EQUIVALENT.read_text())["mutant"]


@pytest.mark.parametrize("module", mutate.MODULES)
def test_every_mutant_is_another_program(module):
    source = mutate.path_of(module).read_text()
    whole = ast.unparse(ast.parse(source))
    found = mutate.mutants(module)
    assert len(found) >= 10
    for number in range(0, len(found), 9):
        assert mutate.mutated(source, number) != whole


def test_no_entry_of_the_list_is_stale():
    found = [m for module in mutate.MODULES for m in mutate.mutants(module)]
    assert len(mutate.equivalents(found, LISTED)) == len(LISTED)
    assert all(entry["why"] for entry in LISTED)


def test_a_stale_entry_is_an_error():
    found = mutate.mutants("algebra.affine")
    with pytest.raises(ValueError, match=r"algebra.affine: no mutant .* of the line 'gone'"):
        mutate.equivalents(found, [{"module": "algebra.affine", "line": "gone", "change": "a -> b", "why": "none"}])


def test_equations_that_enter_the_changed_function_come_first():
    line = next(m.line for m in mutate.mutants("algebra.affine") if "T1 @ T2" in m.change)
    entered = {"far": (1, []), "module": (1, [["algebra.affine", 1]]), "inside": (9, [["algebra.affine", line]])}
    assert mutate.order(entered, "algebra.affine", line) == ["inside", "module", "far"]

"""Every exercise: its solution passes its check, and what the reader starts from fails it."""

import textwrap

import pytest

from kda_lab import exercises

ALL = [(module, name) for module in exercises.modules() for name in exercises.names(module)]


@pytest.mark.parametrize("module, name", ALL, ids=lambda part: part)
def test_the_solution_passes_its_check(module, name):
    assert exercises.check(module, name)(exercises.solved(module, name)) is None


@pytest.mark.parametrize("module, name", ALL, ids=lambda part: part)
def test_the_starter_fails_its_check(module, name):
    with pytest.raises((AssertionError, NotImplementedError)):
        exercises.check(module, name)(exercises.unsolved(module, name))


@pytest.mark.parametrize("module", exercises.modules())
def test_every_exercise_has_a_check_and_every_check_an_exercise(module):
    checks = [name for name in vars(exercises._module(module)) if name.startswith("check_")]
    assert sorted(checks) == sorted(f"check_{name}" for name in exercises.names(module))


SAMPLE = '''
"""A sample."""
LIMIT = 3


def twice(n):
    """Two times n."""
    base = n
    # <solution>
    # the reader does not see this
    doubled = base + base

    assert doubled < LIMIT * 100
    # </solution>
    # <solution>
    return doubled
    # </solution>


def helper():
    return 1


def check_twice(candidate):
    """twice(2) is 4."""
    got = candidate(2)
    assert got == 4, f"twice(2) must be 4, got {got}; add n to itself"
'''


@pytest.fixture
def sample(tmp_path, monkeypatch):
    """A chapter's exercises in a folder of the test's own."""
    (tmp_path / "sample.py").write_text(textwrap.dedent(SAMPLE), encoding="utf-8")
    monkeypatch.setattr(exercises, "FOLDER", tmp_path)
    monkeypatch.setattr(exercises, "__path__", [str(tmp_path)])
    monkeypatch.delitem(__import__("sys").modules, "kda_lab.exercises.sample", raising=False)
    yield tmp_path / "sample.py"
    __import__("sys").modules.pop("kda_lab.exercises.sample", None)


def test_the_starter_is_the_solution_without_its_lines(sample):
    assert exercises.modules() == ["sample"] and exercises.names("sample") == ["twice"]
    assert exercises.starter("sample", "twice") == textwrap.dedent('''\
        def twice(n):
            """Two times n."""
            base = n
            raise NotImplementedError("replace this line by your 2 lines")
            raise NotImplementedError("replace this line by your line")''')


def test_the_solution_shows_no_markers(sample):
    shown = exercises.solution("sample", "twice")
    assert "<solution>" not in shown and shown.endswith("    return doubled")


def test_solved_and_unsolved_forms_meet_the_check(sample):
    exercises.check("sample", "twice")(exercises.solved("sample", "twice"))
    with pytest.raises(NotImplementedError, match="replace this line"):
        exercises.check("sample", "twice")(exercises.unsolved("sample", "twice"))
    with pytest.raises(AssertionError, match="add n to itself"):
        exercises.check("sample", "twice")(lambda n: n)


@pytest.mark.parametrize(
    "old, new, said",
    [
        ("# </solution>\n    # <solution>", "# <solution>", "between lines"),
        ("def check_twice", "def chec_twice", "has no check_twice"),
    ],
)
def test_a_malformed_exercise_is_named(sample, old, new, said):
    sample.write_text(sample.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
    with pytest.raises(ValueError, match=said):
        exercises.check("sample", "twice")(exercises.unsolved("sample", "twice"))


def test_an_unknown_exercise_is_answered_with_the_known_ones(sample):
    with pytest.raises(ValueError, match="it has twice"):
        exercises.starter("sample", "thrice")
    with pytest.raises(ValueError, match="sample"):
        exercises.starter("simple", "twice")

"""The registry: every equation holds, every mutant is rejected, and the machinery itself can fail."""

import json
import subprocess
import sys
from collections import Counter

import pytest

from kda_lab import EQUATIONS, chunk, cli, prove, rules
from kda_lab.proof.engines import Disagreement, Field, Real, Ring, run_claim
from kda_lab.proof.equations import equation
from kda_lab.proof.registry import LEVELS, Mutant, judge, polynomial, variant

ENGINES = [Ring(), Field(), Real()]


@pytest.mark.parametrize("entry", EQUATIONS, ids=lambda e: e.slug)
def test_equation_holds_and_its_mutants_are_rejected(entry):
    verdict = judge(entry)
    assert verdict.holds, verdict.failure
    assert not [name for name, by in verdict.mutants if by is None]


@pytest.mark.parametrize("entry", EQUATIONS, ids=lambda e: e.slug)
def test_entry_is_complete(entry):
    assert entry.mutants, "a check that cannot fail is a defect: add a mutant"
    assert entry.level in LEVELS
    assert entry.sentence.endswith(".") and entry.source
    assert entry.slug == entry.slug.lower() and " " not in entry.slug


def test_slugs_are_unique():
    assert max(Counter(e.slug for e in EQUATIONS).values()) == 1


def doubled(slug="twice", mutants=(), subject=None):
    return polynomial(
        slug,
        "x + x = 2 x.",
        "school",
        shapes="x:n",
        claim=lambda x, f: [(f(x.x), x.x * 2)],
        subject=subject or (lambda a: a + a),
        mutants=mutants,
        ring=[{"n": 2}],
        field_sizes=[{"n": 2}],
    )


def test_a_false_equation_does_not_hold():
    verdict = judge(doubled(subject=lambda a: a * 3))
    assert not verdict.holds and "differ" in verdict.failure


def test_a_crash_is_not_a_proof():
    assert not judge(doubled(subject=lambda a: a.no_such_thing)).holds


def test_a_surviving_mutant_is_reported():
    verdict = judge(doubled(mutants=[Mutant("also right", lambda a: a * 2)]))
    assert verdict.holds and not verdict.ok


def test_a_crashing_mutant_is_an_error_and_not_a_rejection():
    with pytest.raises(AttributeError):
        judge(doubled(mutants=[Mutant("crashes", lambda a: a.no_such_thing)]))


def test_a_claim_without_pairs_is_refused():
    with pytest.raises(ValueError, match="nothing to compare"):
        run_claim(Ring(), "x:n", {"n": 1}, lambda x, f: [], None)


@pytest.mark.parametrize("engine", ENGINES, ids=lambda e: e.name)
def test_every_engine_sees_one_wrong_entry(engine):
    x = engine.inputs("x:n", {"n": 3})
    wrong = x.x * 1
    wrong[1] = wrong[1] + x.x[0]
    with pytest.raises(Disagreement):
        engine.compare(x.x, wrong)


def test_nan_is_a_disagreement():
    x = Real().inputs("x:n", {"n": 2})
    with pytest.raises(Disagreement):
        Real().compare(x.x * float("nan"), x.x * float("nan"))


@pytest.mark.parametrize("name", ["w", "alpha", "gamma", "a_", "beta"])
def test_the_name_of_an_input_says_nothing_about_its_kind(name):
    x = getattr(Real().inputs(f"{name}:n", {"n": 400}), name)
    assert x.min() < 0


@pytest.mark.parametrize(
    ("kind", "weak", "low", "high"), [("decay", False, 0.2, 1), ("decay", True, 0.9, 1), ("gate", False, 0.1, 1.9)]
)
def test_a_kind_has_its_range(kind, weak, low, high):
    x = Real(weak=weak).inputs(f"x:n={kind} y={kind}", {"n": 400})
    assert low <= x.x.min() < low + 0.1 * (high - low) and high - 0.1 * (high - low) < x.x.max() <= high
    assert x.y.shape == () and low <= x.y <= high


@pytest.mark.parametrize("engine", ENGINES, ids=lambda e: e.name)
def test_an_unknown_kind_is_refused_with_the_near_ones(engine):
    with pytest.raises(ValueError, match=r"^w is of the kind 'decays', which there is not; take decay$"):
        engine.inputs("w:n=decays", {"n": 1})
    with pytest.raises(ValueError, match="take normal or decay or gate$"):
        engine.inputs("w:n=zzz", {"n": 1})


def test_a_shape_is_compared():
    x = Ring().inputs("x:n y:n,n", {"n": 2})
    with pytest.raises(Disagreement, match="shapes"):
        Ring().compare(x.x, x.y)


def test_a_patch_that_no_longer_fits_is_an_error():
    with pytest.raises(ValueError, match="occurs 0 times"):
        variant(rules.kda, ("this line is gone", ""))


def test_a_wrong_definition_turns_verify_red(monkeypatch):
    wrong = variant(chunk.kda, ("E = U - W @ S.T", "E = U + W @ S.T"))
    entry = equation("chunk-state")
    assert not judge(type(entry)(**{**entry.__dict__, "subject": wrong})).holds


def test_prove_raises_for_an_equation_that_fails(monkeypatch):
    from kda_lab import equations

    monkeypatch.setitem(equations._BY_SLUG, "twice", doubled(subject=lambda a: a))
    with pytest.raises(AssertionError, match="twice"):
        prove("twice")


def test_an_unknown_slug_names_the_nearest():
    with pytest.raises(KeyError, match="chunk-state"):
        prove("chunk-stat")


def test_json_is_one_document_of_the_stated_schema(capsys):
    assert cli.main(["verify", "--only", "chunk-state", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["ok"] is True
    (entry,) = document["equations"]
    assert set(entry) == {"slug", "level", "engine", "sizes", "seconds", "holds", "mutants"}
    assert all(set(m) == {"name", "rejected"} and m["rejected"] for m in entry["mutants"])


def test_verify_names_near_slugs_and_exits_2(capsys):
    assert cli.main(["verify", "--only", "chunk-stat"]) == 2
    assert "chunk-state" in capsys.readouterr().err


def test_verify_exits_1_when_an_equation_fails(monkeypatch, capsys):
    import kda_lab.proof.equations as equations

    monkeypatch.setattr(equations, "EQUATIONS", [doubled(subject=lambda a: a)])
    assert cli.main(["verify"]) == 1
    assert "FAIL" in capsys.readouterr().out


def test_verify_exits_1_when_a_mutant_survives(monkeypatch, capsys):
    import kda_lab.proof.equations as equations

    monkeypatch.setattr(equations, "EQUATIONS", [doubled(mutants=[Mutant("also right", lambda a: a * 2)])])
    assert cli.main(["verify", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["ok"] is False


def test_the_module_runs_as_the_command():
    run = subprocess.run(
        [sys.executable, "-m", "kda_lab.cli", "verify", "--only", "delta-forms"], capture_output=True, text=True
    )
    assert run.returncode == 0 and "1 of 1 equations hold" in run.stdout


def test_every_equation_stands_on_a_page():
    from pathlib import Path

    from kda_lab.proof.equations.index import pages

    told = pages(Path(__file__).resolve().parents[2] / "book")
    assert not [e.slug for e in EQUATIONS if e.slug not in told]

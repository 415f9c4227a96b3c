"""The command: exit codes, reports, replay, and what happens when an implementation takes its process down."""

import json
import subprocess
import sys
import xml.etree.ElementTree as tree

import jsonschema
import pytest

from kda_lab.conformance import __main__ as command
from kda_lab.conformance.report import document

MINE = """
import os, sys, time
from kda_lab import ops

def right(q, k, v, g, beta, scale=None, initial_state=None, output_final_state=False):
    print("a line that must not reach stdout")
    options = dict(scale=scale, initial_state=initial_state, output_final_state=output_final_state)
    return ops.recurrent_kda(q, k, v, g, beta, **options)

def crashes(q, k, v, g, beta, scale=None, **options):
    if scale is not None:
        os.abort()
    return right(q, k, v, g, beta, **{n: x for n, x in options.items() if n in ("initial_state", "output_final_state")})

def hangs(q, k, v, g, beta, scale=None, initial_state=None, output_final_state=False):
    if scale is not None:
        time.sleep(60)
    return right(q, k, v, g, beta, initial_state=initial_state, output_final_state=output_final_state)
"""
FEW = ["--only", "plain-inputs", "--only", "a-given-scale", "--only", "strong-gates"]


@pytest.fixture
def mine(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words):
    """Exit code of the command in this process (its cases run in another)."""
    return command.main(list(words))


def test_the_reports_agree_and_the_document_keeps_its_schema(mine, capfd):
    code = run(
        "--impl",
        "./mine.py:right",
        *FEW,
        "--only",
        "ragged",
        "--json",
        "--junit",
        "out.xml",
        "--html",
        "out.html",
        "--seed",
        "7",
    )
    out = capfd.readouterr().out
    report = json.loads(out)
    jsonschema.validate(report, json.loads(document.SCHEMA.read_text()), jsonschema.Draft202012Validator)
    assert code == 0 and report["ok"] and report["seed"] == 7 and report["replay"].endswith("--seed 7")
    assert report["products"] == {"precision": "float32", "measured": True}
    suite = tree.parse(mine / "out.xml").getroot()[0]
    assert (
        int(suite.get("tests")) == len(report["cases"])
        and int(suite.get("skipped")) == report["summary"]["unsupported"]
    )
    page = (mine / "out.html").read_text()
    assert all(c["name"] in page for c in report["cases"]) and "prefers-color-scheme: dark" in page
    assert "src=" not in page and "<script" not in page and "<link" not in page


def test_the_table_and_a_seed_that_replays(mine, capfd):
    assert run("--impl", "./mine.py:right", *FEW, "--seed", "7") == 0
    first = capfd.readouterr().out
    assert run("--impl", "./mine.py:right", *FEW, "--seed", "7") == 0
    again = capfd.readouterr().out

    def errors(text):
        return [line.split()[1:4] for line in text.splitlines() if line.startswith("ok")]

    assert len(errors(first)) == 3 and errors(first) == errors(again)
    assert "3 pass" in first and "conforms" in first


def test_a_crash_costs_its_case_and_no_other(mine, capfd):
    assert run("--impl", "./mine.py:crashes", *FEW, "--json", "--seed", "1") == 1
    report = json.loads(capfd.readouterr().out)
    outcome = {c["name"]: c["outcome"] for c in report["cases"]}
    assert outcome == {"plain-inputs": "pass", "strong-gates": "pass", "a-given-scale": "error"}
    assert any("SIGABRT" in c["reason"] for c in report["cases"])


def test_a_case_without_end_is_ended(mine, capfd):
    assert run("--impl", "./mine.py:hangs", *FEW, "--json", "--timeout", "6") == 1
    report = json.loads(capfd.readouterr().out)
    assert {c["name"]: c["outcome"] for c in report["cases"]}["a-given-scale"] == "error"


def test_a_module_that_leaves_at_once_is_told(tmp_path, monkeypatch, capfd):
    (tmp_path / "leaves.py").write_text("raise SystemExit(0)\n")
    monkeypatch.chdir(tmp_path)
    assert run("--impl", "./leaves.py:f", *FEW) == 2
    assert "ended without a result" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "say which function to examine"),
        (["--impl", "a:b", "--caps", "no-varlenn"], "'no-varlenn' is not a capability; close: no-varlen"),
        (["--impl", "a:b", "--only", "plain-input"], "close: plain-inputs"),
        (["--impl", "a:b", "--html", "nowhere/x.html"], "there is no directory nowhere"),
        (["--impl", "a_module_that_is_not_there:f"], "there is no module a_module_that_is_not_there"),
        (["--impl", "kda_lab.ops:chunk_kda", "--device", "cuda"], "torch sees none"),
    ],
)
def test_a_mistake_in_the_arguments_is_one_sentence(words, said, capfd, monkeypatch):
    import torch

    if "cuda" in words and torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    assert run(*words) == 2
    out, err = capfd.readouterr()
    assert said in err and err.startswith("kda-lab conformance: ") and not out


def test_the_list_names_every_case_and_every_word(capsys):
    assert run("--list") == 0
    text = capsys.readouterr().out
    from kda_lab.conformance import CASES, FEATURES

    assert all(name in text for name, case in CASES.items() if "kda" in case.ops) and all(
        f"no-{f}" in text for f in FEATURES
    )


def test_the_function_of_the_readme_gets_its_table(tmp_path):
    import re
    from pathlib import Path

    readme = Path(command.__file__).with_name("README.md").read_text()
    code = re.search(r"```py\n(.*?)```", readme, re.S).group(1)
    (tmp_path / "mine.py").write_text(code)
    words = ["--impl", "./mine.py:kda", "--caps", "no-shape-checks"]
    for name in (
        "plain-inputs",
        "a-given-scale",
        "results-have-the-promised-types",
        "the-initial-state-is-a-value",
        "no-tokens-at-all",
    ):
        words += ["--only", name]
    done = subprocess.run(
        [sys.executable, "-m", "kda_lab.conformance", *words], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout
    assert "needs scale" in done.stdout

"""The questions to the machine compile, and their answers on record are of these questions."""

import json
import subprocess
import sys

import pytest

from kda_lab.pages.fingerprint import ROOT

MACHINE = ROOT / "benchmarks" / "machine"


def test_the_questions_compile_without_spills():
    pytest.importorskip("cuda.core", reason="the CUDA pip packages are not installed")
    command = [sys.executable, str(MACHINE / "machine.py"), "--compile"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 7 and all(line.endswith(" 0 B spills") for line in lines), done.stdout


def test_the_answers_on_record_are_complete():
    found = json.loads((ROOT / "benchmarks" / "machine.json").read_text(encoding="utf-8"))
    parts = dict.fromkeys(row["part"] for row in found["rows"])
    assert list(parts) == ["costs", "loaded", "clusters", "roles", "products", "frames", "code"]
    assert "H200" in found["environment"]["device"]
    assert all(value is not None for row in found["rows"] for value in row["values"].values())

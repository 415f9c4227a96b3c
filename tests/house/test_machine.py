"""The questions to the machine compile, and their answers on record are of these questions."""

import subprocess
import sys
from pathlib import Path

import pytest

from kda_lab.data import read

ROOT = Path(__file__).resolve().parents[2]
MACHINE = ROOT / "benchmarks" / "machine"


def test_the_questions_compile_without_spills():
    pytest.importorskip("cuda.core", reason="the CUDA pip packages are not installed")
    command = [sys.executable, str(MACHINE / "machine.py"), "--compile"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 7 and all(line.endswith(" 0 B spills") for line in lines), done.stdout


def test_the_answers_on_record_are_complete():
    found = read("benchmarks/machine.json")
    parts = dict.fromkeys(row["part"] for row in found["rows"])
    assert list(parts) == ["costs", "loaded", "clusters", "roles", "products", "frames", "code"]
    assert "H200" in found["environment"]["device"]
    assert all(value is not None for row in found["rows"] for value in row["values"].values())

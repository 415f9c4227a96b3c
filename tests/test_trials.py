"""What stands in benchmarks/trials can still be tried: patches fit this tree, and the questions to the machine compile."""

import shutil
import subprocess
import sys

import pytest

from kda_lab.fingerprint import ROOT

TRIALS = ROOT / "benchmarks" / "trials"


@pytest.mark.parametrize("path", sorted(TRIALS.glob("*.patch")), ids=lambda path: path.stem)
def test_a_trial_fits_this_tree(path):
    if not shutil.which("git"):
        pytest.skip("no git on this machine")
    done = subprocess.run(["git", "apply", "--check", str(path)], cwd=ROOT, capture_output=True, text=True)
    assert not done.returncode, done.stderr


def test_the_questions_to_the_machine_compile_without_spills():
    pytest.importorskip("cuda.core", reason="the CUDA pip packages are not installed")
    command = [sys.executable, str(TRIALS / "machine.py"), "--compile"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 6 and all(line.endswith(" 0 B spills") for line in lines), done.stdout

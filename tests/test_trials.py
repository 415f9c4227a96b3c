"""What stands in benchmarks/trials can still be tried: patches fit this tree."""

import shutil
import subprocess

import pytest

from kda_lab.fingerprint import ROOT


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks" / "trials").glob("*.patch")), ids=lambda path: path.stem)
def test_a_trial_fits_this_tree(path):
    if not shutil.which("git"):
        pytest.skip("no git on this machine")
    done = subprocess.run(["git", "apply", "--check", str(path)], cwd=ROOT, capture_output=True, text=True)
    assert not done.returncode, done.stderr

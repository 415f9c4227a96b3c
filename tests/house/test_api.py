"""The API page is written from the public surface, and is the one that would be written now."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_api_page_is_as_the_surface_says():
    done = subprocess.run([sys.executable, "tools/api_page.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr

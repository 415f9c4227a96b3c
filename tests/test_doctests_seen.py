"""No `>>>` line in a chapter or in the README may go untested."""
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [*sorted((ROOT / "book").rglob("*.md")), *ROOT.glob("README.md")]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_prompt_is_collected(path, request):
    prompts = {i for i, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1) if re.match(r"\s*>>> ", line)}
    if not any(re.fullmatch(r"line:.*", item.name) for item in request.session.items):
        pytest.skip("chapters are not part of this run")
    seen = set()
    for item in request.session.items:
        at = re.fullmatch(r"line:(\d+),column:\d+", item.name)
        if at and item.path == path:
            region = item.example.region
            length = item.example.document.text[region.start : region.end].count("\n") + 1
            seen |= set(range(int(at[1]), int(at[1]) + length))
    assert prompts <= seen, f"{path.name}: untested prompts on lines {sorted(prompts - seen)}; fence them as pycon or python"

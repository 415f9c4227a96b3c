"""No `>>>` line in a chapter or in the README may go untested.

Each page is collected here as pytest collects it, so these tests say the same alone and in a run of everything.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted((ROOT / "book").rglob("*.md")), *ROOT.glob("README.md")]


def examples(path, session):
    """The examples of a page, an item each."""
    files = session.config.hook.pytest_collect_file(file_path=path, parent=session)
    return [item.example for file in files for item in file.collect()]


def unseen(text, found):
    """The lines of a page with a prompt that is part of no example."""
    prompts = {i for i, line in enumerate(text.splitlines(), 1) if re.match(r"\s*>>> ", line)}
    for example in found:
        lines = text[example.start : example.end].count("\n") + 1
        prompts -= set(range(example.line, example.line + lines))
    return sorted(prompts)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_prompt_is_collected(path, request):
    lines = unseen(path.read_text(encoding="utf-8"), examples(path, request.session))
    assert not lines, f"{path.name}: untested prompts on lines {lines}; fence them as pycon or python"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_page_is_part_of_a_run_of_everything(path, request):
    config = request.config
    given = [ROOT / name for name in config.getini("testpaths")]
    assert any(path.is_relative_to(place) for place in given), (
        f"{path} lies under none of the testpaths {given}; add its folder"
    )
    for place in [path, *path.parents[: len(path.relative_to(ROOT).parts) - 1]]:
        ignored = config.hook.pytest_ignore_collect(collection_path=place, config=config)
        assert not ignored, (
            f"pytest ignores {place}, so nothing of {path.name} is tested; see norecursedirs and --ignore"
        )


def test_a_prompt_that_is_part_of_no_item_is_seen(request):
    path = ROOT / "book" / "deltanet.md"
    text, found = path.read_text(encoding="utf-8"), examples(path, request.session)
    assert len(found) > 3 and unseen(text + "```text\n>>> 1 + 1\n```\n", found) == [text.count("\n") + 2]
    for n, example in enumerate(found):
        assert unseen(text, found[:n] + found[n + 1 :])[0] == example.line

"""Fail unless every page of _toc.yml is in a build: python tools/pages_built.py _build/html"""

import sys
from collections.abc import Iterator
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]


def pages(toc: object) -> Iterator[str]:
    """The files that a table of contents names, at any depth.

    >>> list(pages({"root": "a", "parts": [{"chapters": [{"file": "b", "sections": [{"file": "c.md"}]}]}]}))
    ['a', 'b', 'c']
    """
    if isinstance(toc, dict):
        yield from (toc[k].removesuffix(".md") for k in ("root", "file") if k in toc)
        for value in toc.values():
            yield from pages(value)
    elif isinstance(toc, list):
        for value in toc:
            yield from pages(value)


def missing(built: Path, root: Path = ROOT) -> list[str]:
    """The pages of _toc.yml that have no HTML, or an empty one."""
    names = list(pages(yaml.safe_load((root / "_toc.yml").read_text(encoding="utf-8"))))
    found = [*names, "index"]
    return [n for n in found if not (p := built / f"{n}.html").is_file() or p.stat().st_size == 0]


if __name__ == "__main__":
    if gone := missing(Path(sys.argv[1])):
        sys.exit(f"{sys.argv[1]} lacks {len(gone)} page(s) of _toc.yml: {', '.join(gone)}")
    print(f"{sys.argv[1]}: every page of _toc.yml is there")

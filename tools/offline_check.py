"""Fail if a built page loads anything from another host: python tools/offline_check.py _build/html ...

Looks at what a browser fetches by itself: src, srcset, poster, data, link href, inline and linked CSS. Links that a
person follows are free.
"""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path

REMOTE = re.compile(r"\s*(?:[a-z][a-z0-9+.-]*:)?//", re.I)
CSS = re.compile(r"""url\(\s*['"]?([^'")]+)|@import\s+['"]([^'"]+)""", re.I)
FREE = {"canonical", "license", "author", "help", "alternate", "search", "next", "prev", "index", "me", "shortlink"}


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, int]] = []
        self.local: list[tuple[str, int]] = []
        self.style = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {k: v or "" for k, v in attrs}
        urls = [values[k] for k in ("src", "poster", "data") if k in values]
        urls += [part.split()[0] for part in values.get("srcset", "").split(",") if part.strip()]
        urls += css_urls(values.get("style", ""))
        if tag == "link" and not set(values.get("rel", "").lower().split()) & FREE:
            urls.append(values.get("href", ""))
        if tag in ("use", "image"):
            urls += [values.get("href", ""), values.get("xlink:href", "")]
        for url in urls:
            (self.found if REMOTE.match(url) else self.local).append((url, self.getpos()[0]))
        self.style = tag == "style"

    def handle_endtag(self, tag: str) -> None:
        self.style = False

    def handle_data(self, data: str) -> None:
        if self.style:
            self.found += [(url, self.getpos()[0]) for url in css_urls(data) if REMOTE.match(url)]


def css_urls(text: str) -> list[str]:
    """The addresses that a style sheet loads.

    >>> css_urls("a { background: url('x.png') } @import 'y.css';")
    ['x.png', 'y.css']
    """
    return [a or b for a, b in CSS.findall(text)]


def problems(folder: Path) -> list[str]:
    """One line for each thing that a page would fetch from elsewhere, and for each local file that is not there."""
    out = []
    # the theme leaves templates, which are no pages, in _static
    for path in (p for p in sorted(folder.rglob("*.html")) if "_static" not in p.relative_to(folder).parts):
        page = _Page()
        page.feed(path.read_text(encoding="utf-8"))
        out += [
            f"{path}:{line}: loads {url} from another host; keep a local copy or leave it out"
            for url, line in page.found
        ]
        for url, line in page.local:
            file = url.split("#")[0].split("?")[0]
            if file and not re.match(r"[a-z]+:", file) and not (path.parent / file).exists():
                out.append(f"{path}:{line}: {file} is not in the build")
    for path in sorted(folder.rglob("*.css")):
        out += [
            f"{path}: loads {url} from another host"
            for url in css_urls(path.read_text(encoding="utf-8", errors="replace"))
            if REMOTE.match(url)
        ]
    return out


if __name__ == "__main__":
    bad = [line for name in sys.argv[1:] for line in problems(Path(name))]
    if bad or not sys.argv[1:]:
        sys.exit("\n".join(bad) or "say which build, as in: python tools/offline_check.py _build/html")
    print("no page loads anything from another host")

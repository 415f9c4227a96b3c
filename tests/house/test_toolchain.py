"""The build: its directives, its checks, its pins, and one small book built strictly by plain Sphinx."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


kda_book, kda_math, fresh_outputs, pages_built, offline_check = (
    load(ROOT / folder / f"{name}.py")
    for folder, name in (
        ("book/_ext", "kda_book"),
        ("book/_ext", "kda_math"),
        ("tools", "fresh_outputs"),
        ("tools", "pages_built"),
        ("tools", "offline_check"),
    )
)

CUDA = """\
    // [a] first
    x = 1;
    // [b] inner
    y = 2;
    // [/b]
    // [/a]
z = 3;
// [a] second
w = 4;
// [/a]
"""


def test_every_piece_of_a_slug_is_quoted_with_its_lines():
    assert kda_book.pieces(CUDA, "a", "k.cu") == [
        (1, 5, "// [a] first\nx = 1;\n// [b] inner\ny = 2;"),
        (8, 9, "// [a] second\nw = 4;"),
    ]


@pytest.mark.parametrize(
    "text, slug, said",
    [
        (CUDA, "c", r"no marker // \[c\]; it has a, b"),
        ("// [a]\n", "a", "never closed"),
        ("// [/a]\n", "a", "closes nothing"),
        ("// [a]\n// [a]\n// [/a]\n", "a", "opens again"),
    ],
)
def test_a_marker_that_is_missing_or_open_is_an_error(text, slug, said):
    with pytest.raises(ValueError, match=said):
        kda_book.pieces(text, slug, "k.cu")


def test_python_source_is_quoted_without_an_import():
    path, first, last, code = kda_book.python_source("kda_lab.pages.records.RecordError")
    lines = path.read_text(encoding="utf-8").split("\n")
    assert code.startswith("class RecordError") and lines[first - 1].startswith("class RecordError") and last >= first
    assert '"""' not in kda_book.python_source("kda_lab.data.sources.python_digest", doc=False)[3]
    assert kda_book.python_source("kda_lab.pages.figures.Board.box")[3].startswith("def box(")
    assert kda_book.python_source("kda_lab.pages.records.SCHEMA")[3] == "SCHEMA = 1"


@pytest.mark.parametrize(
    "name, said",
    [
        ("kda_lab.pages.gpucell.nothing", "it has .*check"),
        ("os.path.join", "an object of kda_lab"),
        ("kda_lab.pages.gpucell", "an object"),
    ],
)
def test_an_unknown_python_object_is_an_error(name, said):
    with pytest.raises(ValueError, match=said):
        kda_book.python_source(name)


def test_requests_to_other_hosts_are_found(tmp_path):
    (tmp_path / "a.html").write_text(
        '<link rel="stylesheet" href="//cdn.example/x.css"><link rel="canonical" href="https://x.example">'
        '<a href="https://free.example">x</a><script src="https://js.example/a.js"></script><img src="b.png">'
        '<p style="background: url(https://css.example/i.png)"></p><style>@import "http://f.example/f";</style>'
    )
    (tmp_path / "s.css").write_text(
        "a { background: url(data:image/png;base64,AA==) } b { src: url('https://font.example/f.woff') }"
    )
    found = "\n".join(offline_check.problems(tmp_path))
    assert set(re.findall(r"(\w+)\.example", found)) == {"cdn", "js", "css", "f", "font"}
    assert "b.png is not in the build" in found


def test_a_page_without_html_is_found(tmp_path):
    (tmp_path / "_toc.yml").write_text(
        "root: book/intro\nparts:\n- chapters:\n  - file: book/a\n    sections:\n    - file: book/b\n"
    )
    for name in ("book/intro", "book/a", "index"):
        path = tmp_path / "html" / f"{name}.html"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    (tmp_path / "html/book/a.html").write_text("")
    assert pages_built.missing(tmp_path / "html", tmp_path) == ["book/a", "book/b"]


def test_outputs_are_dropped_when_code_or_recordings_change(tmp_path, capsys):
    (tmp_path / "src").mkdir()
    (tmp_path / "src/a.py").write_text("x = 1")
    fresh_outputs.main(tmp_path)
    cache = tmp_path / "_build/.jupyter_cache"
    cache.mkdir()
    fresh_outputs.main(tmp_path)
    assert cache.is_dir()
    (tmp_path / "src/recordings").mkdir()
    (tmp_path / "src/recordings/r.json").write_text("{}")
    fresh_outputs.main(tmp_path)
    assert not cache.exists()


def test_every_requirement_is_pinned_and_the_lock_agrees():
    pins = {}
    for name in ("requirements.txt", "constraints-lock.txt"):
        lines = [
            line
            for line in (ROOT / name).read_text(encoding="utf-8").splitlines()
            if line and not line.startswith(("#", "-c"))
        ]
        assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines), [
            line for line in lines if "==" not in line
        ]
        pins[name] = {re.sub("[-_.]+", "-", line.split("==")[0]).lower(): line.split("==")[1] for line in lines}
    assert pins["requirements.txt"].items() <= pins["constraints-lock.txt"].items()
    assert pins["requirements.txt"]["torch"] == "2.13.0"
    # what the package asks for, in any of its extras, has a pin; the hooks of git are everyone's own choice
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for asked in [*project["dependencies"], *(x for extra in project["optional-dependencies"].values() for x in extra)]:
        name = re.sub("[-_.]+", "-", re.match(r"[\w.-]+", asked)[0]).lower()
        assert name in {*pins["requirements.txt"], "kda-lab", "pre-commit"}, f"requirements.txt has no pin for {asked}"


def test_what_the_changes_say_has_moved_is_there():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.*`) \| (.*) \|$", text.partition("### Moved")[2], re.M)
    assert len(rows) > 20
    for was, now in rows:
        names = re.findall(r"`([^`]*)`", now)
        if not names[0].startswith("kda_lab"):
            continue
        folder = names[0].rpartition(".")[0]
        places = [f"{folder}{name}" if name.startswith(".") else name for name in names]
        if now.endswith("same names"):
            places = [f"{names[0]}.{name.rpartition('.')[2]}" for name in re.findall(r"`([^`]*)`", was)]
            # a package itself, as in "kda_lab.equations, its common"
            places = [place for place in places if place != "kda_lab.proof.equations.equations"]
        for place in places:
            path = ROOT / "src" / (place if "/" in place else place.replace(".", "/"))
            assert path.is_dir() or path.with_suffix(".py").is_file(), f"CHANGELOG.md: there is no {place}, for {was}"


def test_make_help_lists_every_target():
    shown = subprocess.run(["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert {"setup", "book", "serve", "page", "lint", "test", "verify", "check", "clean"} <= set(
        re.findall(r"make (\w+)", shown)
    )


def test_a_commit_and_ci_check_what_make_lint_checks():
    recipe = subprocess.run(["make", "-n", "lint"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    tools = re.findall(r"^\.venv/bin/(ruff \w+|codespell)\b", recipe, re.M)
    repos = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    hooks = [hook for repo in repos for hook in repo["hooks"]]
    assert [re.match(r"\.venv/bin/(ruff \w+|codespell)\b", hook["entry"])[1] for hook in hooks] == tools
    # nothing is fetched for a hook
    assert {repo["repo"] for repo in repos} == {"local"} and {hook["language"] for hook in hooks} == {"system"}
    assert "make lint" in (ROOT / ".ci/run").read_text(encoding="utf-8").split("make test")[0]


PAGES = {
    "_toc.yml": "format: jb-book\nroot: book/intro\nchapters:\n- file: book/one\n",
    "book/intro.md": "# Intro\n\n$S_0$ is the state of {doc}`one`; see {eq}`one-line` and {numref}`fig-one`.\n",
    "book/references.bib": "",
    "book/one.md": """\
---
file_format: mystnb
kernelspec: {name: python3, display_name: Python 3}
---

# One and $S_0$

{level}`proved` and {level}`reported`, at the rate $\\alpha_t$.

\\begin{align}
a &= b \\\\
&= c
\\end{align}

```{code-cell}
from IPython.display import HTML, Markdown, display
display(Markdown("| key |\\n|---|\\n| $k_t$ |"))
HTML('<span class="kda-tex">i &lt; j</span>')
```

```{math}
:label: one-line
a = b
```

```{code-cell}
---
mystnb:
  figure:
    name: fig-one
    caption: It **falls**.
---
import os
from kda_lab import figures, widgets
board = figures.Board(200, 80)
board.matrix(10, 30, 2, 2, label="S_t")
board.show("A matrix of four cells.")
```

```{code-cell}
print("static:", os.environ["KDA_LAB_STATIC"])
widgets.Static("demo", "A demo", [widgets.Range("x", "x", 0, 1, 0.5, 0)], None, "return {svg: '', say: 'x is ' + v.x};")
```

```{py-source} kda_lab.data.sources.digest_of
```
""",
}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A book of two pages, built by plain Sphinx with the repository's own configuration."""
    tree = tmp_path_factory.mktemp("book")
    for name in ("_config.yml", "conf.py"):
        shutil.copy(ROOT / name, tree / name)
    for name in ("_ext", "_static"):
        shutil.copytree(ROOT / "book" / name, tree / "book" / name, ignore=shutil.ignore_patterns("__pycache__"))
    (tree / "src").symlink_to(ROOT / "src")
    for name, text in PAGES.items():
        (tree / name).write_text(text.replace("sources.digest_of", "sources.python_digest"), encoding="utf-8")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "sphinx",
            "-b",
            "html",
            "-W",
            "--keep-going",
            "-n",
            "-q",
            str(tree),
            str(tree / "_build/html"),
        ],
        cwd=tree,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return tree / "_build/html"


def test_a_strict_build_is_complete_and_loads_nothing_from_elsewhere(built):
    assert offline_check.problems(built) == [] and pages_built.missing(built, built.parents[1]) == []


def test_the_page_has_badges_captions_numbers_and_sources(built):
    page = (built / "book/one.html").read_text(encoding="utf-8")
    assert 'class="kda-level kda-level-proved"' in page and "static: 1" in page
    figure = re.search(r'<figure[^>]*id="fig-one".*?</figure>', page, re.S)[0]
    assert "<svg" in figure and "Fig. 1" in figure and "<strong>falls</strong>" in figure
    assert re.search(r"src/kda_lab/data/sources\.py:\d+-\d+", page)
    assert "thebe" not in page.lower()
    intro = (built / "book/intro.html").read_text(encoding="utf-8")
    assert 'href="one.html#fig-one"' in intro and 'href="one.html#equation-one-line"' in intro


def test_formulas_are_typeset_and_no_page_loads_mathjax(built):
    page, intro = ((built / f"book/{name}.html").read_text(encoding="utf-8") for name in ("one", "intro"))
    for text in (page, intro):
        scripts = re.findall(r"<script[^>]*>", text)
        assert scripts and not [tag for tag in scripts if "mathjax" in tag.lower() or "tex-" in tag]
        # each outline once, and all that is used is there
        outlines = re.findall(r'<path id="(mj-[^"]+)"', text)
        assert sorted(set(re.findall(r'href="#(mj-[^"]+)"', text))) == sorted(outlines)
    assert not (built / "_static/mathjax").exists()
    labelled = re.search(r'<div class="math[^>]*id="equation-one-line".*?</div>', page, re.S)[0]
    assert 'data-tex="a = b"' in labelled and re.search(r'class="eqno">\(2\)<a class="headerlink"', labelled)
    assert "<svg" in labelled and '<annotation encoding="application/x-tex">a = b</annotation>' in labelled
    # in a line, in several lines, in outputs (a table and HTML), in a title that the navigation repeats
    for tex in (r"\alpha_t", r"\begin{align} a &amp;= b \\ &amp;= c \end{align}", "k_t", "i &lt; j", "S_0"):
        assert f'data-tex="{tex}"' in page, tex
    assert intro.count('data-tex="S_0"') and r"\(" not in page


def test_formulas_are_typeset_once(built, tmp_path, monkeypatch):
    runs = []
    monkeypatch.setattr(
        kda_math.subprocess, "run", lambda *args, real=subprocess.run, **kw: runs.append(args) or real(*args, **kw)
    )
    wanted = [("x^2", False), ("x^2", True), (r"\one", False), (r"\wrong x", False), (r"\frac{1", True)]
    first = kda_math.Typesetter(tmp_path, {"one": "1"})
    first.typeset(wanted)
    assert len(runs) == 1 and "<use" in first.html(("x^2", False))
    assert "wrong" in first.failed[r"\wrong x", False] and "brace" in first.failed[r"\frac{1", True]
    again = kda_math.Typesetter(tmp_path, {"one": "1"})
    again.typeset(wanted[:3])
    assert len(runs) == 1 and again.html(("x^2", True)) == first.html(("x^2", True))
    # other macros, other pictures
    kda_math.Typesetter(tmp_path, {"one": "2"}).typeset(wanted[:1])
    assert len(runs) == 2
    # a build leaves its formulas where the next one finds them
    assert list((built.parent / ".math").glob("*.json"))


@pytest.mark.parametrize(
    "tex, kinds, made",
    [
        ("a", [], "a"),
        ("a \\\\ b", [], r"\begin{split}a \\ b\end{split}"),
        ("a\n\nb", [], r"\begin{aligned}a\\b\end{aligned}"),
        ("\\begin{align}a\\\\b\\end{align}", ["amsmath"], r"\begin{align}a\\b\end{align}"),
    ],
)
def test_what_stands_in_several_lines_is_aligned(tex, kinds, made):
    assert kda_math.formula(kda_math.nodes.math_block(tex, tex, classes=kinds)) == (made, True)


def test_the_notebook_can_be_downloaded(built):
    assert json.loads((built / "_sources/book/one.ipynb").read_text(encoding="utf-8"))["cells"]
    assert "_sources/book/one.ipynb" in (built / "book/one.html").read_text(encoding="utf-8")


def test_a_wrong_level_formula_or_object_fails_the_build(built, tmp_path):
    tree = built.parents[1]
    (tree / "book/one.md").write_text(
        '# One\n\n{level}`sure`\n\nThe rate $\\alfa_t$.\n\n<b><span class="kda-tex">\\alfb</span></b>\n\n'
        "```{py-source} kda_lab.pages.gpucell.nothing\n```\n\n"
        "```{cuda-source} none.cu a\n```\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-b", "html", "-W", "--keep-going", "-q", str(tree), str(tmp_path / "html")],
        cwd=tree,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    for said in ("a level is one of", "has no 'nothing'", "there is no src/kda_lab/cuda/source/none.cu"):
        assert said in done.stderr
    said = r"book/one\.md:5: ERROR: formula cannot be typeset: Undefined control sequence \\alfa: \\alfa_t"
    assert re.search(said, done.stderr), done.stderr
    assert re.search(r"book/one\.md: ERROR: formula in HTML .* \\alfb", done.stderr), done.stderr

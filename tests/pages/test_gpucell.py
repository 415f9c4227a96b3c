"""Records of GPU cells: made, shown again, and stale for the right reasons; all without a GPU and, for recording,
without IPython.
"""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "kda_lab"

REAL = (
    *(f"pages/{name}" for name in ("fingerprint", "gpucell", "pagecells", "records")),
    *(f"data/{name}" for name in ("__init__", "files", "provenance", "sources")),
    "cuda/compile",
)

PAGE = """\
---
file_format: mystnb
---

# A page

```{code-cell}
from kda_lab import toy
from kda_lab.pages import gpucell
size = 4  # a comment
noise = [0.25]
```

```{code-cell}
unrelated = "figure"
```

```{code-cell}
:tags: [hide-input]
%%gpu toy-first --bind total
total = toy.double(size)
print("doubled", total)
display({"a": 1})
toy.Shown(total)
```

```{code-cell}
print(total + 1)
```

````{note}
```{code-cell}
%%gpu not-a-cell
```
````

```{code-cell}
---
tags: [hide-input]
---
%%gpu toy-second
total + sum(noise)
```
"""

TOY = '''\
"""A module that a GPU cell uses."""
from pathlib import Path

from kda_lab.cuda.compile import with_includes
from kda_lab.data import sources


class Shown:
    """Something with rich forms."""

    def __init__(self, value):
        self.value = value

    def _repr_html_(self):
        return f"<b>{self.value}</b>"

    def _repr_png_(self):
        return b"png"


def double(n):
    """Twice n."""
    sources.note(with_includes(Path(__file__).parent / "cuda/source/toy.cu"))
    return 2 * n  # twice
'''

FAKE_TORCH = '''\
"""A stand-in: the tests need versions and a device's name, not arithmetic."""
import os
__version__ = "9.9.9"
class version:
    cuda = "13.0"
class cuda:
    is_available = staticmethod(lambda: os.environ.get("FAKE_CUDA") == "1")
    get_device_name = staticmethod(lambda: "Pretended GPU")
    get_device_capability = staticmethod(lambda: (9, 0))
'''

# what toy.cu is compiled from, of its own tree
COMPILED = ("toy.cu", "toy.cuh", "ptx.cuh", "parts/tile.cuh", "parts/deep.cuh", "parts/near.cuh")


@pytest.fixture
def lab(tmp_path):
    """A small tree with the real gpucell, a module, a CUDA file and a page; no IPython, and a torch that pretends."""
    files = {
        **dict.fromkeys((f"src/kda_lab/{folder}__init__.py" for folder in ("", "cuda/", "pages/")), ""),
        "src/kda_lab/toy.py": TOY,
        "src/kda_lab/idle.py": "x = 1\n",
        "src/kda_lab/cuda/source/toy.cu": '#include <cuda_bf16.h>\n#include "toy.cuh"\n__global__ void toy() { }  // '
        "nothing\n",
        "src/kda_lab/cuda/source/toy.cuh": '#include "parts/tile.cuh"\nconstexpr int C = 16;\n',
        "book/page.md": PAGE,
        # headers in brackets, found from the folder of what is compiled; a stand-in of the same name runs on a CPU
        "src/kda_lab/cuda/source/parts/tile.cuh": "# include <parts/deep.cuh>\n#include<ptx.cuh>\n"
        '#include "near.cuh"\n',
        "src/kda_lab/cuda/source/parts/deep.cuh": "#include <toy.cuh>\nconstexpr int D = 1;\n",
        "src/kda_lab/cuda/source/parts/near.cuh": "constexpr int E = 1;\n",
        "src/kda_lab/cuda/source/parts/ptx.cuh": "constexpr int F = 0;\n",
        "src/kda_lab/cuda/source/ptx.cuh": "constexpr int F = 1;\n",
        "src/kda_lab/cuda/on_cpu/ptx.cuh": "constexpr int F = 2;\n",
        "src/kda_lab/cuda/on_cpu/cuda_bf16.h": "struct bf16 { };\n",
        "stand-ins/torch/__init__.py": FAKE_TORCH,
        "stand-ins/IPython/__init__.py": 'raise ImportError("no IPython here")\n',
    }
    for name in REAL:
        files[f"src/kda_lab/{name}.py"] = (PACKAGE / f"{name}.py").read_text(encoding="utf-8")
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return Lab(tmp_path)


class Lab:
    """Runs gpucell in a process of its own, as `kda-lab gpu` would."""

    def __init__(self, root):
        self.root = root

    def call(self, code, cuda=False, **env):
        keep = {k: v for k, v in os.environ.items() if k not in ("KDA_GPU", "KDA_LAB_STATIC", "PYTHONPATH")}
        paths = os.pathsep.join([str(self.root / "src"), str(self.root / "stand-ins")])
        done = subprocess.run(
            [sys.executable, "-c", f"import sys; from kda_lab.pages import gpucell; sys.exit({code})"],
            cwd=self.root,
            text=True,
            capture_output=True,
            check=False,
            env={**keep, "PYTHONPATH": paths, "FAKE_CUDA": str(int(cuda)), **env},
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, done.stdout + done.stderr

    def record(self, *only):
        return self.call(f"gpucell.record({list(only)!r})", cuda=True)

    def check(self, **options):
        return self.call(f"gpucell.check('book', **{options!r})")

    def read(self, name):
        return json.loads((self.root / "src/kda_lab/data/recordings" / f"{name}.json").read_text(encoding="utf-8"))

    def edit(self, name, old, new):
        path = self.root / name
        assert old in path.read_text(encoding="utf-8")
        path.write_text(path.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")


def test_a_page_with_two_gpu_cells_is_recorded_in_plain_python(lab):
    assert lab.record()[0] == 0
    first, second = lab.read("toy-first"), lab.read("toy-second")
    assert [o["type"] for o in first["outputs"]] == ["stream", "data", "data"]
    assert first["outputs"][0]["text"] == "doubled 8\n"
    assert first["outputs"][1]["data"] == {"text/plain": "{'a': 1}"}
    assert first["outputs"][2]["data"]["text/html"] == "<b>8</b>"
    assert first["outputs"][2]["data"]["image/png"] == "cG5n"
    assert second["outputs"][0]["data"] == {"text/plain": "8.25"}
    assert first["bind"] == {"total": 8} and second["bind"] == {}


def test_a_record_names_device_versions_and_sources(lab):
    lab.record()
    made = lab.read("toy-first")
    assert made["provenance"]["device"] == "Pretended GPU" and made["provenance"]["cuda"] == "13.0"
    assert {"date", "driver", "python", "torch", "capability"} <= set(made["provenance"])
    assert set(made["sources"]) == {"kda_lab/cuda/__init__.py", "kda_lab/cuda/compile.py", "kda_lab/toy.py"} | {
        f"kda_lab/cuda/source/{name}" for name in COMPILED
    }


def test_fresh_records_pass_the_check(lab):
    lab.record()
    assert lab.check() == (0, "2 GPU cell(s), 0 stale record(s), 0 other problem(s)\n")


@pytest.mark.parametrize(
    "name, old, new",
    [
        ("book/page.md", "# a comment", "# another"),
        ("book/page.md", "toy.double(size)", "toy.double( size )  # spaced"),
        ("book/page.md", '"figure"', '"another figure"'),
        ("book/page.md", "# A page", "# A page with another title"),
        ("src/kda_lab/toy.py", '"""Twice n."""', '"""Two times n, of course."""'),
        ("src/kda_lab/toy.py", "# twice", "# two times"),
        ("src/kda_lab/cuda/source/toy.cu", "// nothing", "/* at\n all */"),
        ("src/kda_lab/cuda/source/toy.cu", "void toy() { }", "void  toy() { }"),
        ("src/kda_lab/idle.py", "x = 1", "x = 2"),
        ("src/kda_lab/cuda/on_cpu/ptx.cuh", "F = 2", "F = 3"),
        ("src/kda_lab/cuda/source/parts/ptx.cuh", "F = 0", "F = 3"),
    ],
)
def test_comments_layout_and_unused_code_leave_a_record_fresh(lab, name, old, new):
    lab.record()
    lab.edit(name, old, new)
    assert lab.check()[0] == 0


@pytest.mark.parametrize(
    "name, old, new, said",
    [
        ("book/page.md", "doubled", "twice", "the cell"),
        ("book/page.md", "size = 4", "size = 5", "the cell"),
        ("book/page.md", "noise = [0.25]", "noise = [0.5]", "the cell"),
        ("src/kda_lab/toy.py", "return 2 * n", "return n * 2", "kda_lab/toy.py"),
        ("src/kda_lab/cuda/source/toy.cu", "void toy()", "void toys()", "kda_lab/cuda/source/toy.cu"),
        ("src/kda_lab/cuda/source/toy.cuh", "C = 16", "C = 32", "kda_lab/cuda/source/toy.cuh"),
        ("src/kda_lab/cuda/source/parts/near.cuh", "E = 1", "E = 2", "kda_lab/cuda/source/parts/near.cuh"),
        ("src/kda_lab/cuda/source/parts/deep.cuh", "D = 1", "D = 2", "kda_lab/cuda/source/parts/deep.cuh"),
        ("src/kda_lab/cuda/source/ptx.cuh", "F = 1", "F = 2", "kda_lab/cuda/source/ptx.cuh"),
    ],
)
def test_changed_code_makes_a_record_stale(lab, name, old, new, said):
    lab.record()
    lab.edit(name, old, new)
    status, printed = lab.check()
    assert status == 1 and "is stale, changed since:" in printed and said in printed
    assert lab.check(allow_stale=True)[0] == 0
    lab.record()
    assert lab.check()[0] == 0


def test_a_missing_record_fails_even_where_stale_ones_pass(lab):
    lab.record()
    (lab.root / "src/kda_lab/data/recordings/toy-second.json").unlink()
    status, printed = lab.check(allow_stale=True)
    assert status == 1 and "kda-lab gpu record toy-second" in printed


def test_an_orphaned_record_fails(lab):
    lab.record()
    lab.edit("book/page.md", "%%gpu toy-second\n", "")
    status, printed = lab.check(allow_stale=True)
    assert status == 1 and "recordings/toy-second.json: no GPU cell uses this file" in printed


def test_recording_without_cuda_is_refused_with_one_sentence(lab):
    status, printed = lab.call("gpucell.record()")
    assert status == 1 and printed.count("\n") == 1 and "needs a CUDA device" in printed
    assert not (lab.root / "src/kda_lab/data/recordings").exists()


def test_a_record_from_the_cpu_fails_the_check(lab):
    assert lab.call("gpucell.record()", KDA_GPU="record-cpu")[0] == 0
    status, printed = lab.check(allow_stale=True)
    assert status == 1 and printed.count("was not made on a CUDA device") == 2


def test_one_record_is_made_alone(lab):
    lab.record()
    before = lab.read("toy-second")
    lab.edit("book/page.md", "doubled", "twice")
    assert lab.record("toy-first")[0] == 0
    assert lab.read("toy-first")["outputs"][0]["text"] == "twice 8\n" and lab.read("toy-second") == before
    assert lab.record("page")[0] == 0 and lab.check()[0] == 0


def test_an_unknown_name_is_answered_with_the_known_ones(lab):
    status, printed = lab.record("toy-third")
    assert status == 1 and "toy-first" in printed and "'toy-third'" in printed


def test_a_name_used_twice_is_an_error(lab):
    lab.edit("book/page.md", "%%gpu toy-second", "%%gpu toy-first")
    status, printed = lab.check()
    assert status == 1 and "is taken by" in printed


def test_another_magic_is_refused(lab):
    lab.edit("book/page.md", 'unrelated = "figure"', "%matplotlib inline")
    status, printed = lab.record()
    assert status == 1 and "%%gpu is its only magic" in printed


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "{}",
        '{"schema": 1}',
        '{"schema": 2, "name": "toy-first", "cell": "", "sources": {}, "provenance": {}, "bind": {}, "outputs": []}',
    ],
)
def test_a_malformed_record_gets_one_sentence(lab, text):
    lab.record()
    (lab.root / "src/kda_lab/data/recordings/toy-first.json").write_text(text, encoding="utf-8")
    status, printed = lab.check(allow_stale=True)
    assert status == 1 and printed.count("\n") == 2 and "record it again" in printed


def test_a_failing_cell_leaves_the_old_record(lab):
    lab.record()
    before = (lab.root / "src/kda_lab/data/recordings/toy-first.json").read_bytes()
    lab.edit("book/page.md", "total = toy.double(size)", "total = {1, 2}")
    status, printed = lab.record("toy-first")
    assert status == 1 and "a record holds JSON alone" in printed
    assert (lab.root / "src/kda_lab/data/recordings/toy-first.json").read_bytes() == before
    assert len(list((lab.root / "src/kda_lab/data/recordings").iterdir())) == 2


def test_drawing_and_proof_modules_count_only_where_they_are_used(lab):
    (lab.root / "src/kda_lab/proof").mkdir()
    for name in ("pages/figures", "pages/widgets", "proof/equations"):
        (lab.root / f"src/kda_lab/{name}.py").write_text("x = 1\n", encoding="utf-8")
    several = "from kda_lab import toy\nfrom kda_lab.pages import figures, widgets\nfrom kda_lab.proof import equations"
    lab.edit("book/page.md", "from kda_lab import toy", several)
    lab.edit("book/page.md", "total + sum(noise)", "figures.x + equations.x")
    assert lab.record()[0] == 0

    def counted(name):
        return {Path(s).stem for s in lab.read(name)["sources"]} & {"figures", "widgets", "equations"}

    # the first cell needs the imports of all three, and uses none
    assert counted("toy-first") == set() and counted("toy-second") == {"figures", "equations"}


def test_a_source_outside_the_package_is_refused(lab):
    (lab.root / "other.cu").write_text("int x;", encoding="utf-8")
    lab.edit(
        "src/kda_lab/toy.py", 'Path(__file__).parent / "cuda/source/toy.cu"', f"Path({str(lab.root / 'other.cu')!r})"
    )
    status, printed = lab.record()
    assert status == 1 and "move it into the package" in printed
    assert not (lab.root / "src/kda_lab/data/recordings").exists()


def notebook(lab, cells, env):
    """Run cells in a real kernel and return their outputs."""
    import nbformat
    from nbclient import NotebookClient

    (lab.root / "stand-ins/IPython/__init__.py").unlink(missing_ok=True)
    (lab.root / "stand-ins/IPython").rmdir()
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
    paths = os.pathsep.join([str(lab.root / "src"), str(lab.root / "stand-ins")])
    NotebookClient(made, timeout=60, resources={"metadata": {"path": str(lab.root)}}).execute(
        env={**os.environ, "PYTHONPATH": paths, **env}
    )
    return [c.outputs for c in made.cells]


def page_sources(lab):
    """The page's code cells as a notebook has them."""
    found, text = [], (lab.root / "book/page.md").read_text(encoding="utf-8").split("````{note}")
    for part in (text[0] + text[1].split("````\n", 1)[1]).split("```{code-cell}\n")[1:]:
        lines = part.split("\n```")[0].split("\n")
        found.append("\n".join(line for line in lines if not line.startswith((":tags:", "---", "tags:"))))
    return found


def test_a_shown_record_has_a_banner_the_outputs_and_what_is_bound(lab):
    lab.record()
    outputs = notebook(lab, page_sources(lab), {"KDA_LAB_STATIC": "1", "FAKE_CUDA": "1"})
    banner, printed, _plain, rich = outputs[2]
    assert "Pretended GPU" in banner["data"]["text/html"] and "earlier version" not in banner["data"]["text/html"]
    assert printed["text"] == "doubled 8\n" and rich["data"]["text/html"] == "<b>8</b>"
    assert outputs[3][0]["text"] == "9\n"
    assert outputs[4][1]["data"]["text/plain"] == "8.25"


def test_a_stale_record_says_so_when_it_is_shown_and_the_page_goes_on(lab):
    lab.record()
    lab.edit("src/kda_lab/cuda/source/toy.cu", "void toy()", "void toys()")
    lab.edit("book/page.md", "size = 4", "size = 5")
    outputs = notebook(lab, page_sources(lab), {"KDA_LAB_STATIC": "1"})
    assert "made by an earlier version of the code" in outputs[2][0]["data"]["text/html"]
    assert (
        "kda_lab/cuda/source/toy.cu" in outputs[2][0]["data"]["text/plain"]
        and "the cell" in outputs[2][0]["data"]["text/plain"]
    )
    assert outputs[3][0]["text"] == "9\n"


def test_a_notebook_with_cuda_records_what_the_command_line_would(lab):
    lab.record()
    want = lab.read("toy-second")
    (lab.root / "src/kda_lab/data/recordings/toy-second.json").unlink()
    notebook(lab, page_sources(lab), {"FAKE_CUDA": "1", "KDA_LAB_STATIC": ""})
    assert lab.read("toy-second") == want


@pytest.mark.parametrize(
    "options",
    [
        ":tags: [hide-input, skip-execution]",
        ":mystnb:\n:  figure:\n:    name: fig-a\n:tags: [skip-execution]",
        "---\nmystnb:\n  figure: {name: fig-a}\ntags: [skip-execution]\n---",
    ],
)
def test_options_of_a_cell_are_no_code(tmp_path, options):
    from kda_lab.pages.pagecells import page_cells

    (tmp_path / "p.md").write_text(
        f"# P\n\n~~~text\n```{{code-cell}}\n~~~\n\n```{{code-cell}} python3\n{options}\n\nx = 1\n```\n",
        encoding="utf-8",
    )
    (cell,) = page_cells(tmp_path / "p.md")
    assert cell.code.strip() == "x = 1" and cell.tags == ("skip-execution",)


def cells(*sources):
    from kda_lab.pages.pagecells import parse_cell

    return [parse_cell(textwrap.dedent(s)) for s in sources]


@pytest.mark.parametrize(
    "sources, want",
    [
        (["x = 1", "y = 2", "x"], [0, 2]),
        (["x = 1", "y = x", "y"], [0, 1, 2]),
        (["x = []", "x.append(1)", "x"], [0, 1, 2]),
        (["import math", "math.pi", "math.e"], [0, 2]),
        (["x = 1", "x = 2", "x"], [1, 2]),
        (["x = 1", "x = 2\nx"], [1]),
        (["x = 1", "x += 1", "x"], [0, 1, 2]),
        (["t = 1", "for t in range(2):\n    print(t)"], [1]),
        (["t = 1", "[t for t in range(2)]"], [1]),
        (["x = 1", "def f():\n    return x", "f()"], [0, 1, 2]),
        (["x = 1", "def f(x):\n    y = x\n    return y", "y = 5", "f(2)"], [1, 3]),
        (["x = 1", "def f():\n    global x\n    x = 2", "f()\nx"], [0, 1, 2]),
        (["x = 1", "if x:\n    y = 2", "y = 3", "if y:\n    y = 4", "y"], [2, 3, 4]),
        (["x = 1", "class A:\n    y = x", "A"], [0, 1, 2]),
        (["x = 1", "lambda x: x", "g = lambda y: x", "g"], [0, 2, 3]),
    ],
)
def test_a_cell_needs_what_binds_or_may_change_its_names(sources, want):
    from kda_lab.pages.pagecells import needed

    page = cells(*sources)
    assert [page.index(c) for c in needed(page, len(page) - 1)] == want

"""The wheel: what is in it, and that every command runs from it, far from the repository."""

import email
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import kda_lab as kl

ROOT = Path(__file__).resolve().parents[2]
TRACE = ROOT / "tests/serving/fixtures/09_prompt_600.json.gz"
# what the extras bring: no command may need it
EXTRAS = ["matplotlib", "IPython", "ipywidgets", "jupyter_book", "sphinx", "pytest", "safetensors", "cuda"]
BLOCKED = f"""\
from importlib.machinery import PathFinder
find = PathFinder.find_spec
def find_spec(name, path=None, target=None):
    return None if name.partition(".")[0] in {EXTRAS} else find(name, path, target)
PathFinder.find_spec = find_spec
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built from a copy of the sources, so that nothing of an earlier build is in it."""
    tree = tmp_path_factory.mktemp("sources")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree / name)
    shutil.copytree(ROOT / "src/kda_lab", tree / "src/kda_lab", ignore=shutil.ignore_patterns("__pycache__"))
    # the source distribution first, and the wheel from it: both hold everything
    words = ["-m", "build", "--no-isolation", "--outdir", str(tree / "dist"), str(tree)]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    (path,) = (tree / "dist").glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The wheel in a folder of its own, and beside it a start of Python without what the extras bring."""
    folder = tmp_path_factory.mktemp("installed")
    words = ["--no-deps", "--no-index", "--no-compile", "--quiet", "--target", str(folder / "lib"), str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", "install", *words], check=True, capture_output=True)
    (folder / "start").mkdir()
    (folder / "start/sitecustomize.py").write_text(BLOCKED)
    return folder


def run(installed, folder, *words):
    """Python run in an empty folder, with the installed package first on its path."""
    paths = os.pathsep.join([str(installed / "start"), str(installed / "lib")])
    env = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "KDA_"))}
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**env, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


def command(installed, folder, *words):
    """``kda-lab`` as its script is installed."""
    return run(installed, folder, str(installed / "lib/bin/kda-lab"), *words)


def test_the_wheel_is_one_package_with_every_file_of_it(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.partition("/")[0] for name in names}
    assert tops == {"kda_lab", f"kda_lab-{kl.__version__}.dist-info"}
    source = ROOT / "src"
    files = [p for p in (source / "kda_lab").rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    wanted = {p.relative_to(source).as_posix() for p in files if not p.name.startswith(".")}
    assert wanted == {name for name in names if name.startswith("kda_lab/")}
    endings = {Path(name).suffix for name in wanted}
    assert {".cu", ".cuh", ".cpp", ".h", ".js", ".json", ".md", ".typed"} <= endings


def test_the_wheel_asks_for_little_and_offers_the_rest(wheel):
    archive = zipfile.ZipFile(wheel)
    told = email.message_from_bytes(archive.read(f"kda_lab-{kl.__version__}.dist-info/METADATA"))
    needs = told.get_all("Requires-Dist")
    always = {re.match(r"[\w-]+", line)[0] for line in needs if "extra ==" not in line}
    assert always == {"numpy", "sympy", "torch"}
    assert set(told.get_all("Provides-Extra")) == {
        *("book", "gpu", "dev"),
        *("cuda", "notebook", "checkpoint", "conformance"),
    }
    assert told["Version"] == kl.__version__ and told["Author"]


def test_one_version_everywhere():
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dynamic"] == ["version"]
    cited = re.search(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.M)[1]
    newest = re.search(r"^## ([\d.]+)", (ROOT / "CHANGELOG.md").read_text(), re.M)[1]
    assert cited == newest == kl.__version__


def test_the_readme_has_no_link_that_breaks_elsewhere():
    text = (ROOT / "README.md").read_text()
    links = re.findall(r"\]\(([^)]*)\)|\b(?:src|href)=\"([^\"]*)\"|^\[[^\]]*\]: *(\S+)", text, re.M)
    assert all(link.startswith("https://") for found in links for link in found if link)


def test_the_package_that_runs_is_the_installed_one(installed, tmp_path):
    done = run(installed, tmp_path, "-c", "import kda_lab, kda_lab.cli; print(kda_lab.__file__)")
    assert Path(done.stdout.strip()) == installed / "lib/kda_lab/__init__.py"
    code = "import importlib.util as u, sys; sys.exit(any(map(u.find_spec, sys.argv[1:])))"
    assert run(installed, tmp_path, "-c", code, *EXTRAS).returncode == 0


RUNS = {
    "version": (["--version"], f"kda-lab {kl.__version__}\n"),
    "verify": (["verify", "--only", "kda-forms"], "1 of 1 equations hold"),
    "plan": (["plan", "glm-5.3-flash", "--tp", "8"], "640 tokens"),
    "conformance": (["conformance", "--impl", "kda_lab.ops:chunk_kda", "--only", "plain-inputs"], "plain-inputs"),
    "conformance's list": (["conformance", "--list"], "plain-inputs"),
    "bench": (["bench", "--show", "h200"], "T=8192 H=96"),
    "serving-replay": (["serving-replay", str(TRACE)], "agree"),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_command_runs_far_from_the_repository(name, installed, tmp_path):
    words, expected = RUNS[name]
    done = command(installed, tmp_path, *words)
    assert done.returncode == 0 and expected in done.stdout, done.stdout + done.stderr
    assert not list(tmp_path.iterdir())


MISTAKES = {
    "gpu check without a book": (["gpu", "check"], "there is no folder book, expected the pages of the book"),
    "gpu record without a book": (["gpu", "record"], "expected the pages of the book; run it in a clone"),
    "a chart without matplotlib": (["bench", "--show", "h200", "--chart", "a.svg"], "--chart needs matplotlib"),
    "no such table": (["bench", "--show", "h100"], "a table of the package: h200, h200-fla"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_command_that_cannot_run_says_why_in_one_sentence(name, installed, tmp_path):
    words, expected = MISTAKES[name]
    done = command(installed, tmp_path, *words)
    assert done.returncode == 2 and done.stdout == ""
    assert expected in done.stderr and done.stderr.count("\n") == 1


def test_every_public_name_is_there_without_the_extras(installed, tmp_path):
    code = "import kda_lab as kl; print(len([getattr(kl, name) for name in kl.__all__]))"
    done = run(installed, tmp_path, "-c", code)
    assert done.stdout == f"{len(kl.__all__)}\n", done.stderr

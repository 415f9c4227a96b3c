"""Documents that can be read again, tables and charts that say what was found, and a command whose errors are one
sentence.
"""

import argparse
import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest
import torch

from kda_lab import figures
from kda_lab.bench import chart, check, cli, document, run, table
from kda_lab.bench.implementations import READABLE
from kda_lab.data.files import write_text
from tests.bench.benches import RIGHT, SETTINGS, made, raising, rows, spoiled

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def measured():
    """Rows of each outcome."""
    wrong = spoiled(lambda o, S: (o, S.mT))
    mine = rows(RIGHT, wrong, raising(ValueError("no")), raising(RuntimeError("no")))
    return made(mine + list(run.workload_rows("T=8192 H=8", "strong", {}, SETTINGS)))


def test_a_document_comes_back_as_it_was(measured, tmp_path):
    write_text(tmp_path / "a.json", document.dump(measured))
    assert document.read(tmp_path / "a.json") == measured
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


DAMAGE = {
    "another format": lambda d: d.update(format="other"),
    "a later version": lambda d: d.update(version=2),
    "no rows": lambda d: d.pop("rows"),
    "rows of another kind": lambda d: d.update(rows=[1]),
    "a row without floor": lambda d: d["rows"][0].pop("floor"),
    "a floor that is a word": lambda d: d["rows"][0].update(floor="0.1"),
    "a floor of zero": lambda d: d["rows"][0].update(floor=0),
    "an outcome that is none": lambda d: d["rows"][0].update(outcome="fine"),
    "a time that is a word": lambda d: d["rows"][0]["graph"].update(median="fast"),
    "a negative time": lambda d: d["rows"][0]["graph"].update(low=-1.0),
    "the time of a wrong result": lambda d: d["rows"][2].update(call=d["rows"][0]["call"]),
    "half an error": lambda d: d["rows"][0]["error"].pop("against"),
    "absent without a reason": lambda d: d["absent"][0].pop("why"),
    "a device that is missing": lambda d: d["environment"].pop("device"),
    "half of the clocks": lambda d: d["environment"].update(clocks_mhz={"sm": 1980}),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_document_is_refused_in_one_sentence(what, measured, tmp_path, capsys):
    damaged = json.loads(document.dump(measured))
    DAMAGE[what](damaged)
    path = tmp_path / "a.json"
    path.write_text(json.dumps(damaged))
    assert command("--show", str(path)) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and "is not a document of kda-lab bench" in said.err


def test_the_table_says_everything_that_was_found(measured):
    text = table.table(measured)
    lines = text.splitlines()
    assert "2 right, 1 wrong, 1 refused, 1 failed, 3 reported" in lines
    assert "fla: not installed" in lines and "unfinished" not in text
    assert (
        "WRONG: the state is off by" in text
        and "REFUSED: ValueError: no" in text
        and "FAILED: RuntimeError: no" in text
    )
    assert [x for x in lines if x.startswith("errors: ")] == [f"errors: {check.AGAINST}"]
    assert all(f"{row['floor']:.4f}" in text for row in measured["rows"])
    assert "unfinished" in table.table(measured | {"finished": False})


def test_the_chart_draws_what_has_a_time(measured):
    picture = chart.draw(measured)
    assert chart.bars(measured)[0][1][0] == (READABLE, "ours", measured["rows"][0]["floor"], {"long": 0.42})
    drawn = {(name, what) for _, group in chart.bars(measured) for name, what, *_ in group}
    assert drawn == {(READABLE, "ours"), ("other-0", "ours"), *((x, "reported") for x in ("fla", "flashkda", "cudnn"))}
    assert chart.kind({"level": "measured", "impl": "fla"}) == "peer"
    whole = ET.fromstring(chart.standalone(picture).encode())
    assert (
        whole.get("role") == "img"
        and "logarithmic" in whole.get("aria-label")
        and "NVIDIA H200" in whole.get("aria-label")
    )
    text = chart.standalone(picture)
    assert (
        "prefers-color-scheme: dark" in text
        and "var(--kda-state" in text
        and "http" not in re.sub(r'xmlns\S*="[^"]*"', "", text)
    )
    assert chart.standalone(chart.draw(measured)) == text
    with pytest.raises(ValueError, match="no row has a time"):
        chart.draw(made([measured["rows"][2]]))


def test_a_bar_leads_from_the_floor_to_the_slowest_gates():
    _, ax = figures.axes()
    drawn = chart.bar(ax, 0.0, "ours", 0.25, {"strong": 1.0, "long": 2.0})
    assert (drawn.get_x(), drawn.get_width()) == (0.25, 1.75) and ax.texts[0].get_text() == "1 to 2"
    # in the cache a time can be below what memory allows
    drawn = chart.bar(ax, 0.0, "peer", 0.25, {"long": 0.125})
    assert (drawn.get_x(), drawn.get_width()) == (0.125, 0.125)


def command(*words):
    parser = argparse.ArgumentParser()
    cli.add_arguments(parser)
    return cli.run(parser.parse_args(words))


MISTAKES = {
    "no such shape": (["--shapes", "T=8192 H=97x"], "a shape is one of T=8192 H=96"),
    "no such gates": (["--gates", "strong,weird"], "--gates knows strong, long, weak; got 'weird'"),
    "no such implementation": (["--impl", "hoper"], "--impl knows chunk, hopper"),
    "too few": (["--repeats", "2"], "--repeats must be at least 3, got 2"),
    "no such folder": (["--json", "no/such/folder/a.json"], "cannot be written"),
    "not an svg": (["--chart", "a.png"], "--chart draws an .svg, got a.png"),
    "nothing to show": (["--show", "no.json"], "cannot read no.json: No such file or directory"),
    "no table of that name": (["--show", "h100"], "name a file, or a table of the package: h200, h200-fla"),
    "a table of another maker": (["--show", "machine"], "cannot read machine: No such file or directory"),
    "shown and written": (["--show", "no.json", "--json", "a.json"], "leave out one of them"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_sentence(mistake, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words, expected = MISTAKES[mistake]
    assert command(*words) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and expected in said.err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", document.packaged())
def test_a_table_of_the_package_is_shown_by_its_name(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert command("--show", name) == 0
    assert capsys.readouterr().out == table.table(document.read(document.located(name))) + "\n"
    # a file goes before a name
    (tmp_path / name).write_text("{}")
    assert command("--show", name) == 2 and "is not a document" in capsys.readouterr().err


def test_without_a_gpu_it_says_so(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert command("--json", str(tmp_path / "a.json")) == 2
    said = capsys.readouterr()
    assert (
        said.err
        == "kda-lab bench: there is no CUDA GPU here, and a time needs one; look at an earlier run with --show h200\n"
    )
    assert said.out == "" and not list(tmp_path.iterdir())


def test_an_earlier_run_is_shown_without_torch(measured, tmp_path):
    path = tmp_path / "a.json"
    write_text(path, document.dump(measured))
    code = "import argparse, sys; from kda_lab.bench import cli; p = argparse.ArgumentParser(); cli.add_arguments(p); "
    code += "status = cli.run(p.parse_args(sys.argv[1:])); assert 'torch' not in sys.modules; sys.exit(status)"
    svg = tmp_path / "a.svg"
    words = ["--show", str(path), "--impl", f"{READABLE},fla", "--gates", "long,strong", "--chart", str(svg)]
    shown = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stderr
    assert "\n1 right, 1 reported\n" in shown.stdout and "other-0" not in shown.stdout
    assert ET.fromstring(svg.read_bytes()).tag.endswith("svg")


def test_the_status_says_whether_all_is_right(measured, tmp_path, capsys):
    write_text(tmp_path / "a.json", document.dump(measured))
    for names, status in (
        (READABLE, 0),
        ("other-0,other-2,fla", 0),
        ("chunk,other-1", 1),
        ("other-3", 1),
        ("nobody", 2),
    ):
        assert command("--show", str(tmp_path / "a.json"), "--impl", names) == status
    assert "got 'nobody'" in capsys.readouterr().err


def test_what_was_measured_survives_what_comes_later(tmp_path, monkeypatch, capsys):
    """Rows are printed as they come, and the file is whole after each workload."""
    path = tmp_path / "a.json"
    chosen = {READABLE: (RIGHT, None)}
    loop = check.vouch

    def fails_at_weak(named, o):
        if path.exists():
            raise RuntimeError("out of memory")
        loop(named, o)

    monkeypatch.setattr(check, "vouch", fails_at_weak)
    with pytest.raises(RuntimeError):
        cli.measure(["T=40 H=2"], ["long", "weak"], chosen, [], SETTINGS, path)
    found = document.read(path)
    assert not found["finished"] and [row["gates"] for row in found["rows"]] == ["long"]
    assert "T=40 H=2      long    chunk" in capsys.readouterr().out
    monkeypatch.undo()
    assert cli.measure(["T=40 H=2"], ["weak"], chosen, [], SETTINGS, path)["finished"]
    text = path.read_text()
    assert document.read(path)["finished"] and not re.search(r'"[^"]*(?<!\w)/\w+/', text)

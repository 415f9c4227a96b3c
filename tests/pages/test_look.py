"""The look: every colour readable, each changed in one place, no literal beside it, a line for each rule."""

import importlib
import importlib.util
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from kda_lab import figures, widgets
from kda_lab.pages import look
from kda_lab.pages.look import lines, tokens

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "src/kda_lab/pages"
HEX = r"#[0-9a-fA-F]{8}\b|#[0-9a-fA-F]{6}\b|#[0-9a-fA-F]{3,4}\b"
# what stands for a colour until it is replaced by a variable
STANDS_FOR = {"figures/__init__.py": {"#fdfeff", "#000000"}, "look/lines.py": {"#010203"}}


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    dim, bright = sorted([luminance(one), luminance(other)])
    return (bright + 0.05) / (dim + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("paper, ink", [(paper, ink) for paper, inks in tokens.TEXT.items() for ink in inks])
def test_text_stands_out_from_its_paper(paper, ink, theme):
    found = tokens.colours()
    assert contrast(getattr(found[paper], theme), getattr(found[ink], theme)) >= 4.5


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("paper", ["paper", "card"])
def test_the_edge_of_a_control_is_seen(paper, theme):
    found = tokens.colours()
    assert contrast(getattr(found[paper], theme), getattr(found["edge"], theme)) >= 3


def test_a_token_is_changed_in_one_place(monkeypatch):
    """Another colour for the key and another line for a rule reach the sheet, matplotlib, a board, a widget."""
    other = tokens.Colour("#123456", "#abcdef")
    monkeypatch.setitem(tokens.SYMBOLS, "key", other)
    monkeypatch.setitem(tokens.RULES, "KDA", tokens.Line((3, 4), 2.0))
    monkeypatch.setitem(tokens.FAMILIES, "text", '"Another Face"')
    assert "--kda-key: #123456;" in look.css() and "--kda-key: #abcdef;" in look.css()
    assert "--kda-dash-kda: 3 4;" in look.css() and '--kda-text: "Another Face";' in look.css()
    assert "var(--kda-key, #123456)" in widgets.kit() and '"dash": "3 4"' in widgets.kit()
    assert figures.rule("KDA")["linestyle"] == (0, (1.5, 2.0)) and "Another Face" in lines.face()
    # the figures read the colours once, when they are imported
    spec = importlib.util.find_spec("kda_lab.pages.figures")
    fresh = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fresh)
    assert fresh.style("key")["color"] == "#123456"
    made = fresh.Board()
    made.box(0, 0, 9, 9, role="key")
    assert "var(--kda-key, #123456)" in made.show("A box and nothing else.").svg
    fig, ax = fresh.axes(height=2)
    ax.plot([1, 2], **fresh.style("key"))
    assert "var(--kda-key, #123456)" in fresh.show(fig, "A rising line, nothing else.").svg


def test_formulas_take_their_colours_from_the_same_classes():
    used = set(re.findall(r"\\class\{kda-(\w+)\}", str(tokens.macros()).replace("\\\\", "\\")))
    assert used == set(tokens.SYMBOLS)
    assert all(f".kda-{name} {{ color: var(--kda-{name}); }}" in look.css() for name in used)


def test_the_build_writes_the_sheet_and_the_macros(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "book/_ext"))
    extension = importlib.import_module("kda_book")
    extension.take_the_look(SimpleNamespace(builder=SimpleNamespace(format="html"), outdir=tmp_path))
    assert (tmp_path / "_static/tokens.css").read_text(encoding="utf-8") == look.css()
    config = SimpleNamespace(mathjax3_config={"tex": {"macros": {"mine": "x"}, "tags": "none"}, "loader": {}})
    extension.colour_formulas(None, config)
    tex = config.mathjax3_config["tex"]
    assert tex["macros"] == {"mine": "x"} | tokens.macros() and tex["tags"] == "none"
    assert "loader" in config.mathjax3_config


def test_no_colour_stands_beside_the_tokens():
    for path in [*PAGES.rglob("*.py"), *PAGES.rglob("*.js"), *(ROOT / "book/_static").glob("*.css")]:
        name = path.relative_to(PAGES).as_posix() if path.is_relative_to(PAGES) else path.name
        if name == "look/tokens.py":
            continue
        text = "\n".join(line for line in path.read_text(encoding="utf-8").splitlines() if ">>>" not in line)
        # a doctest shows colours, an id or a link is none
        text = re.sub(r"^\s*'.*$", "", re.sub(r"(href=[\"\\]*|url\()#\w+", "", text), flags=re.M)
        found = set(re.findall(HEX, text)) - STANDS_FOR.get(name, set())
        assert not found, f"{name} has {sorted(found)}; take a colour of kda_lab.pages.look.tokens"


def test_lab_css_uses_only_variables_that_exist():
    sheet = (ROOT / "book/_static/lab.css").read_text(encoding="utf-8")
    there = set(re.findall(r"(--kda-[\w-]+):", look.css()))
    assert set(re.findall(r"var\((--kda-[\w-]+)", sheet)) <= there


def test_each_rule_has_a_line_of_its_own_and_a_name_it_is_found_by():
    assert len(set(tokens.RULES.values())) == len(tokens.RULES)
    with pytest.raises(ValueError, match="a rule is one of softmax, linear attention"):
        figures.rule("delta")


def test_faces_are_local_files_with_their_licences():
    folder = ROOT / "book/_static/fonts"
    for _, file, _, _ in tokens.FACES:
        assert (folder / file).read_bytes()[:4] == b"wOF2"
    assert len(list(folder.glob("OFL-*.txt"))) == 2
    assert not re.search(r"url\((?!fonts/)", look.css()) and "http" not in look.css()


def test_labels_stand_apart_and_near_their_lines():
    moved = lines.apart([0.1, 0.12, 0.13, 0.9], 0.1)
    assert all(b - a >= 0.1 - 1e-9 for a, b in zip(moved, moved[1:])) and moved[3] == 0.9
    assert abs(moved[1] - (0.1 + 0.12 + 0.13) / 3) < 1e-9


def test_a_label_stands_at_the_end_of_its_line():
    _, ax = figures.axes()
    ax.plot([0, 300], [0, 20], label="up")
    ax.plot([0, 300], [0, 10], label="half")
    figures.name_lines(ax)
    heights = {text.get_text(): text.xy[1] for text in ax.texts}
    assert 0.9 < heights["up"] < 1 and 0.45 < heights["half"] < 0.55

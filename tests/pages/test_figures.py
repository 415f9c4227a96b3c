"""Figures and widgets: readable in both themes, named, of one piece, the same each time."""

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from kda_lab import figures, widgets

ROOT = Path(__file__).resolve().parents[2]
ALT = "A falling line with five points."


def picture():
    fig, ax = figures.axes(height=2)
    ax.plot([3, 2, 1.5], label="read $k$", **figures.style("key"))
    ax.fill_between([0, 1], [1, 1], hatch=figures.ROLES["value"].hatch, color=figures.ROLES["value"].light)
    ax.legend()
    return figures.show(fig, ALT)


def board():
    made = figures.Board(300, 120)
    x, y, w, _h = made.matrix(10, 30, 2, 3, role="state", label="S_{t-1}^T", shape="[V, K]")
    made.arrow((x + w, y), (200, y), "a < b", role="error")
    made.box(210, 20, 60, 30, "r_t", role="error")
    return made.show("A matrix, an arrow and a box.")


def test_roles_differ_in_shape_too():
    for field in ("marker", "line", "hatch"):
        assert len({str(getattr(role, field)) for role in figures.ROLES.values()}) == len(figures.ROLES)


def test_text_of_a_picture_is_text_in_the_page_s_face():
    for svg in (picture().svg, board().svg):
        assert "<text" in svg and "var(--kda-text, " in svg and "KDA measure" not in svg
    # a picture of matplotlib names no other face, but where a glyph is missing
    assert ">read" in picture().svg or ">r" in picture().svg


@pytest.mark.parametrize("make", [picture, board])
def test_a_picture_is_named_and_well_formed(make):
    made = make()
    top = ET.fromstring(made.svg)
    assert top.get("role") == "img" and top.get("aria-label") == made.alt
    assert "max-width: 100%" in top.get("style")
    assert (
        "http" not in re.sub(r'xmlns(:\w+)?="[^"]*"', "", made.svg)
        and "<style" not in made.svg
        and "<script" not in made.svg
    )


@pytest.mark.parametrize("make", [picture, board])
def test_a_picture_is_painted_for_both_themes(make):
    svg = make().svg
    assert "currentColor" in svg and "var(--kda-" in svg
    assert not re.findall(r"(?<!, )#[0-9a-f]{6}\b(?!-)", re.sub(r'href="#[^"]*"|url\(#[^)]*\)', "", svg))


def test_a_picture_is_the_same_each_time():
    assert picture().svg == picture().svg


def test_ids_of_two_pictures_do_not_meet():
    fig, ax = figures.axes(height=2)
    ax.plot([1, 2])
    other = figures.show(fig, "A rising line, nothing else.")
    ids = [set(re.findall(r'\bid="([^"]+)"', made.svg)) for made in (picture(), other)]
    assert ids[0] and ids[1] and not ids[0] & ids[1]
    used = set(re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', other.svg))
    assert {a or b for a, b in used} <= ids[1]


def test_alt_text_is_required():
    fig, _ = figures.axes()
    with pytest.raises(ValueError, match="write a sentence"):
        figures.show(fig, "")


def test_heat_draws_signs_without_colour_alone():
    fig, ax = figures.axes(height=2)
    figures.heat(ax, [[1.0, -1.0]])
    assert "url(#" in figures.show(fig, "Two cells, one of them hatched.").svg
    fig, ax = figures.axes(height=2)
    figures.heat(ax, [[1.0, -0.01]], numbers=".1f")
    assert [t.get_text() for t in ax.texts] == ["1.0", "0.0"]


def slider(**options):
    start = {
        "name": "demo",
        "title": "A demo",
        "controls": [widgets.Range("beta", "write gate", 0, 1, 0.1, 0.5)],
        "data": {"a": [1, 2]},
        "draw": "return {svg: kit.dot(v.beta, 1), say: 'beta is ' + v.beta};",
    }
    return widgets.Static(**{**start, **options})


def test_a_widget_is_of_one_piece_and_reachable_by_keyboard():
    html = slider()._repr_html_()
    assert "src=" not in html and "href=" not in html and "http" not in html
    assert re.search(r'<label><span>write gate</span> <input type="range"', html) and 'aria-live="polite"' in html
    assert re.search(r'kit\.start\("demo", (\{.*?\}), function', html)[1] == json.dumps(
        {"a": [1, 2]}, separators=(",", ":")
    )


def test_data_cannot_end_the_script_early():
    html = slider(data={"s": "</script><b>"})._repr_html_()
    assert html.count("</script") == 1


@pytest.mark.parametrize(
    "options, said",
    [
        ({"data": float("nan")}, "finite JSON"),
        ({"data": {1, 2}}, "tolist"),
        ({"name": "Bad name"}, "lower-case"),
        ({"controls": []}, "no control"),
        ({"draw": "return '</script>'"}, "must not contain"),
    ],
)
def test_a_bad_widget_gets_one_sentence(options, said):
    with pytest.raises(ValueError, match=said):
        slider(**options)._repr_html_()


class Live:
    def _repr_mimebundle_(self, **options):
        return {"application/vnd.jupyter.widget-view+json": {}}


def test_a_build_shows_the_static_form_and_a_kernel_the_live_one(monkeypatch):
    both = widgets.Widget(slider(), live=Live)
    kernel = type("Shell", (), {"kernel": object()})()
    monkeypatch.setattr("IPython.get_ipython", lambda: kernel)
    monkeypatch.setenv("KDA_LAB_STATIC", "1")
    assert "text/html" in both._repr_mimebundle_()
    monkeypatch.delenv("KDA_LAB_STATIC")
    assert "application/vnd.jupyter.widget-view+json" in both._repr_mimebundle_()
    monkeypatch.setattr("IPython.get_ipython", lambda: None)
    assert "text/html" in both._repr_mimebundle_()

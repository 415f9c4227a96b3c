"""The equation index: where an equation is implemented, and where its links lead."""

import re
from pathlib import Path

import pytest

from kda_lab import EQUATIONS
from kda_lab.proof.equations.index import PACKAGE, _place, implementations, quotations

BOOK = Path(__file__).resolve().parents[2] / "book"
SLUGS = {e.slug for e in EQUATIONS}
MARKER = re.compile(r"^\s*//\s*\[([a-z][\w-]+)\]", re.M)


@pytest.mark.parametrize("ending", ["cu", "cuh"])
def test_markers_of_cuda_files_and_their_headers_are_listed(tmp_path, ending):
    (tmp_path / "cuda/source").mkdir(parents=True)
    (tmp_path / "cuda/source" / f"kernel.{ending}").write_text(
        "// [row]\n    // [row-solve] once\n// [/row-solve]\n// a [row-solve]\n // [row-solve]\n"
    )
    name = f"cuda/source/kernel.{ending}"
    assert implementations("row-solve", tmp_path) == [(name, 2, ""), (name, 5, "")]


def test_every_marker_is_an_equation_of_the_registry_and_listed():
    files = [path for path in sorted((PACKAGE / "cuda/source").iterdir()) if path.suffix in (".cu", ".cuh")]
    marked = {
        (f"cuda/source/{path.name}", slug)
        for path in files
        for slug in MARKER.findall(path.read_text(encoding="utf-8"))
    }
    assert ("cuda/source/hopper_prepare.cuh", "row-solve") in marked and not {slug for _, slug in marked} - SLUGS
    listed = {
        (name, slug)
        for slug in {slug for _, slug in marked}
        for name, _, function in implementations(slug)
        if not function
    }
    assert listed == marked


def links(slug):
    """The links of a slug's row: {text: address}."""
    quoted = quotations(BOOK)
    shown = "".join(_place(slug, *place, quoted) for place in implementations(slug))
    return {text.split(":")[0]: address for address, text in re.findall(r"<a href='([^']*)'>([^<]*)</a>", shown)}


def test_cuda_lines_lead_to_their_quotation_or_to_the_page_of_their_file():
    assert links("gate-sums")["cuda/source/hopper_slices.cuh"] == "hopper.html#cuda-gate-sums"
    assert links("edge-units")["cuda/source/hopper_edges.cuh"] == "hopper.html"
    assert links("kda-recurrence")["cuda/source/kda_decode.cu"] == "layer.html#cuda-kda-recurrence"
    two = links("chunk-kg")
    assert two["cuda/source/hopper_edges.cuh"] == "hopper.html" and two["cuda/source/kda_chunk.cu"] == "cuda.html"


def test_quotations_name_the_file():
    found = quotations(BOOK)
    assert found["kda_chunk.cu", "chunk-scores"] == "cuda" and all(slug in SLUGS for _, slug in found)

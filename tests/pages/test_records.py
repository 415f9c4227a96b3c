"""JSON files of the package: written with a row a line, and read back as they were."""

import json

import pytest

from kda_lab.data import BENCHMARKS, RECORDINGS
from kda_lab.data.files import WIDTH, dump

FILES = sorted([*RECORDINGS.glob("*.json"), *BENCHMARKS.glob("*.json")])


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_records_and_benchmarks_have_a_row_a_line(path):
    text = path.read_text(encoding="utf-8")
    assert text == dump(json.loads(text))


@pytest.mark.parametrize("path", sorted(RECORDINGS.glob("*.json")), ids=lambda p: p.stem)
def test_records_have_their_keys_in_order(path):
    text = path.read_text(encoding="utf-8")
    assert text == dump(json.loads(text), sort_keys=True)


DEEP = {
    "a": [[], {}, [0.1, 1e-300, -0.0, 2**70, None, True], 'β\n"</script>\u2028'],
    "": {"key" * 200: {"x": "y" * 400}},
}


@pytest.mark.parametrize(
    "document", [DEEP, [], {}, 1.5, None, "text", [[{"a": "x" * 400}, ["x" * 400]]], {"a": [DEEP]}]
)
def test_a_document_is_read_back_as_it_was(document):
    text = dump(document)
    assert repr(json.loads(text)) == repr(document) and text.endswith("\n") and dump(json.loads(text)) == text


def test_a_line_is_broken_only_if_it_is_too_long():
    def lines(n):
        return dump({"a": {"b": "x" * n}}).splitlines()

    most = WIDTH - len('{"a": {"b": ""}}')
    assert len(lines(most)) == 1 and len(lines(most)[0]) == WIDTH
    assert lines(most + 1) == ["{", f' "a": {{"b": "{"x" * (most + 1)}"}}', "}"]
    assert len(lines(most + 2)) == 5


@pytest.mark.parametrize(
    "bad, error", [(float("nan"), ValueError), ({"a": [float("inf")]}, ValueError), ({1}, TypeError)]
)
def test_what_json_does_not_have_is_refused(bad, error):
    with pytest.raises(error):
        dump(bad)

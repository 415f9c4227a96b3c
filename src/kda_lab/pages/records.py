"""Records of GPU cells: files that keep what a cell gave, on what it was made and what it depends on.

A record is a JSON file, ``recordings/NAME.json``:

==============  =====================================================================================================
key             value
==============  =====================================================================================================
schema          `SCHEMA`
name            the cell's name, as the file's
cell            digest of the cell and of the earlier cells that it needs (`kda_lab.pages.fingerprint`)
sources         {path from the folder above the package: digest} of the files that it depends on
provenance      device, driver, versions and date (`kda_lab.data.provenance`)
bind            {variable: value} for later cells of the page
outputs         [{type: "stream", text} or {type: "data", data: {MIME type: form}}], in order
==============  =====================================================================================================
"""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from typing import Any

from kda_lab.data import sources
from kda_lab.data.files import dump, write_text
from kda_lab.data.sources import PACKAGE
from kda_lab.pages.fingerprint import cell_digest
from kda_lab.pages.pagecells import Cell, PageError

SCHEMA = 1


class RecordError(PageError):
    """A record cannot be used or made; the message is one sentence that says what to do."""


def read_record(path: Path) -> dict[str, Any]:
    """A record as it was written; RecordError with one sentence if it is missing or is not what this module writes."""
    if not path.is_file():
        raise RecordError(
            f"there is no record {path.name}; make it with 'kda-lab gpu record {path.stem}' on a CUDA machine"
        )
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RecordError(f"{path.name} is not JSON ({error}); record it again") from None
    shape = {
        "schema": int,
        "name": str,
        "cell": str,
        "sources": dict,
        "provenance": dict,
        "bind": dict,
        "outputs": list,
    }
    for key, kind in shape.items():
        if not isinstance(record, dict) or not isinstance(record.get(key), kind):
            raise RecordError(f"{path.name} is malformed: expected {key!r} of type {kind.__name__}; record it again")
    if record["schema"] != SCHEMA or record["name"] != path.stem:
        raise RecordError(
            f"{path.name} is malformed: expected schema {SCHEMA} and name {path.stem!r}, got "
            f"{record['schema']} and {record['name']!r}; record it again"
        )
    if bad := [
        n
        for n, d in record["sources"].items()
        if not isinstance(d, str) or ".." in Path(n).parts or Path(n).is_absolute()
    ]:
        raise RecordError(
            f"{path.name} is malformed: the source {bad[0]!r} is not a path in the package with its digest; record "
            "it again"
        )
    for output in record["outputs"]:
        stream = isinstance(output, dict) and output.get("type") == "stream" and isinstance(output.get("text"), str)
        if not stream and not (
            isinstance(output, dict) and output.get("type") == "data" and isinstance(output.get("data"), dict)
        ):
            raise RecordError(f"{path.name} is malformed: an output is neither a stream nor data; record it again")
    return record


def write_record(path: Path, record: dict[str, Any]) -> None:
    """Write a record whole or not at all, a row a line and its keys in order; the folder is made if it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, dump(record, sort_keys=True))


def changes(record: dict[str, Any], cells: list[Cell]) -> list[str]:
    """What the record depends on and is no longer the same, in words: "the cell", paths of sources, with "(gone)" after
    a path without a file. cells: those that the record's cell needs, itself last.
    """
    out = [] if record["cell"] == cell_digest(cells) else ["the cell"]
    for name, digest in sorted(record["sources"].items()):
        path = PACKAGE.parent / name
        if not path.is_file():
            out.append(f"{name} (gone)")
        elif sources.digest(path) != digest:
            out.append(name)
    return out


def banner(record: dict[str, Any], changed: list[str]) -> dict[str, str]:
    """The notice above an output that is shown again, by MIME type: on what it was made and, if the code has changed
    since, that it has. changed: what `changes` found.

    >>> made = {"provenance": {"device": "H200", "date": "2026-11-30", "torch": "2.11.0"}}
    >>> print(banner(made, ["the cell"])["text/plain"])  # doctest: +NORMALIZE_WHITESPACE
    Recorded on H200, 2026-11-30, torch 2.11.0; shown again here, not run. This record was made by an earlier version of
    the code; changed since: the cell.
    """
    p = record["provenance"]
    parts = [
        str(p.get("device")),
        str(p.get("date")),
        *(
            f"{label} {p[key]}"
            for key, label in (("torch", "torch"), ("cuda", "CUDA"), ("driver", "driver"), ("python", "Python"))
            if p.get(key)
        ),
    ]
    text = f"Recorded on {', '.join(parts)}; shown again here, not run."
    note = ""
    if changed:
        note = f"This record was made by an earlier version of the code; changed since: {', '.join(changed)}."
    html = (
        f'<div class="kda-record{" kda-stale" if changed else ""}" role="note"><p><strong>Recorded output.</strong> '
        f"{escape(text)}</p>{f'<p><strong>Older code.</strong> {escape(note)}</p>' if note else ''}</div>"
    )
    return {"text/plain": f"{text} {note}".strip(), "text/html": html}

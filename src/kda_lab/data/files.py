"""Files of the package: written whole or not at all, JSON with a row a line."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

# characters of a line up to which a JSON object or list is kept on it
WIDTH = 320


def dump(document: Any, sort_keys: bool = False) -> str:
    """A JSON document as text with a row a line, so that a change of one row is a change of one line.

    An object or a list stands on one line if that line has at most `WIDTH` characters before its comma, or if it is an
    entry of a list; else each of its entries begins a line, one space deeper. The same document gives the same text,
    and `json.loads` gives the document back. sort_keys: objects with their keys in order, else as they are. ValueError
    for a number that is not finite, TypeError for what JSON does not have.

    >>> print(dump({"device": "H200", "rows": [[n, "x" * 150] for n in range(2)]}).replace("x" * 150, "..."), end="")
    {
     "device": "H200",
     "rows": [
      [0, "..."],
      [1, "..."]
     ]
    }
    >>> json.loads(dump([0.1, {"a": None}], sort_keys=True))
    [0.1, {'a': None}]
    """
    return _broken(json.loads(json.dumps(document, sort_keys=sort_keys, allow_nan=False)), "", 0) + "\n"


def _line(value: Any) -> str:
    return json.dumps(value, allow_nan=False, ensure_ascii=False)


def _broken(value: Any, key: str, depth: int) -> str:
    """A value after its key, on one line if that is not too long; depth: spaces before the line."""
    line = key + _line(value)
    if not isinstance(value, dict | list) or depth + len(line) <= WIDTH:
        return line
    space = " " * (depth + 1)
    if isinstance(value, dict):
        entries = [_broken(inner, f"{_line(name)}: ", depth + 1) for name, inner in value.items()]
    else:
        entries = [_line(inner) for inner in value]
    first, last = "{}" if isinstance(value, dict) else "[]"
    return f"{key}{first}\n{space}" + f",\n{space}".join(entries) + f"\n{' ' * depth}{last}"


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_text(Path(folder) / "a.txt", "one")
    ...     [(file.name, file.read_text()) for file in Path(folder).iterdir()]
    [('a.txt', 'one')]
    """
    handle, name = tempfile.mkstemp(prefix=f".{path.stem}-", suffix=".tmp", dir=path.resolve().parent)
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise

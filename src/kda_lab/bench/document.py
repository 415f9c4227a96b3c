"""The JSON document of a run, plain data without paths.

=============  ====================================================================================================
key            value
=============  ====================================================================================================
format         "kda-lab-bench"
version        1
finished       false while rows are still to come: the file is written anew after each workload
limit          the relative error of o or of the state beyond which no time is kept
repeats, seed  timings of a row; of the generator of the inputs
environment    device, capability, driver, torch, cuda, python, date (as in recordings), sms, l2_bytes,
               copy_rate (bytes a second, read and written, by which floors are reckoned), versions {package: version},
               sources (digest of the CUDA sources, their launch and this package), clocks_mhz {sm, sm_max, memory}
               as read after the last timing, or null
absent         [{impl, why}]: asked for, and not installed
rows           below
=============  ====================================================================================================

A row is one implementation on one workload:

=================  ================================================================================================
key                value
=================  ================================================================================================
shape, gates       names of the workload: `workloads.shape`, `inputs.GATES`
impl, level        name; "measured", or "reported" for figures of `peers.json`
outcome            "right", "wrong" (an error beyond the limit), "refused" (the implementation says that it cannot),
                   "failed" (it raised something else); of reported figures "reported"
note               a sentence where there is something to say, else ""
bytes, floor       what the call has to move; milliseconds in which memory moves that at its copy rate
graph, call        milliseconds of a CUDA graph's replay and between events around a call: {median, low, high}, where
                   low and high are the 10th and 90th percentile; null where there is none, always where not right
error              {o, state, against}: relative error in the Euclidean norm, and what it was compared with, or null
agreement          {o, state, worst}: the same against the readable kernel, all heads, and the worst 16 tokens of a
                   head; null for that kernel, and where it did not run
=================  ================================================================================================

Errors are numbers or the words "not finite".
"""

import json
import math
from pathlib import Path

from kda_lab.data import BENCHMARKS, files

FORMAT, VERSION = "kda-lab-bench", 1
OUTCOMES = ("right", "wrong", "refused", "failed", "reported")
NUMBER = (int, float)
ROW = {
    "shape": str,
    "gates": str,
    "impl": str,
    "level": str,
    "outcome": str,
    "note": str,
    "bytes": int,
    "floor": NUMBER,
    "graph": (dict, type(None)),
    "call": (dict, type(None)),
    "error": (dict, type(None)),
    "agreement": (dict, type(None)),
}
TOP = {
    "finished": bool,
    "limit": NUMBER,
    "repeats": int,
    "seed": int,
    "environment": dict,
    "absent": list,
    "rows": list,
}

ENVIRONMENT = {
    "device": str,
    "driver": (str, type(None)),
    "cuda": (str, type(None)),
    "date": str,
    "copy_rate": NUMBER,
    "versions": dict,
    "sources": str,
    "clocks_mhz": (dict, type(None)),
}
CLOCKS = {"sm": int, "sm_max": int, "memory": int}


def number(x):
    """A number as JSON has it.

    >>> number(0.5), number(math.nan)
    (0.5, 'not finite')
    """
    return x if math.isfinite(x) else "not finite"


def dump(document):
    """The document as text, a row a line."""
    return files.dump(document)


def packaged():
    """The documents that come with the package: {name: file}.

    >>> sorted(packaged())
    ['h200', 'h200-fla']
    """
    # the folder also holds what other programs measured
    found = {p.stem: p for p in BENCHMARKS.glob("*.json") if json.loads(p.read_text("utf-8")).get("format") == FORMAT}
    return dict(sorted(found.items()))


def located(where):
    """The file that `where` means: a path, or the name of a document that comes with the package; a path goes first.

    Raises ValueError with the names for what is neither.

    >>> located("h200").name
    'h200.json'
    >>> located("h100")
    Traceback (most recent call last):
    ValueError: cannot read h100: No such file or directory; name a file, or a table of the package: h200, h200-fla
    """
    if Path(where).exists():
        return Path(where)
    names = packaged()
    if where not in names:
        raise ValueError(
            f"cannot read {where}: No such file or directory; name a file, or a table of the package: "
            f"{', '.join(names)}"
        )
    return names[where]


def read(path):
    """The document in a file. Raises ValueError with a sentence for what is none.

    >>> read("missing.json")
    Traceback (most recent call last):
    ValueError: cannot read missing.json: No such file or directory
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not text, expected a JSON document of kda-lab bench") from None
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{path} is not JSON ({error}); write it with kda-lab bench --json") from None
    if problem := problem_of(found):
        raise ValueError(f"{path} is not a document of kda-lab bench: {problem}; write it with kda-lab bench --json")
    return found


def problem_of(found):
    """What is wrong with a document, in words, or None.

    >>> problem_of({"format": "other"})
    "expected format 'kda-lab-bench' and version 1, got 'other' and None"
    """
    if not isinstance(found, dict):
        return f"expected an object, got {type(found).__name__}"
    if (found.get("format"), found.get("version")) != (FORMAT, VERSION):
        return (
            f"expected format {FORMAT!r} and version {VERSION}, got {found.get('format')!r} and "
            f"{found.get('version')!r}"
        )
    e = found.get("environment")
    problem = misfit(found, TOP, "the document") or misfit(e, ENVIRONMENT, "the environment")
    if problem := problem or (e["clocks_mhz"] is not None and misfit(e["clocks_mhz"], CLOCKS, "clocks_mhz")):
        return problem
    for n, row in enumerate(found["rows"]):
        problem = misfit(row, ROW, f"row {n}") or row_problem(row, n)
        if problem:
            return problem
    return next(
        (f"absent {n} needs impl and why" for n, x in enumerate(found["absent"]) if {"impl", "why"} - set(x)), None
    )


def misfit(found, keys, what):
    """The first key that is missing or of another type, in words, or None.

    >>> misfit({"a": True}, {"a": int}, "the row")
    "the row needs 'a' as int, got True"
    """
    for key, kind in keys.items():
        value = found.get(key) if isinstance(found, dict) else None
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            names = [k.__name__.replace("NoneType", "null") for k in (kind if isinstance(kind, tuple) else (kind,))]
            return f"{what} needs {key!r} as {' or '.join(names)}, got {value!r}"
    return None


def row_problem(row, n):
    """What a row of the right types still has wrong, in words, or None."""
    if row["outcome"] not in OUTCOMES:
        return f"row {n} has the outcome {row['outcome']!r}, expected one of {', '.join(OUTCOMES)}"
    times = [row[x] for x in ("graph", "call") if row[x]]
    if any(not isinstance(t.get(x), NUMBER) or not t[x] > 0 for t in times for x in ("median", "low", "high")):
        return f"row {n} has a time without positive median, low and high"
    if not row["floor"] > 0:
        return f"row {n} has a floor of {row['floor']}"
    if times and row["outcome"] not in ("right", "reported"):
        return f"row {n} has the time of a result that is {row['outcome']}"
    wanted = {"error": ("o", "state", "against"), "agreement": ("o", "state", "worst")}
    short = [
        f"row {n} has {x} without {', '.join(keys)}" for x, keys in wanted.items() if row[x] and set(keys) - set(row[x])
    ]
    return short[0] if short else None

"""Figures of other kernels that are quoted, not measured here: `peers.json`, with machine, date and versions."""

import functools
import json
from pathlib import Path

FILE = Path(__file__).with_name("peers.json")


@functools.cache
def data():
    """The file.

    >>> data()["machine"], data()["level"]
    ('NVIDIA H200', 'reported')
    """
    return json.loads(FILE.read_text(encoding="utf-8"))


def reported(shape, gates, measured=()):
    """The quoted figures for one workload -> [{impl, ms or None, error or None}], without those that were measured.

    >>> [(x["impl"], x["ms"]) for x in reported("T=8192 H=8", "long")]
    [('fla', 1.109), ('flashkda', 0.86), ('cudnn', 2.083)]
    >>> reported("T=2048 H=8", "weak", measured=["cudnn"])[0]["error"]["o"]
    0.0083
    """
    found = [
        x for x in data()["rows"] if x["shape"] == shape and x["gates"] in (None, gates) and x["impl"] not in measured
    ]
    against = "float64 token loop, as reported"

    def error(x):
        return {"o": x["o"], "state": x["state"], "against": against} if "o" in x else None

    return [{"impl": x["impl"], "ms": x.get("ms"), "error": error(x)} for x in found]


def source():
    """Where the quoted figures come from, in a line."""
    d = data()
    return (
        f"{d['level']}: {d['why']}; {d['machine']}, {d['software']}, {d['date']}, medians of event timings of one call"
    )

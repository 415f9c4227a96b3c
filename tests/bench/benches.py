"""Known implementations, right and wrong, and a clock that needs no GPU, for the tests of the benchmark."""

import math

from kda_lab import ops
from kda_lab.bench import check, document, run
from kda_lab.bench.implementations import READABLE, Implementation
from kda_lab.ops.words import in_public_words

# an empty sequence, two with tails; heads 0, 2 and 3 are those that float64 computes
SHAPE, UNSEEN = "0+50+90 H=4", 1


class Clock:
    """Known times without a GPU; a call for each, so that what calls leave behind is seen."""

    def call(self, call, repeats):
        call()
        return [0.5 + 0.01 * n for n in range(repeats)]

    def graph(self, call, repeats):
        return [0.4 + 0.01 * n for n in range(repeats)], call()


SETTINGS = run.Settings(device="cpu", repeats=5, clock=Clock())


def right(arguments):
    named = in_public_words(arguments)
    return lambda: ops.chunk_kda(**named)


def spoiled(change):
    """An implementation whose (o, S) goes through `change`."""

    def prepare(arguments):
        call = right(arguments)
        return lambda: change(*(x.clone() for x in call()))

    return Implementation(prepare)


def changed(**other):
    """An implementation that computes another call."""
    return Implementation(lambda arguments: right(arguments | other))


RIGHT = Implementation(right)


def rows(*others, readable=RIGHT, shape=SHAPE, gates="long", settings=SETTINGS):
    chosen = {READABLE: (readable, None)} | {f"other-{n}": (x, None) for n, x in enumerate(others)}
    return list(run.workload_rows(shape, gates, chosen, settings))


def set_to(value, *where):
    """(o, S) with one part of o replaced."""

    def change(o, S):
        o[where] = value * o[where] if value else math.nan
        return o, S

    return change


def raising(error):
    def prepare(arguments):
        raise error

    return Implementation(prepare)


def made(rows, **other):
    environment = {"device": "NVIDIA H200", "driver": "580", "cuda": "13.0", "copy_rate": 4.26e12, "date": "2026-11-30"}
    environment |= {"versions": {"torch": "2.11"}, "sources": "0123", "clocks_mhz": None}
    top = {"format": document.FORMAT, "version": 1, "finished": True, "limit": check.LIMIT, "repeats": 5, "seed": 0}
    return top | {"environment": environment, "absent": [{"impl": "fla", "why": "not installed"}], "rows": rows} | other

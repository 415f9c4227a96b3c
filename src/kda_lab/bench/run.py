"""The rows of a run: each implementation on each workload is checked first, and timed only if it is right."""

import re
from typing import Any, NamedTuple

import torch

from kda_lab.bench import check, peers
from kda_lab.bench.clock import Clock, percentiles
from kda_lab.bench.document import number
from kda_lab.bench.implementations import IMPLEMENTATIONS, READABLE, absent
from kda_lab.conformance.case import REFUSALS
from kda_lab.cuda import workloads
from kda_lab.cuda.measure import COPY_RATE


class Settings(NamedTuple):
    """How to measure.

    device: of the inputs   rate: bytes a second of a copy   l2_bytes: of the cache before memory   clock: as `Clock`.
    """

    device: str = "cuda"
    seed: int = 0
    repeats: int = 20
    rate: float = COPY_RATE
    l2_bytes: int = 0
    clock: Any = Clock()


def choose(named, known=None):
    """What to time -> ({name: (implementation, its rows)}, [{impl, why}] of what is absent).

    named: names, each then timed in every row, or None for all of them in the rows that they have.

    >>> choose(["hoper"])
    Traceback (most recent call last):
    ValueError: --impl knows chunk, hopper, ...; got 'hoper'
    """
    known = IMPLEMENTATIONS if known is None else known
    if wrong := [name for name in named or () if name not in known]:
        raise ValueError(f"--impl knows {', '.join(known)}; got {wrong[0]!r}")
    names = list(known) if named is None else list(dict.fromkeys(named))
    missing = [{"impl": name, "why": why} for name in names if (why := absent(known[name]))]
    there = [name for name in names if name not in {x["impl"] for x in missing}]
    return {name: (known[name], known[name].rows if named is None else None) for name in there}, missing


def workload_rows(shape, gates, chosen, settings):
    """The rows of one workload, one after the other; quoted figures come last.

    chosen: as from `choose`. Raises ValueError for a shape that is none.
    """
    here = {name: x for name, (x, rows) in chosen.items() if rows is None or shape in rows}
    wanted = check.exact(fresh(shape, gates, settings)) if here else None
    readable, measured = None, []
    # the readable kernel first: the others are compared with it
    for name in sorted(here, key=lambda name: name != READABLE):
        row, result = one_row(here[name], fresh(shape, gates, settings), wanted, readable, settings)
        if row["outcome"] == "right":
            measured.append(name)
            readable = result if name == READABLE else readable
        row = heading(shape, gates, name, settings.rate) | row
        if row["outcome"] == "right" and row["bytes"] < settings.l2_bytes:
            # then a replay finds its inputs in the cache, and the floor is none
            row["note"] = "; ".join(filter(None, (row["note"], "all of it fits in L2")))
        yield row
        del result
        free()
    rate = peers.data()["copy_rate"]
    for x in peers.reported(shape, gates, measured=measured):
        time = None if x["ms"] is None else dict.fromkeys(("median", "low", "high"), x["ms"])
        row = heading(shape, gates, x["impl"], rate) | {"level": "reported", "outcome": "reported"}
        row |= {"note": f"reported, {peers.data()['machine']}", "graph": None, "call": time}
        yield row | {"error": x["error"], "agreement": None}


def fresh(shape, gates, settings):
    """The inputs of a workload, the same each time: no implementation sees what another has done to them."""
    generator = torch.Generator(settings.device).manual_seed(settings.seed)
    return workloads.inputs(generator, **workloads.shape(shape), gates=gates)


def heading(shape, gates, name, rate):
    """What a row says before anything is measured."""
    moved = workloads.bytes_moved(**workloads.shape(shape))
    return {
        "shape": shape,
        "gates": gates,
        "impl": name,
        "level": "measured",
        "bytes": moved,
        "floor": moved / rate * 1e3,
    }


def one_row(implementation, arguments, wanted, readable, settings):
    """Outcome, times and errors of one implementation, and its result or None."""
    row = {"outcome": "failed", "note": "", "graph": None, "call": None, "error": None, "agreement": None}
    before = marks(arguments)
    try:
        with torch.no_grad():
            call = implementation.prepare(arguments)
            result = implementation.finish(call())
            row |= judged(result, arguments, wanted, readable)
            if marks(arguments) != before:
                row |= {"outcome": "wrong", "note": "it changed its inputs"}
            if row["outcome"] == "right":
                row |= timed(call, implementation.finish, arguments, wanted, readable, settings)
    except REFUSALS as error:
        return row | {"outcome": "refused", "note": sentence(error), "graph": None, "call": None}, None
    except Exception as error:
        # one broken kernel must not take the figures of the others with it
        return row | {"outcome": "failed", "note": sentence(error), "graph": None, "call": None}, None
    return row, result


def judged(result, arguments, wanted, readable):
    """Errors of a result and whether it is right."""
    if problem := check.misshapen(result, arguments):
        return {"outcome": "wrong", "note": problem}
    error = check.errors(result, wanted)
    agreement = check.agreement(result, readable) if readable else None
    fault = check.fault(error, agreement)
    return {
        "outcome": "wrong" if fault else "right",
        "note": fault or "",
        "error": error | {x: number(error[x]) for x in ("o", "state")},
        "agreement": agreement and {name: number(x) for name, x in agreement.items()},
    }


def timed(call, finish, arguments, wanted, readable, settings):
    """Times of a call, and of a graph if what its replays leave is right, too."""
    found = {"call": percentiles(settings.clock.call(call, settings.repeats))}
    try:
        samples, captured = settings.clock.graph(call, settings.repeats)
    except RuntimeError as error:
        return found | {"note": f"no CUDA graph: {sentence(error)}"}
    if judged(finish(captured), arguments, wanted, readable)["outcome"] != "right":
        return found | {"note": "no CUDA graph: its replays leave another result"}
    return found | {"graph": percentiles(samples)}


def marks(arguments):
    """A number for the bits of each tensor, to see whether a call changes it."""
    tensors = [x for x in arguments.values() if isinstance(x, torch.Tensor)]
    return [x.view(torch.int16).sum(dtype=torch.int64).item() for x in tensors]


def sentence(error):
    """An exception in one line, without folders.

    >>> sentence(RuntimeError("no /usr/lib/x/y.so\\nmore"))
    'RuntimeError: no y.so'
    """
    text = f"{type(error).__name__}: {str(error).strip() or 'no message'}".splitlines()[0]
    return re.sub(r"(?<![\w.])(?:[A-Za-z]:)?(?:[\\/][\w.+-]+)+[\\/](?=[\w.+-])", "", text)[:300]


def free():
    """Give memory back, so that the next implementation finds what this one had."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()

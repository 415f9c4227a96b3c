"""One whole run as a page shows it: short enough to be kept with the book, and made by several processes at once."""

import concurrent.futures

from kda_lab.conformance import case, isolate
from kda_lab.conformance.report import document
from kda_lab.conformance.run import chosen


def run(impl, caps="", op="kda", device="cuda", dtype="bfloat16", seed=1, timeout=120.0, workers=1, only=None):
    """The outcome of every case for an implementation: a JSON-able document.

    impl: "package.module:function"   caps: what it can and cannot do, as for the command   workers: processes at a time
    timeout: seconds for a case   only: names or kinds of cases, or None for all.
    Returns {implementation, products, environment, seed, summary, cases: {name: {outcome, reason, error, budget, accuracy}}}.

    >>> found = run("kda_lab.ops:chunk_kda", device="cpu", dtype="float32", only=["plain-inputs"])
    >>> found["summary"]["pass"], found["cases"]["plain-inputs"]["outcome"]
    (1, 'pass')
    """
    names = [c.name for c in chosen(op, only)]
    job = {"impl": impl, "op": op, "device": device, "layout": None, "dtype": dtype, "caps": caps, "seed": seed}
    # the first case alone: what it measures of the arithmetic holds for all
    loaded, results = part(job | {"cases": names[:1]}, timeout)
    job |= {"rung": loaded["products"]["precision"]}
    shares = [names[1 + n :: workers] for n in range(workers)]
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        for _, more in pool.map(lambda share: part(job | {"cases": share}, timeout), shares):
            results += more
    found = {r.case: r for r in results}
    return {
        **loaded,
        "seed": seed,
        "summary": {outcome: sum(r.outcome == outcome for r in results) for outcome in case.OUTCOMES},
        "cases": {name: row(found[name]) for name in names},
    }


def part(job, timeout):
    """What a worker says: (Loaded, results)."""
    messages = list(isolate.stream(job, timeout))
    loaded = [dict(m) for m in messages if isinstance(m, isolate.Loaded)]
    return (loaded or [None])[0], [m for m in messages if isinstance(m, case.Result)]


def row(result):
    """One case of the document.

    >>> row(case.Result("plain-inputs", "numbers", "pass", error=0.001, budget=0.01))["outcome"]
    'pass'
    """
    return {
        "outcome": result.outcome,
        "reason": result.reason[:300],
        "error": document.number(result.error),
        "budget": document.number(result.budget),
        "accuracy": result.accuracy,
    }

"""One whole run as a page shows it: short enough to be kept with the book, and made by several processes at once."""

import concurrent.futures

from kda_lab.conformance import case, isolate
from kda_lab.conformance.cases import CASES
from kda_lab.conformance.judge.examiner import REASON
from kda_lab.conformance.report import document
from kda_lab.conformance.run import chosen
from kda_lab.data import sources

VERSION = 2


def run(impl, caps="", op="kda", device="cuda", dtype="bfloat16", seed=1, timeout=120.0, workers=1, only=None):
    """The outcome of every case for an implementation: a JSON-able document, described by ``report/study.json``.

    impl: "package.module:function"   caps: what it can and cannot do, as for the command   workers: processes at a time
    timeout: seconds for a case   only: names or kinds of cases, or None for all. Cases that fill a device's memory run
    behind the others, alone, in a process of their own. A record of the result depends on the sources that the
    processes used
    (``data.sources.note``).   Raises isolate.Failed if the implementation cannot be loaded.

    >>> found = run("kda_lab.ops:chunk_kda", device="cpu", dtype="float32", only=["plain-inputs"])
    >>> found["summary"]["pass"], found["cases"]["plain-inputs"]["outcome"]
    (1, 'pass')
    """
    cases = chosen(op, only)
    job = {"impl": impl, "op": op, "device": device, "layout": None, "dtype": dtype, "caps": caps, "seed": seed}
    light, heavy = ([c.name for c in cases if c.alone is alone] for alone in (False, True))
    shares = [share for n in range(workers) if (share := light[n::workers])]
    # what the first process measures of the arithmetic holds for all
    rung = concurrent.futures.Future()
    running = []

    def after_the_others():
        concurrent.futures.wait(running)
        return rung.result()

    with concurrent.futures.ThreadPoolExecutor(len(shares) + 1) as pool:
        running += [
            pool.submit(part, job | {"cases": share}, timeout, rung, rung.result if n else None)
            for n, share in enumerate(shares)
        ]
        behind = (
            [pool.submit(part, job | {"cases": heavy}, timeout, rung, after_the_others if shares else None)]
            if heavy
            else []
        )
    parts = [future.result() for future in [*running, *behind]]
    found = {r.case: r for _, results in parts for r in results}
    return {
        "format": "kda-lab-conformance-study",
        "version": VERSION,
        **parts[0][0],
        "seed": seed,
        "summary": {outcome: sum(r.outcome == outcome for r in found.values()) for outcome in case.OUTCOMES},
        "cases": {c.name: row(found[c.name]) for c in cases},
    }


def part(job, timeout, rung, wait):
    """(Loaded, results) of a worker. It judges when ``wait`` returns the precision of products; without one it sets
    ``rung``.

    Where a worker cannot be started again behind a crash, its other cases are errors: one of them must not cost the
    whole run.
    """
    loaded, results = None, []
    try:
        for message in isolate.stream(job, timeout, wait):
            if isinstance(message, isolate.Loaded):
                loaded = dict(message)
                if wait is None:
                    rung.set_result(loaded["products"]["precision"])
            elif isinstance(message, case.Result):
                results.append(message)
            elif isinstance(message, isolate.Sources):
                sources.note(sources.PACKAGE.parent / name for name in message)
    except isolate.Failed as error:
        if wait is None and loaded is None:
            raise
        left = set(job["cases"]) - {r.case for r in results}
        results += [case.Result(name, CASES[name].kind, "error", str(error)) for name in left]
    finally:
        if wait is None and not rung.done():
            # nobody waits for what will not come
            rung.set_exception(isolate.Failed("the first worker failed before it measured the precision of products"))
    return loaded, results


def row(result):
    """One case of the document.

    >>> row(case.Result("plain-inputs", "numbers", "pass", error=0.001, budget=0.01))["outcome"]
    'pass'
    """
    return {
        "outcome": result.outcome,
        "reason": result.reason[:REASON],
        "error": document.number(result.error),
        "budget": document.number(result.budget),
        "accuracy": result.accuracy,
        "engine": result.engine,
        "seconds": round(result.seconds, 2),
    }

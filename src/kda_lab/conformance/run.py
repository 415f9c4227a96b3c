"""The runner: measures the precision of products, then lets every case speak, one result at a time."""

import time
from collections.abc import Callable, Sequence

import torch

from kda_lab.conformance.adapters import wrap
from kda_lab.conformance.capabilities import Unsupported
from kda_lab.conformance.case import KINDS, Crashed, Refused, Result, Wrong
from kda_lab.conformance.cases import CASES
from kda_lab.conformance.judge import tolerance
from kda_lab.conformance.judge.examiner import REASON, Examiner
from kda_lab.data.doors import known

NATURAL = {torch.float64: "float64", torch.float32: "float32", torch.float16: "tf32/fp16", torch.bfloat16: "bfloat16"}
PROMISED = {
    "float64": "float64",
    "float32": "float32",
    "tf32": "tf32/fp16",
    "float16": "tf32/fp16",
    "bfloat16": "bfloat16",
}


def chosen(rule, only=None, device="cpu"):
    """The cases for a rule: all, or those that ``only`` names (a list of names or kinds).

    Raises ValueError for a name that no case has.

    >>> [c.name for c in chosen("kda", ["plain-inputs"])]
    ['plain-inputs']
    """
    found = sorted((c for c in CASES.values() if rule in c.ops), key=lambda c: KINDS.index(c.kind))
    if not only:
        return found
    for name in only:
        if name not in {c.name for c in found} | {c.kind for c in found}:
            import difflib

            known = sorted({c.name for c in found} | {c.kind for c in found})
            near = difflib.get_close_matches(name, known, n=3)
            hint = f"close: {', '.join(near)}" if near else "see --list"
            raise ValueError(f"no case for {rule} is called {name!r}; {hint}")
    return [c for c in found if c.name in only or c.kind in only]


def measure_rung(implementation, dtype, seed):
    """The precision of the implementation's products: the finest whose budget it keeps easily on a short and kind
    input.

    What it declares as ``arithmetic`` counts instead, if it does. Two fifths of the budget: operands that happen to
    round little on this input must not be taken for finer ones.

    >>> from kda_lab import ops
    >>> measure_rung(wrap(ops.chunk_kda), torch.float32, 0)
    'float32'
    """
    promised = implementation.capabilities.arithmetic
    if promised:
        return PROMISED[promised]
    natural = NATURAL[dtype]
    names = list(tolerance.RUNGS)
    for name in names[names.index("float64" if dtype == torch.float64 else "float32") :]:
        try:
            bench = Examiner(implementation, dtype, seed, "arithmetic", name)
            bench.strictness = 0.4
            bench.right(bench.make(20))
            return name
        except Wrong:
            continue
        except Exception:
            # whatever it is, each case will say it for itself
            return natural
    return natural


def judge(case, implementation, dtype, seed, rung):
    """The result of one case."""
    start = time.perf_counter()
    bench = Examiner(implementation, dtype, seed, case.name, rung)
    engines_that_ran(implementation)
    outcome, reason = verdict(case, bench)
    error, budget, what = bench.nearest or (None, None, "")
    engine, seconds = engines_that_ran(implementation), time.perf_counter() - start
    return Result(case.name, case.kind, outcome, reason, error, budget, what, bench.accuracy, seconds, engine)


def engines_that_ran(implementation):
    """Names of what ran inside of the implementation since they were last asked for, or "" where nobody knows.

    >>> from kda_lab import ops
    >>> engines_that_ran(wrap(ops.chunk_kda))
    ''
    """
    return ", ".join(sorted(set(getattr(implementation.function, "engines", list)())))


def verdict(case, bench):
    """(outcome, reason) of one case."""
    try:
        if "cuda" in case.needs and bench.device != "cuda":
            raise Unsupported("a CUDA device")
        name = str(bench.dtype).removeprefix("torch.")
        if name not in bench.can.dtypes:
            raise Unsupported(name)
        bench.can.need(*(f for f in case.needs if f != "cuda"))
        case.check(bench)
    except Unsupported as what:
        return "unsupported", f"needs {what}"
    except Wrong as what:
        return "fail", str(what)
    except Refused as what:
        allowed = case.refusal != "never"
        return ("pass", f"refused, as the contract allows: {what}") if allowed else ("refused", f"refused: {what}")
    except Crashed as what:
        return "error", str(what)
    except Exception as error:
        # outside of the call: an earlier launch that failed late, no memory left for the comparison
        words = f"{type(error).__name__}: {' '.join(str(error).split())}"
        return "error", f"outside of the implementation's call: {words}"[:REASON]
    return "pass", ""


def results(implementation, dtype=torch.float32, seed=0, cases=None, rung=None):
    """Results of the cases, one after the other, each as soon as it is there."""
    cases = chosen(implementation.rule) if cases is None else cases
    rung = rung or measure_rung(implementation, dtype, seed)
    for case in cases:
        yield judge(case, implementation, dtype, seed, rung)


@known
def examine(
    function: Callable,
    rule: str = "kda",
    dtype: torch.dtype = torch.float32,
    capabilities: str | None = None,
    device: str = "cpu",
    layout: str | None = None,
    seed: int = 0,
    only: Sequence[str] | None = None,
    stop: bool = False,
) -> list[Result]:
    """All results for a function; the same as the command line, for tests and notebooks.

    stop: end after the first result that is neither pass nor unsupported.

    >>> from kda_lab import ops
    >>> [r.outcome for r in examine(ops.chunk_kda, only=["plain-inputs"])]
    ['pass']
    """
    implementation = wrap(function, rule, capabilities, device, layout)
    found = []
    for result in results(implementation, dtype, seed, chosen(rule, only)):
        found.append(result)
        if stop and not ok(result):
            break
    return found


def ok(result):
    """Whether a result lets the whole run pass: a pass, or a case that the implementation declares as unsupported.

    >>> ok(Result("x", "y", "refused"))
    False
    """
    return result.outcome in ("pass", "unsupported")


def all_ok(found):
    """Whether every supported case passed, and at least one did."""
    return all(map(ok, found)) and any(r.outcome == "pass" for r in found)

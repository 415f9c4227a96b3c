"""The frame of a trial of a kernel: memory that is nan, every case twice, one row a case, a table, a JSON file, an exit
status.

What runs in it is `kda_lab.cuda.accept.chunk` and its like: cases, a call, an oracle in float64 and bounds with their
reasons.
"""

import argparse
import concurrent.futures
import contextlib
import json
import os
from pathlib import Path

import torch

from kda_lab.cuda import compile as cuda_compile

BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@contextlib.contextmanager
def poisoned_memory():
    """What torch allocates without a value is nan inside: an entry that a kernel should have written, and did not,
    shows.

    >>> with poisoned_memory():
    ...     torch.empty(3).isnan().all().item()
    True
    """
    deterministic, warn_only = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    fill = torch.utils.deterministic.fill_uninitialized_memory
    # torch fills memory only while both are on
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        torch.utils.deterministic.fill_uninitialized_memory = fill


def twice(call):
    """The results of two calls in poisoned memory.

    >>> count = iter(range(2))
    >>> twice(lambda: next(count))
    (0, 1)
    """
    with poisoned_memory():
        return call(), call()


def draws(generator):
    """Two functions of a shape: normal numbers, and numbers in [0, 1); fp32, on the generator's device.

    >>> normal, uniform = draws(torch.Generator().manual_seed(0))
    >>> normal(2, 3).shape, uniform(4).dtype
    (torch.Size([2, 3]), torch.float32)
    """
    options = dict(generator=generator, dtype=torch.float32, device=generator.device)
    return (lambda *shape: torch.randn(shape, **options)), (lambda *shape: torch.rand(shape, **options))


def same_bits(x, y):
    """Whether two tensors of one shape and type are equal bit by bit, so that nan equals nan, and 0 is not -0.

    >>> x = torch.tensor([0.0, torch.nan])
    >>> same_bits(x, x.clone()), same_bits(x, -x)
    (True, False)
    """
    if x.dtype != y.dtype:
        return False
    kind = BITS[x.element_size()]
    return torch.equal(x.view(kind), y.view(kind))


def judge(name, errors, limits, repeats, **kept):
    """The row of a case: its errors, the first one's limit, and what must hold besides; `ok` if all is well.

    errors, limits: {what: number}; an error must be less than its limit, which nan is not   repeats: whether both calls
    gave the
    same bits   kept: {what: whether it was left alone}.

    >>> row = judge("one token", {"o": 1e-3, "state": float("nan")}, {"o": 6e-3, "state": 2e-5}, True, inputs=True)
    >>> row["bound"], row["repeats bitwise"], row["inputs"], row["ok"]
    (0.006, True, True, False)
    """
    good = all(errors[what] < limits[what] for what in errors) and repeats and all(kept.values())
    return {
        "case": name,
        **errors,
        "bound": next(iter(limits.values())),
        "repeats bitwise": repeats,
        **kept,
        "ok": good,
    }


def try_all(cases, run):
    """The rows of all cases, with a line for each case as it is done.   run: case -> its rows."""
    found = []
    for case in cases:
        found += (rows := run(case))
        print("ok  " if all(row["ok"] for row in rows) else "FAIL", case.name, flush=True)
    return found


def build_all(sources):
    """Builds of these sources for this GPU, side by side, as NVRTC allows.   sources: pairs of a .cu file and its
    constants.
    """
    arch = cuda_compile.architecture()
    with concurrent.futures.ThreadPoolExecutor() as pool:
        return list(pool.map(lambda source: cuda_compile.build(*source, arch), sources))


def machine():
    """What the GPU is, for the head of a result."""
    return {"device": torch.cuda.get_device_name(), "arch": cuda_compile.architecture(), "cuda": torch.version.cuda}


DEFAULTS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}


def parser(doc):
    """A parser with the options of every trial; `started` parses.   doc: the module's, which is the help."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--small", action="store_true", help="small cases and no timing")
    made.add_argument("--on-cpu", action="store_true", help="the small cases through the host compiler")
    made.add_argument("--default-dtype", choices=DEFAULTS, default="float32", help="torch's default dtype meanwhile")
    return made


def started(made, words=None):
    """The parsed options; torch has the default dtype that they name from now on.

    >>> started(parser("help"), ["--small"]).default_dtype
    'float32'
    """
    options = made.parse_args(words)
    torch.set_default_dtype(DEFAULTS[options.default_dtype])
    return options


def show_cases(rows, errors, kept, name=lambda row: row["case"]):
    """The table of the cases.   errors, kept: names of entries, the columns   name: what the first column says of a
    row.
    """
    if rows:
        print(f"\n{'case':46}" + "".join(f"{what:>9}" for what in (*errors, "bound")) + f"  bitwise, {kept}")
    for row in rows:
        numbers = "".join(f"{row[what]:9.1e}" for what in errors) + f"{row['bound']:9.0e}"
        print(f"{name(row):46}{numbers}  {row['repeats bitwise']}, {row[kept]}{'' if row['ok'] else '   FAIL'}")


def finish(result, good, name, show):
    """Write the result as JSON into the folder OUT, if that is set, print it, and return the exit status.

    good: whether all held   name: of the file   show: prints a result.
    """
    if out := os.environ.get("OUT"):
        Path(out, name).write_text(json.dumps(result, indent=1), encoding="utf-8")
    show(result)
    print("every case holds" if good else "SOME CASES FAIL")
    return 0 if good else 1

"""The command: arguments, one run, and its reports."""

import secrets
import shlex
import sys
from pathlib import Path

from kda_lab.conformance import capabilities, case, isolate
from kda_lab.conformance.report import junit, page, terminal

# what loads torch is imported where it is used: the parser of every command asks this module for its arguments


def add_arguments(parser):
    """The arguments of ``kda-lab conformance``.

    >>> import argparse
    >>> parser = argparse.ArgumentParser()
    >>> add_arguments(parser)
    >>> parser.parse_args(["--impl", "a:b"]).op
    'kda'
    """
    add = parser.add_argument
    add("--impl", metavar="WHERE:FUNCTION", help="package.module:function or ./file.py:function")
    add("--op", default="kda", choices=case.ALL, help="the rule that it computes (kda)")
    add("--device", default="cpu", choices=("cpu", "cuda"), help="where the inputs are (cpu)")
    add("--state-layout", choices=("vk", "kv"), help="states are [N, HV, V, K] (vk) or [N, HV, K, V] (kv)")
    add("--dtype", choices=capabilities.DTYPES, help="of q, k, v (float32 on a CPU, bfloat16 on CUDA)")
    add(
        "--caps",
        default="",
        metavar="WORDS",
        help="what it can do: no-varlen,no-backward,sizes=128x128,... (see --list)",
    )
    add("--only", action="append", metavar="CASE", help="one case or one kind of cases; may be repeated")
    add("--seed", type=int, help="replay the inputs of an earlier run; printed by every run")
    add("--timeout", type=float, default=300.0, metavar="SECONDS", help="for one case (300)")
    add("--json", action="store_true", help="one JSON document on stdout")
    add("--junit", type=Path, metavar="FILE", help="write JUnit XML")
    add("--html", type=Path, metavar="FILE", help="write one self-contained page")
    add("--list", action="store_true", help="list cases and capabilities, run nothing")


def run(arguments):
    """Run the command; 0 if every supported case passes, 1 if not, 2 for a mistake in the arguments."""
    from kda_lab.conformance.run import chosen

    try:
        if arguments.list:
            print(terminal.listing(chosen(arguments.op, arguments.only)))
            return 0
        return examine(job_of(arguments), arguments)
    except (ValueError, isolate.Failed) as error:
        print(f"kda-lab conformance: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("kda-lab conformance: interrupted", file=sys.stderr)
        return 130


def job_of(arguments):
    """What the worker needs to know. Raises ValueError with a sentence."""
    from kda_lab.conformance.run import chosen

    if not arguments.impl:
        raise ValueError(
            "say which function to examine, as in --impl package.module:function or --impl ./file.py:function"
        )
    capabilities.parse(arguments.caps)
    for path in filter(None, (arguments.junit, arguments.html)):
        if not path.resolve().parent.is_dir():
            raise ValueError(f"there is no directory {path.parent} for {path.name}; make it first")
    return {
        "impl": arguments.impl,
        "op": arguments.op,
        "device": arguments.device,
        "layout": arguments.state_layout,
        "dtype": arguments.dtype or ("bfloat16" if arguments.device == "cuda" else "float32"),
        "caps": arguments.caps,
        "seed": secrets.randbelow(10**6) if arguments.seed is None else arguments.seed,
        "cases": [c.name for c in chosen(arguments.op, arguments.only)],
    }


def examine(job, arguments):
    """One run and its reports; the exit status."""
    from kda_lab.conformance.report import document

    screen = terminal.Screen(len(job["cases"]), sys.stderr if arguments.json else sys.stdout, quiet=arguments.json)
    loaded, results = {}, []
    for message in isolate.stream(job, arguments.timeout):
        if isinstance(message, isolate.Loaded):
            loaded = message
            screen.head(loaded, job["seed"])
        elif isinstance(message, case.Result):
            results.append(message)
            screen.row(message)
        else:
            screen.start(message[1])
    report = document.make(loaded, job["seed"], replay(job), results)
    screen.end(report)
    if arguments.json:
        print(document.dump(report))
    if arguments.junit:
        arguments.junit.write_text(junit.make(report))
    if arguments.html:
        arguments.html.write_text(page.make(report))
    return 0 if report["ok"] else 1


def replay(job):
    """The command that repeats a run on the same inputs.

    >>> replay({"impl": "a:b", "op": "kda", "device": "cpu", "layout": None, "dtype": "float32", "caps": "no-varlen",
    ...     "seed": 7})
    'kda-lab conformance --impl a:b --op kda --device cpu --dtype float32 --caps no-varlen --seed 7'
    """
    words = ["kda-lab", "conformance"]
    for option in ("impl", "op", "device", "layout", "dtype", "caps", "seed"):
        if job[option] not in (None, ""):
            words += ["--state-layout" if option == "layout" else f"--{option}", str(job[option])]
    return shlex.join(words)

"""The cases in a process of their own: a crash or a case without end costs one case, not the run.

The parent sends a JSON document in a line, and in a second line the precision of products by which to judge, or null;
the worker
answers in lines of JSON: first what it loaded, then the name of each case before it starts and its result after it, in
the end the source files that it used. What the implementation prints goes to stderr.
"""

import contextlib
import functools
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path

from kda_lab.conformance.case import Result
from kda_lab.data import sources

LOADING = 600.0  # seconds
BROKEN = ("CUDA error", "illegal memory access")


class Loaded(dict):
    """What the worker says about the implementation: name, op, capabilities, precision of products, environment."""


class Sources(list):
    """The source files of this package that the worker used: the adapter, and all that is not of the suite."""


class Failed(Exception):
    """The implementation could not be loaded; the message is a sentence."""


def stream(job, timeout, rung=None):
    """First a Loaded, then ("start", name) and Result for each case of job["cases"], whatever happens to the worker;
    then Sources.

    job: what ``worker`` takes   timeout: seconds for one case   rung: a function that waits for the precision of
    products, which
    another worker measures, or None.   Raises Failed.
    """
    left, told = list(job["cases"]), False
    while left:
        before = len(left)
        for message in one_worker(job | {"cases": left}, timeout, rung):
            if isinstance(message, Loaded):
                if not told:
                    yield message
                # a second worker must judge by what the first one measured
                told, rung = True, functools.partial(str, message["products"]["precision"])
                continue
            if isinstance(message, Result):
                left.remove(message.case)
            yield message
        if len(left) == before:
            raise Failed(
                "the process ended without a result and without an error; does the module call exit() when it is "
                "imported?"
            )


def one_worker(job, timeout, rung=None):
    """Messages of one worker process until it ends; ends with an "error" result for the case that ended it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "kda_lab.conformance.isolate"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    lines = queue.Queue()
    threading.Thread(
        target=lambda: ([lines.put(line) for line in process.stdout] and None) or lines.put(None), daemon=True
    ).start()
    running = None
    try:
        send(process, json.dumps(job))
        # it loads the implementation meanwhile
        send(process, json.dumps(rung() if rung else None))
        while True:
            try:
                # importing torch and compiling kernels count for no case
                line = lines.get(timeout=timeout if running else max(timeout, LOADING))
            except queue.Empty:
                process.kill()
                if running is None:
                    raise Failed(
                        f"loading the implementation took more than {max(timeout, LOADING):g} s; raise --timeout"
                    ) from None
                yield Result(
                    *running,
                    "error",
                    f"no result after {timeout:g} s; raise --timeout if that is not a hang",
                    seconds=timeout,
                )
                return
            if line is None:
                if running is not None:
                    yield Result(*running, "error", ended(process.wait()))
                elif process.wait():
                    raise Failed(f"the implementation could not be loaded: {ended(process.wait())}")
                return
            message = json.loads(line)
            if "failed" in message:
                raise Failed(message["failed"])
            if "start" in message:
                running = message["start"]
                yield "start", running[0]
            elif "result" in message:
                running = None
                yield Result(**message["result"])
            elif "sources" in message:
                yield Sources(message["sources"])
            else:
                yield Loaded(message["loaded"])
    finally:
        process.kill()
        process.wait()


def send(process, line):
    """Write a line to a worker; one that has ended is noticed where its answers are read."""
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(line + "\n")
        process.stdin.flush()


def ended(code):
    """How a process ended, in words.

    >>> ended(-11), ended(3)
    ('the process was ended by SIGSEGV', 'the process ended with exit code 3')
    """
    if code < 0:
        return f"the process was ended by {signal.Signals(-code).name}"
    return f"the process ended with exit code {code}"


def worker(job, say, ask):
    """Load the implementation, measure it, and let the cases speak.

    job: impl, op, caps, device, layout, dtype, seed, cases   say: sends one document to the parent   ask: the precision
    of products that the parent knows, or None.
    """
    import torch

    from kda_lab.conformance import adapters, run

    try:
        implementation = adapters.wrap(
            adapters.load(job["impl"]), job["op"], job["caps"], job["device"], job["layout"], name=job["impl"]
        )
        if job["device"] == "cuda" and not torch.cuda.is_available():
            raise ValueError("--device cuda needs a CUDA device, and torch sees none; use --device cpu")
    except ValueError as error:
        say({"failed": str(error)})
        return
    # the inputs are small: a second thread costs more than it brings
    torch.set_num_threads(1)
    dtype = getattr(torch, job["dtype"])
    # what takes long to load is loaded before the parent is asked
    libraries = adapters.libraries(implementation.function)
    torch.zeros(1, device=job["device"], dtype=torch.float32)
    rung = ask() or run.measure_rung(implementation, dtype, job["seed"])
    say({"loaded": describe(implementation, job, rung, libraries)})
    for case in run.chosen(job["op"], job["cases"]):
        say({"start": [case.name, case.kind]})
        result = run.judge(case, implementation, dtype, job["seed"], rung)
        say({"result": result._asdict()})
        if result.outcome == "error" and any(words in result.reason for words in BROKEN):
            # no later call on this device works in this process
            break
    say({"sources": sorted(used())})


def used():
    """The files that ``Sources`` names, from the folder above the package.

    >>> "kda_lab/ops/kda.py" in used() or "kda_lab.ops.kda" not in sys.modules
    True
    """
    names = set(sources.used())
    for name, module in list(sys.modules.items()):
        if name.startswith("kda_lab.conformance.adapters."):
            names.add(Path(module.__file__).resolve().relative_to(sources.PACKAGE.parent).as_posix())
    return names


def describe(implementation, job, rung, libraries):
    """What the reports say about an implementation and where it ran.   libraries: versions by name."""
    import platform

    import torch

    can = implementation.capabilities
    return {
        "implementation": {
            "name": implementation.name,
            "op": implementation.rule,
            "state_layout": implementation.layout,
            "device": implementation.device,
            "dtype": job["dtype"],
            "missing": sorted(can.missing),
            "sizes": None if can.sizes is None else [list(pair) for pair in can.sizes],
            "chunk": can.chunk,
            "lowest_gate": None if can.lowest_gate == float("-inf") else can.lowest_gate,
        },
        "products": {"precision": rung, "measured": can.arithmetic is None},
        "environment": {
            "torch": torch.__version__,
            "python": platform.python_version(),
            "device": torch.cuda.get_device_name() if implementation.device == "cuda" else platform.machine() or "cpu",
            "libraries": libraries,
        },
    }


def main():
    """Read a job from stdin, answer on what was stdout."""
    # what the implementation prints must not reach the parent's protocol
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(document):
        channel.write(json.dumps(document) + "\n")
        channel.flush()

    worker(json.loads(sys.stdin.readline()), say, lambda: json.loads(sys.stdin.readline() or "null"))


if __name__ == "__main__":
    main()

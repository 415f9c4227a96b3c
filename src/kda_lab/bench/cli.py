"""``kda-lab bench``: time chunk kernels on this machine's GPU, or show a document of an earlier run."""

import sys
from pathlib import Path

from kda_lab.bench.implementations import IMPLEMENTATIONS

HELP = "how fast are chunk kernels, ours and others', on the same inputs, and are they right?"
NAME = "kda-lab bench"

# what loads torch is imported where it is used: the parser of every command asks this module for its arguments


def add_arguments(parser):
    """The arguments of ``kda-lab bench``.

    >>> import argparse
    >>> parser = argparse.ArgumentParser()
    >>> add_arguments(parser)
    >>> parser.parse_args(["--gates", "long"]).repeats
    20
    """
    add = parser.add_argument
    add(
        "--shapes",
        metavar="A,B",
        help="such as 'T=8192 H=96,mixed H=96'; also T=2048 H=12, 4x1024 H=8, 100+28 H=8 (eight shapes)",
    )
    add("--gates", metavar="A,B", help="strong, long, weak (all three)")
    add(
        "--impl",
        metavar="A,B",
        help=f"of {', '.join(IMPLEMENTATIONS)}, each in every row (all that are installed; fla, which tunes "
        "itself for "
        "90 to 225 s a shape, in one shape)",
    )
    add("--repeats", type=int, default=20, metavar="N", help="timings of a row (20)")
    add("--seed", type=int, default=0, metavar="N", help="of the inputs (0)")
    add("--json", type=Path, metavar="FILE", help="write the document, anew after each workload")
    add("--chart", type=Path, metavar="FILE.svg", help="draw it")
    add(
        "--show",
        metavar="FILE|NAME",
        help="show a document instead of measuring, a file or one that comes with the package (h200, h200-fla); needs "
        "no GPU",
    )


def run(arguments):
    """Run the command; 0 if every result is right or refused, 1 if one is wrong or failed, 2 for a mistake or without a
    GPU.
    """
    try:
        check_arguments(arguments)
        document = shown(arguments) if arguments.show else measured(arguments)
        if arguments.chart:
            draw(document, arguments.chart)
    except ValueError as error:
        print(f"{NAME}: {error}", file=sys.stderr)
        return 2
    except RuntimeError as error:
        # memory is full, or a kernel has left the device unusable; what was measured before is in the file
        print(f"{NAME}: stopped by {type(error).__name__}: {str(error).splitlines()[0]}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{NAME}: interrupted", file=sys.stderr)
        return 130
    return 1 if any(row["outcome"] in ("wrong", "failed") for row in document["rows"]) else 0


def check_arguments(arguments):
    """Raise ValueError for what no run can satisfy, before anything is measured."""
    if arguments.repeats < 3:
        raise ValueError(f"--repeats must be at least 3, got {arguments.repeats}; a median needs neighbours")
    if arguments.show and arguments.json:
        raise ValueError("--json writes what was measured, and --show measures nothing; leave out one of them")
    for path in filter(None, (arguments.json, arguments.chart)):
        if not path.resolve().parent.is_dir() or path.is_dir():
            raise ValueError(f"{path} cannot be written: it needs a name in a folder that exists")
    if arguments.chart:
        if arguments.chart.suffix != ".svg":
            raise ValueError(f"--chart draws an .svg, got {arguments.chart.name}")
        import importlib.util

        if not importlib.util.find_spec("matplotlib"):
            raise ValueError(
                "--chart needs matplotlib, which is not installed; write --json here, and draw it elsewhere with --show"
            )


def names(text):
    """Names from words with commas, or None.

    >>> names("T=8192 H=96, mixed H=96"), names(None)
    (['T=8192 H=96', 'mixed H=96'], None)
    """
    return None if text is None else list(dict.fromkeys(x.strip() for x in text.split(",") if x.strip()))


def shown(arguments):
    """A document of an earlier run, the rows that were asked for, printed."""
    from kda_lab.bench import document, table

    found = document.read(document.located(arguments.show))
    for key, text in (("shape", arguments.shapes), ("gates", arguments.gates), ("impl", arguments.impl)):
        wanted, there = names(text), list(dict.fromkeys(row[key] for row in found["rows"]))
        if wrong := [x for x in wanted or () if x not in there]:
            raise ValueError(f"{arguments.show} has {', '.join(there) or 'no rows'}; got {wrong[0]!r}")
        found["rows"] = [row for row in found["rows"] if wanted is None or row[key] in wanted]
    print(table.table(found))
    return found


def measured(arguments):
    """A document of this machine, printed row by row."""
    import torch

    from kda_lab.bench.run import choose
    from kda_lab.cuda import workloads
    from kda_lab.parts import inputs

    shapes = names(arguments.shapes) or list(workloads.SHAPES)
    gates = names(arguments.gates) or list(inputs.GATES)
    for shape in shapes:
        workloads.shape(shape)
    if wrong := [x for x in gates if x not in inputs.GATES]:
        raise ValueError(f"--gates knows {', '.join(inputs.GATES)}; got {wrong[0]!r}")
    chosen, absent = choose(names(arguments.impl))
    if not torch.cuda.is_available():
        raise ValueError("there is no CUDA GPU here, and a time needs one; look at an earlier run with --show h200")
    from kda_lab.bench.run import Settings
    from kda_lab.cuda.measure import copy_bandwidth

    rate, l2 = copy_bandwidth(2), torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
    settings = Settings(seed=arguments.seed, repeats=arguments.repeats, rate=rate, l2_bytes=l2)
    return measure(shapes, gates, chosen, absent, settings, arguments.json)


def measure(shapes, gates, chosen, absent, settings, path=None):
    """Measure every workload; print rows as they come, and write the document anew after each workload."""
    from kda_lab.bench import check, document, table
    from kda_lab.bench.environment import clocks, environment
    from kda_lab.bench.run import workload_rows
    from kda_lab.data.files import write_text

    found = {"format": document.FORMAT, "version": document.VERSION, "finished": False, "limit": check.LIMIT}
    found |= {"repeats": settings.repeats, "seed": settings.seed, "environment": environment(settings.rate)}
    found |= {"absent": absent, "rows": []}
    print("\n".join(table.head(found)), flush=True)
    workloads = [(shape, g) for shape in shapes for g in gates]
    for n, (shape, g) in enumerate(workloads, 1):
        for row in workload_rows(shape, g, chosen, settings):
            found["rows"].append(row)
            print(table.line(row), flush=True)
        found["environment"]["clocks_mhz"] = clocks() if settings.device != "cpu" else None
        found["finished"] = n == len(workloads)
        if path:
            write_text(Path(path), document.dump(found))
    print("\n".join(table.foot(found)), flush=True)
    return found


def draw(document, path):
    """Write the chart of a document."""
    from kda_lab.bench import chart
    from kda_lab.data.files import write_text

    write_text(Path(path), chart.standalone(chart.draw(document)))

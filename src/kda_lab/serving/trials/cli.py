"""``kda-lab serving-replay``: a trace of a real scheduler against the simulator."""

import json
import sys

HELP = "replay a trace of a real scheduler and name the first difference"
ASPECTS = ("chunk ends", "hits", "null pattern", "keys", "block ids", "copies", "preemptions", "frees")


def add_arguments(parser):
    """Arguments of the command.

    >>> import argparse
    >>> parser = argparse.ArgumentParser(); add_arguments(parser); parser.parse_args(["a.json.gz", "--safe"]).safe
    True
    """
    parser.add_argument("trace", nargs="+", help="trace files, .json or .json.gz")
    parser.add_argument(
        "--safe",
        action="store_true",
        help="never key a column that its chunk did not finish (the trace may then differ)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")


def run(args):
    """Replay the traces; 1 on any difference under the trace's own rules, 2 for a file that is no trace, else 0.

    Values that are not what their key promises are listed and do not change the status. Under --safe a difference is
    what the safe rule changes, and does not change it either.
    """
    from kda_lab.serving.trials.replay import replay
    from kda_lab.serving.trials.traces import TraceError

    status, reports = 0, []
    for path in args.trace:
        try:
            report = replay(path, args.safe)
        except TraceError as error:
            print(f"kda-lab serving-replay: {error}", file=sys.stderr)
            return 2
        reports.append(report)
        if report["difference"] and not args.safe:
            status = 1
        if not args.json:
            print("\n".join(lines(report)))
    if args.json:
        print(json.dumps(reports[0] if len(reports) == 1 else reports))
    return status


def lines(report):
    """A report as text."""
    yield f"{report['trace']}: {report['title']} (vLLM {report['version']})"
    if report["difference"] is None:
        left_out = f", and {report['unrecorded_steps']} that it leaves out" if report["unrecorded_steps"] else ""
        yield f"  {report['steps']} steps{left_out}: {', '.join(ASPECTS[:-1])} and {ASPECTS[-1]} agree"
        if report["guessed_probes"]:
            count = report["guessed_probes"]
            yield (
                f"  prompts of probes that the trace does not tell, each explained by a prefix of an "
                f"earlier request: {count}"
            )
    elif report["safe"]:
        yield f"  the safe rule departs from the trace at {report['difference']['text']}"
        yield "  chunks and block ids after it are the simulator's own"
    else:
        yield f"  DIFFERENT at {report['difference']['text']}"
    roots = [v for v in report["violations"] if not v["inherited"]]
    yield f"  {report['checks']} values checked, {len(roots)} wrong" + (":" if roots else "")
    for v in report["violations"]:
        yield f"    event {v['event']}: {v['text']}" + (" (follows from the above)" if v["inherited"] else "")

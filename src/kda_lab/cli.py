"""The command line. Each command exits 0 only if what it checks holds."""

import argparse
import os
import sys
from pathlib import Path

import kda_lab


def _verify(args):
    from kda_lab.proof import registry, report
    from kda_lab.proof.equations import EQUATIONS

    chosen = EQUATIONS
    if args.only:
        chosen = [e for e in EQUATIONS if e.slug == args.only]
        if not chosen:
            import difflib

            near = difflib.get_close_matches(args.only, [e.slug for e in EQUATIONS], n=3)
            hint = f"; close: {', '.join(near)}" if near else "; run 'kda-lab verify' for the list"
            print(f"kda-lab verify: no equation has the slug {args.only!r}{hint}", file=sys.stderr)
            return 2
    return 0 if report.run(chosen, registry.judge, as_document=args.json) else 1


def _gpu(args):
    from kda_lab.pages import gpucell

    record = args.action == "record"
    # the package is installed without the book
    if not Path(book := gpucell.BOOK if record else args.book).is_dir():
        named = "" if record else ", or name the folder with --book"
        print(
            f"kda-lab gpu {args.action}: there is no folder {book}, expected the pages of the book; run it in a clone "
            f"of the repository{named}",
            file=sys.stderr,
        )
        return 2
    return gpucell.record(args.targets) if record else gpucell.check(book, allow_stale=args.allow_stale)


def parser():
    """The parser of ``kda-lab``.

    >>> parser().parse_args(["verify", "--only", "kda-forms"]).only
    'kda-forms'
    """
    from kda_lab.bench import cli as bench_cli
    from kda_lab.conformance import cli as conformance_cli
    from kda_lab.serving.plan import cli as plan_cli
    from kda_lab.serving.trials import cli as replay_cli

    top = argparse.ArgumentParser(prog="kda-lab", description="Delta-rule attention: proofs, checks, kernels, serving.")
    top.add_argument("--version", action="version", version=f"kda-lab {kda_lab.__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    verify = commands.add_parser("verify", help="prove and check every equation, and reject every mutant")
    verify.add_argument("--only", metavar="SLUG", help="one equation")
    verify.add_argument("--json", action="store_true", help="one JSON document on stdout")
    verify.set_defaults(run=_verify)
    gpu = commands.add_parser("gpu", help="record the GPU cells of the book, or check the recordings").add_subparsers(
        dest="action", required=True, metavar="ACTION"
    )
    record = gpu.add_parser("record", help="run GPU cells on this machine's CUDA device and record them")
    record.add_argument("targets", nargs="*", help="pages or cell names (all if none)")
    record.set_defaults(run=_gpu)
    check = gpu.add_parser("check", help="are the recordings complete and fresh?")
    check.add_argument("--book", default="book", help="folder of the pages")
    check.add_argument("--allow-stale", action="store_true", help="let records of an earlier version pass")
    check.set_defaults(run=_gpu)
    conform = commands.add_parser(
        "conformance", help="does a function compute the delta rule? cases, tolerances, a report"
    )
    conformance_cli.add_arguments(conform)
    conform.set_defaults(run=conformance_cli.run)
    plan = commands.add_parser(
        "plan", help="the KV cache of a published config: block size, padding, groups, what fits"
    )
    plan_cli.add_arguments(plan)
    plan.set_defaults(run=plan_cli.run)
    replay = commands.add_parser("serving-replay", help=replay_cli.HELP)
    replay_cli.add_arguments(replay)
    replay.set_defaults(run=replay_cli.run)
    bench = commands.add_parser("bench", help=bench_cli.HELP)
    bench_cli.add_arguments(bench)
    bench.set_defaults(run=bench_cli.run)
    return top


def main(argv=None):
    """Run ``kda-lab`` and return its exit status."""
    args = parser().parse_args(argv)
    try:
        status = args.run(args)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # whoever read our output has seen enough, as in `kda-lab plan ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


if __name__ == "__main__":
    sys.exit(main())

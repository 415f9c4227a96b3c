"""Let every case of the conformance suite judge every planted fault and every correct variant, and say who catches
what.

    python tools/fault_matrix.py [--json FILE] [NAME ...]

NAME: faults or variants (all if none). The end of a whole run names what is to be looked at: faults that no case or
only one catches, cases that catch nothing, and cases that catch only what many others catch, too. Exit status 1 for a
fault that no case catches, or a correct variant that a case does not pass.
"""

import argparse
import json
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

import torch

BLUNT = 12
ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from kda_lab import conformance  # noqa: E402
from tests.conformance.faults import FAULTS, VARIANTS  # noqa: E402


def judged(planted):
    """All results of a fresh implementation, and the seconds that they took."""
    start = time.perf_counter()
    return conformance.examine(planted.make(), planted.op, planted.dtype), time.perf_counter() - start


def caught(results):
    """The cases that do not let an implementation pass, by name with their seconds."""
    return {r.case: r.seconds for r in results if not conformance.ok(r)}


def show(planted, results, seconds, wrong):
    """One line: what, where it is planted, by how many cases it is seen, and by which."""
    names = list(caught(results))
    first = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    print(
        f"{'!' if wrong else ' '} {planted.name:44} {planted.op:17} {len(names):3}  {seconds:5.1f} s  {first}",
        flush=True,
    )


def summary(found, silent):
    """What is to be looked at after a whole run."""
    print(
        f"\n{len(found)} faults; seen by no case: {', '.join(n for n, cases in found.items() if not cases) or 'none'}"
    )
    alone = {name: next(iter(cases)) for name, cases in found.items() if len(cases) == 1}
    print(f"seen by one case only ({len(alone)}):")
    for name, case in alone.items():
        print(f"  {name}: {case}")
    counts = Counter(case for cases in found.values() for case in cases)
    print(f"cases that catch nothing ({len(silent)}): {', '.join(silent) or 'none'}")
    rarest = {case: min(len(cases) for cases in found.values() if case in cases) for case in counts}
    blunt = [f"{case} ({n})" for case, n in sorted(rarest.items(), key=lambda item: -item[1]) if n > BLUNT]
    print(f"cases each of whose faults more than {BLUNT} cases catch (how many at least): {', '.join(blunt) or 'none'}")
    print("cases by number of faults: " + ", ".join(f"{case} {n}" for case, n in counts.most_common()))


def main():
    """Run and print; 1 for a fault that nothing catches or a variant that is blamed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--json", metavar="FILE", help="write fault -> case -> seconds to this file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    known = {p.name for p in FAULTS + VARIANTS}
    if unknown := set(args.names) - known:
        parser.error(f"there is no fault or variant {', '.join(sorted(unknown))}; known: {', '.join(sorted(known))}")
    wanted = lambda p: not args.names or p.name in args.names
    found, spoke, wrong = {}, defaultdict(set), []
    for planted in filter(wanted, VARIANTS):
        results, seconds = judged(planted)
        false_alarm = not conformance.all_ok(results)
        show(planted, results, seconds, false_alarm)
        wrong += [planted.name] * false_alarm
    for planted in filter(wanted, FAULTS):
        results, seconds = judged(planted)
        found[planted.name] = caught(results)
        show(planted, results, seconds, not found[planted.name])
        wrong += [planted.name] * (not found[planted.name])
        for r in results:
            # a case that nothing on this machine can run is not silent
            spoke[r.case].add(r.outcome)
    if not args.names:
        silent = [
            case for case, outcomes in spoke.items() if outcomes <= {"pass", "unsupported"} and "pass" in outcomes
        ]
        summary(found, silent)
    if args.json:
        Path(args.json).write_text(json.dumps(found, indent=1) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

"""Verdicts as a table with progress, and as one JSON document."""

import json
import sys


def as_json(verdicts):
    """One JSON document for all verdicts.

    >>> json.loads(as_json([]))
    {'equations': [], 'ok': True}
    """
    equations = [
        {
            "slug": v.slug,
            "level": v.level,
            "engine": v.engine,
            "sizes": v.sizes,
            "seconds": round(v.seconds, 4),
            "holds": v.holds,
            "mutants": [{"name": name, "rejected": by is not None} for name, by in v.mutants],
        }
        for v in verdicts
    ]
    return json.dumps({"equations": equations, "ok": all(v.ok for v in verdicts)}, indent=1)


def line(v):
    """One line of the table; the reason below it when the equation does not hold or a mutant survives.

    >>> from kda_lab.proof.registry import Verdict
    >>> line(Verdict("twice", "proved", "ring", "n = 1", 0.25, None, [("thrice", "ring")]))
    'ok    twice                          proved   ring                   1/1      0.25 s'
    """
    rejected = sum(by is not None for _, by in v.mutants)
    told = f"{'ok' if v.ok else 'FAIL':5s} {v.slug:30s} {v.level:8s} {v.engine:20s}"
    text = f"{told} {rejected:3d}/{len(v.mutants):<3d} {v.seconds:7.2f} s"
    if not v.holds:
        text += f"\n      does not hold: {v.failure}"
    for name, by in v.mutants:
        if by is None:
            text += f"\n      mutant survives: {name}"
    return text


def summary(verdicts):
    """The last line of the table.

    >>> summary([])
    '0 of 0 equations hold, 0 of 0 mutants rejected, 0.0 s'
    """
    mutants = [by for v in verdicts for _, by in v.mutants]
    return (
        f"{sum(v.holds for v in verdicts)} of {len(verdicts)} equations hold, "
        f"{sum(by is not None for by in mutants)} of {len(mutants)} mutants rejected, "
        f"{sum(v.seconds for v in verdicts):.1f} s"
    )


def run(equations, judge, as_document=False, out=None):
    """Judge the equations, print the table line by line (or one JSON document), and return whether all is well."""
    out = out or sys.stdout
    verdicts = []
    if not as_document:
        print(f"{'':5s} {'equation':30s} {'level':8s} {'engine':20s} mutants    time", file=out)
    for equation in equations:
        verdicts.append(judge(equation))
        if not as_document:
            print(line(verdicts[-1]), file=out, flush=True)
    print(as_json(verdicts) if as_document else summary(verdicts), file=out)
    return bool(verdicts) and all(v.ok for v in verdicts)

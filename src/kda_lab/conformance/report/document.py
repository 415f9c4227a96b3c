"""The JSON document: stable, described by ``schema.json`` beside this file; the other reports are made from it."""

import json
import math
from pathlib import Path

from kda_lab.conformance.case import OUTCOMES, link
from kda_lab.conformance.cases import CASES
from kda_lab.conformance.run import all_ok

SCHEMA = Path(__file__).with_name("schema.json")
VERSION = 2


def make(loaded, seed, replay, results):
    """The document of one run.   loaded: what ``isolate.describe`` returns   results: a list of Result.

    >>> make({}, 7, "again", [])["ok"]
    False
    """
    return {
        "format": "kda-lab-conformance",
        "version": VERSION,
        **loaded,
        "seed": seed,
        "replay": replay,
        "ok": all_ok(results),
        "summary": {outcome: sum(r.outcome == outcome for r in results) for outcome in OUTCOMES},
        "seconds": round(sum(r.seconds for r in results), 3),
        "cases": [case_document(r) for r in results],
    }


def case_document(result):
    """One case of the document."""
    case = CASES[result.case]
    return {
        "name": case.name,
        "kind": case.kind,
        "outcome": result.outcome,
        "reason": result.reason,
        "error": number(result.error),
        "budget": number(result.budget),
        "compared": result.what,
        "accuracy": result.accuracy,
        "engine": result.engine,
        "seconds": round(result.seconds, 4),
        "fault": case.fault,
        "input": case.input,
        "clause": case.clause,
        "reports": [link(r) for r in case.report],
        "needs": list(case.needs),
    }


def number(x):
    """A number as JSON has it: what is not finite becomes the words "not finite".

    >>> number(0.5), number(math.inf), number(None)
    (0.5, 'not finite', None)
    """
    return x if x is None or math.isfinite(x) else "not finite"


def dump(report):
    """The document as text."""
    return json.dumps(report, indent=1, allow_nan=False)

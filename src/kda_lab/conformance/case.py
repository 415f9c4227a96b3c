"""A case: a kind of fault, the smallest input that shows it, and what came out of it."""

import re
from collections.abc import Callable
from typing import NamedTuple

from kda_lab.rules import RULES

# in the order of the reports: from plain values to what is rare
KINDS = ("numbers", "state", "shapes", "ragged", "memory", "gates", "keys", "gradients", "device")
# errors by which an implementation says that it does not take a call
REFUSALS = (ValueError, TypeError, NotImplementedError, AssertionError)
OUTCOMES = ("pass", "fail", "unsupported", "refused", "error")
# the rules that are examined: those that erase
EXAMINED = {name: rule for name, rule in RULES.items() if rule.gates}
ALL = tuple(EXAMINED)
GATED = tuple(name for name, rule in EXAMINED.items() if rule.decay)
CHANNELS = tuple(name for name, rule in EXAMINED.items() if rule.decay == "channel")
PAIRS = tuple(name for name, rule in EXAMINED.items() if len(rule.gates) > 1)


class Wrong(Exception):
    """The implementation's answer breaks the contract; the message says where and by how much."""


class Refused(Exception):
    """The implementation raised an error that reads like a refusal."""


class Crashed(Exception):
    """The implementation raised an error that does not read like a refusal."""


class Case(NamedTuple):
    """One case. ``fault`` is a sentence about who is caught; ``input`` the smallest input; ``clause`` the contract's
    words.

    >>> Case._fields[:4]
    ('name', 'kind', 'fault', 'input')
    """

    name: str
    kind: str
    fault: str
    input: str
    clause: str
    report: tuple
    needs: tuple
    ops: tuple
    # "never": a refusal is no pass; "may": it is one; "must": nothing else is
    refusal: str
    # it fills the memory of a device: no other case may run beside it
    alone: bool
    check: Callable


class Result(NamedTuple):
    """What a case said: its outcome, the reason, the worst error beside its budget, the seconds.

    error, budget: of the comparison that came nearest to its budget or over it, None if nothing was compared.
    engine: what ran inside of the implementation, where its adapter knows, else "".

    >>> Result("plain-inputs", "numbers", "pass").outcome
    'pass'
    """

    case: str
    kind: str
    outcome: str
    reason: str = ""
    error: float | None = None
    budget: float | None = None
    what: str = ""
    accuracy: str | None = None
    seconds: float = 0.0
    engine: str = ""


CASES = {}


def case(kind, *, input, clause, report=(), needs=(), ops=ALL, refusal="never", alone=False):
    """Register a function ``check(bench)`` as a case: its name is the case's, its docstring the kind of fault.

    needs: features (see ``capabilities.FEATURES``) or "cuda"   report: names like "owner/repository#12"
    refusal: "never", "may" or "must"   alone: whether no other case may run beside it.

    >>> from kda_lab.conformance.cases import CASES
    >>> CASES["plain-inputs"].kind
    'numbers'
    """

    def register(check):
        name = check.__name__.replace("_", "-")
        fault = re.sub(r"\s+", " ", check.__doc__).strip()
        reports = (report,) if isinstance(report, str) else tuple(report)
        wanted = tuple(needs.split()) if isinstance(needs, str) else tuple(needs)
        CASES[name] = Case(name, kind, fault, input, clause, reports, wanted, ops, refusal, alone, check)
        return check

    return register


def link(report):
    """The address of a public report; where its number is a pull request, GitHub leads on from there.

    >>> link("vllm-project/vllm#41292")
    'https://github.com/vllm-project/vllm/issues/41292'
    """
    where, _, number = report.partition("#")
    return f"https://github.com/{where}/issues/{number}"

"""Rules with one place of their code changed, and the checks that must see it.

A check is a function that raises AssertionError where a rule is wrong. A fault is (owner, name, (old, new), check): the
module or class with the function, its name, the code that is replaced, and the check that must fail.
"""

import pytest

from kda_lab.proof.registry import variant


def each_check(checks):
    """A test that runs once for each check, as its argument `check`."""
    return pytest.mark.parametrize("check", checks, ids=lambda check: check.__name__)


def each_fault(faults):
    """A test that runs once for each fault, as its argument `fault`."""
    ids = [f"{name}-{new[:20]}-{check.__name__}" for _, name, (_, new), check in faults]
    return pytest.mark.parametrize("fault", faults, ids=ids)


def assert_seen(fault, monkeypatch, *errors):
    """The fault's check fails, by one of `errors` or an assertion; and it passes when the same code, unchanged, is
    compiled on its own.
    """
    owner, name, patch, check = fault
    subject = getattr(owner, name)
    # the source of a property has its decorator
    function = getattr(subject, "fget", subject)
    monkeypatch.setattr(owner, name, variant(function))
    check()
    monkeypatch.setattr(owner, name, variant(function, patch))
    with pytest.raises((AssertionError, *errors)):
        check()

"""The suite judged: each planted fault is caught, and no correct variant is. ``make faults`` prints which case catches
what.
"""

import pytest
import torch

from kda_lab import conformance
from kda_lab.conformance.case import ALL
from tests.conformance.faults import FAULTS, VARIANTS

pytestmark = pytest.mark.usefixtures("one_thread")
GRADIENTS = "gradients"
# the kinds of cases whose errors depend on the inputs' dtype most
ROUNDED = ("numbers", "state", "gates", "keys")


def cases_for(planted):
    """The cases for its rule, the likely ones first, gradients last."""
    order = {name: i for i, name in enumerate(planted.likely)}
    return sorted(
        conformance.chosen(planted.op), key=lambda case: (order.get(case.name, len(order)), case.kind == GRADIENTS)
    )


def results(planted, cases):
    return conformance.results(conformance.wrap(planted.make(), planted.op), planted.dtype, cases=cases)


@pytest.mark.parametrize("planted", FAULTS, ids=lambda p: p.name)
def test_a_planted_fault_is_caught(planted):
    caught = next((r for r in results(planted, cases_for(planted)) if not conformance.ok(r)), None)
    assert caught, f"no case sees: {planted.make.__doc__}"
    # a mistake in the fault's own code would be an error, too, and prove nothing
    assert caught.outcome == "fail" or "CUDA error" in caught.reason, caught


@pytest.mark.parametrize("planted", VARIANTS, ids=lambda p: p.name)
def test_a_correct_variant_passes_every_case(planted):
    cases = cases_for(planted)
    if planted.dtype != torch.float32:
        # an oracle for every dtype takes long: ``make faults`` runs the other kinds, too
        cases = [case for case in cases if case.kind in ROUNDED]
    found = list(results(planted, cases))
    assert conformance.all_ok(found), [f"{r.case}: {r.outcome}: {r.reason}" for r in found if not conformance.ok(r)]


def test_there_are_enough_of_both_and_of_every_kind():
    assert len(FAULTS) >= 48 and len(VARIANTS) >= 9
    assert {p.op for p in FAULTS} == {p.op for p in VARIANTS} == set(ALL)
    assert all(sum(p.op == op for p in FAULTS) >= 6 for op in ALL)
    names = [p.name for p in FAULTS + VARIANTS]
    assert len(set(names)) == len(names)


def test_the_likely_cases_exist():
    assert {name for p in FAULTS for name in p.likely} <= set(conformance.CASES)

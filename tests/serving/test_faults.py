"""Planted faults: with each of them an output (or a hit, or a draft) differs, without it nothing is wrong."""

import pytest

from kda_lab.serving.trials.faults import FAULTS, break_it

BROKEN = {}


def broken(name):
    """Each fault runs once."""
    if name not in BROKEN:
        BROKEN[name] = break_it(name)
    return BROKEN[name]


@pytest.mark.parametrize("name", FAULTS)
def test_without_the_fault_every_value_is_right(name):
    right = broken(name).right
    assert not right.violations and not right.worker.checks.stale_drafts
    assert right.worker.checks.count > 5


@pytest.mark.parametrize("name", [name for name, fault in FAULTS.items() if fault.shows == "outputs"])
def test_with_the_fault_an_output_differs_and_the_checks_say_where(name):
    b = broken(name)
    assert b.changed() and b.first


@pytest.mark.parametrize("name", [name for name, fault in FAULTS.items() if fault.shows == "hits"])
def test_a_fault_of_the_policy_costs_hits_and_no_value(name):
    b = broken(name)
    assert not b.wrong.violations and not b.changed()
    assert any(wrong < right for right, wrong in b.hits().values())


def test_a_block_that_eagle_should_drop_holds_another_requests_draft():
    b = broken("no-eagle-drop")
    assert not b.changed()
    assert [v.tokens for v in b.wrong.worker.checks.stale_drafts] and b.hits()["B"] == (16, 32)


def test_hits_do_not_fall_to_zero_when_prompts_share_1600_of_2200():
    # vllm #45238: the junction repairs it at the third request
    assert broken("no-junction").hits() == {"A": (0, 0), "B": (0, 0), "C": (1584, 0)}


def test_a_repeat_of_119_tokens_hits_96():
    # vllm #53504
    assert broken("forgets-eagle").hits()["B"] == (96, 0)


def test_every_fault_says_what_it_is():
    for fault in FAULTS.values():
        assert fault.sentence and fault.sentence.endswith(".") and "\n" not in fault.sentence
        assert fault.traffic.__doc__


def test_an_unknown_fault_is_named_with_the_known_ones():
    with pytest.raises(KeyError, match="no-boundary-copy"):
        break_it("typo")

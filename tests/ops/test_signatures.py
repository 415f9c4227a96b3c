"""Table and functions agree: one module a rule, its tensors first, the same options in all three forms."""

import importlib
import inspect

import pytest

from kda_lab import ops, rules
from kda_lab.ops.contract import Call
from tests.leaves import RULES


def parameters(form, rule):
    return inspect.signature(getattr(ops, f"{form}_{rule}")).parameters


@pytest.mark.parametrize("rule", RULES)
def test_a_rules_tensors_come_first_and_its_options_are_those_of_a_call(rule):
    names = list(parameters("chunk", rule))
    n = len(rules.RULES[rule].tensors)
    assert tuple(names[:n]) == rules.RULES[rule].tensors
    known = [name for name in Call._fields if name not in ("q", "k", "v", "g", "gates")]
    # a rule without a decay or without gates lacks the options that speak of them
    assert names[n:] == [name for name in known if name in names]
    assert rules.RULES[rule].decay is None or names[n:] == known


@pytest.mark.parametrize("rule", RULES)
def test_the_three_forms_have_one_signature_and_the_oracle_a_dtype_besides(rule):
    chunk, naive = parameters("chunk", rule), dict(parameters("naive", rule))
    assert parameters("recurrent", rule) == chunk
    assert naive.pop("dtype").annotation and naive == dict(chunk)


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_has_a_module_of_its_name(rule):
    assert importlib.import_module(f"kda_lab.ops.{rule}").RULE is rules.RULES[rule]
    assert {f"{form}_{rule}" for form in ("chunk", "recurrent", "naive")} <= set(ops.__all__)


def test_an_unknown_function_names_the_near_ones():
    with pytest.raises(AttributeError, match="chunk_gdn2"):
        ops.chunk_gdn3  # noqa: B018

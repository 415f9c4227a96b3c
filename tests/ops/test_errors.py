"""Calls outside the contract: each is refused with a sentence that says what came and what to do."""

import pytest
import torch

from kda_lab import ops, rules

B, T, H, HV, K, V = 1, 6, 2, 4, 5, 3


def good(rule="kda"):
    x = {
        "q": torch.zeros(B, T, H, K),
        "k": torch.zeros(B, T, H, K),
        "v": torch.zeros(B, T, HV, V),
        "g": torch.zeros(B, T, HV, K) if rules.RULES[rule].decay == "channel" else torch.zeros(B, T, HV),
        "beta": torch.zeros(B, T, HV),
    }
    x |= {"b": torch.zeros(B, T, HV, K), "w": torch.zeros(B, T, HV, V)}
    return {name: x[name] for name in rules.RULES[rule].tensors}


RAW = {"use_gate_in_kernel": True, "A_log": torch.zeros(HV)}
CASES = {
    "a list": ({"q": [1.0]}, TypeError, "q must be a torch tensor, got list"),
    "no beta": ({"beta": None}, TypeError, "beta must be a torch tensor, got NoneType"),
    "integers": (
        {"q": torch.zeros(B, T, H, K, dtype=torch.int32)},
        TypeError,
        "q must be float16, .* got torch.int32; convert",
    ),
    "mixed dtypes": (
        {"k": torch.zeros(B, T, H, K).double()},
        TypeError,
        "q, k and v must have one dtype, got torch.float32, torch.float64",
    ),
    "another device": (
        {"beta": torch.zeros(B, T, HV, device="meta")},
        ValueError,
        "on q's device cpu, got beta on meta; move it",
    ),
    "q of rank 3": ({"q": torch.zeros(B, T, K)}, ValueError, r"q must be \[B, T, H, K\], got \(1, 6, 5\)"),
    "k of another size": (
        {"k": torch.zeros(B, T, H, K + 1)},
        ValueError,
        r"k must have q's shape .*\(1, 6, 2, 5\), got \(1, 6, 2, 6\)",
    ),
    "v of another length": (
        {"v": torch.zeros(B, T + 1, HV, V)},
        ValueError,
        r"v must be \[B, T, HV, V\] with B, T = \(1, 6\)",
    ),
    "v without channels": ({"v": torch.zeros(B, T, HV, 0)}, ValueError, "must be at least 1, got .* V = 0"),
    "heads that do not divide": (
        {"v": torch.zeros(B, T, 3, V)},
        ValueError,
        "a multiple of the heads of q and k, got HV = 3 and H = 2",
    ),
    "beta for key heads": (
        {"beta": torch.zeros(B, T, H)},
        ValueError,
        r"beta must be \[B, T, HV\] = \(1, 6, 4\), got \(1, 6, 2\)",
    ),
    "g per head": (
        {"g": torch.zeros(B, T, HV)},
        ValueError,
        r"g must be \[B, T, HV, K\].*got \(1, 6, 4\); expand a gate per head with g",
    ),
    "g for key heads": (
        {"g": torch.zeros(B, T, H, K)},
        ValueError,
        r"g must be \[B, T, HV, K\].*one decay for each key channel",
    ),
    "A_log alone": (
        {"A_log": torch.zeros(HV)},
        ValueError,
        "A_log was given, but g is taken as a log decay; set use_gate_in_kernel=True",
    ),
    "dt_bias alone": ({"dt_bias": torch.zeros(HV, K)}, ValueError, "dt_bias was given, but g is taken as a log decay"),
    "lower_bound alone": ({"lower_bound": -5.0}, ValueError, "lower_bound was given, but g is taken as a log decay"),
    "no A_log": ({"use_gate_in_kernel": True}, ValueError, r"use_gate_in_kernel=True needs A_log \[HV\], got None"),
    "A_log of key heads": (RAW | {"A_log": torch.zeros(H)}, ValueError, r"A_log must be \[HV\] = \(4,\), got \(2,\)"),
    "dt_bias of one head": (
        RAW | {"dt_bias": torch.zeros(K)},
        ValueError,
        r"dt_bias must be \(4, 5\) or \(20,\), got \(5,\)",
    ),
    "a positive bound": (RAW | {"lower_bound": 5.0}, ValueError, "lower_bound must be negative and finite, got 5.0"),
    "a bound of nan": (
        RAW | {"lower_bound": float("nan")},
        ValueError,
        "lower_bound must be negative and finite, got nan",
    ),
    "a state in bf16": (
        {"initial_state": torch.zeros(B, HV, V, K).bfloat16()},
        TypeError,
        "initial_state must be torch.float32, got torch.bfloat16",
    ),
    "a state in float64": (
        {"initial_state": torch.zeros(B, HV, V, K).double()},
        TypeError,
        "initial_state must be torch.float32, got torch.float64",
    ),
    "a transposed state": (
        {"initial_state": torch.zeros(B, HV, K, V)},
        ValueError,
        r"\[N, HV, V, K\] = \(1, 4, 3, 5\), got \(1, 4, 5, 3\); transpose",
    ),
    "a state for two": (
        {"initial_state": torch.zeros(2, HV, V, K)},
        ValueError,
        r"\(1, 4, 3, 5\), got \(2, 4, 3, 5\); one state for each sequence",
    ),
    "a scale of nan": ({"scale": float("nan")}, TypeError, "scale must be a finite number or None, got nan"),
    "a scale in words": ({"scale": "auto"}, TypeError, "scale must be a finite number or None, got 'auto'"),
    "chunks of nothing": ({"chunk_size": 0}, ValueError, "chunk_size must be a positive integer or None, got 0"),
    "half a chunk": ({"chunk_size": 16.0}, ValueError, "chunk_size must be a positive integer or None, got 16.0"),
    "boundaries as a list": ({"cu_seqlens": [0, 6]}, TypeError, "cu_seqlens must be an int64 tensor, got list"),
    "boundaries in int32": (
        {"cu_seqlens": torch.tensor([0, 6]).int()},
        TypeError,
        "cu_seqlens must be an int64 tensor, got torch.int32; .*long",
    ),
    "boundaries of rank 2": (
        {"cu_seqlens": torch.tensor([[0, 6]])},
        ValueError,
        r"cu_seqlens must be \[N \+ 1\], got \(1, 2\)",
    ),
    "boundaries from 1": ({"cu_seqlens": torch.tensor([1, 6])}, ValueError, "cu_seqlens must start at 0, got 1"),
    "falling boundaries": (
        {"cu_seqlens": torch.tensor([0, 4, 3])},
        ValueError,
        "cu_seqlens must not decrease, got 4 before 3",
    ),
    "boundaries past the end": (
        {"cu_seqlens": torch.tensor([0, 7])},
        ValueError,
        "cu_seqlens must end within the T = 6 tokens, got 7",
    ),
    "a state for no sequence": (
        {"cu_seqlens": torch.tensor([0, 2, 6]), "initial_state": torch.zeros(1, HV, V, K)},
        ValueError,
        r"initial_state must be .*\(2, 4, 3, 5\), got \(1, 4, 3, 5\)",
    ),
    "a gate above zero": (
        {"g": torch.full((B, T, HV, K), 5.0)},
        ValueError,
        r"g must be <= 0 \(log decay\), got max 5; pass log\(alpha\)",
    ),
    "a linear decay": (
        {"g": torch.full((B, T, HV, K), 0.9)},
        ValueError,
        r"from 0.9 to 0.9, which look like the decay itself; pass log\(alpha\)",
    ),
    "a gate of nan": (
        {"g": torch.full((B, T, HV, K), torch.nan)},
        ValueError,
        "g must be a number everywhere, got NaN",
    ),
    "a raw gate of nan": (
        RAW | {"g": torch.full((B, T, HV, K), torch.nan)},
        ValueError,
        "g must be a number everywhere, got NaN",
    ),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("form", ["chunk", "recurrent"])
def test_a_call_outside_the_contract_is_refused_in_words(form, case):
    change, error, sentence = CASES[case]
    with pytest.raises(error, match=sentence):
        getattr(ops, f"{form}_kda")(**(good() | change))


@pytest.mark.parametrize("case", [name for name in CASES if name != "a state in float64"])
def test_the_oracle_refuses_the_same_calls(case):
    change, error, _ = CASES[case]
    with pytest.raises(error):
        ops.naive_kda(**(good() | change))


def test_the_oracle_computes_in_float_types_with_enough_digits():
    with pytest.raises(TypeError, match="dtype must be torch.float32 or torch.float64, got torch.bfloat16"):
        ops.naive_kda(**good(), dtype=torch.bfloat16)


def test_packed_sequences_need_one_batch_row():
    x = {name: torch.cat([y, y]) for name, y in good().items()}
    with pytest.raises(ValueError, match="cu_seqlens needs B = 1, got B = 2; put the sequences one after the other"):
        ops.chunk_kda(**x, cu_seqlens=torch.tensor([0, 6]))


TWO_GATES = {
    "no erase gate": ({"b": None}, TypeError, "b must be a torch tensor, got NoneType"),
    "integers": ({"w": torch.zeros(B, T, HV, V).long()}, TypeError, "w must be float16, .* got torch.int64; convert"),
    "b per head": (
        {"b": torch.zeros(B, T, HV)},
        ValueError,
        r"b must be \[B, T, HV, K\] = \(1, 6, 4, 5\), got \(1, 6, 4\); expand a gate per head with b\[\.\.\., None\]",
    ),
    "b of the key heads": (
        {"b": torch.zeros(B, T, H, K)},
        ValueError,
        r"b must be .*, got \(1, 6, 2, 5\); one gate for each channel",
    ),
    "w in the place of b": (
        {"b": torch.zeros(B, T, HV, V), "w": torch.zeros(B, T, HV, K)},
        ValueError,
        r"b must be \[B, T, HV, K\] = \(1, 6, 4, 5\), got \(1, 6, 4, 3\)",
    ),
    "w of the keys": (
        {"w": torch.zeros(B, T, HV, K)},
        ValueError,
        r"w must be \[B, T, HV, V\] = \(1, 6, 4, 3\), got \(1, 6, 4, 5\)",
    ),
    "beta": ({"beta": torch.zeros(B, T, HV)}, TypeError, "beta"),
    "g per head": ({"g": torch.zeros(B, T, HV)}, ValueError, r"g must be \[B, T, HV, K\]"),
    "A_log alone": ({"A_log": torch.zeros(HV)}, ValueError, "A_log was given, but g is taken as a log decay"),
}


@pytest.mark.parametrize("case", TWO_GATES)
@pytest.mark.parametrize("form", ["chunk", "recurrent", "naive"])
def test_gates_with_channels_are_checked_as_beta_is(form, case):
    change, error, sentence = TWO_GATES[case]
    with pytest.raises(error, match=sentence):
        getattr(ops, f"{form}_gdn2")(**(good("gdn2") | change))


@pytest.mark.parametrize("rule", rules.RULES)
@pytest.mark.parametrize("form", ["chunk", "recurrent", "naive"])
def test_no_keyword_is_taken_and_not_heard(form, rule):
    with pytest.raises(TypeError, match="chunksize"):
        getattr(ops, f"{form}_{rule}")(**good(rule), chunksize=16)


def test_a_gate_per_channel_is_pointed_to_kda():
    with pytest.raises(ValueError, match=r"g must be \[B, T, HV\].*use kda for a gate per channel"):
        ops.chunk_gated_delta_rule(**(good("gated_delta_rule") | {"g": torch.zeros(B, T, HV, K)}))


def test_a_gate_per_head_takes_a_bias_per_head():
    with pytest.raises(ValueError, match=r"dt_bias must be \(4,\), got \(4, 5\)"):
        ops.chunk_gated_delta_rule(**good("gated_delta_rule"), **RAW, dt_bias=torch.zeros(HV, K))


@pytest.mark.parametrize(
    ("rule", "argument"),
    [("delta_rule", "g"), ("linear_attention", "beta"), ("linear_attention", "use_qk_l2norm_in_kernel")],
)
def test_arguments_without_a_meaning_for_a_rule_do_not_exist(rule, argument):
    with pytest.raises(TypeError, match=argument):
        getattr(ops, f"chunk_{rule}")(**good(rule), **{argument: None})


def test_a_positive_gate_in_rows_that_belong_to_nobody_is_no_error():
    x = good()
    x["g"][:, 4:] = 7
    assert ops.chunk_kda(**x, cu_seqlens=torch.tensor([0, 4]))[0].shape == (B, T, HV, V)

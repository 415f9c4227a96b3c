"""Tolerances: a correct computation of each precision is within its budget, and what is smaller than rounding is amplified."""

import pytest
import torch

from kda_lab import conformance, ops
from kda_lab.conformance import generate, oracle, run, tolerance
from kda_lab.conformance.adapters.ours import torch_kda

KEYS = ["plain-inputs", "nearly-parallel-keys", "weak-gates", "far-blocks-are-seen"]


def emulated(bits, C, seed=99):
    """An implementation whose products have operands of this many bits."""

    def function(q, k, v, g, beta, scale=None, initial_state=None, output_final_state=False):
        named = {"q": q, "k": k, "v": v, "g": g, "beta": beta, "scale": scale, "initial_state": initial_state}
        o, S = tolerance.emulate("kda", named, bits, C, generate.generator(seed, bits, C))
        return o.to(v.dtype), S.float() if output_final_state else None

    return function


def outcomes(function, only, dtype=torch.float32, **options):
    return {r.case: r for r in conformance.examine(function, dtype=dtype, only=only, **options)}


@pytest.mark.parametrize(
    ("bits", "C", "dtype", "rung"),
    [
        (8, 32, torch.bfloat16, "bfloat16"),
        (8, 64, torch.float32, "bfloat16"),
        (11, 16, torch.float32, "tf32/fp16"),
        (11, 32, torch.float16, "tf32/fp16"),
        (24, 128, torch.float32, "float32"),
    ],
)
def test_products_of_coarse_operands_are_a_class_and_no_fault(bits, C, dtype, rung):
    function = emulated(bits, C)
    assert run.measure_rung(conformance.wrap(function), dtype, 0) == rung
    found = outcomes(function, KEYS, dtype, seed=1)
    assert {r.outcome for r in found.values()} == {"pass"}, found


def test_a_promised_precision_is_asked_for():
    found = outcomes(emulated(11, 16), ["plain-inputs"], capabilities="arithmetic=float32")
    assert found["plain-inputs"].outcome == "fail"


def test_coarse_operands_degrade_nearly_parallel_keys_and_nothing_is_broken():
    found = outcomes(emulated(8, 64), ["nearly-parallel-keys"])
    assert found["nearly-parallel-keys"].accuracy == "degraded"


def series(A):
    """(I + A)^-1 by its power series, in half precision: right for small A."""
    N = -A.half().float()
    total = power = torch.eye(A.shape[-1], dtype=A.dtype).expand(A.shape)
    for _ in range(A.shape[-1] - 1):
        power = (power @ N).half().float()
        total = total + power
    return total


def test_a_power_series_is_broken_on_nearly_parallel_keys_and_hidden_on_others(monkeypatch):
    monkeypatch.setattr("kda_lab.ops.chunked.triangular.blocked", series)

    def function(q, k, v, g, beta, initial_state=None, output_final_state=False):
        return torch_kda(q, k, v, g, beta, initial_state=initial_state, output_final_state=output_final_state)

    found = outcomes(function, ["plain-inputs", "nearly-parallel-keys"], capabilities="no-backward, arithmetic=bfloat16")
    assert found["plain-inputs"].outcome == "pass"
    assert found["nearly-parallel-keys"].outcome == "fail" and found["nearly-parallel-keys"].accuracy == "broken"


def test_a_bf16_state_is_caught_whatever_the_products_are():
    def function(q, k, v, g, beta, initial_state=None, output_final_state=False):
        o, _ = ops.chunk_kda(q, k, v, g, beta, initial_state=initial_state)
        # nothing is written: the state decays once a chunk
        steps = g.unflatten(1, (-1, 64)).sum(2).exp()  # [B, T / 64, HV, K]
        S = initial_state
        for decay in steps.unbind(1):
            S = (S * decay[:, :, None]).bfloat16().float()
        return o, S if output_final_state else None

    found = outcomes(function, ["the-state-between-tokens-is-float32"], torch.bfloat16, capabilities="arithmetic=bfloat16")
    assert found["the-state-between-tokens-is-float32"].outcome == "fail"
    assert found["the-state-between-tokens-is-float32"].reason.startswith("final state is off")


def test_one_wrong_head_or_block_is_not_averaged_away():
    wanted = torch.ones(1, 640, 8, 4)
    got = wanted.clone()
    got[0, 17, 3] *= 1.5
    assert tolerance.row_errors(got, wanted).size > 0.1
    assert (got - wanted).norm() / wanted.norm() < 0.01
    S = torch.ones(1, 8, 4, 32)
    other = S.clone()
    other[0, 5, :, 7] = 0
    error = tolerance.channel_errors(other, S)
    assert error.size == 1 and error.where == "sequence 0, head 5, key channel 7"


def test_nan_is_larger_than_every_budget():
    x = torch.ones(1, 20, 2, 3)
    y = x.clone()
    y[0, 3, 1, 2] = torch.nan
    assert tolerance.row_errors(y, x).size == torch.inf


def test_the_oracle_answers_once_for_each_call(monkeypatch):
    calls = []
    monkeypatch.setitem(oracle.NAIVE, "kda", lambda **a: calls.append(1) or ops.naive_kda(**a))
    for _ in range(2):
        conformance.examine(ops.chunk_kda, only=["a-given-scale"], seed=31337)
    # one for the case, one for the measured precision
    assert len(calls) == 2


def test_budgets_grow_with_the_size_of_roundings():
    named = generate.arguments("kda", 70, generate.generator(5))
    costs = [oracle.costs("kda", named, bits) for bits in tolerance.RUNGS.values()]
    for which in (0, 1):
        sizes = [c[which] for c in costs]
        assert sizes == sorted(sizes) and sizes[-1] > 1000 * sizes[1]

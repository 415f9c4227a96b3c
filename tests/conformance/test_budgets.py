"""Tolerances: a correct computation of each precision is within its budget, and what is smaller than rounding is
amplified.
"""

import pytest
import torch

from kda_lab import conformance, ops
from kda_lab.conformance import run
from kda_lab.conformance.adapters.ours import torch_kda
from kda_lab.conformance.case import ALL
from kda_lab.conformance.judge import generate, oracle, reading, tolerance

pytestmark = pytest.mark.usefixtures("one_thread")
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

    found = outcomes(
        function, ["plain-inputs", "nearly-parallel-keys"], capabilities="no-backward, arithmetic=bfloat16"
    )
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

    found = outcomes(
        function, ["the-state-between-tokens-is-float32"], torch.bfloat16, capabilities="arithmetic=bfloat16"
    )
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


@pytest.mark.parametrize("rule", ALL)
@pytest.mark.parametrize("options", [{}, {"B": 2, "H": 1, "HV": 3}, {"cu_seqlens": [0, 0, 7, 20, 33]}])
def test_the_oracle_reads_the_contract_as_the_oracle_of_the_package_does(rule, options):
    # two readings with no code in common: gates, norms, groups, packed rows, rows of nobody
    g = generate.generator(3, rule)
    named = generate.arguments(rule, 40, g, **options)
    more = {"use_qk_l2norm_in_kernel": True, "use_beta_sigmoid_in_kernel": True, "scale": 0.3}
    calls = [named, named | more]
    if rule != "delta_rule":
        calls += [generate.raw_gates(rule, named, g, bound) | more for bound in (-5.0, None)]
    for call in calls:
        found = reading.token_loop(rule, call)
        wanted = getattr(ops, f"naive_{rule}")(**call, output_final_state=True)
        for x, y in zip(found, wanted):
            # both are float64 and differ in the order of a few sums
            assert x.shape == y.shape and (x - y).abs().max() < 1e-12
        # 53 bits of noise, and o rounded to float32
        for x, y in zip(tolerance.emulate(rule, call, 53, 16, g), wanted):
            assert (x - y).abs().max() < 1e-5


@pytest.mark.parametrize("options", [{"B": 2}, {"cu_seqlens": [0, 0, 0]}])
def test_the_oracle_knows_calls_without_tokens(options):
    named = generate.part(generate.arguments("kda", 3, generate.generator(3), B=options.get("B", 1)), 0, 0)
    if "cu_seqlens" in options:
        named |= {"cu_seqlens": torch.tensor(options["cu_seqlens"]), "initial_state": torch.ones(2, 2, 24, 16)}
    o, S = reading.token_loop("kda", named)
    assert o.shape == named["v"].shape and torch.equal(S, named["initial_state"].double())


def test_large_answers_are_made_again_rather_than_kept(monkeypatch):
    monkeypatch.setattr(oracle, "LARGE", 100)
    named = generate.arguments("kda", 4, generate.generator(77))
    assert oracle.wanted("kda", named)[1] is not oracle.wanted("kda", named)[1]


def test_the_oracle_answers_once_for_each_call(monkeypatch):
    calls = []
    loop = reading.token_loop
    monkeypatch.setattr(oracle.reading, "token_loop", lambda *a: calls.append(1) or loop(*a))
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

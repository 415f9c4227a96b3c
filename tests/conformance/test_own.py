"""The suite on the functions of this package: every supported case passes, and what is measured is what they are."""

import pytest
import torch

from kda_lab import conformance, ops
from kda_lab.conformance import run
from kda_lab.conformance.adapters import ours
from kda_lab.conformance.case import ALL
from kda_lab.conformance.judge import generate
from tests.compilers import needs_compiler

pytestmark = pytest.mark.usefixtures("one_thread")
ON_A_GPU = {"needs a CUDA device"}


def passes(found):
    assert conformance.all_ok(found), [f"{r.case}: {r.outcome}: {r.reason}" for r in found if not conformance.ok(r)]


@pytest.mark.parametrize("rule", ALL)
def test_our_three_forms_pass_every_case_of_a_cpu(rule):
    # one after the other, since they share what is right
    for function in (getattr(ops, f"chunk_{rule}"), getattr(ops, f"recurrent_{rule}"), getattr(ours, f"naive_{rule}")):
        found = conformance.examine(function, rule, capabilities="norm-checks")
        passes(found)
        skipped = {r.reason for r in found if r.outcome == "unsupported"}
        assert skipped <= ON_A_GPU | ({"needs chunk-size"} if "chunk" not in function.__name__ else set())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_input_types_pass(dtype):
    only = [
        "plain-inputs",
        "strong-gates",
        "the-state-between-tokens-is-float32",
        "nearly-parallel-keys",
        "gradients-of-every-input",
    ]
    passes(conformance.examine(ops.chunk_kda, dtype=dtype, only=only))


def test_decoding_token_by_token_passes():
    found = conformance.examine(ours.decode_kda, only=["numbers", "state", "ragged", "gradients"])
    passes(found)
    # the decode kernel has none: what PyTorch would answer in its place is not asked for
    assert {r.outcome for r in found if r.kind == "gradients"} == {"unsupported"}


def test_decoding_takes_one_token_of_every_sequence_a_call(monkeypatch):
    batches = []
    one = ours.ops.recurrent_kda

    def watched(q, *tensors, **options):
        batches.append(tuple(q.shape[:2]))
        return one(q, *tensors, **options)

    monkeypatch.setattr(ours.ops, "recurrent_kda", watched)
    named = generate.arguments("kda", 9, generate.generator(2), cu_seqlens=[0, 0, 1, 6, 9])
    ours.decode_kda(**named)
    assert batches == [(3, 1), (2, 1), (2, 1), (1, 1), (1, 1)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_precision_of_our_products_is_measured(dtype):
    measured = run.measure_rung(conformance.wrap(ops.chunk_kda), dtype, seed=3)
    assert measured == ("float64" if dtype == torch.float64 else "float32")


def test_nearly_parallel_keys_leave_our_inverse_exact():
    (result,) = conformance.examine(ops.chunk_kda, only=["nearly-parallel-keys"])
    assert result.accuracy == "exact"


def test_every_case_says_what_it_catches():
    for case in conformance.CASES.values():
        assert (
            case.fault.endswith(".")
            and case.input
            and case.clause
            and case.name == case.check.__name__.replace("_", "-")
        )


def test_every_public_report_about_kernels_has_a_case():
    reports = {r for case in conformance.CASES.values() for r in case.report}
    numbers = """FlashKDA#34 frontend#1051 frontend#1017 gym#394 cuLA#89 sglang#31904 vllm#41292 attention#1077
        flashinfer#2490
        vllm#51508 vllm#49918 FlashKDA#24 transformers#46190 LLM#14652 attention#537 sglang#34299 attention#624
        attention#984
        attention#1241 transformers#48455 sglang#39971"""
    for number in numbers.split():
        assert any(r.endswith(number) for r in reports), f"no case for {number}"


@needs_compiler
def test_the_hopper_kernel_on_a_cpu_keeps_what_gates_leave():
    """Gates are rounded before they are summed: an error of each that is always the same adds up over what is old."""
    only = [
        "old-values-weigh-as-much-as-new-ones",
        "the-old-state-fades-by-its-gates-alone",
        "a-gate-of-minus-infinity-clears",
    ]
    found = conformance.examine(ours.hopper_kda, dtype=torch.bfloat16, capabilities="no-backward", only=only)
    passes(found)
    assert [r.outcome for r in found] == ["pass"] * 3

"""Adapters: of other libraries, with stand-ins that have their signatures and conventions; of our kernels, on a CPU."""

import sys
import types

import pytest
import torch

from kda_lab import conformance, ops
from kda_lab.conformance.adapters import cudnn, fla, ours
from kda_lab.conformance.case import ALL
from kda_lab.conformance.judge import generate
from kda_lab.cuda import chunk, hopper

pytestmark = pytest.mark.usefixtures("one_thread")
CASES = [
    "plain-inputs",
    "a-square-state-is-not-transposed",
    "the-layouts-of-the-bias",
    "bounded-gate-computed-inside",
    "write-gates-as-logits",
]


def stand_in(monkeypatch, name, **functions):
    """A module of this name with these functions, and its parents."""
    parts = name.split(".")
    for i in range(1, len(parts)):
        monkeypatch.setitem(sys.modules, ".".join(parts[:i]), types.ModuleType(".".join(parts[:i])))
    module = types.ModuleType(name)
    vars(module).update(functions)
    monkeypatch.setitem(sys.modules, name, module)


def key_first(function, q, k, v, g, beta, initial_state, **options):
    S = None if initial_state is None else initial_state.mT
    o, S = function(q, k, v, g, beta, initial_state=S, **options)
    return o, None if S is None else S.mT.contiguous()


def fla_chunk(q, k, v, g, beta, safe_gate=False, lower_bound=None, initial_state=None, **options):
    # without safe_gate its lower bound means another thing
    assert safe_gate == (lower_bound is not None)
    assert options.get("dt_bias") is None or options["dt_bias"].ndim == 1
    return key_first(ops.chunk_kda, q, k, v, g, beta, initial_state, lower_bound=lower_bound, **options)


def fla_recurrent(q, k, v, g, beta, A_log=None, dt_bias=None, initial_state=None, **options):
    return key_first(ops.recurrent_kda, q, k, v, g, beta, initial_state, A_log=A_log, dt_bias=dt_bias, **options)


@pytest.mark.parametrize("function", [fla.chunk_kda, fla.fused_recurrent_kda])
def test_flash_linear_attention_is_called_with_its_own_conventions(function, monkeypatch):
    stand_in(monkeypatch, "fla.ops.kda", chunk_kda=fla_chunk, fused_recurrent_kda=fla_recurrent)
    found = conformance.examine(
        function, only=[*CASES, "packed-sequences-of-every-length", "softplus-gate-computed-inside"]
    )
    assert {r.outcome for r in found} == {"pass"}, found
    assert not conformance.wrap(fla.fused_recurrent_kda).capabilities.can("backward")


def test_tuning_is_off_before_the_library_is_loaded(monkeypatch):
    order = []
    monkeypatch.setattr(fla, "without_tuning", lambda: order.append("tuning off"))
    monkeypatch.setattr(fla.importlib, "import_module", lambda name: order.append(name))
    assert "triton" in fla.untuned_chunk_kda.libraries() and order[:2] == ["tuning off", "fla.ops.kda"]


def test_the_two_kernels_of_one_library_are_asked_the_same():
    chunk, recurrent = (
        conformance.wrap(f).capabilities.missing for f in (fla.untuned_chunk_kda, fla.untuned_recurrent_kda)
    )
    # but for what the signatures lack, and the backward that the second does not have
    assert recurrent - chunk == {"backward", "chunk-size"} and chunk <= recurrent


class Graph:
    """What the frontend executes, as far as the adapter looks at it."""

    selected_engine = types.SimpleNamespace(name="kda_hopper_cuda")


class GraphNotSupportedError(Exception):
    """The frontend's own class, which is no NotImplementedError."""


class Declining(torch.autograd.Function):
    """The identity, whose backward takes float32 alone, as that of the frontend for Hopper."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, dx):
        if dx.dtype != torch.float32:
            raise GraphNotSupportedError(f"no engine\n  declined: must be fp32, got {dx.dtype}")
        return dx


def packed_kda(
    q, k, v, g, beta, cu_seqlens, safe_gate=False, gate_lower_bound=None, a_log=None, dt_bias=None, **options
):
    assert q.ndim == 3 and v.shape[-1] == q.shape[-1] == 128
    if safe_gate:
        assert a_log is not None and dt_bias is not None
        options |= {"use_gate_in_kernel": True, "A_log": a_log, "dt_bias": dt_bias, "lower_bound": gate_lower_bound}
    elif v.requires_grad:
        g, beta = Declining.apply(g), Declining.apply(beta)
    sys.modules["cudnn.linear_attention.ops.kda"].execute_graph(Graph())
    o, S = ops.chunk_kda(*(x[None] for x in (q, k, v, g, beta)), cu_seqlens=cu_seqlens, **options)
    # an empty tensor where no state was asked for
    return o[0], q.new_empty(0) if S is None else S


def test_the_cudnn_frontend_gets_packed_tokens_and_its_own_head_size(monkeypatch):
    stand_in(monkeypatch, "cudnn.linear_attention.ops.kda", execute_graph=lambda graph: None)
    vars(sys.modules["cudnn.linear_attention"])["kimi_delta_attention"] = packed_kda
    cudnn.listen.cache_clear()
    only = ["decoding-is-the-same-recurrence", *CASES[2:], "results-have-the-promised-types", "write-gates-up-to-two"]
    only += ["gradients-of-one-token", "gradients-of-zero-keys"]
    found = conformance.examine(cudnn.chunk_kda, dtype=torch.bfloat16, only=only)
    outcome = {r.case: r.outcome for r in found}
    assert outcome.pop("write-gates-up-to-two") == outcome.pop("gradients-of-zero-keys") == "unsupported"
    assert set(outcome.values()) == {"pass"}, found
    assert {r.engine for r in found if r.outcome == "pass"} == {"kda_hopper_cuda"}


def test_a_library_that_is_not_installed_is_an_error_of_every_case():
    (result,) = conformance.examine(fla.chunk_kda, only=["plain-inputs"])
    assert result.outcome == "error" and "fla" in result.reason


def forbidden(*arguments, **options):
    raise AssertionError("this kernel was not asked")


def test_the_readable_kernel_is_examined_itself(monkeypatch):
    monkeypatch.setattr(ours.run, "kernel_answers", lambda call: True)
    monkeypatch.setattr(hopper, "kda_hopper_forward", forbidden)
    # the Hopper kernel would take these, and the choice of ops with it
    found = conformance.examine(ours.cuda_kda, dtype=torch.bfloat16, capabilities="sizes=64x64", only=["a-given-scale"])
    assert [r.outcome for r in found] == ["pass"], found


@pytest.mark.parametrize("function", [ours.hopper_kda, ours.hopper_in_segments_kda])
def test_the_hopper_kernel_is_examined_itself(function, monkeypatch):
    monkeypatch.setattr(chunk, "kda_chunk_forward", forbidden)
    only = [
        "a-given-scale",
        "no-tokens-at-all",
        "impossible-boundaries-are-refused",
        "inputs-of-any-strides",
        "gradients-repeat",
    ]
    found = conformance.examine(function, dtype=torch.bfloat16, capabilities="sizes=64x64", only=only)
    outcome = {r.case: r.outcome for r in found}
    assert outcome.pop("inputs-of-any-strides") == outcome.pop("gradients-repeat") == "unsupported"
    assert set(outcome.values()) == {"pass"}, found


def test_what_the_hopper_kernel_cannot_answer_is_refused():
    named = generate.arguments("kda", 4, generate.generator(0), K=64, V=64, dtype=torch.bfloat16)
    for change in (
        {"k": named["k"].mT.contiguous().mT},
        {"v": named["v"].clone().requires_grad_()},
        {"chunk_size": 16},
    ):
        with pytest.raises(NotImplementedError, match="Hopper|copy engine"):
            ours.hopper_kda(**named | change)


def test_single_sequences_are_cut_and_no_others(monkeypatch):
    seen = []
    monkeypatch.setattr(ours, "hopper_kda", lambda *tensors, segments, **options: seen.append(segments))
    for more in (dict(K=64, V=128), dict(K=128, V=64), dict(B=2), dict(cu_seqlens=[0, 4]), dict(cu_seqlens=[0, 2, 4])):
        ours.hopper_in_segments_kda(**generate.arguments("kda", 4, generate.generator(0), **more))
    assert seen == [3, 1, 1, 3, 1]


@pytest.mark.parametrize(
    "function",
    [fla.chunk_kda, fla.fused_recurrent_kda, cudnn.chunk_kda]
    + [ours.naive_kda, ours.torch_kda, ours.cuda_kda, ours.hopper_kda, ours.hopper_in_segments_kda, ours.decode_kda],
    ids=lambda f: f"{f.__module__.rpartition('.')[2]}:{f.__name__}",
)
def test_no_adapter_takes_a_keyword_and_drops_it(function):
    with pytest.raises(TypeError, match="chunksize"):
        function(**generate.arguments("kda", 3, generate.generator(0)), chunksize=16)


def test_the_oracle_of_every_rule_is_there_by_name_and_says_what_it_takes():
    for rule in ALL:
        function = conformance.adapters.load(f"kda_lab.conformance.adapters.ours:naive_{rule}")
        assert (
            conformance.wrap(function, rule).capabilities
            == conformance.wrap(getattr(ops, f"naive_{rule}"), rule).capabilities
        )

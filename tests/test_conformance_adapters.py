"""Adapters of other libraries, with stand-ins that have their signatures and conventions."""

import sys
import types

import pytest
import torch

from kda_lab import conformance, ops
from kda_lab.conformance.adapters import cudnn, fla

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
    found = conformance.examine(function, only=[*CASES, "packed-sequences-of-every-length", "softplus-gate-computed-inside"])
    assert {r.outcome for r in found} == {"pass"}, found
    assert not conformance.wrap(fla.fused_recurrent_kda).capabilities.can("backward")


def packed_kda(q, k, v, g, beta, cu_seqlens, safe_gate=False, gate_lower_bound=None, a_log=None, dt_bias=None, **options):
    assert q.ndim == 3 and v.shape[-1] == q.shape[-1] == 128
    if safe_gate:
        assert a_log is not None and dt_bias is not None
        options |= {"use_gate_in_kernel": True, "A_log": a_log, "dt_bias": dt_bias, "lower_bound": gate_lower_bound}
    o, S = ops.chunk_kda(*(x[None] for x in (q, k, v, g, beta)), cu_seqlens=cu_seqlens, **options)
    # an empty tensor where no state was asked for
    return o[0], q.new_empty(0) if S is None else S


def test_the_cudnn_frontend_gets_packed_tokens_and_its_own_head_size(monkeypatch):
    stand_in(monkeypatch, "cudnn.linear_attention", kimi_delta_attention=packed_kda)
    only = ["decoding-is-the-same-recurrence", *CASES[2:], "results-have-the-promised-types", "write-gates-up-to-two"]
    found = conformance.examine(cudnn.chunk_kda, dtype=torch.bfloat16, only=only)
    outcome = {r.case: r.outcome for r in found}
    assert outcome.pop("write-gates-up-to-two") == "unsupported"
    assert set(outcome.values()) == {"pass"}, found


def test_a_library_that_is_not_installed_is_an_error_of_every_case():
    (result,) = conformance.examine(fla.chunk_kda, only=["plain-inputs"])
    assert result.outcome == "error" and "fla" in result.reason

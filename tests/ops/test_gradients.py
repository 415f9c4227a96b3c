"""Gradients: the chunk form against the token loop, finite where gates are strong, and zero where nothing was read."""

import pytest
import torch

from kda_lab import inputs, ops
from tests.leaves import RULES, leaves

FORMS = ("chunk", "recurrent")


def gradients(form, rule, named, **options):
    """Gradients of a loss that weighs every output and state entry differently."""
    o, S = getattr(ops, f"{form}_{rule}")(**named, output_final_state=True, **options)
    weigh = lambda y: (y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).reshape(y.shape)).sum()
    return dict(zip(named, torch.autograd.grad(weigh(o) + weigh(S), list(named.values()))))


def agree(got, wanted):
    for name in wanted:
        # float64: 1e-16 times a few thousand terms, with room for the division of labour between the forms
        torch.testing.assert_close(got[name], wanted[name], rtol=1e-9, atol=1e-9, msg=lambda m: f"{name}: {m}")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("T", [1, 35])
@pytest.mark.parametrize("rule", RULES)
def test_gradients_agree_with_the_oracle(rule, T, form):
    named = leaves(rule, T, B=2)
    agree(gradients(form, rule, named), gradients("naive", rule, named))


@pytest.mark.parametrize("gates", inputs.GATES)
@pytest.mark.parametrize("keys", ["random", "collinear"])
@pytest.mark.parametrize("rule", ["kda", "gdn2"])
def test_gradients_agree_for_every_kind_of_input(rule, keys, gates):
    named = leaves(rule, 70, gates=gates, keys=keys)
    agree(gradients("chunk", rule, named), gradients("naive", rule, named))


@pytest.mark.parametrize("rule", ["kda", "gdn2"])
@pytest.mark.parametrize("lower_bound", [-5.0, None])
def test_gradients_reach_the_gate_parameters_the_norm_and_the_logits(lower_bound, rule):
    named = leaves(rule, 40)
    named["A_log"] = torch.tensor([0.3, -0.2], dtype=torch.float64, requires_grad=True)
    named["dt_bias"] = torch.linspace(-1, 1, 8, dtype=torch.float64).requires_grad_()
    options = {
        "use_gate_in_kernel": True,
        "use_qk_l2norm_in_kernel": True,
        "use_beta_sigmoid_in_kernel": True,
        "lower_bound": lower_bound,
    }
    wanted = gradients("naive", rule, named, **options)
    agree(gradients("chunk", rule, named, **options), wanted)
    assert all(y.abs().min() > 0 for name, y in wanted.items() if name in ("A_log", "dt_bias"))


@pytest.mark.parametrize("rule", ["kda", "gdn2"])
def test_gradients_agree_across_packed_sequences(rule):
    named = leaves(rule, 90)
    cu = torch.tensor([0, 0, 66, 69, 85])
    named["initial_state"] = torch.randn(
        4, 2, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    ).requires_grad_()
    wanted = gradients("naive", rule, named, cu_seqlens=cu)
    agree(gradients("chunk", rule, named, cu_seqlens=cu), wanted)
    assert not wanted["v"][:, 85:].any()


@pytest.mark.parametrize("C", [16, 32])
def test_gradients_do_not_depend_on_the_chunk_size(C):
    named = leaves("kda", 130, gates="weak")
    agree(gradients("chunk", "kda", named, chunk_size=C), gradients("chunk", "kda", named, chunk_size=64))


@pytest.mark.parametrize("rule", RULES)
def test_gradients_are_those_of_finite_differences(rule):
    named = leaves(rule, 3, HV=1, K=2, V=1, gates="weak")
    function = lambda *values: getattr(ops, f"chunk_{rule}")(
        **dict(zip(named, values)), output_final_state=True, chunk_size=2
    )
    assert torch.autograd.gradcheck(function, tuple(named.values()))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("g", [-5.0, -60.0, -1e4, -torch.inf])
def test_gradients_are_finite_under_strong_gates(g, form):
    named = {name: y.detach().float().requires_grad_() for name, y in leaves("kda", 70).items()}
    named["g"] = torch.full((1, 70, 2, 4), g, requires_grad=True)
    assert all(y.isfinite().all() for y in gradients(form, "kda", named).values())


def test_gradients_agree_where_single_gates_clear():
    named = leaves("kda", 70, gates="weak")
    g = named["g"].detach().clone()
    g[:, ::7, :, 1] = -torch.inf
    named["g"] = g.requires_grad_()
    agree(gradients("chunk", "kda", named), gradients("naive", "kda", named))


@pytest.mark.parametrize("form", FORMS)
def test_gradients_are_finite_for_zero_keys_and_queries(form):
    named = leaves("kda", 20)
    for name in ("q", "k"):
        named[name] = torch.zeros_like(named[name]).requires_grad_()
    assert all(y.isfinite().all() for y in gradients(form, "kda", named, use_qk_l2norm_in_kernel=True).values())


@pytest.mark.parametrize("form", FORMS)
def test_rows_that_belong_to_nobody_do_not_reach_the_gradient(form):
    named = leaves("kda", 20)
    for name in ("q", "k", "v", "g", "beta"):
        y = named[name].detach().clone()
        y[:, 12:] = torch.nan
        named[name] = y.requires_grad_()
    named["A_log"] = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    got = gradients(
        form, "kda", named, use_gate_in_kernel=True, use_qk_l2norm_in_kernel=True, cu_seqlens=torch.tensor([0, 12])
    )
    assert all(y.isfinite().all() for y in got.values())

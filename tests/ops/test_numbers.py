"""Working precision, memory layout, clearing gates and distant tokens."""

import pytest
import torch

from kda_lab import inputs, ops
from tests.leaves import RULES, of_batch

FORMS = ("chunk", "recurrent")
# fp32: roundings of 2^-24 on sums of 64 to 128 products, some of them through an inverse of condition about 100
SINGLE = 1e-5
# bf16 results have 8 bits: half a unit is 2^-9 = 2e-3
BF16, FP16 = 2.0**-8, 2.0**-11


def batch(T, seed=0, B=1, H=2, HV=4, K=16, V=8, **options):
    return inputs.batch(B, T, H, K, V, torch.Generator().manual_seed(seed), HV=HV, **options)


def run(form, x, rule="kda", **options):
    return getattr(ops, f"{form}_{rule}")(*x[:5], initial_state=x.S, output_final_state=True, **options)


def error(got, wanted):
    return ((got.double() - wanted).norm() / wanted.norm()).item()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("gates", inputs.GATES)
@pytest.mark.parametrize("keys", ["random", "collinear"])
def test_float32_is_as_good_as_its_roundings(keys, gates, form):
    x = batch(200, gates=gates, keys=keys, dtype=torch.float32)
    for got, wanted in zip(run(form, x), run("naive", x)):
        assert got.dtype == torch.float32 and error(got, wanted) < SINGLE


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("dtype", "rounding"), [(torch.bfloat16, BF16), (torch.float16, FP16)])
def test_short_inputs_are_computed_in_float32_and_rounded_once(dtype, rounding, form):
    x = batch(200, dtype=dtype)
    (o, S), (o_exact, S_exact) = run(form, x), run("naive", x)
    assert o.dtype == dtype and error(o, o_exact) < rounding
    # the state is never rounded to the inputs' type
    assert S.dtype == torch.float32 and error(S, S_exact) < SINGLE


def test_gates_and_betas_may_have_their_own_dtypes():
    x = batch(20, dtype=torch.bfloat16)
    mixed = x._replace(g=x.g.float(), beta=x.beta.double())
    torch.testing.assert_close(run("chunk", mixed), run("chunk", x), rtol=0, atol=0)


@pytest.mark.parametrize("form", FORMS)
def test_an_enclosing_autocast_does_not_cost_digits(form):
    x = batch(100, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        o, S = run(form, x)
    torch.testing.assert_close((o, S), run(form, x), rtol=0, atol=0)


def test_the_oracle_answers_in_the_dtype_it_was_asked_for():
    x = batch(5, dtype=torch.bfloat16)
    assert all(y.dtype == torch.float64 for y in run("naive", x))
    assert all(y.dtype == torch.float32 for y in run("naive", x, dtype=torch.float32))


def test_float64_inputs_give_a_float64_state_and_take_either():
    x = batch(5)
    o, S = run("chunk", x._replace(S=x.S.float()))
    assert o.dtype == S.dtype == torch.float64


@pytest.mark.parametrize("form", [*FORMS, "naive"])
def test_the_state_comes_only_if_asked_for(form):
    x = batch(5)
    assert getattr(ops, f"{form}_kda")(*x[:5])[1] is None


def strided(x, layout):
    if layout == "transposed":
        return x.transpose(0, -1).contiguous().transpose(0, -1)
    if layout == "sliced":
        return torch.stack([x, x * 0 - 7], -1).flatten(-2)[..., ::2]
    return x[:, :1].expand_as(x)


@pytest.mark.parametrize("form", [*FORMS, "naive"])
@pytest.mark.parametrize("layout", ["transposed", "sliced", "expanded"])
def test_strides_do_not_matter(layout, form):
    x = inputs.Batch(*(strided(y, layout) for y in batch(70)))
    assert not any(y.is_contiguous() for y in x[:5])
    plain = inputs.Batch(*(y.contiguous() for y in x))
    torch.testing.assert_close(run(form, x), run(form, plain), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("form", [*FORMS, "naive"])
@pytest.mark.parametrize("T", [0, 1, 70])
def test_inputs_are_never_written_nor_returned(T, form):
    x = batch(T)
    before = inputs.Batch(*(y.clone() for y in x))
    o, S = run(form, x)
    o.fill_(7)
    S.fill_(7)
    torch.testing.assert_close(tuple(x), tuple(before), rtol=0, atol=0)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("g", [-torch.inf, -1e4, -60.0])
def test_a_clearing_gate_clears_its_channels_only(g, form):
    x = batch(70, gates="weak")
    gates = x.g.clone()
    gates[:, ::8, :, ::3] = g  # first tokens of blocks among them
    x = x._replace(g=gates)
    torch.testing.assert_close(run(form, x), run("naive", x), rtol=1e-10, atol=1e-10)


def test_after_a_clearing_gate_nothing_older_is_left():
    x = batch(70)
    x.g[:, 40] = -torch.inf
    o, S = run("chunk", x)
    other = batch(70, seed=1)
    mixed = inputs.Batch(*(torch.cat([b[:, :40], a[:, 40:]], 1) for a, b in zip(x[:5], other[:5])), other.S)
    o_mixed, S_mixed = run("chunk", mixed)
    torch.testing.assert_close((o_mixed[:, 40:], S_mixed), (o[:, 40:], S), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rule", ["kda", "gated_delta_rule"])
@pytest.mark.parametrize("g", [-torch.inf, -90.0])
def test_weak_gates_behind_strong_ones_keep_their_digits(g, rule):
    x = batch(64, gates="weak", dtype=torch.float32)
    x.g[:, 1:13] = g
    x = x if rule == "kda" else x._replace(g=x.g[..., 0])
    o, S = run("chunk", x, rule)
    o_exact, S_exact = run("naive", x, rule)
    # a difference of prefix sums of size 12 * 100 would lose 12 * 100 * 2^-24 = 7e-5
    assert error(o, o_exact) < 2e-6 and error(S, S_exact) < 2e-6


@pytest.mark.parametrize("rule", RULES)
def test_the_first_token_reaches_the_last_block(rule):
    x = batch(64, gates="weak")
    rest = of_batch(rule, x)[1:]
    changed = rest.copy()
    changed[1] = x.v.clone()
    changed[1][:, 0] += 1

    def reach(form):
        function = getattr(ops, f"{form}_{rule}")
        return (function(x.q, *changed)[0] - function(x.q, *rest)[0])[:, 48:]

    assert reach("naive").norm() > 0.1
    torch.testing.assert_close(reach("chunk"), reach("naive"), rtol=1e-9, atol=1e-12)


def test_the_last_token_reaches_nothing_before_it():
    x = batch(64)
    o, _ = run("chunk", x)
    later = x._replace(v=torch.cat([x.v[:, :-1], 1e3 + x.v[:, -1:]], 1), q=torch.cat([x.q[:, :-1], -x.q[:, -1:]], 1))
    torch.testing.assert_close(run("chunk", later)[0][:, :-1], o[:, :-1], rtol=0, atol=1e-12)

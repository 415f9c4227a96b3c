"""Failures that users of such kernels met, each as its smallest input."""

import math
import warnings

import pytest
import torch

from kda_lab import inputs, ops

FORMS = ("chunk", "recurrent")
EXACT = {"rtol": 1e-10, "atol": 1e-10}


def batch(T, seed=0, B=1, H=2, HV=2, K=8, V=8, **options):
    return inputs.batch(B, T, H, K, V, torch.Generator().manual_seed(seed), HV=HV, **options)


def run(form, x, **options):
    return getattr(ops, f"{form}_kda")(*x[:5], **({"output_final_state": True, "initial_state": x.S} | options))


def part(x, start, end):
    return inputs.Batch(*(y[:, start:end] for y in x[:5]), x.S)


@pytest.mark.parametrize("keys", ["collinear", "repeated"])
@pytest.mark.parametrize("beta", [0.9997, 1.0, 2.0])
def test_nearly_parallel_keys_stay_within_their_roundings(beta, keys):
    x = batch(128, gates="weak", keys="collinear", dtype=torch.float32)
    k = x.k if keys == "collinear" else x.k[:, :1].expand_as(x.k)
    x = x._replace(k=k, beta=torch.full_like(x.beta, beta), g=x.g / 100)
    for got, wanted in zip(run("chunk", x), run("naive", x)):
        # the inverse has entries up to beta, and 128 steps of size 1 in fp32
        assert (got.double() - wanted).norm() < 5e-5 * wanted.norm()


@pytest.mark.parametrize("g", [-3.0, -5.0, -6.0, -20.0])
@pytest.mark.parametrize("T", [16, 64])
def test_any_gate_below_zero_is_computed(T, g):
    x = batch(T, dtype=torch.float32)
    x = x._replace(g=torch.full_like(x.g, g))
    for got, wanted in zip(run("chunk", x), run("naive", x)):
        assert (got.double() - wanted).norm() < 1e-5 * wanted.norm()


@pytest.mark.parametrize("form", [*FORMS, "naive"])
def test_a_gate_above_zero_is_an_error_that_says_so(form):
    x = batch(64)
    with pytest.raises(ValueError, match=r"g must be <= 0 \(log decay\), got max 5"):
        run(form, x._replace(g=torch.full_like(x.g, 5.0)))


@pytest.mark.parametrize("form", [*FORMS, "naive"])
def test_the_base_of_the_decay_is_e(form):
    x = torch.ones(1, 2, 1, 1, dtype=torch.float64)
    beta = torch.tensor([1.0, 0.0], dtype=torch.float64).reshape(1, 2, 1)
    o, _ = getattr(ops, f"{form}_kda")(x, x, x, -x, beta)
    assert o[0, 1].item() == pytest.approx(math.exp(-1), rel=1e-15)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("V", [8, 5])
def test_the_initial_state_is_read_as_state_times_query(V, form):
    x = batch(65, V=V)
    torch.testing.assert_close(run(form, x), run("naive", x), **EXACT)
    first = part(x, 0, 1)._replace(beta=torch.zeros(1, 1, 2, dtype=torch.float64))
    wanted = torch.einsum("nhvk,nhk->nhv", x.S * first.g[:, 0].exp()[:, :, None], first.q[:, 0] * 8**-0.5)
    torch.testing.assert_close(run(form, first)[0][:, 0], wanted, **EXACT)


@pytest.mark.parametrize("form", FORMS)
def test_many_sequences_times_heads_launch(form):
    x = batch(2048, H=32, HV=32, K=2, V=2, dtype=torch.float32)
    o, S = run(form, x, cu_seqlens=torch.arange(2049), initial_state=None)
    as_batch = inputs.Batch(*(y.transpose(0, 1) for y in x[:5]), None)
    torch.testing.assert_close((o.transpose(0, 1), S), run("recurrent", as_batch), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("alpha", [0.9, 1.0])
def test_the_decay_itself_is_told_from_its_logarithm(alpha):
    x = batch(4)
    with pytest.raises(ValueError, match=r"look like the decay itself; pass log\(alpha\)"):
        run("chunk", x._replace(g=torch.full_like(x.g, alpha)))


def test_prefill_then_one_decode_step_is_the_longer_prefill():
    x = batch(67)
    o, _ = run("naive", x)
    for T in range(1, 67):
        _, S = run("chunk", part(x, 0, T))
        o_step, _ = run("recurrent", part(x, T, T + 1), initial_state=S)
        torch.testing.assert_close(o_step, o[:, T : T + 1], **EXACT)


@pytest.mark.parametrize("form", [*FORMS, "naive"])
@pytest.mark.parametrize("given", [False, True])
def test_an_empty_sequence_keeps_its_state(given, form):
    x = batch(5)
    S = torch.randn(2, 2, 8, 8, dtype=torch.float64) if given else None
    _, final = run(form, x, cu_seqlens=torch.tensor([0, 0, 5]), initial_state=S)
    torch.testing.assert_close(final[0], S[0] if given else torch.zeros_like(final[0]), rtol=0, atol=0)


@pytest.mark.parametrize("form", [*FORMS, "naive"])
def test_no_tokens_at_all_give_no_rows_and_the_old_states(form):
    x = part(batch(5), 0, 0)
    for cu in (None, torch.tensor([0, 0])):
        o, S = run(form, x, cu_seqlens=cu)
        assert o.shape == (1, 0, 2, 8) and torch.equal(S, x.S)


@pytest.mark.parametrize("T", [63, 65])
def test_padding_does_not_touch_the_state(T):
    x = batch(T + 1)
    _, S = run("chunk", part(x, 0, T))
    torch.testing.assert_close(S, run("naive", part(x, 0, T))[1], **EXACT)
    torch.testing.assert_close(
        run("recurrent", part(x, T, T + 1), initial_state=S)[0], run("naive", x)[0][:, T:], **EXACT
    )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("A_log", "raw"), [(0.0, 100.0), (100.0, -200.0), (100.0, 0.0), (100.0, 100.0)])
@pytest.mark.parametrize("lower_bound", [None, -5.0])
def test_extreme_gate_parameters_never_multiply_infinity_by_zero(lower_bound, A_log, raw, form):
    x = batch(20, dtype=torch.float32)
    g = torch.full_like(x.g, raw).requires_grad_()
    rate = torch.full((2,), A_log, requires_grad=True)
    o, S = run(form, x._replace(g=g), use_gate_in_kernel=True, A_log=rate, lower_bound=lower_bound)
    assert o.isfinite().all() and S.isfinite().all()
    assert all(y.isfinite().all() for y in torch.autograd.grad(o.sum() + S.sum(), (g, rate)))


def test_a_gate_that_only_its_rate_makes_strong_is_computed():
    x = batch(4, dtype=torch.float32)
    raw = inputs.Batch(x.q, x.k, x.v, torch.full_like(x.g, -101.0), x.beta, x.S)
    given = raw._replace(g=torch.full_like(x.g, -math.exp(-1)))
    got = run("chunk", raw, use_gate_in_kernel=True, A_log=torch.full((2,), 100.0))
    torch.testing.assert_close(got, run("chunk", given), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("form", [*FORMS, "naive"])
def test_keys_that_expand_the_state_are_named_in_a_warning(form):
    x = batch(64)
    with pytest.warns(RuntimeWarning, match=r"beta \|k\|\^2 must stay within 0 and 2 .* use_qk_l2norm_in_kernel=True"):
        run(form, x._replace(k=4 * x.k, beta=torch.ones_like(x.beta)))


@pytest.mark.parametrize("form", [*FORMS, "naive"])
def test_an_erase_gate_with_channels_is_named_where_its_eigenvalue_expands(form):
    x = batch(64)
    one = torch.ones_like(x.v)
    with pytest.warns(RuntimeWarning, match=r"the sum of b k\^2 over channels must stay within 0 and 2"):
        getattr(ops, f"{form}_gdn2")(x.q, 4 * x.k, x.v, x.g, torch.ones_like(x.g), one)


def test_silence_is_no_promise_for_an_erase_gate_with_channels():
    """gdn2-growth: gates within 0..1, unit keys, no warning, and a state that grows by 5/4 for every two tokens."""
    c, s = (5 / 6) ** 0.5, (1 / 6) ** 0.5
    k = torch.tensor([[-c, -s], [s, c]], dtype=torch.float64).repeat(50, 1)[None, :, None]
    b = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64).repeat(50, 1)[None, :, None]
    v, S = torch.zeros(1, 100, 1, 1, dtype=torch.float64), torch.ones(1, 1, 1, 2, dtype=torch.float64)
    norms = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for T in (98, 100):
            tokens = (y[:, :T] for y in (k, k, v, 0 * k, b, v))
            norms.append(ops.chunk_gdn2(*tokens, initial_state=S, output_final_state=True)[1].norm())
    # the other direction has faded by (4/9)^49 beside this one
    assert norms[1] / norms[0] == pytest.approx(1.25, rel=1e-12)


def test_the_warning_points_at_the_caller():
    x = batch(4)
    with pytest.warns(RuntimeWarning) as caught:
        ops.chunk_kda(x.q, 4 * x.k, x.v, x.g, torch.ones_like(x.beta))
    assert caught[0].filename == __file__


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("normalise", [False, True])
def test_a_zero_key_is_pure_decay(normalise, form):
    x = batch(10)
    _o, S = run(form, x._replace(k=torch.zeros_like(x.k)), use_qk_l2norm_in_kernel=normalise)
    torch.testing.assert_close(S, x.S * x.g.sum(1).exp()[:, :, None], **EXACT)


@pytest.mark.parametrize("form", FORMS)
def test_a_slow_channel_survives_thousands_of_steps(form):
    x = batch(4096, H=1, HV=1, K=2, V=2, dtype=torch.bfloat16)
    g = torch.full((1, 4096, 1, 2), -1e-4)
    x = x._replace(g=g, beta=torch.full_like(x.beta, 0.02))
    _, S = run(form, x)
    wanted = run("naive", x)[1]
    # a bf16 state would stop moving: its unit, 2^-8, is above every one of these steps
    assert (S - wanted).norm() < 1e-5 * wanted.norm()


@pytest.mark.parametrize("form", FORMS)
def test_value_heads_read_the_keys_of_their_group(form):
    x = batch(20, H=1, HV=2)
    spread = x._replace(q=x.q.expand(1, 20, 2, 8), k=x.k.expand(1, 20, 2, 8))
    torch.testing.assert_close(run(form, x), run("naive", spread), **EXACT)
    x = batch(20, H=2, HV=4)
    spread = x._replace(q=x.q[:, :, [0, 0, 1, 1]], k=x.k[:, :, [0, 0, 1, 1]])
    torch.testing.assert_close(run(form, x), run("naive", spread), **EXACT)


@pytest.mark.parametrize("form", FORMS)
def test_odd_key_dims_in_bf16_are_computed(form):
    x = batch(1, K=129, dtype=torch.bfloat16)
    assert (run(form, x)[0] - run("naive", x)[0]).norm() < 2**-8 * run("naive", x)[0].norm()


@pytest.mark.parametrize("form", FORMS)
def test_forgotten_keys_stay_forgotten(form):
    x = batch(8, dtype=torch.float32)
    # e^-240 of a state of 1e30 is 1e-74; an exponent held at +-126 would leave 1e-8 of it
    x = x._replace(S=torch.full_like(x.S, 1e30), g=torch.full_like(x.g, -60.0))
    o, S = run(form, x)
    nothing, _ = run(form, part(x, 4, 8), initial_state=torch.zeros_like(x.S))
    assert S.abs().max() < 10 and o[:, 5:].abs().max() < 10
    torch.testing.assert_close(o[:, 6:], nothing[:, 2:], rtol=1e-5, atol=1e-5)

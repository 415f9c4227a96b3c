"""The three forms of each rule are one function: chunk = recurrent = naive, in float64, for every shape and split."""

import pytest
import torch

from kda_lab import inputs, ops, rules
from tests.leaves import RULES, of_batch

# float64 rounds at 1e-16; sums of a few hundred terms of size 1 and a well conditioned inverse leave 1e-12
EXACT = {"rtol": 1e-10, "atol": 1e-10}


def batch(T, seed=0, B=2, H=2, HV=4, K=5, V=3, **options):
    return inputs.batch(B, T, H, K, V, torch.Generator().manual_seed(seed), HV=HV, **options)


def run(form, rule, x, **options):
    """One form of one rule on the tensors that it takes."""
    return getattr(ops, f"{form}_{rule}")(*of_batch(rule, x), output_final_state=True, **options)


def agree(pair, expected, **tolerance):
    for got, wanted in zip(pair, expected):
        torch.testing.assert_close(got, wanted, **(tolerance or EXACT))


@pytest.mark.parametrize("rule", RULES)
def test_naive_is_the_scan_of_the_specification_head_by_head(rule):
    x = batch(7)
    o, S = run("naive", rule, x, initial_state=x.S)
    step = {
        "kda": rules.kda,
        "gated_delta_rule": rules.gated_delta,
        "gdn2": rules.gated_delta_2,
        "delta_rule": rules.delta,
        "linear_attention": rules.linear,
    }[rule]
    for b in range(2):
        for hv in range(4):
            keys = x.q[b, :, hv // 2] * 5**-0.5, x.k[b, :, hv // 2]
            v, *others = (y[b, :, hv] for y in of_batch(rule, x._replace(g=x.g.exp()))[2:])
            S_end, rows = rules.scan(step, x.S[b, hv], *keys, v, *others)
            agree((o[b, :, hv], S[b, hv]), (torch.stack(rows), S_end))


@pytest.mark.parametrize("T", [0, 1, 15, 16, 17, 63, 64, 65, 130])
@pytest.mark.parametrize("rule", RULES)
def test_the_three_forms_agree_at_every_length(rule, T):
    x = batch(T)
    expected = run("naive", rule, x, initial_state=x.S)
    agree(run("chunk", rule, x, initial_state=x.S), expected)
    agree(run("recurrent", rule, x, initial_state=x.S), expected)


@pytest.mark.parametrize("gates", inputs.GATES)
@pytest.mark.parametrize("keys", ["random", "collinear"])
@pytest.mark.parametrize("rule", RULES)
def test_the_three_forms_agree_for_every_kind_of_input(rule, keys, gates):
    x = batch(100, gates=gates, keys=keys)
    expected = run("naive", rule, x, initial_state=x.S)
    agree(run("chunk", rule, x, initial_state=x.S), expected)
    agree(run("recurrent", rule, x, initial_state=x.S), expected)


@pytest.mark.parametrize("C", [1, 7, 16, 32, 64, 100, 128])
def test_the_chunk_size_does_not_matter(C):
    x = batch(130)
    agree(run("chunk", "kda", x, initial_state=x.S, chunk_size=C), run("naive", "kda", x, initial_state=x.S))


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 1, 4), (1, 4, 1), (3, 8, 2), (130, 2, 2)])
def test_head_counts_and_dims_are_free(shape):
    H, K, V = shape
    x = batch(35, B=1, H=H, HV=3 * H, K=K, V=V)
    agree(run("chunk", "kda", x, initial_state=x.S), run("naive", "kda", x, initial_state=x.S))


@pytest.mark.parametrize("beta", [0.0, 1.0, 2.0])
def test_beta_from_nothing_to_reflection(beta):
    x = batch(130, gates="weak")
    x = x._replace(beta=torch.full_like(x.beta, beta))
    agree(run("chunk", "kda", x, initial_state=x.S), run("naive", "kda", x, initial_state=x.S))


@pytest.mark.parametrize("lower_bound", [-5.0, -0.5, None])
@pytest.mark.parametrize("flat_bias", [False, True])
@pytest.mark.parametrize("rule", ["kda", "gdn2"])
@pytest.mark.parametrize("form", ["chunk", "recurrent"])
def test_raw_gates_norms_and_logits_agree(form, rule, flat_bias, lower_bound):
    x = batch(70)
    generator = torch.Generator().manual_seed(1)
    A_log, dt_bias = (torch.rand(*shape, generator=generator, dtype=torch.float64) for shape in ((4,), (4, 5)))
    x = x._replace(
        q=3 * x.q, k=7 * x.k, g=torch.randn(x.g.shape, generator=generator, dtype=torch.float64), beta=4 * x.beta - 2
    )
    options = {
        "initial_state": x.S,
        "use_gate_in_kernel": True,
        "use_qk_l2norm_in_kernel": True,
        "use_beta_sigmoid_in_kernel": True,
        "A_log": A_log,
        "dt_bias": dt_bias.flatten() if flat_bias else dt_bias,
        "lower_bound": lower_bound,
    }
    agree(run(form, rule, x, **options), run("naive", rule, x, **options))


@pytest.mark.parametrize("lower_bound", [-5.0, None])
def test_a_raw_gate_is_its_formula(lower_bound):
    x = batch(20)
    raw, A_log, dt_bias = (
        1 + x.g,
        torch.tensor([-1.0, 0.0, 0.5, 1.0]).double(),
        torch.linspace(-1, 1, 20).double().reshape(4, 5),
    )
    rate, shifted = A_log.exp()[:, None], raw + dt_bias
    g = -rate * torch.log1p(shifted.exp()) if lower_bound is None else lower_bound / (1 + (-rate * shifted).exp())
    options = {"use_gate_in_kernel": True, "A_log": A_log, "dt_bias": dt_bias, "lower_bound": lower_bound}
    agree(run("chunk", "kda", x._replace(g=raw), **options), run("chunk", "kda", x._replace(g=g)))


def test_a_raw_gate_per_head_has_a_bias_per_head():
    x = batch(20)
    A_log, dt_bias = torch.tensor([-1.0, 0.0, 0.5, 1.0]).double(), torch.linspace(-1, 1, 4).double()
    options = {"use_gate_in_kernel": True, "A_log": A_log, "dt_bias": dt_bias}
    g = -A_log.exp()[:, None] * torch.log1p((x.g + dt_bias[:, None]).exp())
    agree(run("chunk", "gated_delta_rule", x, **options), run("naive", "gated_delta_rule", x._replace(g=g)))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("form", ["chunk", "recurrent"])
def test_a_split_anywhere_with_the_state_handed_over_changes_nothing(form, rule):
    x = batch(66, B=1)
    o, S = run("naive", rule, x, initial_state=x.S)
    for t in (0, 1, 15, 16, 17, 33, 64, 65, 66) if rule == "kda" else (1, 17, 65):
        first, second = (inputs.Batch(*(y[:, part] for y in x[:5]), x.S) for part in (slice(t), slice(t, None)))
        o1, S1 = run(form, rule, first, initial_state=x.S)
        o2, S2 = run(form, rule, second, initial_state=S1)
        agree((torch.cat([o1, o2], 1), S2), (o, S))


@pytest.mark.parametrize("lengths", [[5], [0], [0, 0, 5], [3, 0, 70, 1, 0, 64], [1, 129, 17, 0]])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("form", ["chunk", "recurrent", "naive"])
def test_packed_sequences_are_the_sequences_one_by_one(form, rule, lengths):
    x = batch(sum(lengths), B=1)
    S = torch.randn(len(lengths), 4, 3, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    cu = torch.tensor([0, *lengths]).cumsum(0)
    o, S_end = run(form, rule, x, initial_state=S, cu_seqlens=cu)
    for n, (a, b) in enumerate(zip(cu[:-1], cu[1:])):
        alone = inputs.Batch(*(y[:, a:b] for y in x[:5]), None)
        agree((o[:, a:b], S_end[n : n + 1]), run("naive", rule, alone, initial_state=S[n : n + 1]))


@pytest.mark.parametrize("form", ["chunk", "recurrent", "naive"])
def test_rows_after_the_last_sequence_are_not_read_and_come_back_zero(form):
    x = batch(20, B=1)
    cu = torch.tensor([0, 4, 12])
    o, S = run(form, "kda", x, cu_seqlens=cu)
    poisoned = inputs.Batch(*(torch.cat([y[:, :12], torch.full_like(y[:, 12:], torch.nan)], 1) for y in x[:5]), None)
    agree(run(form, "kda", poisoned, cu_seqlens=cu), (o, S))
    assert not o[:, 12:].any()


@pytest.mark.parametrize("form", ["chunk", "recurrent", "naive"])
def test_a_sequence_full_of_nan_leaves_its_neighbours_alone(form):
    x = batch(20, B=1)
    cu = torch.tensor([0, 4, 12, 20])
    o, S = run(form, "kda", x, cu_seqlens=cu)
    v = x.v.clone()
    v[:, 4:12] = torch.nan
    o_hurt, S_hurt = run(form, "kda", x._replace(v=v), cu_seqlens=cu)
    agree((o_hurt[:, :4], o_hurt[:, 12:], S_hurt[[0, 2]]), (o[:, :4], o[:, 12:], S[[0, 2]]))


@pytest.mark.parametrize("form", ["chunk", "recurrent", "naive"])
def test_no_sequences_at_all_are_no_error(form):
    x = batch(0, B=1)
    o, S = run(form, "kda", x, cu_seqlens=torch.tensor([0]))
    assert o.shape == (1, 0, 4, 3) and S.shape == (0, 4, 3, 5)
    o, S = run(form, "kda", batch(6, B=0))
    assert o.shape == (0, 6, 4, 3) and S.shape == (0, 4, 3, 5)


def test_scale_zero_is_a_scale_and_none_is_the_inverse_root():
    x = batch(9)
    assert not run("chunk", "kda", x, scale=0.0)[0].any()
    agree(run("chunk", "kda", x), run("chunk", "kda", x, scale=5**-0.5))


@pytest.mark.parametrize("form", ["chunk", "recurrent", "naive"])
def test_with_both_gates_equal_gated_deltanet_2_is_kda(form):
    x = batch(70)
    erase, write = x.beta[..., None].expand(2, 70, 4, 5), x.beta[..., None].expand(2, 70, 4, 3)
    options = {"initial_state": x.S, "output_final_state": True}
    got = getattr(ops, f"{form}_gdn2")(x.q, x.k, x.v, x.g, erase, write, **options)
    agree(got, getattr(ops, f"{form}_kda")(*x[:5], **options))


@pytest.mark.parametrize("form", ["chunk", "recurrent"])
@pytest.mark.parametrize("gate", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("name", ["b", "w"])
def test_each_gate_of_gated_deltanet_2_from_nothing_to_two(name, gate, form):
    x = batch(70, gates="weak")
    named = dict(zip(rules.RULES["gdn2"].tensors, of_batch("gdn2", x)))
    named |= {name: torch.full_like(named[name], gate), "initial_state": x.S, "output_final_state": True}
    agree(getattr(ops, f"{form}_gdn2")(**named), ops.naive_gdn2(**named))


def test_logits_are_those_of_both_gates():
    x = batch(20)
    *first, b, w = of_batch("gdn2", x._replace(beta=4 * x.beta - 2))
    got = ops.chunk_gdn2(*first, b, w, use_beta_sigmoid_in_kernel=True)
    agree(got[:1], ops.chunk_gdn2(*first, b.sigmoid(), w.sigmoid())[:1])


@pytest.mark.parametrize("form", ["chunk", "recurrent"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2.0**-8)])
def test_gated_deltanet_2_is_as_good_as_its_roundings(dtype, tolerance, form):
    x = batch(200, dtype=dtype)
    for got, wanted in zip(run(form, "gdn2", x, initial_state=x.S), run("naive", "gdn2", x, initial_state=x.S)):
        # as for kda: fp32 roundings of sums of 64 to 128 products; bf16 results are rounded once
        assert (got.double() - wanted).norm() < tolerance * wanted.norm()

"""Prefill, prefill in pieces and decode are one formula: they agree wherever a prompt is cut."""

import copy
import math

import pytest
import torch

from kda_lab.layer import base
from kda_lab.layer import step as step_module
from kda_lab.proof.registry import variant
from tests.layer.layers import HIDDEN, KINDS, hidden, make, plain

pytestmark = pytest.mark.usefixtures("one_thread")
# float64 states in a float64 layer: some hundred roundings of 1e-16 stay far below
EXACT = {"rtol": 1e-10, "atol": 1e-10}
T = 68


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [1, 2, 3, 4, 63, 64, 65, T])
def test_prefill_is_the_layer_token_by_token(length, kind):
    made, x = make(kind), hidden(2, length)
    cache = made.new_cache(2)
    y = made.prefill(x, cache)
    wanted, S = plain(made, x)
    torch.testing.assert_close(y, wanted, **EXACT)
    torch.testing.assert_close(cache.snapshot().S, S, **EXACT)
    assert cache.state.dtype == torch.float64


def pieces(x, starts, ends):
    """x [1, T, hidden] cut at [start, end) for each request, one piece after the other, and the boundaries."""
    cu = torch.tensor([0, *(b - a for a, b in zip(starts, ends))]).cumsum(0)
    return torch.cat([x[:, a:b] for a, b in zip(starts, ends)], 1), cu


@pytest.mark.parametrize("kind", KINDS)
def test_two_prefills_and_a_decode_agree_at_every_split(kind):
    """Request n is cut after n tokens: all splits at once, as a ragged batch."""
    made, x, splits = make(kind), hidden(1, T + 1), range(T + 1)
    wanted, _ = plain(made, x)
    cache = made.new_cache(len(splits))
    for starts, ends in (([0] * len(splits), splits), (splits, [T] * len(splits))):
        rows, cu = pieces(x, starts, ends)
        y = made.prefill(rows, cache, cu_seqlens=cu)
        torch.testing.assert_close(y, pieces(wanted, starts, ends)[0], **EXACT)
    y = made.decode(x[:, T:].expand(len(splits), -1, -1), cache)
    torch.testing.assert_close(y, wanted[:, T:].expand_as(y), **EXACT)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("split", [0, 1, 3, 4, 63, 64, 65])
def test_batches_of_one_length_agree_at_a_split(split, kind):
    made, x, cache = make(kind), hidden(2, T), make(kind).new_cache(2)
    y = torch.cat([made.prefill(x[:, :split], cache), made.prefill(x[:, split:], cache)], 1)
    torch.testing.assert_close(y, plain(made, x)[0], **EXACT)


@pytest.mark.parametrize("kind", KINDS)
def test_decoding_leaves_the_cache_that_a_prefill_leaves(kind):
    made, x = make(kind), hidden(1, T)
    wanted, _ = plain(made, x)
    prefilled, decoded = made.new_cache(T + 1), made.new_cache(1)
    rows, cu = pieces(x, [0] * (T + 1), range(T + 1))
    made.prefill(rows, prefilled, cu_seqlens=cu)
    for t in range(T):
        for got, want in zip(decoded.snapshot(), prefilled.snapshot([t])):
            torch.testing.assert_close(got, want, **EXACT)
        torch.testing.assert_close(made.decode(x[:, t : t + 1], decoded), wanted[:, t : t + 1], **EXACT)


@pytest.mark.parametrize("kind", KINDS)
def test_ragged_prompts_resume_from_a_cache_as_each_alone(kind):
    made = make(kind)
    lengths, later = [1, 0, 5, 66, 3], [2, 4, 0, 1, 3]
    prompts = [hidden(1, n + m, seed=n) for n, m in zip(lengths, later)]
    cache, requests = made.new_cache(7), torch.tensor([6, 0, 2, 5, 1])
    cache.state.fill_(torch.nan), cache.conv_state.fill_(torch.nan)
    cache.reset(requests)
    outputs = []
    for piece in (0, 1):
        rows = [p[:, n:] if piece else p[:, :n] for p, n in zip(prompts, lengths)]
        cu = torch.tensor([0, *(r.shape[1] for r in rows)]).cumsum(0)
        # rows after the last boundary belong to nobody
        x = torch.cat([*rows, torch.full((1, 2, HIDDEN), torch.nan, dtype=torch.float64)], 1)
        y = made.prefill(x, cache, requests, cu)
        assert not y[:, cu[-1] :].any()
        outputs.append([y[:, a:b] for a, b in zip(cu, cu[1:])])
    for i, prompt in enumerate(prompts):
        wanted, S = plain(made, prompt)
        torch.testing.assert_close(torch.cat([outputs[0][i], outputs[1][i]], 1), wanted, **EXACT)
        torch.testing.assert_close(cache.snapshot(requests[i : i + 1]).S, S, **EXACT)


@pytest.mark.parametrize("kind", KINDS)
def test_bf16_prefill_and_decode_agree_to_bf16(kind):
    made, x = make(kind, torch.bfloat16), hidden(2, T, dtype=torch.bfloat16)
    whole, cache = made.prefill(x), made.new_cache(2)
    assert cache.state.dtype == torch.float32
    steps = torch.cat([made.decode(x[:, t : t + 1], cache) for t in range(T)], 1)
    exact, _ = plain(copy.deepcopy(made).double(), x.double())
    # eight roundings to 8 bits (2^-9 of a number) lie between x and y: products, gates, q, k, v, o, normed o, the
    # result; that they add up to their bounds on the largest output is the worst case; a second write gate is a ninth
    bound = (7 + len(made.rule.gates)) * 2**-9 * exact.abs().amax()
    for got, wanted in ((whole, exact), (steps, exact), (whole, steps)):
        assert (got.double() - wanted.double()).abs().amax() < bound


def steps_after(made, x, split):
    """Outputs of x with everything from split on decoded."""
    cache = made.new_cache(len(x))
    return torch.cat([made.prefill(x[:, :split], cache), *(made.decode(y, cache) for y in x[:, split:].split(1, 1))], 1)


FAULTS = {
    "the window keeps what came out of the activation": (
        "= window[:, 1:]",
        "= torch.nn.functional.silu(window[:, 1:])",
    ),
    "the window is a token behind": ("= window[:, 1:]", "= window[:, :-1]"),
    "the window is not written": ("= window[:, 1:]", "= conv_state[slots, : window.shape[1] - 1]"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_window_is_seen(fault, monkeypatch):
    made, x = make(), hidden(2, 12)
    wanted, _ = plain(made, x)
    monkeypatch.setattr(step_module, "convolve", variant(step_module.convolve, FAULTS[fault]))
    assert (steps_after(made, x, 6) - wanted).abs().amax() > 1e-3


def test_sequences_that_look_across_their_boundary_are_seen(monkeypatch):
    made, x = make(), hidden(1, 9)
    monkeypatch.setattr(
        base, "ragged_convolution", lambda x, weight, state, cu_seqlens: base.short_convolution(x, weight)
    )
    y = made.prefill(x, cu_seqlens=torch.tensor([0, 5, 9]))
    assert (y[:, 5:] - plain(made, x[:, 5:])[0]).abs().amax() > 1e-3


def test_value_heads_that_read_the_keys_of_another_group_are_seen():
    made, x = make(), hidden(1, 6)
    wanted, _ = plain(made, x)
    with torch.no_grad():
        for part in (made.q_proj, made.k_proj, made.q_conv1d, made.k_conv1d):
            part.weight.copy_(part.weight.unflatten(0, (made.num_heads, -1)).flip(0).flatten(0, 1))
    assert (made(x) - wanted).abs().amax() > 1e-3


def test_negative_eigenvalues_double_the_gate_that_erases_and_no_other():
    plainly, doubled = make("gated deltanet 2"), make("gated deltanet 2", allow_neg_eigval=True)
    x, cache = hidden(1, 9), doubled.new_cache(1)
    y = torch.cat([doubled.prefill(x[:, :5], cache), *(doubled.decode(z, cache) for z in x[:, 5:].split(1, 1))], 1)
    torch.testing.assert_close(y, plain(doubled, x)[0], **EXACT)
    # logits far below zero: 2 sigmoid(x) there is sigmoid(x + ln 2), to a part in e^20
    for made in (plainly, doubled):
        project = made.project
        shift = math.log(2) if made is plainly else 0.0

        def shifted(x, project=project, shift=shift):
            qkv, (b, w), *others = project(x)
            return qkv, (b - 20 + shift, w), *others

        made.project = shifted
    torch.testing.assert_close(plainly(x), doubled(x), rtol=1e-7, atol=1e-7)

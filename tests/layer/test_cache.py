"""The cache: slots for drafts, requests that sit out a step, snapshots, and its size."""

import inspect

import pytest
import torch

from kda_lab import costs, layer
from kda_lab.cuda import decode
from kda_lab.layer import step as step_module
from kda_lab.proof.registry import variant
from tests.layer.layers import HIDDEN, KINDS, hidden, make, plain

pytestmark = pytest.mark.usefixtures("one_thread")
EXACT = {"rtol": 1e-10, "atol": 1e-10}


def speculate(made, text, drafts, accepted, k, cache=None):
    """Serve text [1, T, hidden] with k drafts a step, of which accepted[i] are right in step i: outputs of what
    stays.
    """
    cache = made.new_cache(1, num_spec=k) if cache is None else cache
    outputs, at = [made.prefill(text[:, :1], cache)], 1
    for i, a in enumerate(accepted):
        # the known token, a right drafts, and k - a wrong ones, which must leave no trace
        step = torch.cat([text[:, at : at + 1 + a], drafts[:, i, : k - a]], 1)
        y = made.decode(step, cache)
        outputs.append(y[:, : 1 + a])
        cache.accept(torch.tensor([1 + a]))
        at += 1 + a
    return torch.cat(outputs, 1), cache


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("k", [1, 3, 7])
def test_rejected_drafts_leave_no_trace(k, kind):
    made = make(kind)
    accepted = [a for a in (0, k, 1, k - 1, 0, 0, k) if a <= k]
    total = 1 + sum(1 + a for a in accepted)
    text, drafts = hidden(1, total), hidden(1, len(accepted), k, seed=2)
    y, cache = speculate(made, text, drafts, accepted, k)
    wanted, S = plain(made, text)
    torch.testing.assert_close(y, wanted, **EXACT)
    torch.testing.assert_close(cache.snapshot().S, S, **EXACT)


ORIGIN = "gather(1, first[:, None])[:, 0]"
FAULTS = {
    "every step begins with the first slot": ("step", (ORIGIN, "select(1, 0)")),
    "every step begins with the last slot": ("step", (ORIGIN, "select(1, -1)")),
    "the window ignores what was accepted": ("convolve", ("rows = first[:, None] +", "rows = 0 * first[:, None] +")),
    "all states are written to one slot": ("step", ("state[slots[stored, t]]", "state[slots[stored, 0]]")),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_slot_is_seen(fault, monkeypatch):
    made, k, accepted = make(), 3, [1, 3, 0]
    text, drafts = hidden(1, 8), hidden(1, 3, k, seed=2)
    name, patch = FAULTS[fault]
    wrong = variant(inspect.unwrap(getattr(step_module, name)), patch)
    monkeypatch.setattr("kda_lab.layer.base.step" if name == "step" else "kda_lab.layer.step.convolve", wrong)
    y, _ = speculate(made, text, drafts, accepted, k)
    assert (y - plain(made, text)[0]).abs().amax() > 1e-3


def test_requests_with_and_without_drafts_share_a_step():
    """A request with fewer drafts is filled up; it accepts only what it has (vllm-project/vllm PR #55504)."""
    made, k = make(), 3
    cache = made.new_cache(2, num_spec=k)
    text = hidden(2, 9)
    made.prefill(text[:, :2], cache)
    step = text[:, 2:6].clone()
    step[1, 1:] = 7.0
    made.decode(step, cache)
    cache.accept([4, 1])
    y = made.decode(torch.stack([text[0, 6:7], text[1, 3:4]]), cache)
    wanted, _ = plain(made, text)
    torch.testing.assert_close(y, torch.stack([wanted[0, 6:7], wanted[1, 3:4]]), **EXACT)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_spec", [0, 1, 3])
def test_a_request_that_accepts_nothing_keeps_its_state_beside_a_poisoned_neighbour(num_spec, kind):
    """vllm-project/vllm PR #51508: two requests, num_accepted = [0, 1], and NaN wherever the first one may not look."""
    made, x = make(kind), hidden(2, 6)
    cache = made.new_cache(2, num_spec)
    made.prefill(x[:, :4], cache)
    before = cache.copy()
    poisoned = x[:, 4:5].clone()
    poisoned[0] = torch.nan
    y = made.decode(poisoned, cache, num_accepted=torch.tensor([0, 1]))
    wanted, _ = plain(made, x)
    assert not y[0].any()
    torch.testing.assert_close(y[1], wanted[1, 4:5], **EXACT)
    for got, old in zip(cache.snapshot([0]), before.snapshot([0])):
        assert torch.equal(got, old)
    # and the other way round: what the idle request has in its slots does not matter to the one that steps
    cache.conv_state[cache.conv_slots[0]] = torch.nan
    cache.state[cache.state_slots[0].long()] = torch.nan
    y = made.decode(x[:, 5:], cache, num_accepted=torch.tensor([0, 1]))
    assert not y[0].any()
    torch.testing.assert_close(y[1], wanted[1, 5:], **EXACT)


def test_a_request_that_sits_out_a_step_goes_on_later_from_its_draft():
    made, x = make(), hidden(2, 6)
    cache = made.new_cache(2, num_spec=2)
    made.prefill(x[:, :2], cache)
    made.decode(x[:, 2:5], cache)
    made.decode(x[:, 4:5], cache, num_accepted=torch.tensor([0, 2]))
    y = made.decode(torch.stack([x[0, 4:5], x[1, 5:]]), cache, num_accepted=torch.tensor([2, 1]))
    wanted, _ = plain(made, x)
    torch.testing.assert_close(y, torch.stack([wanted[0, 4:5], wanted[1, 5:]]), **EXACT)


def test_an_idle_request_that_is_computed_and_multiplied_by_zero_is_seen(monkeypatch):
    wrong = variant(inspect.unwrap(step_module.step), ("(accepted > 0) & (origin >= 0)", "(origin >= 0)"))
    monkeypatch.setattr("kda_lab.layer.base.step", wrong)
    made, x = make(), hidden(2, 5)
    cache = made.new_cache(2)
    made.prefill(x[:, :4], cache)
    before = cache.copy()
    made.decode(x[:, 4:], cache, num_accepted=torch.tensor([0, 1]))
    assert not torch.equal(cache.snapshot([0]).S, before.snapshot([0]).S)


@pytest.mark.parametrize("num_spec", [0, 1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_as_long_as_a_verification_step_is_prefilled_from_nothing(kind, num_spec):
    """vllm-project/vllm #49918, #53051: the slot's last owner left three accepted tokens and NaN behind."""
    made = make(kind)
    for T in range(1, 3 + num_spec):
        x, cache = hidden(1, T + 1), made.new_cache(1, num_spec)
        cache.state.fill_(torch.nan), cache.conv_state.fill_(torch.nan), cache.num_accepted.fill_(1 + num_spec)
        cache.reset()
        y = torch.cat([made.prefill(x[:, :T], cache), made.decode(x[:, T:], cache)], 1)
        torch.testing.assert_close(y, plain(made, x)[0], **EXACT)


def test_a_prompt_that_is_taken_for_a_verification_step_is_seen():
    """The phase guessed from the shape: a step of 1 + k tokens behind whatever the last owner had accepted."""
    made, x, k = make(), hidden(1, 5), 3
    cache = made.new_cache(1, num_spec=k)
    made.prefill(hidden(1, 9, seed=3), cache)
    made.decode(hidden(1, 4, seed=4), cache)
    y = made.decode(x[:, : 1 + k], cache)
    assert (y - plain(made, x[:, : 1 + k])[0]).abs().amax() > 1e-3


def test_a_slot_that_is_used_again_without_a_reset_is_seen():
    made, x = make(), hidden(1, 5)
    cache = made.new_cache(1)
    made.prefill(hidden(1, 9, seed=3), cache)
    assert (made.prefill(x, cache.copy()) - plain(made, x)[0]).abs().amax() > 1e-3
    cache.reset()
    torch.testing.assert_close(made.prefill(x, cache), plain(made, x)[0], **EXACT)


def test_slots_may_lie_anywhere_in_shared_pools():
    made, x, k = make(), hidden(2, 7), 1
    own = made.new_cache(8, num_spec=k)
    cache = layer.Cache(
        own.conv_state,
        own.state,
        torch.tensor([5, 2], dtype=torch.int32),
        torch.tensor([[9, 3], [0, 14]], dtype=torch.int32),
        torch.ones(2, dtype=torch.int32),
    )
    y = [made.prefill(x[:, :4], cache)]
    for t in (4, 6):
        y.append(made.decode(x[:, t : t + 2], cache))
    torch.testing.assert_close(torch.cat(y, 1), plain(made, x)[0], **EXACT)
    used = sorted(n for n in range(16) if own.state[n].any())
    assert used == [0, 3, 9, 14] and sorted(n for n in range(8) if own.conv_state[n].any()) == [2, 5]


@pytest.mark.parametrize("kind", ["kda, bounded gate", "gated deltanet", "deltanet"])
def test_the_fused_kernel_takes_the_cache_as_it_is(kind, monkeypatch):
    """The CUDA source, run on the CPU, behind the layer's own call; three tokens, one of them taken back."""
    made, x = make(kind, torch.float32), hidden(2, 9, dtype=torch.float32)
    results = []

    def kernel(qkv, gate, gates, *rest, rule, **options):
        assert (rule, len(gates)) == (made.rule.name, 1)
        return decode.kda_decode(qkv, gate, *gates, *rest, **options)

    for advance in (step_module.step, kernel):
        monkeypatch.setattr("kda_lab.layer.base.step", advance)
        cache = made.new_cache(2, num_spec=2)
        made.prefill(x[:, :4], cache)
        y = [made.decode(x[:, 4:7], cache)]
        y.append(made.decode(x[:, 6:], cache, num_accepted=torch.tensor([2, 0])))
        results.append((torch.cat(y, 1), *cache.snapshot()))
    for got, wanted in zip(*results):
        # fp32 throughout, a handful of tokens
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


def test_a_snapshot_takes_a_request_back_and_to_another_cache():
    made, x = make(), hidden(1, 12)
    cache = made.new_cache(1, num_spec=2)
    made.prefill(x[:, :5], cache)
    made.decode(x[:, 5:8], cache)
    cache.accept([2])
    taken, kept = cache.snapshot(), cache.copy()
    made.decode(hidden(1, 3, seed=9), cache)
    wanted, _ = plain(made, x[:, :8])
    other = made.new_cache(3, num_spec=0)
    other.restore(taken, [1])
    cache.restore(taken)
    for held, requests in ((cache, None), (kept, None), (other, [1])):
        y = made.decode(x[:, 7:8], held, requests)
        torch.testing.assert_close(y, wanted[:, 7:], **EXACT)
    assert not other.state[[0, 2]].any()


def test_the_size_of_a_request_is_known_before_and_after():
    pages = {k: layer.cache_bytes(8, 128, 128, num_spec=k).page for k in (0, 1, 3, 7)}
    assert pages == {0: 542_720, 1: 548_864, 3: 561_152, 7: 585_728}
    assert pages[0] == costs.layer_bytes(8, 128, 128)
    made = layer.KimiDeltaAttention(8, head_dim=128, num_heads=8, dtype=torch.bfloat16, device="meta")
    assert made.cache_bytes(3).page == 561_152
    for kind in KINDS:
        made = make(kind, torch.bfloat16)
        cache = made.new_cache(5, num_spec=3)
        assert cache.bytes == made.cache_bytes(3) and cache.nbytes == 5 * cache.bytes.total


def test_what_does_not_fit_is_refused_in_one_sentence():
    made = make()
    cache = made.new_cache(2, num_spec=1)
    cases = {
        "x must be": lambda: made(torch.zeros(2, HIDDEN, dtype=torch.float64)),
        "a request in the cache for each of the 3": lambda: made.prefill(hidden(3, 4), cache),
        "a step takes 1 to 1": lambda: made.decode(hidden(2, 3), cache),
        "got T = 0": lambda: made.decode(hidden(2, 0), cache),
        "made for HV, V, K, D, w": lambda: make("deltanet").prefill(hidden(2, 4), cache),
        "cu_seqlens must not decrease": lambda: made.prefill(hidden(1, 4), cache, None, torch.tensor([0, 3, 2])),
        "cu_seqlens needs B = 1": lambda: made.prefill(hidden(2, 4), cache, None, torch.tensor([0, 3, 4])),
        "requests must differ, got \\[1, 1\\]": lambda: made.decode(hidden(2, 1), cache, [1, 1]),
        "0 to the tokens of the last step, got 2 of 1": lambda: cache.accept([1, 2]),
        "one count for each request": lambda: cache.accept([1]),
        "num_v_heads must be a multiple": lambda: layer.KimiDeltaAttention(8, head_dim=4, num_heads=2, num_v_heads=3),
        "rule must be one that erases and has a decay a channel, kda or gdn2, got 'delta_rule'": lambda: (
            layer.KimiDeltaAttention(8, head_dim=4, num_heads=2, rule="delta_rule")
        ),
        "lower_bound must be negative": lambda: layer.KimiDeltaAttention(8, head_dim=4, num_heads=2, lower_bound=5.0),
        "whole number": lambda: layer.DeltaNet(10, num_heads=4),
        "conv_size at least 2": lambda: layer.DeltaNet(8, num_heads=2, conv_size=1),
        "'swish' or 'sigmoid'": lambda: layer.GatedDeltaNet(8, num_heads=2, head_dim=4, output_gate_activation="relu"),
    }
    for message, call in cases.items():
        with pytest.raises(ValueError, match=message):
            call()
    assert not cache.state.any() and cache.num_accepted.tolist() == [1, 1]

"""Failures that users of such layers met, each as its smallest input; those of the rules alone are in
test_ops_reports.py.
"""

import math

import pytest
import torch

from kda_lab import layer
from kda_lab.layer.cache import Snapshot
from tests.layer.layers import KINDS, hidden, make, plain

pytestmark = pytest.mark.usefixtures("one_thread")
EXACT = {"rtol": 1e-10, "atol": 1e-10}


def one_channel():
    """A layer of one key and one value channel: g = -1 for each token, the first token writes and the second does
    not.
    """
    made = layer.KimiDeltaAttention(2, head_dim=1, num_heads=1, lower_bound=-2.0, dtype=torch.float64)
    with torch.no_grad():
        for p in (made.f_proj[1].weight, made.dt_bias, made.A_log):
            p.zero_()  # -2 sigmoid(0) = -1
        for p in (made.q_proj, made.k_proj, made.v_proj, made.q_conv1d, made.k_conv1d, made.v_conv1d):
            p.weight.fill_(1.0)
        made.b_proj.weight.copy_(torch.tensor([[50.0, -1000.0]]))
    return made, torch.eye(2, dtype=torch.float64)[None]


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_the_base_of_the_decay_is_e_from_the_gate_to_the_state(phase):
    """sgl-project/sglang #31904: two tokens, one channel, g = -1; a state of 2^-1 has mixed up two bases."""
    made, x = one_channel()
    cache = made.new_cache(1)
    made.prefill(x[:, :1], cache)
    before = cache.snapshot().S.item()
    getattr(made, phase)(x[:, 1:], cache)
    assert before > 0.1 and cache.snapshot().S.item() / before == pytest.approx(math.exp(-1), rel=1e-12)


@pytest.mark.parametrize("expand_v", [1, 2])
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_a_state_that_is_not_symmetric_is_read_along_its_keys(phase, expand_v):
    """vllm-project/vllm #41292, PR #40956: T = C + 1 behind a given state, where S and its transpose have one shape."""
    made, T = make("kda, bounded gate", expand_v=expand_v), 65
    draw = torch.Generator().manual_seed(4)
    S = torch.randn(1, 4, made.V, made.K, generator=draw, dtype=torch.float64)
    x, fresh = hidden(1, T), torch.zeros(1, 3, made.channels, dtype=torch.float64)
    wanted, final = plain(made, x, S)

    def run(S):
        cache = made.new_cache(1)
        cache.restore(Snapshot(fresh, S))
        if phase == "prefill":
            return made.prefill(x, cache), cache.snapshot().S
        return torch.cat([made.decode(y, cache) for y in x.split(1, 1)], 1), cache.snapshot().S

    y, S_after = run(S)
    torch.testing.assert_close(y, wanted, **EXACT)
    torch.testing.assert_close(S_after, final, **EXACT)
    if expand_v == 1:
        # the same call with the transposed state: this input can tell them apart
        assert (run(S.mT)[0] - wanted).abs().max() > 1e-3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("T", [63, 65])
def test_the_filling_of_a_chunk_touches_neither_window_nor_state(T, kind):
    """huggingface/transformers #46190: C - 1 and C + 1 tokens, then one decoded token."""
    made, x = make(kind), hidden(1, T + 1)
    cache, one_by_one = made.new_cache(1), made.new_cache(1)
    made.prefill(x[:, :T], cache)
    for y in x[:, :T].split(1, 1):
        made.decode(y, one_by_one)
    for a, b in zip(cache.snapshot(), one_by_one.snapshot()):
        torch.testing.assert_close(a, b, **EXACT)
    torch.testing.assert_close(made.decode(x[:, T:], cache), plain(made, x)[0][:, T:], **EXACT)


@pytest.mark.parametrize("lower_bound", [None, -5.0])
@pytest.mark.parametrize(("A_log", "raw"), [(0.0, 100.0), (100.0, -200.0), (100.0, 0.0), (100.0, 100.0)])
def test_extreme_gate_parameters_never_multiply_infinity_by_zero(A_log, raw, lower_bound):
    """NVIDIA/TensorRT-LLM PR #14652: softplus at 100, and a rate of e^100 before a raw gate of -200."""
    made = make("kda, bounded gate", torch.float32)
    made.lower_bound = lower_bound
    with torch.no_grad():
        made.A_log.fill_(A_log), made.dt_bias.fill_(raw), made.f_proj[1].weight.zero_()
    x, cache = hidden(1, 21, dtype=torch.float32), made.new_cache(1)
    y = torch.cat([made.prefill(x[:, :20], cache), made.decode(x[:, 20:], cache)], 1)
    assert y.isfinite().all() and cache.snapshot().S.isfinite().all()
    assert torch.autograd.grad(made(x).sum(), made.A_log)[0].isfinite().all()


def test_a_slow_channel_keeps_an_fp32_state_between_pieces_of_a_prompt():
    """sgl-project/sglang PR #34299: 4,096 tokens, g = -1e-4 and beta = 0.02; bf16 states lose small writes for good."""
    made = make("kda, softplus gate", torch.bfloat16, num_heads=1, num_v_heads=1, expand_v=1)
    project = made.project
    with torch.no_grad():
        made.A_log.zero_(), made.f_proj[1].weight.zero_(), made.b_proj.weight.zero_()
        made.dt_bias.fill_(math.log(math.expm1(1e-4)))
    # sigmoid(-3.9) = 0.02
    made.project = lambda x: (lambda qkv, beta, *gates: (qkv, (beta[0] - 3.9,), *gates))(*project(x))
    # values that wander about a mean, so that small writes add up
    x = hidden(1, 4096, dtype=torch.bfloat16) * 0.2 + hidden(1, 1, seed=5, dtype=torch.bfloat16)
    whole, cache = made.new_cache(1), made.new_cache(2)
    made.prefill(x, whole)
    for piece in x.split(64, 1):
        made.prefill(piece.expand(2, -1, -1), cache)
        cache.state[1] = cache.state[1].bfloat16()
    kept, rounded = ((S - whole.state[0]).norm() / whole.state.norm() for S in cache.state)
    # 64 pieces on the chunks' own boundaries, at most an fp32 rounding each; and 64 bf16 roundings of all that is kept
    assert kept < 64 * 2**-24
    assert rounded > 2**-9


def test_one_key_head_may_serve_two_value_heads():
    """fla-org/flash-linear-attention #624: H = 1, HV = 2; each value head alone gives the same."""
    made = make("kda, softplus gate", num_heads=1, num_v_heads=2)
    x, cache = hidden(1, 7), made.new_cache(1)
    y = torch.cat([made.prefill(x[:, :5], cache), made.decode(x[:, 5:6], cache), made.decode(x[:, 6:], cache)], 1)
    torch.testing.assert_close(y, plain(made, x)[0], **EXACT)
    alone = []
    for head in range(2):
        one = make("kda, softplus gate", num_heads=1, num_v_heads=1)
        state = made.state_dict()
        for name, p in one.named_parameters():
            whole = state[name]
            axis = next((i for i, (a, b) in enumerate(zip(whole.shape, p.shape)) if a != b), None)
            state[name] = whole if axis is None else whole.chunk(2, axis)[head]
        one.load_state_dict(state)
        alone.append(one(x))
    torch.testing.assert_close(sum(alone), y, **EXACT)
    with pytest.raises(ValueError, match="num_v_heads must be a multiple of num_heads, got 3 and 2"):
        layer.KimiDeltaAttention(8, head_dim=4, num_heads=2, num_v_heads=3)

"""Bytes and operations of a token, against counts made another way and against numbers that others published."""

import json

import pytest

from kda_lab import intensity as I

# bytes of the cache a token, bytes of the states a request: computed from the same configs by other code
KNOWN = {
    "Llama-3.1-70B": (327_680, 0),
    "DeepSeek-V3": (70_272, 0),
    "DeepSeek-V3.2": (78_324, 0),
    "gpt-oss-120b": (36_864, 0),
    "MiniMax-M1": (40_960, 293_601_280),
    "Qwen3-Next-80B-A3B": (24_576, 77_266_944),
    "Kimi-Linear-48B-A3B": (8_064, 43_417_600),
    "Kimi K3": (27_648, 449_372_160),
    "GLM-5.3-Flash": (11_627, 147_619_840),
}
MODELS = list(I.models().values())


@pytest.mark.parametrize("name", KNOWN)
def test_rows_and_states_have_the_known_sizes(name):
    model = I.models()[name]
    assert (model.growth(), model.state) == KNOWN[name]


def test_every_fact_has_a_source_and_a_confidence():
    for name, key in (("models.json", "models"), ("gpus.json", "gpus")):
        for fact in json.loads((I.DATA / name).read_text(encoding="utf-8"))[key]:
            assert fact["confidence"] in ("A", "B", "C") and fact["_source"], fact["name"]


def test_attention_counts_each_multiplication_and_addition():
    heads, kv_heads, D, tokens = 4, 2, 3, 7
    flop = sum(2 * D + 2 * D for t in range(tokens) for _ in range(t + 1) for _ in range(heads))  # scores, then values
    assert I.prefill_attention(tokens, 2, heads, kv_heads, D).flop == flop
    last = I.attention(1, tokens, heads, row=2 * kv_heads * D, flop=4 * D)
    assert last.flop == heads * tokens * 4 * D
    assert last.bytes == 2 * (tokens * kv_heads * 2 * D + heads * 2 * D)


def test_a_prompt_in_one_tile_reads_its_keys_once():
    tokens, heads, D = 64, 8, 16
    one, many = (I.prefill_attention(tokens, tile, heads, heads, D) for tile in (64, 16))
    assert one.bytes == 2 * (tokens * heads * 2 * D + 2 * tokens * heads * D)
    assert many.bytes - one.bytes == 2 * heads * 2 * D * (16 + 32 + 48)


def test_a_batch_changes_the_intensity_of_weights_and_not_of_caches():
    for model in MODELS:
        one, many = model.step(2**15), model.step(2**15, 32)
        assert many.cache == 32 * one.cache and many.state == 32 * one.state
        assert many.weights / 32 < one.weights


def test_a_mixture_touches_its_active_weights_at_one_token_and_all_of_them_in_the_end():
    for model in MODELS:
        assert model.touched(1) == pytest.approx(2 * model.active)
        most = model.active if model.experts is None else model.parameters
        assert 0.9 * 2 * most < model.touched(10**7) <= 2 * most


def test_the_experts_of_each_mixture_fit_its_parameters():
    """Config and parameter count come from different places: what is left for the rest must be positive and small."""
    for model in MODELS:
        if model.experts:
            chosen = model.experts.parameters * model.experts.chosen / model.experts.count
            assert 0 < model.active - chosen < 0.65 * model.active, model.name
            assert 0.9 * model.parameters < model.experts.parameters < model.parameters, model.name


def test_the_index_of_deepseek_v4_flash_is_81_percent_of_its_cache_traffic():
    """vllm-project/vllm pull request 51209 says about 81 % at 128K, and about 65 % at 32K."""
    model = I.models()["DeepSeek-V4-Flash"]
    for context, share in ((2**17, 0.81), (2**15, 0.65)):
        index = sum(c.layers * c.row * c.read(context) for c in model.caches if c.row == 132)
        assert index / model.read(context) == pytest.approx(share, abs=0.01)


def test_the_decode_intensity_of_mla_is_two_for_each_head():
    """docs/20250422-new-kernel-deep-dive.md of FlashMLA: about 2 h_q, exactly h_q (576 + 512) / 576."""
    model = I.models()["DeepSeek-V3"]
    assert model.flop(2**17) / model.read(2**17) == pytest.approx(128 * (576 + 512) / 576)
    assert model.flop(2**17) / model.read(2**17) > I.gpus()["H200"].ridge


def test_the_crossover_is_the_first_context_with_more_cache_than_weights():
    for model in MODELS:
        for batch in (1, 64):
            n = I.crossover(model, batch)
            at, before = model.step(n, batch), model.step(n - 1, batch)
            assert before.cache <= before.weights and at.cache > at.weights


def test_windows_do_not_grow_and_sparse_layers_keep_what_they_do_not_read():
    gpt, v3, v32 = (I.models()[n] for n in ("gpt-oss-120b", "DeepSeek-V3", "DeepSeek-V3.2"))
    assert gpt.cached(2**20) - gpt.cached(2**19) == 2**19 * gpt.growth()
    assert gpt.cached(2**20) - 2**20 * gpt.growth() == 18 * 128 * 2 * 8 * 64 * 2
    assert v32.cached(2**20) > v3.cached(2**20) and v32.read(2**20) < v3.read(2**20) / 8


def test_a_full_card_needs_the_time_of_reading_its_memory_once():
    card, model = I.gpus()["H200"], I.models()["Llama-3.1-70B"]
    node = I.together(card, 8)
    batch = I.fits(model, 2**17, node)
    seconds = node.seconds(model.work(2**17, batch))
    assert 0.95 * card.memory / card.bandwidth < seconds <= card.memory / card.bandwidth


def test_speculation_cannot_yield_more_than_one_over_the_rate_of_errors():
    assert I.accepted(0, 0.8) == 1
    assert I.accepted(200, 0.8) == pytest.approx(5)

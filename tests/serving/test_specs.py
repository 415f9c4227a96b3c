"""Page sizes, padding and the block size: against values that vLLM 0.32.0 returned, and the properties that they must
have.
"""

import random
from math import lcm

import pytest

from kda_lab import intensity
from kda_lab.serving.plan import specs as s
from tests.serving.mutants import assert_seen, each_check, each_fault
from tests.serving.vectors import VECTORS

BYTES = {"float32": s.FP32, "bfloat16": s.BF16, "bf16": s.BF16, "u8": s.FP8}


def check_states():
    for v in VECTORS["kda_state_page"]:
        spec = s.kda_state(v["heads"], v["head_dim"], v["conv_kernel"], v["num_spec"], v["tp"], BYTES[v["recurrent"]])
        assert ([list(shape) for shape in spec.shapes], spec.page) == ([v["conv_shape"], v["s_shape"]], v["bytes"])


def check_rows():
    for v in VECTORS["attention_page"]:
        heads, values = (1, 0) if "MLA" in v["kind"] else (8, None)
        spec = s.AttentionSpec(
            v["block"], heads, v["head_size"], values, BYTES[v["dtype"]], v.get("tokens_per_state", 1)
        )
        assert spec.page == v["bytes"]


def check_blocks():
    for v in VECTORS["align_block"]:
        args = (
            v["mamba_page"],
            v["attn_bytes_per_token"],
            v["kernel_min"],
            v["user_block"],
            v["mla"],
            v["backend_min_sizes"],
        )
        block = s.aligned_block(*args)
        page = block * v["attn_bytes_per_token"]
        assert (block, page, page - v["mamba_page"]) == (v["block"], v["attn_page"], v["pad_bytes"])
        assert round(100 * s.padding_fraction(v["mamba_page"], page), 3) == v["pad_pct"]


def check_windows():
    for v in VECTORS["conv_window"]:
        rows, _ = s.conv_shape(v["conv_kernel"], 24, v["num_spec"])
        # a step may start at any of the accepted offsets and still needs the full reach of the convolution
        assert rows == v["rows"] == v["conv_kernel"] - 1 + max(entry["offset"] for entry in v["read_offset"])


def check_least_block():
    """The least multiple of the unit that holds a state, then the least multiple of the backends' step above it."""
    generator = random.Random(0)
    for _ in range(500):
        state, row = generator.randrange(1, 10**7), generator.choice([512, 576, 1024, 1152, 4096])
        kernel, user = generator.choice([16, 64]), generator.choice([16, 16, 64, 128, 1024])
        mla, backends = generator.random() < 0.5, generator.choices([16, 32, 64, 96, 128], k=2)
        block = s.aligned_block(state, row, kernel, user, mla, backends)
        unit, step = max(kernel, user, 128 if mla else 1), lcm(*backends)
        assert block * row >= state and block >= user and block % step == 0
        least = next(n for n in range(unit, block + unit, unit) if n * row >= state)
        assert block - step < least <= block


CHECKS = (check_states, check_rows, check_blocks, check_windows, check_least_block)


@each_check(CHECKS)
def test_sizes_are_those_that_vllm_returns(check):
    check()


FAULTS = [
    (s, "conv_shape", ("+ num_spec", ""), check_states),
    (s, "conv_shape", ("return taps - 1", "return taps"), check_windows),
    (s, "kda_state", ("taps, 3 * heads", "taps, 2 * heads"), check_states),
    (s, "kda_state", ('"heads"), width, width', '"heads"), width, 2 * width'), check_states),
    (s, "kernel_unit", ("max(unit, 128)", "unit"), check_blocks),
    (s, "kernel_unit", ("max(kernel_min, user_block)", "kernel_min"), check_least_block),
    (s, "aligned_block", ("round_up(block, lcm(*backends))", "block"), check_least_block),
    (s, "aligned_block", ("unit * ceil_div(", "unit + unit * ceil_div("), check_least_block),
    (s, "ceil_div", ("-(-x // unit)", "x // unit + 1"), check_blocks),
    (s, "padding_fraction", ("/ state_page", "/ attention_page"), check_blocks),
    (s.AttentionSpec, "content", ("self.block // self.per_state", "self.block"), check_rows),
]


@each_fault(FAULTS)
def test_a_wrong_rule_gives_other_sizes(fault, monkeypatch):
    assert_seen(fault, monkeypatch, StopIteration)


def test_pages_of_attention_add_up_over_blocks_and_a_state_has_one_size():
    for block in (16, 64, 640):
        assert s.mla_rows(2 * block, 576).page == 2 * s.mla_rows(block, 576).page
        assert s.kda_state(8, 128, block=block).page == 542_720


def test_padding_never_shrinks_a_page():
    with pytest.raises(ValueError, match="cannot be padded to 542,719"):
        assert s.StateSpec(640, ((542_720,),), (1,), padded=542_719).page
    assert [s.StateSpec(640, ((542_720,),), (1,), padded=size).page for size in (542_720, 655_360)] == [
        542_720,
        655_360,
    ]


def test_the_staircase_jumps_by_one_unit_at_one_byte():
    fits = [
        s.aligned_block(128 * 1024 * n + extra, 1024, 64, mla=True, backends=(64, 128))
        for n in (1, 2, 5)
        for extra in (0, 1)
    ]
    assert fits == [128, 256, 256, 384, 640, 768]


def test_fewer_heads_a_rank_have_more_padding_for_each_byte():
    padding = []
    for tp in (1, 2, 4, 8, 16, 32):
        page = s.kda_state(64, 128, tp=tp).page
        block = s.aligned_block(page, 1024, 64, mla=True, backends=(64, 128))
        padding.append(s.padding_fraction(page, block * 1024))
    assert padding == sorted(padding) and padding[3] == pytest.approx(0.20755, abs=1e-5) and padding[5] > 0.9


def test_a_ring_holds_whole_pools_and_all_rows_of_a_step():
    for num_spec in range(20):
        ring = s.tail_ring(4, num_spec).block
        assert ring >= 4 + num_spec and ring % 4 == 0 and 640 % ring == 0
    assert s.tail_ring(4).page == 2048


def test_ranks_divide_states_and_copy_what_does_not_divide():
    assert s.kv_heads_per_rank(8, 4) == 2 and s.kv_heads_per_rank(4, 8) == 1
    with pytest.raises(ValueError, match="64 heads do not divide over 7 ranks"):
        s.kda_state(64, 128, tp=7)
    # 8 groups of B and C on 16 ranks: one copied group a rank, not half a group
    assert s.mamba2_state(64, 64, 8, 128, tp=16).shapes[0] == (3, 64 * 64 // 16 + 2 * 128)


def test_states_and_rows_agree_with_the_bytes_of_the_first_chapters():
    """The same facts, counted there for a whole model without padding."""
    states = {
        "Kimi K3": s.kda_state(96, 128),
        "GLM-5.3-Flash": s.kda_state(64, 128),
        "Qwen3-Next-80B-A3B": s.gdn_state(16, 32, 128, 128),
    }
    states |= {"MiniMax-M1": s.lightning_state(64, 128), "Kimi-Linear-48B-A3B": s.kda_state(32, 128)}
    for name, spec in states.items():
        model = intensity.models()[name]
        assert model.state == sum(part.layers for part in model.states) * spec.content, name

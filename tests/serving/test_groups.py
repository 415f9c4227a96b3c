"""Groups, hash unit and scheduler block: against values that vLLM 0.32.0 returned, and the properties that they must
have.
"""

import random
from collections import Counter
from dataclasses import replace

import pytest

from kda_lab.serving.plan import groups as g
from kda_lab.serving.plan import specs as s
from kda_lab.serving.plan.layout import bytes_per_block, stride_alignment
from tests.serving.glm import glm
from tests.serving.mutants import assert_seen, each_check, each_fault
from tests.serving.vectors import VECTORS

KINDS = {"MLAAttentionSpec": "attention", "CircularBufferSpec": "ring", "MambaSpec": "state"}


def two_kinds(n_attn, n_gdn):
    """Attention and states on equal pages."""
    state = s.StateSpec(16, ((16 * 1024,),), (1,))
    return {f"a{i}": s.mla_rows(16, 512) for i in range(n_attn)} | {f"g{i}": state for i in range(n_gdn)}


def check_packed():
    for v in VECTORS["packed_groups"]:
        found = g.packed_groups(glm(**v["input"]))
        assert [len(group.layers) for group in found] == v["group_sizes"]
        assert [list(group.layers[:4]) for group in found] == v["group_first_layers"]
        assert [group.page for group in found] == v["group_page_bytes"]
        assert [group.kind for group in found] == [KINDS[kind] for kind in v["kinds"]]
        alignments = {spec.alignment for group in found for spec in group.specs}
        assert (sorted(alignments), stride_alignment(found)) == (v["alignments"], v["lcm"])
        size = bytes_per_block(found, block_outermost=True)
        assert (size, size - max(group.page for group in found)) == (v["bytes_per_block"], v["pad"])


def check_uniform():
    for v in VECTORS["uniform_page_groups"]:
        found = g.cache_groups(two_kinds(v["n_attn"], v["n_gdn"]))
        assert [len(group.layers) for group in found] == v["group_sizes"]
        assert [list(group.layers[:3]) for group in found] == v["names"]


def check_gcd():
    for v in VECTORS["approximate_gcd"]:
        assert g.approximate_gcd(v["values"], v["lower_bound"]) == v["d"]


def sized(name, block):
    spec = {"a": s.mla_rows(block, 512), "t": s.RingSpec(block, 2, 128), "m": s.kda_state(8, 128, block=block)}[name]
    return g.Group((name,), (spec,))


def check_units():
    for v in VECTORS["block_sizes"]:
        found = [sized(name, block) for name, block in v["groups"]]
        try:
            units = list(g.block_units(found, v["prefix_match_unit"]))
        except ValueError:
            units = "ValueError"
        assert units == v["scheduler_hash"]


CHECKS = (check_packed, check_uniform, check_gcd, check_units)


@each_check(CHECKS)
def test_groups_are_those_that_vllm_returns(check):
    check()


FAULTS = [
    (
        g,
        "deal",
        ("layers[i::count]", "layers[i * len(layers) // count : (i + 1) * len(layers) // count]"),
        check_packed,
    ),
    (g, "states_per_block", ("anchor_bytes // page", "-(-anchor_bytes // page)"), check_packed),
    (g, "packed_groups", ("b.widest(len(b.layers) if holds_states(b) else count(b))", "b.widest(1)"), check_packed),
    (g, "uniform", ("type(spec), spec.block", "spec.page, spec.block"), check_packed),
    (g, "group_size", ("1.5 * low", "low"), check_uniform),
    (g, "group_size", ("high < 1.5", "high <= 1.5"), check_uniform),
    (g, "approximate_gcd", (", -size)", ", size)"), check_gcd),
    (g, "approximate_gcd", ("max(1, lower_bound or 1)", "1"), check_gcd),
    (g, "block_units", (" if g.cacheable] or sizes", "]"), check_units),
    (g, "block_units", ("lcm(*sizes)", "max(sizes)"), check_units),
    (g, "block_units", ("any(size % unit for size in hashed)", "False"), check_units),
]


@each_fault(FAULTS)
def test_a_wrong_rule_gives_other_groups(fault, monkeypatch):
    assert_seen(fault, monkeypatch)


def test_packing_needs_blocks_outermost_and_different_pages():
    assert VECTORS["packed_groups_none_if_layer_outer"] is True
    assert g.packed_groups(glm(), block_outermost=False) is None
    assert g.packed_groups(two_kinds(4, 9)) is None


def test_every_layer_has_one_group_and_groups_of_a_kind_differ_by_one_layer_at_most():
    generator = random.Random(1)
    for _ in range(300):
        n_attn, n_state = generator.randrange(1, 30), generator.randrange(1, 80)
        for layers, outermost in ((two_kinds(n_attn, n_state), False), (glm(n_attn, n_state), True)):
            found = g.cache_groups(layers, outermost)
            assert Counter(name for group in found for name in group.layers) == Counter(list(layers))
            for kind in ("attention", "state"):
                sizes = [len(group.layers) for group in found if group.kind == kind]
                assert max(sizes) - min(sizes) <= 1
                order = [list(group.layers) for group in found if group.kind == kind]
                assert [name for i in range(max(sizes)) for hand in order for name in hand[i : i + 1]] == [
                    name for name in layers if any(name in hand for hand in order)
                ]
            anchor = max(group.page for group in found if group.kind == "attention")
            assert outermost is False or all(group.page <= anchor for group in found)


def test_a_state_is_padded_to_a_larger_page_and_never_scaled():
    """A drafter's page of 1,310,720 bytes beside a state page of 655,360."""
    state = replace(s.kda_state(8, 128, block=640), padded=655_360)
    fit = g.equal_pages({"kda": state, "draft": s.AttentionSpec(640, 1, 512)})
    assert (fit["kda"].page, fit["kda"].block, fit["kda"].content) == (1_310_720, 640, 542_720)
    assert g.equal_pages({"a": s.AttentionSpec(16, 8, 64), "b": s.AttentionSpec(16, 4, 64)})["b"].block == 32


def test_rows_of_mla_that_do_not_divide_the_largest_page_are_refused():
    with pytest.raises(NotImplementedError, match="does not divide the largest, 655,361"):
        g.equal_pages({"mla": s.mla_rows(640, 512), "kda": replace(s.kda_state(8, 128), padded=655_361)})


def test_states_share_a_group_only_if_they_always_need_the_same_blocks():
    kda = s.kda_state(8, 128)
    others = (
        s.kda_state(8, 128, num_spec=1),
        s.kda_state(4, 128),
        s.kda_state(8, 128, checkpoints=1),
        s.kda_state(8, 128, block=2),
    )
    assert g.uniform([kda, kda]) and not any(g.uniform([kda, other]) for other in others)
    window = s.AttentionSpec(16, 8, 64, window=128)
    assert not g.uniform([window, replace(window, window=256)]) and not g.uniform(
        [window, replace(window, window=None)]
    )


def test_hits_are_fine_only_where_every_group_can_be_searched_finely():
    attention, state = sized("a", 640), sized("m", 640)
    assert g.hit_alignment([attention, state], g.Units(640, 64)) == 64
    assert g.hit_alignment([attention, state], g.Units(640, 640)) == 640
    window = g.Group(("w",), (s.AttentionSpec(640, 1, 64, window=128),))
    assert g.hit_alignment([attention, window, state], g.Units(640, 64)) == 640


def test_a_group_is_as_large_as_the_rarest_kind_unless_the_commonest_is_close():
    assert [g.group_size(counts) for counts in ([11, 16], [11, 17], [12, 13], [20, 30], [7, 20])] == [16, 11, 13, 20, 7]


def test_a_unit_of_one_token_is_the_finest():
    assert g.block_units([sized("a", 640), sized("m", 640)], 1).hash_block == 1
    for unit in (0, -64, 1280):
        with pytest.raises(ValueError, match="must divide"):
            g.block_units([sized("a", 640), sized("m", 640)], unit)


def test_a_hit_may_not_end_inside_a_row_of_several_tokens():
    rows = g.Group(("indexer",), (s.index_rows(640, per_state=4),))
    assert g.block_units([rows, sized("m", 640)], 4).hash_block == 4
    with pytest.raises(ValueError, match="inside a row of 4 tokens; use a multiple of 4"):
        g.block_units([rows, sized("m", 640)], 2)


def test_windows_are_packed_pattern_by_pattern():
    """Buckets that mix page sizes stay whole and bound the groups of the others: 43 windows beside 21 pairs give 22 and
    21.
    """
    pair = {"x": s.AttentionSpec(4, 1, 64, 0, window=8), "y": s.AttentionSpec(4, 1, 32, 0, window=8)}
    layers = {f"w.{i}": s.AttentionSpec(64, 1, 64, 0, window=128) for i in range(43)}
    layers |= {f"{name}.{i}": spec for i in range(21) for name, spec in pair.items()}
    assert [len(group.layers) for group in g.packed_groups(layers)] == [22, 21, 42]

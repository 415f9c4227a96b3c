"""Where bytes lie: against values that vLLM 0.32.0 returned, and the properties that an address must have."""

import random
from dataclasses import replace

import pytest

from kda_lab.serving.plan import layout as lay
from kda_lab.serving.plan import specs as s
from kda_lab.serving.plan.groups import Group, cache_groups
from tests.serving.glm import glm
from tests.serving.mutants import assert_seen, each_check, each_fault
from tests.serving.vectors import VECTORS


def groups_of(*counts, block=640):
    return cache_groups(glm(*counts, block=block), block_outermost=True)


def check_tables():
    for v in VECTORS["kernel_block_table"]:
        tables = [lay.kernel_block_table(row, v["block"], v["kernel_block"], v["stride"]) for row in v["block_table"]]
        assert tables == v["kernel_block_table"]


def check_addresses():
    v = VECTORS["addresses"]
    pool = lay.make_layout(groups_of(), 6, block_outermost=True)
    assert pool.bytes_per_block == v["bytes_per_block"]
    pages, rows = (lay.kernel_stride(pool.bytes_per_block, v[name]) for name in ("indexer_kernel_page", "mla_row"))
    assert (pages, rows) == (v["indexer_pages_per_block"], v["mla_rows_per_block"])
    base = pool.region("indexer.0", 0).start
    for sample in v["samples"]:
        ids = lay.kernel_block_table([sample["block"]], 640, 128, pages)
        kernel_id = ids[sample["kernel_page"]]
        byte = pool.region("indexer.0", sample["block"]).start - base + sample["kernel_page"] * v["indexer_kernel_page"]
        assert (kernel_id, kernel_id * v["indexer_kernel_page"], byte) == (
            sample["kernel_id"],
            sample["byte"],
            sample["byte"],
        )
    for sample in v["mla_samples"]:
        row = lay.row_id(sample["block"], sample["off"], rows)
        byte = pool.region("mla.0", sample["block"]).start + sample["off"] * 1024
        assert (row, row * 1024, byte) == (sample["row"], sample["byte"], sample["byte"])


def pools(count=40):
    """Random pools in both layouts, with the groups of GLM and with equal pages."""
    generator = random.Random(2)
    for _ in range(count):
        n_mla, n_kda, blocks = generator.randrange(1, 20), generator.randrange(1, 60), generator.randrange(2, 6)
        block = 128 * generator.randrange(5, 12)
        yield lay.make_layout(groups_of(n_mla, n_kda, block=block), blocks, block_outermost=True)
        rows, state = s.mla_rows(640, 512), replace(s.kda_state(8, 128, block=640), padded=655_360)
        groups = cache_groups({f"a.{i}": rows for i in range(n_mla)} | {f"k.{i}": state for i in range(n_kda)})
        yield lay.make_layout(groups, blocks, block_outermost=generator.random() < 0.5)
    # one group whose pages differ and are rounded up for their own kernel
    odd = s.AttentionSpec(640, 1, 100, 0, 1, stride_bytes=1024), s.index_rows(640, per_state=4, stride_tokens=128)
    for outermost in (True, False):
        yield lay.make_layout([Group(("odd", "even", "index"), (odd[0], odd[0], odd[1]))], 3, outermost)


def check_regions():
    for pool in pools():
        size, blocks = pool.bytes_per_block, pool.num_blocks
        for group in pool.groups:
            regions = sorted(pool.region(layer, b) for layer in group.layers for b in range(blocks))
            assert all(a.stop <= b.start for a, b in zip(regions, regions[1:], strict=False)), (
                "regions of one group overlap"
            )
            assert regions[0].start >= 0 and regions[-1].stop <= blocks * size
            for layer, spec in zip(group.layers, group.specs, strict=True):
                for b in range(blocks):
                    region = pool.region(layer, b)
                    assert region.stop - region.start == spec.page
                    # what a kernel adds to the base of its layer must be whole rows or whole pages
                    assert (region.start - pool.offsets[layer]) % spec.alignment == 0
                    if pool.block_outermost:
                        assert b * size <= region.start and region.stop <= (b + 1) * size
                        assert b * size % spec.alignment == 0


def check_kernel_ids():
    for pool in pools(10):
        for group in pool.groups:
            for layer, spec in zip(group.layers, group.specs, strict=True):
                if getattr(spec, "stride_tokens", None) is None or spec.block % 128:
                    continue
                stride = lay.kernel_stride(pool.strides[layer], spec.alignment)
                table = random.Random(3).choices(range(pool.num_blocks), k=5)
                ids = lay.kernel_block_table(table, spec.block, 128, stride)
                m = spec.block // 128
                for i, kernel_id in enumerate(ids):
                    byte = pool.region(layer, table[i // m]).start + i % m * spec.alignment
                    assert kernel_id * spec.alignment + pool.offsets[layer] == byte


CHECKS = (check_tables, check_addresses, check_regions, check_kernel_ids)


@each_check(CHECKS)
def test_addresses_are_right(check):
    check()


FAULTS = [
    (lay, "kernel_block_table", ("stride or pages", "pages"), check_addresses),
    (lay, "kernel_block_table", ("* b + j", "* (b + j)"), check_tables),
    (lay, "stride_alignment", ("lcm(*(", "max(*("), check_addresses),
    (lay, "stride_alignment", ("lcm(*(", "max(*("), check_regions),
    (lay, "bytes_per_block", (", stride_alignment(groups))", ", 1)"), check_regions),
    (lay, "bytes_per_block", ("max(group.page", "min(group.page"), check_regions),
    (lay, "bytes_per_block", ("sum(layer_stride(spec)", "sum(spec.page"), check_regions),
    (lay, "make_layout", ("spec.page if block_outermost else", "1000 if block_outermost else"), check_regions),
    (lay, "make_layout", ("layer_stride(spec) * num_blocks", "layer_stride(spec)"), check_regions),
    (lay, "layer_stride", ("round_up(spec.page, spec.alignment)", "spec.page"), check_regions),
    (lay, "row_id", ("* block + offset", "* (block + offset)"), check_addresses),
]


@each_fault(FAULTS)
def test_a_wrong_layout_is_seen(fault, monkeypatch):
    assert_seen(fault, monkeypatch, ValueError)


def test_without_rounding_no_integer_names_the_first_page_of_block_1():
    with pytest.raises(ValueError, match="1761.67 pages of 4,224 apart"):
        lay.kernel_stride(7_441_280, 4_224)


def test_every_group_starts_at_the_first_byte_of_a_block():
    pool = lay.make_layout(groups_of(), 3, block_outermost=True)
    for group in pool.groups:
        assert min(pool.region(layer, 2).start for layer in group.layers) == 2 * 7_468_032


def test_layers_of_a_kind_lie_side_by_side():
    pool = lay.make_layout(groups_of(), 2, block_outermost=True)
    assert [pool.offsets[f"mla.{i}"] for i in range(3)] == [0, 655_360, 1_310_720]
    assert pool.offsets["indexer.0"] == 11 * 655_360 and pool.offsets["indexer.1"] == 11 * 655_360 + 21_120


def test_one_kernel_block_is_a_block_and_null_is_page_zero():
    assert lay.kernel_block_table([0, 5, 2], 640, 640) == [0, 5, 2]
    assert lay.kernel_block_table([0], 640, 128, 1768) == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="not whole kernel blocks of 128"):
        lay.kernel_block_table([0], 600, 128)


def test_a_pool_beyond_32_bits_is_refused():
    fits = 2**31 // 7293
    lay.check_ids(fits, 7293)
    lay.check_ids(2**21, 1024)
    with pytest.raises(ValueError, match=f"ids up to 2,147,489,486, .* at most {fits:,} blocks"):
        lay.check_ids(fits + 1, 7293)


def test_a_block_outside_the_pool_has_no_address():
    pool = lay.make_layout(groups_of(), 2, block_outermost=True)
    for block in (-1, 2):
        with pytest.raises(IndexError, match="outside the pool of 2 blocks"):
            pool.region("mla.0", block)

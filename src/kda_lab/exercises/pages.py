"""Exercises of the chapter on pages, groups and layouts."""

from dataclasses import replace

import kda_lab as kl
from kda_lab.serving import cache_groups
from kda_lab.serving import specs as s

bytes_per_block = kl.serving.layout.bytes_per_block
kernel_block_table = kl.serving.layout.kernel_block_table
kernel_stride = kl.serving.layout.kernel_stride
make_layout = kl.serving.layout.make_layout


def by_hand():
    """One KDA layer of Kimi K3 on one of eight ranks, as a triple:

    (bytes of the state, tokens of the block, bytes of padding).
    """
    # <solution>
    state = 12 * 128 * 128 * 4 + 3 * (3 * 12 * 128) * 2  # 786,432 + 27,648
    block = 128 * 6  # five units of 128 * 1152 bytes hold 737,280
    return state, block, block * 1152 - state
    # </solution>


def check_by_hand(by_hand):
    state = s.kda_state(96, 128, tp=8).page
    block = s.aligned_block(state, 1152, kernel_min=64, mla=True)
    hints = (
        "S in fp32 and a window of 3 rows in bf16",
        "the least multiple of 128 that holds the state",
        "page minus state",
    )
    for name, got, want, hint in zip(
        ("state", "block", "padding"), by_hand(), (state, block, block * 1152 - state), hints, strict=True
    ):
        assert got == want, f"the {name} should not be {got:,}: {hint}"


def free_drafts(heads, token_bytes=1024, unit=128):
    """The most drafts a step that do not make the block larger.

    heads: KDA heads of a rank, of width 128   unit: tokens
    token_bytes: bytes of a token in one attention layer.

    s.kda_state(heads, 128).page: bytes of a state without drafts.
    """
    # <solution>
    state = s.kda_state(heads, 128).page
    spare = -state % (unit * token_bytes)
    return spare // (3 * heads * 128 * s.BF16)
    # </solution>


def check_free_drafts(free_drafts):
    def block(heads, k, token_bytes):
        return s.aligned_block(s.kda_state(heads, 128, num_spec=k).page, token_bytes, 128)

    for heads in (2, 8, 16, 64):
        for token_bytes in (1024, 1152):
            k = free_drafts(heads, token_bytes)
            least = block(heads, 0, token_bytes)
            assert block(heads, k, token_bytes) == least, f"{k} drafts make the block of {heads} heads larger"
            assert block(heads, k + 1, token_bytes) > least, f"{heads} heads have room for more than {k} drafts"


def equal_pages(specs):
    """The layers {name: spec} with pages as large as the largest.

    A spec of attention is an s.AttentionSpec, one of a state an
    s.StateSpec. Both have spec.page in bytes and two fields: block
    (tokens) and padded (the bytes to which the page is padded, or
    None). dataclasses.replace(spec, field=value) is a changed copy.
    A smaller page of attention divides the largest.
    """
    # <solution>
    largest = max(spec.page for spec in specs.values())

    def fit(spec):
        if isinstance(spec, s.StateSpec):
            return replace(spec, padded=largest)
        return replace(spec, block=spec.block * (largest // spec.page))

    return {name: fit(spec) for name, spec in specs.items()}
    # </solution>


def check_equal_pages(equal_pages):
    target = s.mla_rows(640, 512)
    state = replace(s.kda_state(8, 128, block=640), padded=target.page)
    draft = s.AttentionSpec(640, heads=1, width=512)
    got = equal_pages({"attention": target, "kda": state, "draft": draft})
    pages = {name: spec.page for name, spec in got.items()}
    assert set(pages.values()) == {draft.page}, (
        f"the pages are {pages}: a state has the same bytes in a block of any size, so pad it"
    )
    assert got["kda"].block == 640, "padding a state is enough: it still stands for 640 tokens"
    assert got["attention"].padded is None, "attention fills a larger page with more tokens"


def reads(pool, layer, page_bytes, page_id):
    """The (layer, block) whose byte stands first in a kernel's page.

    pool: a Layout. pool.region(name, block) has start and stop,
    bytes; blocks are range(pool.num_blocks), and the names of the
    layers of attention are pool.groups[0].layers.
    layer: its region in block 0 starts the kernel's page 0
    page_bytes: of one page of the kernel   page_id: its number.
    None if the byte lies in no layer's page.
    """
    # <solution>
    at = pool.region(layer, 0).start + page_id * page_bytes
    for other in pool.groups[0].layers:
        for block in range(pool.num_blocks):
            region = pool.region(other, block)
            if region.start <= at < region.stop:
                return other, block
    return None
    # </solution>


def check_reads(reads):
    rows, keys = s.mla_rows(640, 512, whole_rows=True), s.index_rows(640, per_state=4, stride_tokens=128)
    groups = cache_groups({f"mla.{i}": rows for i in range(11)} | {f"indexer.{i}": keys for i in range(11)}, True)
    pool = make_layout(groups, 3, block_outermost=True)
    stride = kernel_stride(bytes_per_block(groups, True), 4224)
    for block in range(3):
        first = kernel_block_table([block], 640, 128, stride)[0]
        got = reads(pool, "indexer.3", 4224, first)
        assert got == ("indexer.3", block), f"page {first} is the first of block {block} of indexer.3, not of {got}"
    # the table of the other layout, where the blocks of a layer touch
    got = reads(pool, "indexer.3", 4224, kernel_block_table([1], 640, 128)[0])
    assert got == ("indexer.4", 0), f"five pages on lies the next layer of the same block, not {got}"
    got = reads(pool, "indexer.10", 4224, 5)
    assert got is None, f"behind the last layer of a block lie the bytes that round it up, nobody's, not those of {got}"
    # no rounding, and a stride that is cut to an integer
    raw = groups[0].page
    loose = pool._replace(bytes_per_block=raw, strides=dict.fromkeys(pool.strides, raw))
    got = reads(loose, "indexer.0", 4224, raw // 4224)
    assert got == ("mla.10", 1), f"without rounding page {raw // 4224} starts before the indexer, not in {got}"

"""Where bytes lie: bytes of a block, offsets of layers in it, and the block tables that kernels with smaller pages
read.

Layer-outermost: each layer owns one region, its blocks one after the other. Block-outermost: each block owns one
region, its layers side by side. Groups alias: all of them start at byte 0 of a block, which is why an id has one group
at a time.
"""

from math import lcm
from typing import NamedTuple

from kda_lab.serving.plan.specs import round_up

INT32 = 2**31


def stride_alignment(groups):
    """Bytes of which the distance of two blocks must be a multiple: the lcm of what each layer's kernel asks for.

    >>> from kda_lab.serving.plan.groups import Group
    >>> from kda_lab.serving.plan.specs import mla_rows, index_rows
    >>> layers = mla_rows(640, 512, whole_rows=True), index_rows(640, per_state=4, stride_tokens=128)
    >>> stride_alignment([Group(("mla", "indexer"), layers)])  # lcm(1024, 4224)
    33792
    """
    return lcm(*(spec.alignment for group in groups for spec in group.specs))


def bytes_per_block(groups, block_outermost):
    """Bytes of one block id: what the widest group needs, rounded up so that every kernel can address the next block.

    >>> from kda_lab.serving.plan.groups import Group
    >>> from kda_lab.serving.plan.specs import mla_rows, index_rows
    >>> layers = (mla_rows(640, 512, whole_rows=True),) * 11 + (index_rows(640, per_state=4, stride_tokens=128),) * 11
    >>> group = Group(tuple("abcdefghijkABCDEFGHIJK"), layers)
    >>> group.page, bytes_per_block([group], block_outermost=True)
    (7441280, 7468032)
    """
    if block_outermost:
        return round_up(max(group.page for group in groups), stride_alignment(groups))
    return max(sum(layer_stride(spec) for spec in group.specs) for group in groups)


def layer_stride(spec):
    """Bytes from one block of a layer to the next when layers are outermost: its page, rounded up for its own
    kernel.
    """
    return round_up(spec.page, spec.alignment)


class Region(NamedTuple):
    """Bytes [start, stop) of one layer in one block."""

    start: int
    stop: int


class Layout(NamedTuple):
    """Groups in a pool of blocks. strides, offsets: bytes, by layer."""

    groups: tuple
    block_outermost: bool
    num_blocks: int
    bytes_per_block: int
    offsets: dict[str, int]
    strides: dict[str, int]
    pages: dict[str, int]

    def region(self, layer, block) -> Region:
        """Where a layer's page of a block lies: offset + block x stride.

        IndexError for a block that the pool does not have.
        """
        if not 0 <= block < self.num_blocks:
            raise IndexError(f"block {block} is outside the pool of {self.num_blocks} blocks")
        start = self.offsets[layer] + block * self.strides[layer]
        return Region(start, start + self.pages[layer])


def make_layout(groups, num_blocks, block_outermost):
    """The layout of a pool; layers of a group lie kind by kind, in the order of their first appearance.

    >>> from kda_lab.serving.plan.groups import Group
    >>> from kda_lab.serving.plan.specs import mla_rows
    >>> both = [make_layout([Group(("a", "b"), (mla_rows(2, 4),) * 2)], 3, outer) for outer in (True, False)]
    >>> [(pool.region("b", 0).start, pool.region("a", 1).start) for pool in both]
    [(16, 32), (48, 16)]
    """
    size = bytes_per_block(groups, block_outermost)
    offsets, strides, pages = {}, {}, {}
    for group in groups:
        at = 0
        first = {spec: i for i, spec in reversed(list(enumerate(group.specs)))}
        for layer, spec in sorted(zip(group.layers, group.specs, strict=True), key=lambda pair: first[pair[1]]):
            offsets[layer], pages[layer] = at, spec.page
            strides[layer] = size if block_outermost else layer_stride(spec)
            at += spec.page if block_outermost else layer_stride(spec) * num_blocks
    return Layout(tuple(groups), block_outermost, num_blocks, size, offsets, strides, pages)


def kernel_stride(bytes_per_block, kernel_page):
    """Kernel pages from one block to the next; ValueError if no integer id can name the first page of block 1.

    >>> kernel_stride(7_468_032, 4224), kernel_stride(7_468_032, 1024)
    (1768, 7293)
    """
    if bytes_per_block % kernel_page:
        raise ValueError(
            f"blocks of {bytes_per_block:,} bytes are {bytes_per_block / kernel_page:.2f} pages of "
            f"{kernel_page:,} apart, "
            "and a page id is an integer; round the block up to a multiple of the page"
        )
    return bytes_per_block // kernel_page


def kernel_block_table(table, block, kernel_block, stride=0):
    """The block table in kernel blocks: entry b becomes stride b + j for each of the B / kernel_block pages j of block
    b.

    stride: kernel pages from one block to the next; 0 means that nothing lies between them (layer-outermost).

    >>> kernel_block_table([0, 1], 640, 128, stride=1768)
    [0, 1, 2, 3, 4, 1768, 1769, 1770, 1771, 1772]
    >>> kernel_block_table([0, 1], 640, 128)
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """
    pages, rest = divmod(block, kernel_block)
    if rest:
        raise ValueError(f"a block of {block} tokens is not whole kernel blocks of {kernel_block}; choose a multiple")
    return [(stride or pages) * b + j for b in table for j in range(pages)]


def row_id(block, offset, rows_per_block):
    """The row of a token for a kernel that reads the cache row by row. rows_per_block: rows from one block to the next.

    >>> row_id(1, 639, 7293), row_id(1, 639, 7293) * 1024
    (7932, 8122368)
    """
    return rows_per_block * block + offset


def check_ids(num_blocks, stride):
    """ValueError if a kernel with 32-bit ids cannot name the last page of the pool.

    >>> check_ids(10_000, 7293)
    """
    if num_blocks * stride > INT32:
        raise ValueError(
            f"{num_blocks:,} blocks of {stride:,} pages need ids up to {num_blocks * stride - 1:,}, beyond 32 bits; "
            f"at most {INT32 // stride:,} blocks can be addressed"
        )

"""What one layer keeps in one block of the cache: rows of attention, states of linear layers, rings; and the block
size.

A block is B consecutive tokens of one request, and one id in the pool. A page is what one layer stores in one block.
The page of attention grows with B, the page of a state does not: that is why a hybrid model needs a large B, and
padding. Formulas and names are those of vLLM 0.32.0; each kind of cache says which of its classes it mirrors.
"""

from dataclasses import dataclass, replace
from math import gcd, lcm, prod

FP8, BF16, FP32 = 1, 2, 4  # bytes of a number


def ceil_div(x, unit):
    """The least count of units that covers x.

    >>> ceil_div(640, 640), ceil_div(641, 640)
    (1, 2)
    """
    return -(-x // unit)


def round_up(x, unit):
    """The least multiple of a unit that is not below x.

    >>> round_up(7_441_280, 33_792)
    7468032
    """
    return ceil_div(x, unit) * unit


class Sized:
    """A page of known bytes, or of the bytes to which it is padded, and what the distance of two blocks must be a
    multiple of.
    """

    padded = None
    cacheable = True
    per_state = 1

    @property
    def page(self) -> int:
        """Bytes of one layer in one block, padding included; ValueError if the page is padded below its content."""
        if self.padded is None:
            return self.content
        if self.padded < self.content:
            raise ValueError(
                f"a page of {self.content:,} bytes cannot be padded to {self.padded:,}; pad to at least its content"
            )
        return self.padded

    @property
    def alignment(self) -> int:
        """Bytes of which the distance between two blocks must be a multiple; 1 if any will do."""
        return 1


@dataclass(frozen=True)
class AttentionSpec(Sized):
    """Rows of attention: a key of `width` and a value of `width_v` numbers for each head, one row for `per_state`
    tokens.

    block: tokens   number: bytes of a number   per_state: tokens of one row (tokens_per_state)   width_v: None is
    `width`,
    0 is one shared vector (MLA, index keys)   window: tokens that are kept, None is all   row: bytes of a row where
    packing
    decides them   page_unit: the page is rounded up to it   stride_bytes, stride_tokens: blocks must lie whole rows, or
    whole kernel blocks of that many tokens, apart.   vLLM: FullAttentionSpec, MLAAttentionSpec, SlidingWindowSpec.

    >>> AttentionSpec(block=16, heads=8, width=128).page
    65536
    """

    block: int
    heads: int
    width: int
    width_v: int | None = None
    number: int = BF16
    per_state: int = 1
    window: int | None = None
    row: int | None = None
    page_unit: int = 1
    stride_bytes: int | None = None
    stride_tokens: int | None = None
    padded: int | None = None

    @property
    def content(self) -> int:
        """Bytes of B / tokens_per_state rows x heads x (key + value) x bytes of a number, rounded up to the unit of
        pages.

        >>> AttentionSpec(block=640, heads=1, width=132, width_v=0, number=1, per_state=4).content
        21120
        """
        values = self.width if self.width_v is None else self.width_v
        row = (self.width + values) * self.number if self.row is None else self.row
        return round_up(self.block // self.per_state * self.heads * row, self.page_unit)

    @property
    def alignment(self) -> int:
        """One row, or the page of one kernel block if a block holds several of them.

        >>> index_rows(640, per_state=4, stride_tokens=128).alignment  # 32 rows of 132 bytes
        4224
        >>> index_rows(128, per_state=4, stride_tokens=128).alignment
        1
        """
        if self.stride_tokens is None:
            return self.stride_bytes or 1
        kernel = gcd(self.stride_tokens, self.block)
        return 1 if kernel == self.block else replace(self, block=kernel, padded=None).page


@dataclass(frozen=True)
class StateSpec(Sized):
    """The state of a linear layer: arrays of fixed shape, whatever B is. vLLM: MambaSpec.

    shapes: of the convolution window and of S   numbers: bytes of a number of each   num_spec: drafted tokens a step
    checkpoints: blocks that a prefill kernel may fill with a state from the middle of a chunk.

    >>> kda_state(heads=8, width=128).page
    542720
    """

    block: int
    shapes: tuple[tuple[int, ...], ...]
    numbers: tuple[int, ...]
    num_spec: int = 0
    checkpoints: int = 0
    replicated: bool = False
    padded: int | None = None

    @property
    def content(self) -> int:
        """Bytes of all arrays, side by side."""
        return sum(prod(shape) * number for shape, number in zip(self.shapes, self.numbers, strict=True))


@dataclass(frozen=True)
class RingSpec(Sized):
    """A ring of `block` slots that a request overwrites in place; it holds no prefix. vLLM: CircularBufferSpec.

    >>> RingSpec(block=4, heads=2, width=128).page  # GLM's tail: key and gate score of the open pool
    2048
    """

    block: int
    heads: int
    width: int
    number: int = BF16
    padded: int | None = None
    cacheable = False

    @property
    def content(self) -> int:
        """Bytes of slots x heads x width x bytes of a number."""
        return self.block * self.heads * self.width * self.number


def mla_rows(block, width, number=BF16, whole_rows=False):
    """The shared latent row of MLA, rotated or unrotated part included; every rank keeps all of it.

    whole_rows: a sparse kernel addresses the cache row by row, so blocks must lie whole rows apart.

    >>> mla_rows(64, 512 + 64).page, mla_rows(640, 512).page
    (73728, 655360)
    """
    return AttentionSpec(block, 1, width, 0, number, stride_bytes=width * number if whole_rows else None)


def index_rows(block, width=128, scale=4, per_state=1, stride_tokens=None):
    """The keys of a sparse indexer: `width` numbers in 8 bits and a scale, one row for `per_state` tokens.

    >>> index_rows(64).page, index_rows(640, per_state=4).page
    (8448, 21120)
    """
    return AttentionSpec(block, 1, width + scale, 0, FP8, per_state, stride_tokens=stride_tokens)


def conv_shape(taps, channels, num_spec=0, tp=1):
    """The window of a short convolution: the last taps - 1 inputs, and one more for each drafted token that may be
    rejected.

    >>> conv_shape(4, 24_576, num_spec=3, tp=8)
    (6, 3072)
    """
    return taps - 1 + num_spec, share(channels, tp, "convolution channels")


def share(count, tp, what):
    """What one of `tp` ranks holds of things that are divided; ValueError if they do not divide evenly.

    >>> share(64, 8, "heads")
    8
    """
    if count % tp:
        raise ValueError(f"{count} {what} do not divide over {tp} ranks; choose a --tp that divides {count}")
    return count // tp


def kv_heads_per_rank(heads, tp):
    """Key-value heads of a rank: divided while there are enough, then copied, one to each rank.

    >>> [kv_heads_per_rank(2, tp) for tp in (1, 2, 8)]
    [2, 1, 1]
    """
    if heads >= tp:
        return share(heads, tp, "key-value heads")
    share(tp, heads, f"ranks for {heads} key-value heads")
    return 1


def kda_state(heads, width, taps=4, num_spec=0, tp=1, number=FP32, block=1, checkpoints=0):
    """KDA: a state [V, K] a head, and the convolution window of q, k and v, in bf16.

    Bytes: heads/tp width^2 number + (taps - 1 + num_spec) 3 heads/tp width 2.

    >>> [kda_state(64, 128, num_spec=k, tp=8).page for k in (0, 1, 3, 7)]
    [542720, 548864, 561152, 585728]
    """
    S = share(heads, tp, "heads"), width, width
    window = conv_shape(taps, 3 * heads * width, num_spec, tp)
    return StateSpec(block, (window, S), (BF16, number), num_spec, checkpoints)


def gdn_state(key_heads, value_heads, K, V, taps=4, num_spec=0, tp=1, number=FP32, block=1):
    """Gated DeltaNet: a state [V, K] for each value head; the convolution runs over q, k of the key heads and v.

    >>> gdn_state(16, 48, 128, 128).page  # Qwen3.5-27B
    3207168
    """
    S = share(value_heads, tp, "value heads"), V, K
    window = conv_shape(taps, 2 * key_heads * K + value_heads * V, num_spec, tp)
    return StateSpec(block, (window, S), (BF16, number), num_spec)


def mamba2_state(heads, width, groups, N, taps=4, num_spec=0, tp=1, number=FP32, block=1, checkpoints=0):
    """Mamba-2: a state [width, N] a head; the convolution runs over x and over B, C of each group.

    Groups that do not divide over the ranks are copied until they do.

    >>> mamba2_state(64, 64, 8, 128).page  # Nemotron 3 Nano
    2134016
    """
    groups += tp - groups if groups % tp else 0
    S = share(heads, tp, "heads"), width, N
    window = conv_shape(taps, heads * width + 2 * groups * N, num_spec, tp)
    return StateSpec(block, (window, S), (BF16, number), num_spec, checkpoints)


def lightning_state(heads, width, num_spec=0, tp=1, number=FP32, block=1):
    """Linear attention with a fixed decay: a state a head, no convolution.

    >>> lightning_state(64, 128).page
    4194304
    """
    return StateSpec(block, ((share(heads, tp, "heads"), width, width),), (number,), num_spec)


def tail_ring(pool, num_spec=0, width=128):
    """GLM's ring for the open pool: whole pools, as many as the next power of two above what a step may write.

    The rows of a drafted step are stored before anyone knows which of them stay.

    >>> [tail_ring(4, k).block for k in (0, 1, 4, 5, 12)]
    [4, 8, 8, 16, 16]
    """
    pools = ceil_div(pool + num_spec, pool)
    return RingSpec(pool * 2 ** (pools - 1).bit_length(), 2, width)


def kernel_unit(kernel_min, user_block, mla):
    """Tokens of which the block must be a multiple for the kernel of the main attention; MLA beside states asks for
    128.

    >>> kernel_unit(64, 16, mla=True), kernel_unit(16, 16, mla=False)
    (128, 16)
    """
    unit = max(kernel_min, user_block)
    return max(unit, 128) if mla else unit


def aligned_block(state_page, token_bytes, kernel_min, user_block=16, mla=False, backends=(1,)):
    """The least block whose attention page holds one state: the number behind "Setting attention block size to 640".

    state_page: bytes of one state of one layer and rank   token_bytes: bytes of one token in one attention layer
    kernel_min: smallest kernel block of the main attention   backends: smallest kernel block of every attention
    backend. B = unit ceil(state / (unit bytes)), then up to a multiple of the lcm of the backends. The unit is at least
    the user's block.

    >>> aligned_block(542_720, 1024, kernel_min=64, mla=True, backends=(64, 128))
    640
    """
    unit = kernel_unit(kernel_min, user_block, mla)
    block = unit * ceil_div(state_page, unit * token_bytes)
    return round_up(block, lcm(*backends))


def padding_fraction(state_page, attention_page):
    """Bytes that pad a state to the page of attention, for each byte of the state.

    >>> round(padding_fraction(542_720, 655_360), 5)
    0.20755
    """
    return (attention_page - state_page) / state_page

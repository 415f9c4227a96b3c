"""A long sequence of few heads in segments: where to cut it, and the initial states of the segments, by
kda_segments.cu.

`best_segments` says how many segments, `cut` where they begin, `entries` makes their initial states from what a first
launch of the Hopper kernel found, on torch's current stream. Nothing here waits for the GPU but `cut_whole` with a new
length, and after a first call has compiled its variant, a call can be captured in a CUDA graph. CPU tensors run the
same source through `on_cpu`.
"""

import ctypes
import functools
from typing import NamedTuple

import torch

from kda_lab.cuda import compile as cuda_compile
from kda_lab.cuda import operands
from kda_lab.cuda.tensor_maps import TOKENS
from kda_lab.data.doors import known

PARTS = 8
# estimates in blocks, of 0.61 us on an H200: what a second launch and the scan cost, and each segment of the scan. A
# launch with the preparation of its first blocks takes about 15 us, and a segment of the scan was predicted to take 1.5
# us
LAUNCH, SCAN = 40, 4
SOURCE, NAME = "kda_segments.cu", "kda_segments"
NAMES = (NAME,)


class Args(ctypes.Structure):
    """struct Args of the source, field by field."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("ends", "initial", "entries")),
        *((name, ctypes.c_longlong) for name in ("segments", "heads")),
    ]


class Constants(NamedTuple):
    """What the compiler has to know.   rows: of a thread block, 8 or 16."""

    key: int = 128
    value: int = 128
    rows: int = 8

    @property
    def threads(self):
        """Threads of a thread block, for each 4 channels of a row one for each part of a sum."""
        return PARTS * self.key // 4

    @property
    def shared_bytes(self):
        """Bytes of dynamic shared memory by kernel, the size of struct Shared in the source (which asserts it)."""
        return {NAME: 4 * (1 + PARTS) * self.rows * self.key}

    def defines(self):
        """The -D pairs, sizes included."""
        return (
            ("KEY", self.key),
            ("VALUE", self.value),
            ("ROWS", self.rows),
            ("ARGS_BYTES", ctypes.sizeof(Args)),
            ("SHARED_BYTES", self.shared_bytes[NAME]),
        )


EXAMPLES = {
    "K=128 V=128": Constants(),
    "K=64 V=64": Constants(64, 64),
    "K=64 V=128": Constants(64, 128),
    "K=128 V=128, 16 rows": Constants(rows=16),
}


# constants, device -> {NAME: the kernel}
kernels = functools.partial(cuda_compile.load, SOURCE, NAMES)


def cut(cu_seqlens, segments):
    """Bounds of the segments of a sequence, whole blocks of tokens but the last: [2] -> [segments + 1].

    >>> cut(torch.tensor([0, 100]), 3).tolist(), cut(torch.tensor([5, 25]), 3).tolist()
    ([0, 48, 96, 100], [5, 21, 25, 25])
    """
    start, end = cu_seqlens[:1], cu_seqlens[1:]
    blocks = (end - start + (TOKENS * segments - 1)) // (TOKENS * segments)
    offsets = torch.arange(0, TOKENS * (segments + 1), TOKENS, dtype=torch.int64, device=cu_seqlens.device)
    return torch.minimum(torch.addcmul(start, offsets, blocks), end)


# by (tokens, segments, device), and never given back: a CUDA graph that has read one reads it again
_whole = {}


def cut_whole(tokens, segments, device):
    """`cut` of all tokens of a batch row on a device, made once for each length and kept, 512 bytes of a GPU each.

    >>> cpu = torch.device("cpu")
    >>> cut_whole(100, 3, cpu).tolist(), cut_whole(100, 3, cpu) is cut_whole(100, 3, cpu)
    ([0, 48, 96, 100], True)
    """
    key = tokens, segments, device
    if key in _whole:
        return _whole[key]
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        # a graph cannot wait for a copy, and what it makes is there only after a replay
        return cut(torch.arange(2, dtype=torch.int64, device=device) * tokens, segments)
    # the copy has ended when the call returns: every stream may read it. Another thread may have been first
    return _whole.setdefault(key, cut(torch.tensor([0, tokens], dtype=torch.int64, device="cpu"), segments).to(device))


def best_segments(blocks, heads, clusters):
    """In how many segments few heads of a long sequence are done soonest: an estimate in blocks of one cluster.

    Whole, a head takes its blocks. In n segments a first launch does 2n - 3 of them a head (states without outputs, and
    transitions), a second one n; a launch and the scan between cost about as much as 40 blocks and 4 more a segment.

    >>> best_segments(4096, 8, 66), best_segments(512, 8, 66), best_segments(512, 32, 66), best_segments(64, 8, 66)
    (8, 8, 1, 1)
    """

    def cost(n):
        size = -(-blocks // n)
        first, second = (max(size, -(-heads * count * size // clusters)) for count in (2 * n - 3, n))
        return first + second + LAUNCH + SCAN * n if n > 1 else blocks

    return min((1, *range(3, 17)), key=cost)


@known
def entries(ends, initial, segments, *, rows=8):
    """The initial states of all segments of a sequence -> [segments, H, V, K] in fp32.

    ends: [2 segments - 3, H, V, K], fp32: the increments of all segments but the last, the first from the initial
    state, then the transitions [K, K] of all but the first and the last, each in the first K of V rows; what the other
    rows hold does not
    matter   initial: [H, V, K] or None for zeros   rows: of `Constants`, for measurements.
    Raises ValueError for other shapes, or if K, V are not 64 or 128 with K <= V.   Implements affine-fold.

    >>> ends, S = torch.zeros(3, 1, 64, 64), torch.ones(1, 64, 64)
    >>> ends[0], ends[1], ends[2, 0] = 2, 1, 10 * torch.eye(64)                      # two increments, one transition
    >>> entries(ends, S, 3)[:, 0, 0, 0].tolist()                                     # 2 * 10 + 1
    [1.0, 2.0, 21.0]
    """
    heads, V, K = ends.shape[1:] if ends.ndim == 4 else (0, 0, 0)
    if segments < 3 or len(ends) != 2 * segments - 3 or (K, V) not in ((64, 64), (64, 128), (128, 128)):
        raise ValueError(
            f"ends must be [2 segments - 3, H, V, K] for 3 segments or more, K and V 64 or 128 with K <= V, got"
            f" {list(ends.shape)} for {segments} segments; use one launch for fewer"
        )
    if initial is not None and initial.shape != ends.shape[1:]:
        raise ValueError(
            f"initial must be {list(ends.shape[1:])}, got {list(initial.shape)}; pass the state of one sequence"
        )
    for name, x in (("ends", ends), ("initial", ends if initial is None else initial)):
        if x.dtype != torch.float32 or not x.is_contiguous() or x.data_ptr() % 16 or x.device != ends.device:
            raise ValueError(
                f"{name} must be contiguous float32 at a multiple of 16 bytes on {ends.device}, got {x.dtype} on "
                f"{x.device}"
                f" with strides {x.stride()}; copy it with torch.clone"
            )
    states = torch.empty((segments, heads, V, K), dtype=torch.float32, device=ends.device)
    constants = Constants(K, V, rows)
    args = Args(segments=segments, heads=heads)
    operands.point(args, ends=ends, initial=initial, entries=states)
    if heads:
        with operands.stream(ends) as stream:
            kernels(constants, ends.device.index)[NAME].launch(heads * V // rows, constants.threads, args, stream)
    return states

"""How the copy engine of a Hopper GPU sees a tensor: a tensor map, 128 bytes, encoded once and kept.

The driver takes many numbers of Python one by one to encode a map, and a launch needs five maps. A server calls with
the same few buffers again and again, so `encode` keeps its answers. It is a function of plain numbers alone: what it
has kept for an address and a layout is right for whatever tensor lies there in that layout, now or later, so nothing
kept is ever stale. A map holds no
memory: whoever launches keeps the tensor.
"""

import ctypes
import functools

import torch

from kda_lab.cuda import compile as cuda_compile

MAP_BYTES = 128
TOKENS = 16  # of a box, of a block of the Hopper kernel, and so the unit of cuts
KEPT = 4096  # maps, of about 1 KB each with its key
KINDS = {torch.float32: "FLOAT32", torch.bfloat16: "BFLOAT16"}


class Map(ctypes.Structure):
    """What on_cpu/hopper.cuh reads in place of the driver's tensor map."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        *((name, ctypes.c_longlong) for name in ("bytes", "width", "rows", "slices")),
        ("size", ctypes.c_longlong * 5),
        ("stride", ctypes.c_longlong * 4),
    ]


def misfit(name, x):
    """Why the copy engine cannot read a [B, T, H, D] tensor, as a sentence, or None.

    >>> x = torch.zeros(1, 2, 3, 64)
    >>> misfit("g", x) is None, misfit("g", torch.zeros(1, 2, 3, 128)[..., ::2])
    (True, 'the copy engine reads dense channels, and those of g have stride 2')
    """
    reason = _misfit(x.data_ptr() % 16, x.itemsize, x.shape, x.stride())
    return reason and reason.format(name=name)


@functools.lru_cache(maxsize=KEPT)
def _misfit(offset, itemsize, shape, strides):
    """The sentence of `misfit`, without the name; a function of plain numbers, kept as maps are."""
    if strides[3] != 1 and shape[3] > 1:
        return f"the copy engine reads dense channels, and those of {{name}} have stride {strides[3]}"
    steps = [s * itemsize for s, n in zip(strides[:3], shape[:3]) if n > 1]
    if offset or any(s % 16 or not 0 < s < 2**40 for s in steps):
        return "the copy engine reads rows that start at multiples of 16 bytes, and those of {name} do not"
    return None


def tensor_map(x, slices, tokens=TOKENS):
    """How the copy engine sees [B, T, H, D] in fp32 or bf16: 128 bytes, for a GPU or for `on_cpu`, as x lies.

    A box is `tokens` x `slices` x 128 bytes of channels, swizzled. x must not be a `misfit`.

    >>> x = torch.zeros(1, 2, 3, 64)
    >>> len(tensor_map(x, 2)), tensor_map(x, 2) is tensor_map(x.clone().set_(x), 2)
    (128, True)
    """
    return encode(x.data_ptr(), x.dtype, x.shape, x.stride(), slices, tokens, x.device.index)


@functools.lru_cache(maxsize=KEPT)
def encode(address, dtype, shape, strides, slices, tokens, device):
    """The map of a tensor at an address, strides in elements, for GPU number `device` or for the CPU if None ->
    bytes.
    """
    B, T, H, D = shape
    width = 128 // dtype.itemsize
    # a stride along an extent of one is never used, and may be anything in torch
    batch, token, head = (s * dtype.itemsize if n > 1 else D * dtype.itemsize for s, n in zip(strides[:3], (B, T, H)))
    size, stride, box = (width, T, D // width, H, B), (token, 128, head, batch), (width, tokens, slices, 1, 1)
    if device is None:
        return bytes(Map(address, dtype.itemsize, width, tokens, slices, size, stride)).ljust(MAP_BYTES, b"\0")
    from cuda.bindings import driver

    encoded = cuda_compile.check(
        driver.cuTensorMapEncodeTiled(
            getattr(driver.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{KINDS[dtype]}"),
            5,
            address,
            [driver.cuuint64_t(n) for n in size],
            [driver.cuuint64_t(n) for n in stride],
            [driver.cuuint32_t(n) for n in box],
            [driver.cuuint32_t(1)] * 5,
            driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
            driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
            driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    )
    return ctypes.string_at(int(encoded.getPtr()), MAP_BYTES)

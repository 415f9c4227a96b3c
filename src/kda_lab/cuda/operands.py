"""Tensors as the kernels of this folder read them, and what every launch tells its kernel.

A kernel reads q, k, v, g, beta where they lie, by their strides. What is small or rarely given is made plain instead:
dense, in one type. For arguments that are plain already nothing here copies, or launches anything.
"""

import contextlib
import ctypes
from typing import NamedTuple

import torch

from kda_lab.cuda import compile as cuda_compile

TYPES = {torch.float32: "float", torch.float16: "__half", torch.bfloat16: "__nv_bfloat16"}
GATES = {"none": 0, "given": 1, "bounded": 2, "softplus": 3}


class ChunkCall(NamedTuple):
    """One call of a chunk kernel in the words of this folder; `chunk.kda_chunk_forward` says what each means.

    >>> x = torch.zeros(1, 4, 2, 8)
    >>> ChunkCall(x, x, x, gate="none").erase
    True
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    g: torch.Tensor | None = None
    beta: torch.Tensor | None = None
    scale: float | None = None
    initial_state: torch.Tensor | None = None
    output_final_state: bool = False
    cu_seqlens: torch.Tensor | None = None
    l2norm: bool = False
    beta_sigmoid: bool = False
    A_log: torch.Tensor | None = None
    dt_bias: torch.Tensor | None = None
    lower_bound: float | None = None
    gate: str = "given"
    erase: bool = True
    exact: bool | None = None


def chunk_call(named):
    """The `ChunkCall` of these arguments by name; what is no field of it is left out.

    >>> x = torch.zeros(1, 4, 2, 8)
    >>> chunk_call(dict(q=x, k=x, v=x, gate="none", segments=1)).gate
    'none'
    """
    return ChunkCall(**{name: x for name, x in named.items() if name in ChunkCall._fields})


class Rows(ctypes.Structure):
    """An argument and its strides in elements; struct Rows of the sources."""

    _fields_ = [("at", ctypes.c_void_p), *((name, ctypes.c_longlong) for name in ("batch", "token", "head", "channel"))]


def check_types(q, k, v):
    """Raise ValueError unless q, k and v share a type of TYPES."""
    if v.dtype not in TYPES or q.dtype != v.dtype or k.dtype != v.dtype:
        raise ValueError(
            f"q, k, v must share float32, float16 or bfloat16, got {q.dtype}, {k.dtype}, {v.dtype}; cast them first"
        )


def check_device(v, others):
    """Raise ValueError unless v and all the others that are there lie on one GPU, or all on the CPU."""
    if v.device.type not in ("cuda", "cpu") or any(x is not None and x.device != v.device for x in others):
        raise ValueError(
            f"all tensors must be on one GPU (or all on the CPU), and v is on {v.device}; move the others there"
        )


def readable(x, types=TYPES):
    """x itself if it is None or of one of these types, else a dense copy in fp32.

    >>> x = torch.zeros(2, 3, dtype=torch.float64).T
    >>> readable(x).dtype, readable(x).stride(), readable(None)
    (torch.float32, (2, 1), None)
    """
    if x is None or x.dtype in types:
        return x
    return x.to(torch.float32, memory_format=torch.contiguous_format)


def plain(x):
    """Dense, in fp32; None for None."""
    return None if x is None else x.float().contiguous()


def boundaries(cu_seqlens):
    """Dense, in int64; None for None."""
    return None if cu_seqlens is None else cu_seqlens.to(torch.int64).contiguous()


def sequences(v, cu_seqlens):
    """How many sequences v [B, T, HV, V] holds.

    >>> sequences(torch.zeros(3, 4, 1, 2), None), sequences(torch.zeros(1, 4, 1, 2), torch.tensor([0, 1, 1, 4]))
    (3, 3)
    """
    return v.shape[0] if cu_seqlens is None else cu_seqlens.numel() - 1


def rows(x):
    """Where [B, T, H, D] lies, with any strides, or [B, T, H], one value for all channels, or None.

    >>> r = rows(torch.zeros(2, 3, 4))
    >>> r.batch, r.token, r.head, r.channel
    (12, 4, 1, 0)
    """
    return Rows() if x is None else Rows(x.data_ptr(), *x.stride()[:3], x.stride(3) if x.ndim == 4 else 0)


def bias_rows(dt_bias, heads, channels):
    """Where a plain dt_bias lies: [HV, K], or head-major [HV K], or [HV] for a gate a head.   channels: whether each
    has one.
    """
    return Rows() if dt_bias is None else Rows(dt_bias.data_ptr(), 0, 0, dt_bias.numel() // heads, int(channels))


def point(args, **tensors):
    """Write the addresses of tensors into the pointers of a struct, a null pointer for None."""
    for name, x in tensors.items():
        setattr(args, name, None if x is None else x.data_ptr())


def scale_and_bound(scale, lower_bound, K):
    """The scale of q, K^-1/2 unless one is given, and the bound of the gate.

    >>> scale_and_bound(None, None, 64)
    {'scale': 0.125, 'lower_bound': 0.0}
    """
    return {"scale": K**-0.5 if scale is None else scale, "lower_bound": lower_bound or 0.0}


@contextlib.contextmanager
def stream(x):
    """The handle of torch's current stream on the GPU of x, which is the current GPU meanwhile; None on the CPU.

    >>> with stream(torch.zeros(1)) as handle:
    ...     print(handle)
    None
    """
    if not x.is_cuda:
        yield None
        return
    with torch.cuda.device(x.device):
        yield cuda_compile.current_stream(x.device)

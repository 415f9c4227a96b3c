"""Launch the Hopper kernel: tensors in, (o, final state) out, on torch's current stream, in one kernel.

kda_chunk_hopper.cu takes 16 tokens a step; benchmarks/NOTES.md has its times.

Arguments are those of `kda_lab.ops`, which validates them. `unsupported` says in a sentence what this kernel leaves to
`chunk.kda_chunk_forward`. Nothing here waits for the GPU, and a call can be captured in a CUDA graph once its variant has
been compiled. CPU tensors run the same source through `on_cpu`: slow, for checks.
"""

import ctypes
import functools
import math
from typing import NamedTuple

import torch

from kda_lab.cuda import compile as cuda_compile
from kda_lab.cuda import on_cpu

C = 16
BOUNDS = 128  # of sequences that the kernel keeps in shared memory
GATES = {"given": 1, "bounded": 2, "softplus": 3}
TYPES = {torch.float32: "float", torch.bfloat16: "__nv_bfloat16"}
RANGE = 60.0  # largest exponent to base 2 in the units of a block's middle; RANGE of the sources
SHARED_LIMIT = 227 * 1024
MAP_BYTES = 128


def whole_lines(size):
    """Rounded up to lines of 1,024 bytes, where swizzled tiles begin."""
    return -(-size // 1024) * 1024


class Args(ctypes.Structure):
    """struct Args of hopper_work.cuh, field by field."""

    _fields_ = [
        *((name, ctypes.c_ubyte * MAP_BYTES) for name in ("q", "k", "g", "v", "o")),
        ("beta", ctypes.c_void_p),
        *((name, ctypes.c_longlong) for name in ("beta_batch", "beta_token", "beta_head")),
        *((name, ctypes.c_void_p) for name in ("A_log", "dt_bias", "initial_state", "final_state", "passed_state", "passed_exit")),
        *((name, ctypes.c_void_p) for name in ("passed", "cu_seqlens", "out")),
        *((name, ctypes.c_longlong) for name in ("sequences", "tokens", "heads", "group", "increments", "clusters")),
        ("scale", ctypes.c_float),
        ("lower_bound", ctypes.c_float),
    ]


# the source aligns its arguments to 64 bytes
ARGS_BYTES = -(-ctypes.sizeof(Args) // 64) * 64


class Map(ctypes.Structure):
    """What on_cpu/hopper.cuh reads in place of the driver's tensor map."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        *((name, ctypes.c_longlong) for name in ("bytes", "width", "rows", "slices")),
        ("size", ctypes.c_longlong * 5),
        ("stride", ctypes.c_longlong * 4),
    ]


class Variant(NamedTuple):
    """What the compiler has to know.   warps: that prepare in a thread block, 0 for as many as their slots allow."""

    key: int = 128
    value: int = 128
    gates: torch.dtype = torch.bfloat16
    betas: torch.dtype = torch.bfloat16
    gate: str = "bounded"
    unbounded: bool = False
    l2norm: bool = True
    beta_sigmoid: bool = True
    warps: int = 0

    def ctas(self):
        """Thread blocks that serve a head together, 64 rows of its state each."""
        return self.value // 64

    def sizes(self, warps):
        """Bytes of a slot with its mbarriers, and of all the rest with so many warps, as hopper_layout.cuh counts."""
        vector, keys = 4 * self.key, self.key // 64 * 2048
        slot = whole_lines(2 * keys + 1024 + 2 * vector) + keys * self.gates.itemsize // 2 + 2048
        scratch = whole_lines(warps * (1024 + 256 + vector + (vector if self.unbounded else 0)))
        return slot + 40, scratch + 8 * warps + 8 + 32 + 4 * BOUNDS + 1024

    def slots(self, warps):
        """How many blocks a thread block has room for: 4, 8 or 16 of its own, and in a cluster 4 of its partner's."""
        slot, rest = self.sizes(warps)
        sent = 4 if self.ctas() == 2 else 0
        return max(n for n in (4, 8, 16) if (n + sent) * slot + rest <= SHARED_LIMIT) + sent

    def prepare_warps(self):
        """At most 8, and no more than there are slots for blocks of their own."""
        return self.warps or next(n for n in range(8, 0, -1) if self.slots(n) - (4 if self.ctas() == 2 else 0) >= n)

    def shared_bytes(self):
        """Dynamic shared memory of a thread block."""
        warps = self.prepare_warps()
        slot, rest = self.sizes(warps)
        return self.slots(warps) * slot + rest

    def constants(self):
        """The -D pairs, sizes included."""
        return (
            ("KEY", self.key),
            ("GATE", GATES[self.gate]),
            ("GATE_IN", TYPES[self.gates]),
            ("BETA_IN", TYPES[self.betas]),
            ("UNBOUNDED", int(self.unbounded)),
            ("L2NORM", int(self.l2norm)),
            ("BETA_SIGMOID", int(self.beta_sigmoid)),
            ("CTAS", self.ctas()),
            ("SLOTS", self.slots(self.prepare_warps())),
            ("PREPARE_WARPS", self.prepare_warps()),
            ("ARGS_BYTES", ARGS_BYTES),
            ("SHARED_BYTES", self.shared_bytes()),
        )


# one of each kind that differs in code, for the resource table and the compile test
VARIANTS = {
    "raw bounded gate": Variant(),
    "raw softplus gate": Variant(gate="softplus", unbounded=True),
    "given gate fp32": Variant(gate="given", gates=torch.float32, betas=torch.float32, unbounded=True, beta_sigmoid=False),
    "given gate, no norm": Variant(gate="given", unbounded=True, l2norm=False, beta_sigmoid=False),
    "raw bounded fp32 gate": Variant(gates=torch.float32),
    "K=64 V=64": Variant(key=64, value=64),
    "K=64 V=128": Variant(key=64),
    "K=128 V=64, given gate": Variant(value=64, gate="given", gates=torch.float32, unbounded=True),
}
THREADS = 512


SOURCE, NAME = "kda_chunk_hopper.cu", "kda_chunk_hopper"


@functools.cache
def kernel(variant, device):
    """The kernel of a variant for GPU number `device`, or for the CPU if None."""
    if device is None:
        return on_cpu.Kernel(SOURCE, variant.constants(), (NAME,), NAME)
    return cuda_compile.Kernel(cuda_compile.build(SOURCE, variant.constants()), NAME, variant.shared_bytes())


def misfit(name, x):
    """Why the copy engine cannot read a [B, T, H, D] tensor, as a sentence, or None."""
    if x.stride(3) != 1 and x.shape[3] > 1:
        return f"the copy engine reads dense channels, and those of {name} have stride {x.stride(3)}"
    strides = [s * x.itemsize for s, n in zip(x.stride()[:3], x.shape[:3]) if n > 1]
    if x.data_ptr() % 16 or any(s % 16 or not 0 < s < 2**40 for s in strides):
        return f"the copy engine reads rows that start at multiples of 16 bytes, and those of {name} do not"
    return None


def unsupported(q, k, v, g=None, beta=None, *, gate="given", erase=True, exact=None, dt_bias=None, **_):
    """Why this kernel cannot answer a call of `kda_chunk_forward`, as a sentence, or None if it can.

    >>> x = torch.zeros(1, 4, 2, 32, dtype=torch.bfloat16)
    >>> unsupported(x, x, x, x, x[..., 0])
    'the Hopper kernel takes K and V of 64 or 128, got K=32 and V=32'
    """
    K, V = k.shape[-1], v.shape[-1]
    if K not in (64, 128) or V not in (64, 128):
        return f"the Hopper kernel takes K and V of 64 or 128, got K={K} and V={V}"
    if any(x.dtype != torch.bfloat16 for x in (q, k, v)) or exact:
        return f"the Hopper kernel takes q, k, v in bfloat16 and multiplies in bfloat16, got {q.dtype}, {k.dtype}, {v.dtype}"
    if not erase or gate == "none" or g is None or g.ndim != 4 or beta is None:
        return "the Hopper kernel takes the delta rule with beta and a gate for each channel"
    if dt_bias is not None and dt_bias.numel() != g.shape[2] * K:
        return f"the Hopper kernel takes a dt_bias for each head and channel, got {tuple(dt_bias.shape)}"
    if v.is_cuda and torch.cuda.get_device_capability(v.device)[0] != 9:
        return "the Hopper kernel needs a GPU of compute capability 9.0"
    g = g if g.dtype in TYPES else g.float()
    return next((m for m in map(misfit, ("q", "k", "v", "g"), (q, k, v, g)) if m), None)


def tensor_map(x, slices):
    """How the copy engine sees [B, T, H, D]: 128 bytes. Boxes of 16 tokens x `slices` x 128 bytes of channels, swizzled."""
    B, T, H, D = x.shape
    width = 128 // x.itemsize
    # a stride along an extent of one is never used, and may be anything in torch
    batch, token, head = (s * x.itemsize if n > 1 else D * x.itemsize for s, n in zip(x.stride()[:3], (B, T, H)))
    size, stride = (width, T, D // width, H, B), (token, 128, head, batch)
    if not x.is_cuda:
        plain = Map(x.data_ptr(), x.itemsize, width, C, slices, size, stride)
        return bytes(plain).ljust(MAP_BYTES, b"\0")
    from cuda.bindings import driver

    encoded = cuda_compile.check(
        driver.cuTensorMapEncodeTiled(
            driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
            if x.dtype == torch.bfloat16
            else driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
            5,
            x.data_ptr(),
            [driver.cuuint64_t(n) for n in size],
            [driver.cuuint64_t(n) for n in stride],
            [driver.cuuint32_t(n) for n in (width, C, slices, 1, 1)],
            [driver.cuuint32_t(1)] * 5,
            driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
            driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
            driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    )
    return ctypes.string_at(int(encoded.getPtr()), MAP_BYTES)


@functools.cache
def multiprocessors(device):
    """Of GPU number `device`; of an H200 for the CPU."""
    return 132 if device is None else torch.cuda.get_device_properties(device).multi_processor_count


def variant(q, k, v, g, beta, *, l2norm=False, beta_sigmoid=False, gate="given", lower_bound=None, warps=0, **_):
    """What a call compiles."""
    unbounded = gate != "bounded" or abs(lower_bound) * C / 2 * math.log2(math.e) > RANGE
    g, beta = (x if x.dtype in TYPES else x.float() for x in (g, beta))
    return Variant(k.shape[-1], v.shape[-1], g.dtype, beta.dtype, gate, unbounded, l2norm, beta_sigmoid, warps)


def launch(
    kind,
    q,
    k,
    v,
    g,
    beta,
    o,
    *,
    N,
    cu_seqlens,
    initial_state,
    final_state,
    scale,
    lower_bound,
    A_log,
    dt_bias,
    transitions=0,
):
    """One launch of a compiled variant on N sequences; o, initial_state, final_state may be None.

    transitions: final_state has room for so many more, which become the transitions of all sequences but the first.
    """
    (B, T, H, K), (HV, V) = k.shape, v.shape[2:]
    # the sources align their arguments to 64 bytes
    memory = ctypes.create_string_buffer(ARGS_BYTES + 64)
    args = Args.from_buffer(memory, -ctypes.addressof(memory) % 64)
    seen = (("q", q, 1), ("k", k, 1), ("g", g, K * g.itemsize // 128), ("v", v, 1), ("o", v if o is None else o, 1))
    for name, x, slices in seen:
        setattr(args, name, (ctypes.c_ubyte * MAP_BYTES).from_buffer_copy(tensor_map(x, slices)))
    args.beta_batch, args.beta_token, args.beta_head = beta.stride()
    args.sequences, args.increments = N + transitions, N
    args.tokens, args.heads, args.group = T, HV, HV // H
    args.scale, args.lower_bound = K**-0.5 if scale is None else scale, lower_bound or 0.0
    heads = args.sequences * HV
    args.clusters = min(heads, multiprocessors(v.device.index if v.is_cuda else None) // kind.ctas())
    states = dict(initial_state=initial_state, final_state=final_state)
    if heads > args.clusters or cu_seqlens is not None and args.sequences > 1:
        # ranges of equal length may cut heads: their states pass through memory
        states |= dict(passed_state=torch.empty((args.clusters, V, K), device=v.device))
        states |= dict(passed_exit=torch.empty((args.clusters, kind.ctas(), K), device=v.device))
        states |= dict(passed=torch.zeros((args.clusters, kind.ctas()), dtype=torch.int32, device=v.device))
    for name, x in dict(states, beta=beta, A_log=A_log, dt_bias=dt_bias, cu_seqlens=cu_seqlens, out=o).items():
        setattr(args, name, None if x is None else x.data_ptr())
    if not v.is_cuda:
        kernel(kind, None).launch(args.clusters, kind.ctas() * THREADS, args)
        return
    with torch.cuda.device(v.device):
        stream = cuda_compile.current_stream(v.device)
        kernel(kind, v.device.index).launch(args.clusters * kind.ctas(), THREADS, args, stream)


def cut(cu_seqlens, segments):
    """Bounds of the segments of a sequence, whole blocks of tokens but the last: [2] -> [segments + 1].

    >>> cut(torch.tensor([0, 100]), 3).tolist(), cut(torch.tensor([5, 25]), 3).tolist()
    ([0, 48, 96, 100], [5, 21, 25, 25])
    """
    start, end = cu_seqlens[:1], cu_seqlens[1:]
    size = (end - start + C * segments - 1) // (C * segments) * C
    return torch.minimum(start + torch.arange(segments + 1, device=cu_seqlens.device) * size, end)


def best_segments(blocks, heads, clusters):
    """In how many segments few heads of a long sequence are done soonest: an estimate in blocks of one cluster.

    Whole, a head takes its blocks. In n segments a first launch does 2n - 3 of them a head (states without outputs, and
    transitions), a second one n; launches and the scan between them cost about as much as 150 blocks.

    >>> best_segments(4096, 8, 66), best_segments(512, 8, 66), best_segments(512, 32, 66), best_segments(64, 8, 66)
    (8, 6, 1, 1)
    """

    def cost(n):
        size = -(-blocks // n)
        first, second = (max(size, -(-heads * count * size // clusters)) for count in (2 * n - 3, n))
        return first + second + 150 + 8 * n if n > 1 else blocks

    return min((1, *range(3, 17)), key=cost)


def kda_hopper_forward(
    q,
    k,
    v,
    g,
    beta,
    *,
    scale=None,
    initial_state=None,
    output_final_state=False,
    cu_seqlens=None,
    l2norm=False,
    beta_sigmoid=False,
    A_log=None,
    dt_bias=None,
    lower_bound=None,
    gate="given",
    warps=0,
    segments=None,
    **_,
):
    """The chunk form on a Hopper GPU -> o [B, T, HV, V] in bf16, final state [N, HV, V, K] in fp32 or None.

    q, k: [B, T, H, K]   v: [B, T, HV, V]   g: [B, T, HV, K]   beta: [B, T, HV]; q, k, v bf16, K and V 64 or 128.
    gate: "given" (g is the log decay), "bounded" or "softplus" (g is raw), as for `kda_chunk_forward`.
    warps: of `Variant`, for measurements.
    segments: parts of a long sequence that run side by side, for few heads (one sequence, V >= K): a first launch makes their
    increments and transitions, a scan of these their initial states, a second launch the outputs. None: `best_segments`.
    Raises ValueError with the sentence of `unsupported`.   Implements fused-chunk.
    """
    if reason := unsupported(q, k, v, g, beta, gate=gate, dt_bias=dt_bias):
        raise ValueError(f"{reason}; use kda_chunk_forward")
    (B, T, _, K), (HV, V) = k.shape, v.shape[2:]
    N = B if cu_seqlens is None else cu_seqlens.numel() - 1
    device = v.device.index if v.is_cuda else None
    if segments is None:
        alone = N == 1 and V >= K and device is not None
        segments = best_segments(-(-T // C), HV, multiprocessors(device) // (V // 64)) if alone else 1
    if segments > 1 and (N > 1 or V < K or segments == 2):
        raise ValueError(
            f"segments are 1, or 3 and more for one sequence with V >= K, got {segments} for {N} sequences, K={K}, V={V}"
        )
    g, beta = (x if x.dtype in TYPES else x.float() for x in (g, beta))
    A_log, dt_bias, initial_state = (
        None if x is None else x.float().contiguous() for x in (A_log, dt_bias, initial_state)
    )
    cu_seqlens = None if cu_seqlens is None else cu_seqlens.to(torch.int64).contiguous()
    # rows at and after cu_seqlens[-1] belong to no sequence and are zero; kda_chunk_hopper.cu sees to that itself
    o = torch.empty((B, T, HV, V), dtype=v.dtype, device=v.device)

    def states(n):
        return torch.empty((n, HV, V, K), device=v.device)

    if not T:
        S = initial_state.clone() if initial_state is not None else torch.zeros(N, HV, V, K, device=v.device)
        return o, S if output_final_state else None

    def run(N, *, transitions=0, **where):
        options = dict(l2norm=l2norm, beta_sigmoid=beta_sigmoid, gate=gate, lower_bound=lower_bound, warps=warps)
        kind = variant(q, k, v, g, beta, **options)
        gates = dict(lower_bound=lower_bound, A_log=A_log, dt_bias=dt_bias)
        launch(kind, q, k, v, g, beta, N=N, scale=scale, transitions=transitions, **gates, **where)

    if segments == 1:
        final_state = states(N) if output_final_state else None
        run(N, o=o, cu_seqlens=cu_seqlens, initial_state=initial_state, final_state=final_state)
        return o, final_state
    bounds = cut(torch.arange(0, T + 1, T, device=v.device) if cu_seqlens is None else cu_seqlens, segments)
    # the first segment begins with the initial state, so it needs no transition, and the last one needs neither
    starts = None if initial_state is None else torch.cat([initial_state, torch.zeros_like(states(segments - 2))])
    ends = states(2 * segments - 3)
    run(segments - 1, o=None, cu_seqlens=bounds, initial_state=starts, final_state=ends, transitions=segments - 2)
    increments, transitions = ends[: segments - 1], ends[segments - 1 :, :, :K]
    entries = [torch.zeros_like(ends[0]) if initial_state is None else initial_state[0], increments[0]]
    for increment, transition in zip(increments[1:], transitions):
        entries.append(torch.baddbmm(increment, entries[-1], transition))
    final = states(segments) if output_final_state else None
    run(segments, o=o, cu_seqlens=bounds, initial_state=torch.stack(entries), final_state=final)
    return o, final[-1:].clone() if output_final_state else None

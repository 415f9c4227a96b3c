"""Launch kda_chunk.cu: tensors in, (o, final state) out, on torch's current stream.

Arguments are those of `kda_lab.ops`, which validates them. Nothing here waits for the GPU: with cu_seqlens the number
of chunks is not known to the host, so the grid takes its bound T // 64 + N and surplus thread blocks return at once.
After a first call has compiled and loaded a variant, a call can be captured in a CUDA graph. CPU tensors run the same
source through `on_cpu`: slow, for checks.
"""

import ctypes
import functools
from typing import NamedTuple

import torch

from kda_lab.cuda import arguments, on_cpu
from kda_lab.cuda import compile as cuda_compile
from kda_lab.cuda.arguments import GATES, TYPES, Rows, rows

SOURCE = "kda_chunk.cu"
C, SUB = 64, 16
THREADS = {"kda_prepare": 256, "kda_state": 128, "kda_output": 256}


class Args(ctypes.Structure):
    """struct Args of the source, field by field."""

    _fields_ = [
        *((name, Rows) for name in ("q", "k", "v", "o", "g", "beta", "A_log", "dt_bias")),
        *(
            (name, ctypes.c_void_p)
            for name in ("initial_state", "final_state", "cu_seqlens", "U", "W", "Q_in", "K_g", "M", "decay", "S")
        ),
        *((name, ctypes.c_longlong) for name in ("sequences", "tokens", "heads", "group")),
        ("scale", ctypes.c_float),
        ("lower_bound", ctypes.c_float),
    ]


class Variant(NamedTuple):
    """What the compiler has to know."""

    key: int = 128
    value: int = 128
    inputs: torch.dtype = torch.bfloat16
    gates: torch.dtype = torch.float32
    betas: torch.dtype = torch.float32
    gate: str = "given"
    l2norm: bool = False
    beta_sigmoid: bool = False
    erase: bool = True
    exact: bool = False

    @property
    def shared_bytes(self):
        """Dynamic shared memory of each kernel, the sizes of its struct in the source (which asserts them)."""
        K, _V = (-(-d // SUB) * SUB for d in (self.key, self.value))
        prepare = 4 * C * (K + 4) + 2 * 4 * C * (C + 4) + 2 * (C * K * self.inputs.itemsize + C * 16) + 3 * 4 * C
        state = 4 * (C * (K + 4) + C * (K + 8) + SUB * (K + 4) + C * (SUB + 8) + K)
        return {"kda_prepare": prepare, "kda_state": state, "kda_output": 4 * (C * (K + 4) + C * (C + 4))}

    def constants(self):
        """The -D pairs, sizes included."""
        shared = self.shared_bytes
        return (
            ("KEY", self.key),
            ("VALUE", self.value),
            ("IN", TYPES[self.inputs]),
            ("GATE_IN", TYPES[self.gates]),
            ("BETA_IN", TYPES[self.betas]),
            ("GATE", GATES[self.gate]),
            ("L2NORM", int(self.l2norm)),
            ("BETA_SIGMOID", int(self.beta_sigmoid)),
            ("ERASE", int(self.erase)),
            ("EXACT", int(self.exact)),
            ("ARGS_BYTES", ctypes.sizeof(Args)),
            ("PREPARE_BYTES", shared["kda_prepare"]),
            ("STATE_BYTES", shared["kda_state"]),
            ("OUTPUT_BYTES", shared["kda_output"]),
        )


# one of each kind that differs in code, for the resource table and the compile test
VARIANTS = {
    "KDA bf16, raw bounded gate": Variant(
        gates=torch.bfloat16, betas=torch.bfloat16, gate="bounded", l2norm=True, beta_sigmoid=True
    ),
    "KDA fp16, raw softplus gate": Variant(inputs=torch.float16, gate="softplus", l2norm=True, beta_sigmoid=True),
    "KDA fp32, exact products": Variant(inputs=torch.float32, exact=True),
    "KDA bf16, K=96 V=40": Variant(key=96, value=40),
    "KDA fp32, K=1 V=1": Variant(key=1, value=1, inputs=torch.float32, exact=True),
    "DeltaNet bf16": Variant(gate="none", l2norm=True),
    "linear attention bf16": Variant(gate="none", erase=False),
}


@functools.cache
def kernels(variant, device):
    """The three kernels of a variant in the order of their launch, for GPU number `device`, or for the CPU if None."""
    if device is None:
        return {name: on_cpu.Kernel(SOURCE, variant.constants(), tuple(THREADS), name) for name in THREADS}
    built = cuda_compile.build(SOURCE, variant.constants())
    return {name: cuda_compile.Kernel(built, name, variant.shared_bytes[name]) for name in THREADS}


def _gate_arguments(g, beta, gate, erase):
    """g and beta as the kernel reads them: absent where they do not matter, float64 as fp32."""
    return arguments.readable(None if gate == "none" else g), arguments.readable(beta if erase else None)


def variant(q, k, v, g=None, beta=None, *, l2norm=False, beta_sigmoid=False, gate="given", erase=True, exact=None, **_):
    """What a call of `kda_chunk_forward` with these arguments compiles, so that it can be compiled ahead."""
    g, beta = _gate_arguments(g, beta, gate, erase)
    return Variant(
        k.shape[-1],
        v.shape[-1],
        v.dtype,
        torch.float32 if g is None else g.dtype,
        torch.float32 if beta is None else beta.dtype,
        gate,
        l2norm,
        beta_sigmoid and beta is not None,
        erase,
        v.dtype == torch.float32 if exact is None else exact,
    )


def kda_chunk_forward(
    q,
    k,
    v,
    g=None,
    beta=None,
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
    erase=True,
    exact=None,
):
    """The chunk form on a GPU -> o [B, T, HV, V] in v's dtype, final state [N, HV, V, K] in fp32 or None.

    q, k: [B, T, H, K]   v: [B, T, HV, V]   beta: [B, T, HV] or None (1)
    g: [B, T, HV, K], or [B, T, HV] for one gate a head.
    gate: "given" (g is the log decay), "bounded" (lower_bound * sigmoid(exp(A_log) (g + dt_bias))), "softplus"
    (-exp(A_log) softplus(g + dt_bias)) or "none" (alpha = 1).   erase=False: linear attention.
    exact: products in about fp32 instead of tf32, for three times the tensor work; None: only if the inputs are fp32.
    Raises ValueError for what the kernel cannot do: K or V beyond 128, dtypes but fp32, fp16, bf16, several devices.
    Implements chunk-scores, chunk-inverse, chunk-state, chunk-output and what lies between them.
    """
    (B, T, H, K), (HV, V) = k.shape, v.shape[2:]
    if not (1 <= K <= 128 and 1 <= V <= 128):
        raise ValueError(
            f"the chunk kernel takes K and V from 1 to 128, got K={K} and V={V}; use smaller heads or recurrent_kda"
        )
    arguments.check_types(q, k, v)
    arguments.check_device(v, (q, k, g, beta, A_log, dt_bias, initial_state, cu_seqlens))
    if gate not in GATES:
        raise ValueError(f"gate must be one of {', '.join(GATES)}, got {gate!r}; pass one of them")
    g, beta = _gate_arguments(g, beta, gate, erase)
    kind = variant(q, k, v, g, beta, l2norm=l2norm, beta_sigmoid=beta_sigmoid, gate=gate, erase=erase, exact=exact)
    # small or rarely given: made plain instead of described
    A_log, dt_bias, initial_state = map(arguments.plain, (A_log, dt_bias, initial_state))
    cu_seqlens, N = arguments.bounds(cu_seqlens), arguments.sequences(v, cu_seqlens)
    slots = (
        B * -(-T // C) if cu_seqlens is None else T // C + N
    )  # with cu_seqlens a bound; kda_chunk.cu says why it holds

    def new(*shape):
        return torch.empty(shape, dtype=torch.float32, device=v.device)

    # rows at and after cu_seqlens[-1] belong to no chunk and stay zero
    o = (torch.empty if cu_seqlens is None else torch.zeros)((B, T, HV, V), dtype=v.dtype, device=v.device)
    final_state = new(N, HV, V, K) if output_final_state else None
    Kp, Vp = (-(-d // SUB) * SUB for d in (K, V))
    work = {
        "U": new(B * T, HV, Vp),
        "W": new(B * T, HV, Kp) if erase else None,
        "Q_in": new(B * T, HV, Kp),
        "K_g": new(B * T, HV, Kp),
        "M": new(B * T, HV, C),
        "decay": new(slots, HV, Kp),
        "S": new(slots, HV, Vp, Kp),
    }
    args = Args(
        q=rows(q),
        k=rows(k),
        v=rows(v),
        o=rows(o),
        g=rows(g),
        beta=rows(beta),
        dt_bias=arguments.bias_rows(dt_bias, HV, g is not None and g.ndim == 4),
        sequences=N,
        tokens=T,
        heads=HV,
        group=HV // H,
        **arguments.numbers(scale, lower_bound, K),
    )
    if A_log is not None:
        args.A_log = Rows(A_log.data_ptr(), 0, 0, 1, 0)
    arguments.point(args, **work, initial_state=initial_state, final_state=final_state, cu_seqlens=cu_seqlens)

    blocks = {
        "kda_prepare": slots * HV if T else 0,
        "kda_state": N * HV * Vp // SUB,
        "kda_output": slots * HV if T else 0,
    }
    with arguments.stream(v) as stream:
        for name, kernel in kernels(kind, v.device.index).items():
            if blocks[name]:
                kernel.launch(blocks[name], THREADS[name], args, stream)
    return o, final_state

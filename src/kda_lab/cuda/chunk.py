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

from kda_lab.cuda import compile as cuda_compile
from kda_lab.cuda import operands
from kda_lab.cuda.operands import GATES, TYPES, Rows, rows
from kda_lab.data.doors import known

SOURCE = "kda_chunk.cu"
C, SUB = 64, 16
THREADS = {"kda_prepare": 256, "kda_state": 128, "kda_output": 256}
NAMES = tuple(THREADS)


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


class Constants(NamedTuple):
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

    def defines(self):
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
EXAMPLES = {
    "KDA bf16, raw bounded gate": Constants(
        gates=torch.bfloat16, betas=torch.bfloat16, gate="bounded", l2norm=True, beta_sigmoid=True
    ),
    "KDA fp16, raw softplus gate": Constants(inputs=torch.float16, gate="softplus", l2norm=True, beta_sigmoid=True),
    "KDA fp32, exact products": Constants(inputs=torch.float32, exact=True),
    "KDA bf16, K=96 V=40": Constants(key=96, value=40),
    "KDA fp32, K=1 V=1": Constants(key=1, value=1, inputs=torch.float32, exact=True),
    "DeltaNet bf16": Constants(gate="none", l2norm=True),
    "linear attention bf16": Constants(gate="none", erase=False),
}


# of constants and a device: the three, in the order of their launch
kernels = functools.partial(cuda_compile.load, SOURCE, NAMES)


def _gate_operands(g, beta, gate, erase):
    """g and beta as the kernel reads them: absent where they do not matter, float64 as fp32."""
    return operands.readable(None if gate == "none" else g), operands.readable(beta if erase else None)


def constants_of(call):
    """What a `ChunkCall` compiles, so that it can be compiled ahead."""
    g, beta = _gate_operands(call.g, call.beta, call.gate, call.erase)
    return Constants(
        call.k.shape[-1],
        call.v.shape[-1],
        call.v.dtype,
        torch.float32 if g is None else g.dtype,
        torch.float32 if beta is None else beta.dtype,
        call.gate,
        call.l2norm,
        call.beta_sigmoid and beta is not None,
        call.erase,
        call.v.dtype == torch.float32 if call.exact is None else call.exact,
    )


def unsupported(call):
    """Why this kernel cannot answer a `ChunkCall`, as a sentence, or None if it can.

    >>> x = torch.zeros(1, 4, 2, 192)
    >>> unsupported(operands.ChunkCall(x, x, x))
    'the chunk kernel takes K and V from 1 to 128, got K=192 and V=192; use smaller heads or recurrent_kda'
    """
    K, V = call.k.shape[-1], call.v.shape[-1]
    if not (1 <= K <= 128 and 1 <= V <= 128):
        return f"the chunk kernel takes K and V from 1 to 128, got K={K} and V={V}; use smaller heads or recurrent_kda"
    if call.gate not in GATES:
        return f"gate must be one of {', '.join(GATES)}, got {call.gate!r}; pass one of them"
    return None


@known
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
    call = operands.chunk_call(locals())
    if reason := unsupported(call):
        raise ValueError(reason)
    (B, T, H, K), (HV, V) = k.shape, v.shape[2:]
    operands.check_types(q, k, v)
    operands.check_device(v, (q, k, g, beta, A_log, dt_bias, initial_state, cu_seqlens))
    constants = constants_of(call)
    g, beta = _gate_operands(g, beta, gate, erase)
    # small or rarely given: made plain instead of described
    A_log, dt_bias, initial_state = map(operands.plain, (A_log, dt_bias, initial_state))
    cu_seqlens, N = operands.boundaries(cu_seqlens), operands.sequences(v, cu_seqlens)
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
        dt_bias=operands.bias_rows(dt_bias, HV, g is not None and g.ndim == 4),
        sequences=N,
        tokens=T,
        heads=HV,
        group=HV // H,
        **operands.scale_and_bound(scale, lower_bound, K),
    )
    if A_log is not None:
        args.A_log = Rows(A_log.data_ptr(), 0, 0, 1, 0)
    operands.point(args, **work, initial_state=initial_state, final_state=final_state, cu_seqlens=cu_seqlens)

    blocks = {
        "kda_prepare": slots * HV if T else 0,
        "kda_state": N * HV * Vp // SUB,
        "kda_output": slots * HV if T else 0,
    }
    with operands.stream(v) as stream:
        for name, kernel in kernels(constants, v.device.index).items():
            if blocks[name]:
                kernel.launch(blocks[name], THREADS[name], args, stream)
    return o, final_state

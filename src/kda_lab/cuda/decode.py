"""Launch kda_decode.cu: one decoding step over pools of states, in place, on torch's current stream.

`kda_decode` is the whole step between a layer's projections, `decode_core` the recurrence alone. Nothing here waits for
the GPU, so slots are not looked at: they must lie in their pools. After a first call has compiled and loaded a variant,
a call can be captured in a CUDA graph. CPU tensors run the same source through `on_cpu`: slow, for checks.
"""

import ctypes
import functools
from typing import NamedTuple

import torch

from kda_lab.cuda import compile as cuda_compile
from kda_lab.cuda import operands
from kda_lab.cuda.operands import GATES, TYPES, Rows, rows
from kda_lab.data.doors import known

SOURCE, NAME = "kda_decode.cu", "kda_decode"
NAMES = (NAME,)
LANES = 8
MOST_TOKENS = 16
NORM_GATES = {None: 0, "sigmoid": 1, "swish": 2}


class Args(ctypes.Structure):
    """struct Args of the source, field by field."""

    _fields_ = [
        *((name, Rows) for name in ("q", "k", "v", "output_gate", "y", "g", "beta", "dt_bias")),
        *(
            (name, ctypes.c_void_p)
            for name in ("A_log", "taps", "norm_weight", "windows", "states", "window_slots", "state_slots", "accepted")
        ),
        *(
            (name, ctypes.c_longlong)
            for name in ("window_stride", "state_stride", "channels", "slot_columns", "heads", "requests", "ahead")
        ),
        *((name, ctypes.c_float) for name in ("scale", "lower_bound", "eps")),
    ]


class Constants(NamedTuple):
    """What the compiler has to know."""

    key: int = 128
    value: int = 128
    tokens: int = 1
    group: int = 1
    width: int = 4
    inputs: torch.dtype = torch.bfloat16
    gates: torch.dtype = torch.bfloat16
    betas: torch.dtype = torch.bfloat16
    weights: torch.dtype = torch.float32
    gate: str = "bounded"
    l2norm: bool = True
    beta_sigmoid: int = 1
    norm: bool = True
    output_gate: str | None = "sigmoid"

    @property
    def threads(self):
        """Eight lanes for a row of the state, up to 256; with more than 32 rows a thread takes several, one by one."""
        return min(256, -(-LANES * self.value // 32) * 32)

    @property
    def shared_bytes(self):
        """Bytes of dynamic shared memory by kernel, the size of struct Shared in the source (which asserts it)."""
        K, V = -(-self.key // 32) * 32, -(-self.value // 4) * 4
        floats = self.value * K + self.tokens * (3 * K + 2 * V + 5)
        return {NAME: 4 * floats}

    @property
    def blocks(self):
        """Blocks that a multiprocessor has room for, since its shared memory is 228 KB, 1 KB of each block the
        system's.

        >>> Constants().blocks, Constants(tokens=8).blocks
        (3, 2)
        """
        return max(1, min(3 if self.group == 1 else 2, 228 * 1024 // (self.shared_bytes[NAME] + 1024)))

    def defines(self):
        """The -D pairs, sizes included."""
        return (
            ("KEY", self.key),
            ("VALUE", self.value),
            ("TOKENS", self.tokens),
            ("GROUP", self.group),
            ("WIDTH", self.width),
            ("THREADS", self.threads),
            ("BLOCKS", self.blocks),
            ("IN", TYPES[self.inputs]),
            ("GATE_IN", TYPES[self.gates]),
            ("BETA_IN", TYPES[self.betas]),
            ("WEIGHT", TYPES[self.weights]),
            ("GATE", GATES[self.gate]),
            ("L2NORM", int(self.l2norm)),
            ("BETA_SIGMOID", self.beta_sigmoid),
            ("NORM", int(self.norm)),
            ("OUTPUT_GATE", NORM_GATES[self.output_gate]),
            ("ARGS_BYTES", ctypes.sizeof(Args)),
            ("SHARED_BYTES", self.shared_bytes[NAME]),
        )


# one of each kind that differs in code, for the resource table and the compile test
EXAMPLES = {
    "step bf16, bounded gate": Constants(),
    "step bf16, 4 tokens": Constants(tokens=4),
    "step bf16, 8 tokens": Constants(tokens=8),
    "step fp16, softplus gate, K=64 V=64": Constants(key=64, value=64, inputs=torch.float16, gate="softplus"),
    "step fp32, K=64 V=128": Constants(key=64, inputs=torch.float32, gates=torch.float32, betas=torch.float32),
    "step bf16, K=96 V=40": Constants(key=96, value=40, tokens=2, group=2, beta_sigmoid=2, output_gate="swish"),
    "core bf16": Constants(width=1, gate="given", gates=torch.float32, norm=False, output_gate=None),
    "core bf16, 4 tokens": Constants(
        tokens=4, width=1, gate="given", gates=torch.float32, norm=False, output_gate=None
    ),
}


# constants, device -> {NAME: the kernel}
kernels = functools.partial(cuda_compile.load, SOURCE, NAMES)


@known
def kda_decode(
    qkv,
    gate,
    beta,
    output_gate,
    conv_weight,
    A_log,
    dt_bias,
    norm_weight,
    conv_state,
    state,
    conv_slots,
    state_slots,
    num_accepted=None,
    lower_bound=None,
    eps=1e-5,
    allow_neg_eigval=False,
    activation="sigmoid",
    *,
    scale=None,
):
    """One step of R requests with T tokens each -> y [R, T, HV, V] in qkv's dtype; both pools change in place.

    qkv: [R, T, D] projections before the convolution, q | k | v, D = 2 H K + HV V   conv_weight: [D, w]
    gate: raw, [R, T, HV, K], or [R, T, HV] for one a head, or None (alpha = 1); a log decay if A_log is None
    A_log: [HV]   dt_bias: [HV, K] or [HV K] or None; [HV] for a gate a head   lower_bound: None for the softplus gate
    beta: [R, T, HV] logits; the write gate is their sigmoid, twice that with allow_neg_eigval
    output_gate: [R, T, HV, V] before its activation, "sigmoid" or "swish", or None   norm_weight: [V]
    conv_state: [slots, rows, D] in qkv's dtype, rows >= w - 2 + T, inputs as they came in, the oldest first
    state: [slots, HV, V, K] fp32   conv_slots: [R] int32   state_slots: [R, T or more] int32, slots of requests differ
    num_accepted: [R] int32 n, the step begins with the state in state_slots[r, n - 1]; None means 1 for all.

    After token j the state stands in state_slots[r, j], unless that is negative. A request with num_accepted 0, with a
    negative conv_slot, or with nothing to begin with takes no part: none of its slots is touched, its y is zero.
    Raises ValueError for what the kernel cannot do. Implements short-convolution, l2-norm, gate-bounded or
    gate-softplus, kda-recurrence, norm-attention.
    """
    R, T, D = qkv.shape
    HV, V, K = state.shape[1:]
    H = (D - HV * V) // (2 * K)
    if H < 1 or 2 * H * K + HV * V != D or HV % H:
        raise ValueError(
            f"qkv must be 2 H K + HV V wide with HV a multiple of H, and K={K}, HV={HV}, V={V} of the state do not "
            f"fit {D};"
            " pass q | k | v of all heads side by side"
        )
    width, rows = conv_weight.shape[-1], conv_state.shape[1]
    if width < 2 or rows < width - 2 + T or conv_state.dtype != qkv.dtype or not conv_state[:1].is_contiguous():
        raise ValueError(
            f"conv_state must be [slots, {width - 2 + T} or more, D] in {qkv.dtype} with contiguous slots for {T} "
            "tokens and"
            f" {width} taps, got {list(conv_state.shape)} in {conv_state.dtype}; allot w - 1 + num_spec rows"
        )
    if output_gate is not None and (output_gate.dtype != qkv.dtype or activation not in NORM_GATES):
        raise ValueError(
            f'output_gate must be {qkv.dtype} with activation "sigmoid" or "swish", got {output_gate.dtype} with'
            f" {activation!r}; cast it, or pass None for no gate"
        )
    _shapes(
        conv_weight=(conv_weight, (D, width)),
        conv_state=(conv_state[0], (rows, D)),
        conv_slots=(conv_slots, (R,)),
        output_gate=(output_gate, (R, T, HV, V)),
        norm_weight=(norm_weight, (V,)),
    )
    heads = ((H * K, H), (H * K, H), (HV * V, HV))
    parts = qkv.split([size for size, _ in heads], -1)
    q, k, v = (x.unflatten(-1, (n, -1)) for x, (_, n) in zip(parts, heads))
    # parameters of a served model are as the kernel wants them, and then these lines copy nothing
    weights = conv_weight.dtype if conv_weight.dtype in TYPES else torch.float32
    conv_weight, norm_weight = conv_weight.to(weights).contiguous(), norm_weight.to(weights).contiguous()
    kind = dict(width=width, weights=weights, l2norm=True, beta_sigmoid=1 + allow_neg_eigval, norm=True)
    kind["output_gate"] = None if output_gate is None else activation
    arrays = dict(taps=conv_weight, norm_weight=norm_weight, windows=conv_state, window_slots=conv_slots)
    numbers = dict(window_stride=conv_state.stride(0), channels=D, eps=eps, scale=scale, lower_bound=lower_bound)
    gates = (gate, beta, output_gate, A_log, dt_bias)
    return _launch(kind, q, k, v, *gates, state, state_slots, num_accepted, arrays, numbers)


@known
def decode_core(
    q,
    k,
    v,
    g,
    beta,
    state,
    state_slots,
    num_accepted=None,
    *,
    scale=None,
    l2norm=False,
    beta_sigmoid=False,
    A_log=None,
    dt_bias=None,
    lower_bound=None,
):
    """The recurrence alone: no convolution, output norm or output gate -> o [R, T, HV, V] in v's dtype; pool in place.

    q, k: [R, T, H, K]   v: [R, T, HV, V]   g, beta and the rest: as in `kda_decode`; g is a log decay if A_log is None,
    and
    beta the write gate itself unless beta_sigmoid.   Implements kda-recurrence.
    """
    kind = dict(
        width=1, weights=torch.float32, l2norm=l2norm, beta_sigmoid=int(beta_sigmoid), norm=False, output_gate=None
    )
    gates, numbers = (g, beta, None, A_log, dt_bias), dict(scale=scale, lower_bound=lower_bound)
    return _launch(kind, q, k, v, *gates, state, state_slots, num_accepted, {}, numbers)


def _shapes(**expected):
    """Raise ValueError unless every array that is there has its shape, or one of its shapes."""
    for name, (x, *shapes) in expected.items():
        if x is not None and tuple(x.shape) not in shapes:
            raise ValueError(f"{name} must be {' or '.join(map(str, shapes))}, got {tuple(x.shape)}; reshape it")


def _check(q, k, v, state, indices, others):
    (R, T), (HV, V, K) = v.shape[:2], state.shape[1:]
    if K % 4 or not (4 <= K <= 128 and 1 <= V <= 128 and 1 <= T <= MOST_TOKENS):
        raise ValueError(
            f"the decode kernel takes K from 4 to 128 in steps of 4, V from 1 to 128 and 1 to {MOST_TOKENS} tokens, "
            f"got K={K},"
            f" V={V} and {T} tokens; use ops"
        )
    H = q.shape[2]
    _shapes(q=(q, (R, T, H, K)), k=(k, (R, T, H, K)), v=(v, (R, T, HV, V)))
    if HV % H:
        raise ValueError(f"HV must be a multiple of H, got {HV} value heads and {H} key heads; repeat the keys")
    operands.check_types(q, k, v)
    if state.dtype != torch.float32 or not state[:1].is_contiguous() or state.stride(0) % 4 or state.data_ptr() % 16:
        raise ValueError(
            f"state must be float32 with contiguous slots at multiples of 16 bytes, got {state.dtype} with strides"
            f" {state.stride()}; pass the pool as it was allocated"
        )
    if any(x is not None and (x.dtype != torch.int32 or not x.is_contiguous()) for x in indices):
        raise ValueError(
            f"slots and num_accepted must be contiguous int32, got {[x.dtype for x in indices if x is not None]}; "
            "convert once,"
            " before the graph is captured"
        )
    operands.check_device(v, (q, k, state, *indices, *others))


def _launch(kind, q, k, v, g, beta, output_gate, A_log, dt_bias, state, state_slots, num_accepted, arrays, numbers):
    (R, T, HV, V), (H, K) = v.shape, q.shape[2:]
    indices = (state_slots, num_accepted, arrays.get("window_slots"))
    _check(q, k, v, state, indices, (g, beta, output_gate, A_log, dt_bias, *arrays.values()))
    columns = max(T, state_slots.shape[-1])
    _shapes(
        state_slots=(state_slots, (R, columns)),
        num_accepted=(num_accepted, (R,)),
        beta=(beta, (R, T, HV)),
        gate=(g, (R, T, HV, K), (R, T, HV)),
        A_log=(A_log, (HV,)),
        dt_bias=(dt_bias, (HV,)) if g is not None and g.ndim == 3 else (dt_bias, (HV, K), (HV * K,)),
    )
    if A_log is None:
        form = "none" if g is None else "given"
    else:
        form = "softplus" if numbers["lower_bound"] is None else "bounded"
    g, beta = map(operands.readable, (g, beta))
    A_log, dt_bias = map(operands.plain, (A_log, dt_bias))
    gates = torch.float32 if g is None else g.dtype
    constants = Constants(K, V, T, HV // H, inputs=v.dtype, gates=gates, betas=beta.dtype, gate=form, **kind)
    y = torch.empty((R, T, HV, V), dtype=v.dtype, device=v.device)
    numbers.update(
        operands.scale_and_bound(numbers["scale"], numbers["lower_bound"], K),
        state_stride=state.stride(0),
        slot_columns=columns,
        heads=HV,
        requests=R,
        # as many blocks as there are multiprocessors: it gains one per cent with one token, and loses with drafts
        # (H200)
        ahead=cuda_compile.multiprocessors(v.device.index, 1) if T == 1 else 0,
    )
    described = dict(q=q, k=k, v=v, output_gate=output_gate, y=y, g=g, beta=beta)
    args = Args(**{name: rows(x) for name, x in described.items()}, **numbers)
    args.dt_bias = operands.bias_rows(dt_bias, HV, g is not None and g.ndim == 4)
    operands.point(args, **arrays, A_log=A_log, states=state, state_slots=state_slots, accepted=num_accepted)
    blocks = R * (H if constants.width > 1 else HV)
    if blocks:
        with operands.stream(v) as stream:
            kernels(constants, v.device.index)[NAME].launch(blocks, constants.threads, args, stream)
    return y

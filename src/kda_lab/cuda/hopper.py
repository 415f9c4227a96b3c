"""Launch the Hopper kernel: tensors in, (o, final state) out, on torch's current stream, in one kernel.

kda_chunk_hopper.cu takes 16 tokens a step; benchmarks/NOTES.md has its times. A long sequence of few heads is two
launches, and the scan of `segments` between them.

Arguments are those of `kda_lab.ops`, which validates them. `unsupported` says in a sentence what this kernel leaves to
`chunk.kda_chunk_forward`. Nothing here waits for the GPU but segments of a new length, and a call can be captured in a
CUDA graph once its variant has been compiled. CPU tensors run the same source through `on_cpu`: slow, for checks.
"""

import ctypes
import functools
import math
from typing import NamedTuple

import torch

from kda_lab.cuda import compile as cuda_compile
from kda_lab.cuda import operands
from kda_lab.cuda.segments import best_segments, cut, cut_whole, entries
from kda_lab.cuda.tensor_maps import MAP_BYTES, TOKENS, misfit, tensor_map
from kda_lab.data.doors import known

SOURCE, NAME = "kda_chunk_hopper.cu", "kda_chunk_hopper"
NAMES = (NAME,)
C = TOKENS
BOUNDS = 128  # of sequences that the kernel keeps in shared memory
TYPES = {torch.float32: "float", torch.bfloat16: "__nv_bfloat16"}
RANGE = 60.0  # largest exponent to base 2 in the units of a block's middle; RANGE of the sources
ROW = 80  # bytes of a row of 16 floats that a lane reads
SHARED_LIMIT = 227 * 1024


def whole_lines(size):
    """Rounded up to lines of 1,024 bytes, where swizzled tiles begin."""
    return -(-size // 1024) * 1024


class Args(ctypes.Structure):
    """struct Args of hopper_work.cuh, field by field."""

    _fields_ = [
        ("maps", ctypes.c_ubyte * (5 * MAP_BYTES)),  # of q, k, g, v, o
        ("beta", ctypes.c_void_p),
        *((name, ctypes.c_longlong) for name in ("beta_batch", "beta_token", "beta_head")),
        *(
            (name, ctypes.c_void_p)
            for name in ("A_log", "dt_bias", "initial_state", "final_state", "passed_state", "passed_exit")
        ),
        *((name, ctypes.c_void_p) for name in ("passed", "cu_seqlens", "out")),
        *(
            (name, ctypes.c_longlong)
            for name in ("sequences", "tokens", "heads", "group", "increments", "starts", "clusters")
        ),
        *((name, ctypes.c_void_p) for name in ("checkpoints", "checkpoint_states")),
        ("checkpoint_count", ctypes.c_longlong),
        ("scale", ctypes.c_float),
        ("lower_bound", ctypes.c_float),
    ]


# the source aligns its arguments to 64 bytes
ARGS_BYTES = -(-ctypes.sizeof(Args) // 64) * 64


class Constants(NamedTuple):
    """What the compiler has to know.

    warps: that prepare in a thread block, 0 for as many as their slots allow   team: so many of them prepare a block
    together, 0 for 2, or for 1 with gates in fp32, which leave no room   abreast: slices side by side where they are a
    loop, for a warp alone or gates without a bound; 0 for 2, or for 1 with such gates, whose code needs more registers
    every_lane: arrives at mbarriers where one would do, for compute-sanitizer.
    """

    key: int = 128
    value: int = 128
    gates: torch.dtype = torch.bfloat16
    betas: torch.dtype = torch.bfloat16
    gate: str = "bounded"
    unbounded: bool = False
    l2norm: bool = True
    beta_sigmoid: bool = True
    checkpoints: bool = False
    warps: int = 0
    team: int = 0
    abreast: int = 0
    every_lane: bool = False

    def ctas(self):
        """Thread blocks that serve a head together, 64 rows of its state each."""
        return self.value // 64

    def warps_of_a_team(self):
        """How many prepare a block together."""
        return self.team or (2 if self.gates == torch.bfloat16 else 1)

    def shared_with(self, slots, teams):
        """Bytes of shared memory with so many of both, as hopper_layout.cuh counts."""
        vector, keys = 4 * self.key, self.key // 64 * 2048
        slot = whole_lines(2 * keys + 1024 + 2 * vector) + keys * self.gates.itemsize // 2 + 2048
        scratch = 1024 + 256 + vector + 16 * ROW + (vector if self.unbounded else 0)
        exits = (slots - self.sent()) * (8 + (vector if self.ctas() == 2 else 0))
        return slots * (slot + 32 + 32) + exits + teams * (scratch + 8) + 16 * ROW + 16 + 32 + 4 * BOUNDS + 1024

    def sent(self):
        """Slots for what the partner in a cluster sends."""
        return 4 if self.ctas() == 2 else 0

    def slots(self, teams):
        """How many blocks a thread block has room for: 4, 8 or 16 of its own, and those of its partner."""
        return max(n for own in (4, 8, 16) if self.shared_with(n := own + self.sent(), teams) <= SHARED_LIMIT)

    def prepare_warps(self):
        """At most 8, and no more teams than there are slots for blocks of their own."""
        team = self.warps_of_a_team()
        return self.warps or next(n * team for n in range(8 // team, 0, -1) if self.slots(n) - self.sent() >= n)

    def teams(self):
        """How many prepare blocks side by side in a thread block."""
        return self.prepare_warps() // self.warps_of_a_team()

    @property
    def shared_bytes(self):
        """Bytes of dynamic shared memory of a thread block, by kernel."""
        return {NAME: self.shared_with(self.slots(self.teams()), self.teams())}

    def defines(self):
        """The -D pairs, sizes included."""
        return (
            ("KEY", self.key),
            ("GATE", operands.GATES[self.gate]),
            ("GATE_IN", TYPES[self.gates]),
            ("BETA_IN", TYPES[self.betas]),
            ("UNBOUNDED", int(self.unbounded)),
            ("L2NORM", int(self.l2norm)),
            ("BETA_SIGMOID", int(self.beta_sigmoid)),
            ("CHECKPOINTS", int(self.checkpoints)),
            ("CTAS", self.ctas()),
            ("SLOTS", self.slots(self.teams())),
            ("PREPARE_WARPS", self.prepare_warps()),
            ("TEAM", self.warps_of_a_team()),
            ("ABREAST", self.abreast or (1 if self.unbounded else 2)),
            ("EVERY_LANE", int(self.every_lane)),
            ("ARGS_BYTES", ARGS_BYTES),
            ("SHARED_BYTES", self.shared_bytes[NAME]),
        )


def misbuilt(constants):
    """Why the source cannot be compiled with these options for measurements, as a sentence, or None.

    >>> misbuilt(Constants()), misbuilt(Constants(abreast=3))
    (None, 'abreast must divide the 4 slices of a warp, got 3; leave it 0')
    """
    team = constants.warps_of_a_team()
    if team not in (1, 2) or (team == 2 and constants.gates != torch.bfloat16):
        return f"a team is 1 warp, or 2 with gates in bfloat16, got {team} with {constants.gates}; leave it 0"
    most = constants._replace(warps=0).prepare_warps()
    if constants.warps and not (constants.warps % team == 0 and 0 < constants.warps <= most):
        return f"warps must be whole teams of {team}, at most {most} here, got {constants.warps}; leave it 0"
    share = constants.key // 16 // team
    if constants.abreast and (constants.abreast < 0 or share % constants.abreast):
        return f"abreast must divide the {share} slices of a warp, got {constants.abreast}; leave it 0"
    return None


# one of each kind that differs in code, for the resource table and the compile test
EXAMPLES = {
    "raw bounded gate": Constants(),
    "raw softplus gate": Constants(gate="softplus", unbounded=True),
    "given gate fp32": Constants(
        gate="given", gates=torch.float32, betas=torch.float32, unbounded=True, beta_sigmoid=False
    ),
    "given gate, no norm": Constants(gate="given", unbounded=True, l2norm=False, beta_sigmoid=False),
    "raw bounded fp32 gate": Constants(gates=torch.float32),
    "K=64 V=64": Constants(key=64, value=64),
    "K=64 V=128": Constants(key=64),
    "raw bounded gate, checkpoints": Constants(checkpoints=True),
    "K=128 V=64, given gate": Constants(value=64, gate="given", gates=torch.float32, unbounded=True),
}
THREADS = 512

# constants, device -> {NAME: the kernel}
kernels = functools.partial(cuda_compile.load, SOURCE, NAMES)


def unsupported(call):
    """Why this kernel cannot answer a `ChunkCall`, as a sentence, or None if it can.

    >>> x = torch.zeros(1, 4, 2, 32, dtype=torch.bfloat16)
    >>> unsupported(operands.ChunkCall(x, x, x, x, x[..., 0]))
    'the Hopper kernel takes K and V of 64 or 128, got K=32 and V=32'
    """
    q, k, v, g, dt_bias = call.q, call.k, call.v, call.g, call.dt_bias
    K, V = k.shape[-1], v.shape[-1]
    if K not in (64, 128) or V not in (64, 128):
        return f"the Hopper kernel takes K and V of 64 or 128, got K={K} and V={V}"
    if any(x.dtype != torch.bfloat16 for x in (q, k, v)):
        return f"the Hopper kernel takes q, k, v in bfloat16, got {q.dtype}, {k.dtype}, {v.dtype}"
    if call.exact:
        return "the Hopper kernel multiplies in bfloat16, and exact products were asked for"
    if not call.erase or call.gate == "none" or g is None or g.ndim != 4 or call.beta is None:
        return "the Hopper kernel takes the delta rule with beta and a gate for each channel"
    if call.gate not in operands.GATES:
        return f"gate must be one of {', '.join(operands.GATES)}, got {call.gate!r}; pass one of them"
    if dt_bias is not None and dt_bias.numel() != g.shape[2] * K:
        return f"the Hopper kernel takes a dt_bias for each head and channel, got {tuple(dt_bias.shape)}"
    if v.is_cuda and torch.cuda.get_device_capability(v.device)[0] != 9:
        return "the Hopper kernel needs a GPU of compute capability 9.0"
    # g in another type is copied, and the copy is dense
    seen = dict(q=q, k=k, v=v) | (dict(g=g) if g.dtype in TYPES else {})
    return next((reason for name, x in seen.items() if (reason := misfit(name, x))), None)


def multiprocessors(device):
    """Of GPU number `device`; of an H200 for the CPU."""
    return cuda_compile.multiprocessors(device, 132)


def constants_of(call, *, checkpoints=False, warps=0, team=0, abreast=0):
    """What a `ChunkCall` compiles.   checkpoints: whether states on the way are wanted   the others: of `Constants`."""
    unbounded = call.gate != "bounded" or abs(call.lower_bound) * C / 2 * math.log2(math.e) > RANGE
    gates, betas = (x.dtype if x.dtype in TYPES else torch.float32 for x in (call.g, call.beta))
    sizes = (call.k.shape[-1], call.v.shape[-1], gates, betas)
    return Constants(*sizes, call.gate, unbounded, call.l2norm, call.beta_sigmoid, checkpoints, warps, team, abreast)


def launch(
    constants,
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
    checkpoints=None,
    checkpoint_states=None,
    transitions=0,
):
    """One launch of a compiled variant on N sequences; o, initial_state, final_state may be None.

    initial_state: of the first sequences, as many as it holds; the others begin at zero.
    transitions: final_state has room for so many more, which become the transitions of all sequences but the first.
    """
    (_B, T, H, K), (HV, V) = k.shape, v.shape[2:]
    sequences, ctas, device = N + transitions, constants.ctas(), v.device.index
    clusters = min(sequences * HV, multiprocessors(device) // ctas)
    seen = ((q, 1), (k, 1), (g, K * g.itemsize // 128), (v, 1), (v if o is None else o, 1))
    # the sources align their arguments to 64 bytes
    memory = ctypes.create_string_buffer(ARGS_BYTES + 64)
    args = Args.from_buffer(memory, -ctypes.addressof(memory) % 64)
    ctypes.memmove(ctypes.addressof(args), b"".join(tensor_map(*x) for x in seen), 5 * MAP_BYTES)
    args.beta_batch, args.beta_token, args.beta_head = beta.stride()
    args.sequences, args.increments, args.clusters = sequences, N, clusters
    args.starts = 0 if initial_state is None else len(initial_state)
    args.tokens, args.heads, args.group = T, HV, HV // H
    for name, x in operands.scale_and_bound(scale, lower_bound, K).items():
        setattr(args, name, x)
    operands.point(args, beta=beta, A_log=A_log, dt_bias=dt_bias, cu_seqlens=cu_seqlens, out=o)
    operands.point(args, initial_state=initial_state, final_state=final_state)
    operands.point(args, checkpoints=checkpoints, checkpoint_states=checkpoint_states)
    args.checkpoint_count = 0 if checkpoints is None else checkpoints.numel()
    if sequences * HV > clusters or (cu_seqlens is not None and sequences > 1):
        # ranges of equal length may cut heads: their states pass through memory, and flags that are 0 before
        state, exit = clusters * V * K, clusters * ctas * K
        passed = torch.empty(state + exit + clusters * ctas, dtype=torch.float32, device=v.device)
        passed[state + exit :].zero_()
        at = passed.data_ptr()
        args.passed_state, args.passed_exit, args.passed = at, at + 4 * state, at + 4 * (state + exit)
    with operands.stream(v) as stream:
        # a thread block of on_cpu is a whole cluster
        blocks, threads = (clusters * ctas, THREADS) if v.is_cuda else (clusters, ctas * THREADS)
        kernels(constants, device)[NAME].launch(blocks, threads, args, stream)


# the arguments of kda_chunk_forward, written out again: a reader, an editor and a type checker see them here
@known
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
    erase=True,
    exact=None,
    checkpoints=None,
    warps=0,
    team=0,
    abreast=0,
    segments=None,
):
    """The chunk form on a Hopper GPU -> o [B, T, HV, V] in bf16, final state [N, HV, V, K] in fp32 or None.

    With checkpoints also their states [n, HV, V, K] in fp32.

    q, k: [B, T, H, K]   v: [B, T, HV, V]   g: [B, T, HV, K]   beta: [B, T, HV]; q, k, v bf16, K and V 64 or 128.
    gate: "given" (g is the log decay), "bounded" or "softplus" (g is raw), as for `kda_chunk_forward`.
    checkpoints: [n] rows of [B T] before which a state is wanted, as prefix caching wants it: rising, each a multiple
    of 16 tokens behind the start of its sequence, and not behind its end; where a sequence ends, the state of the end.
    Not looked at: that would wait for the GPU.
    erase, exact: only what this kernel does, erase=True and no exact products; there so that a call can be handed on.
    warps, team, abreast: of `Constants`, for measurements: 4, 1 and 1 are an earlier version of the kernel.
    segments: parts of a long sequence that run side by side, for few heads (one sequence, V >= K): a first launch makes
    their increments and transitions, `entries` their initial states, a second launch the outputs. None:
    `best_segments`.
    Raises ValueError with the sentence of `unsupported` or `misbuilt`.   Implements fused-chunk.
    """
    call = operands.chunk_call(locals())
    if reason := unsupported(call):
        raise ValueError(f"{reason}; use kda_chunk_forward")
    options = dict(checkpoints=checkpoints is not None, warps=warps, team=team, abreast=abreast)
    if reason := misbuilt(constants := constants_of(call, **options)):
        raise ValueError(reason)
    (B, T, _, K), (HV, V) = k.shape, v.shape[2:]
    N, device = operands.sequences(v, cu_seqlens), v.device.index
    if segments is None:
        alone = N == 1 and V >= K and device is not None and checkpoints is None
        segments = best_segments(-(-T // C), HV, multiprocessors(device) // (V // 64)) if alone else 1
    if segments > 1 and (N > 1 or V < K or segments == 2 or checkpoints is not None):
        raise ValueError(
            f"segments are 1, or 3 and more for one sequence with V >= K, got {segments} for {N} sequences, "
            f"K={K}, V={V}" + ("" if checkpoints is None else ", and with checkpoints; leave out one of both")
        )
    g, beta = (operands.readable(x, TYPES) for x in (g, beta))
    A_log, dt_bias, initial_state = map(operands.plain, (A_log, dt_bias, initial_state))
    cu_seqlens, checkpoints = operands.boundaries(cu_seqlens), operands.boundaries(checkpoints)
    # rows at and after cu_seqlens[-1] belong to no sequence and are zero; kda_chunk_hopper.cu sees to that itself
    o = torch.empty((B, T, HV, V), dtype=v.dtype, device=v.device)

    def states(n):
        return torch.empty((n, HV, V, K), dtype=torch.float32, device=v.device)

    if not T:
        S = (
            initial_state.clone()
            if initial_state is not None
            else torch.zeros((N, HV, V, K), dtype=torch.float32, device=v.device)
        )
        kept = () if checkpoints is None else (states(checkpoints.numel()),)
        return o, S if output_final_state else None, *kept

    def run(N, *, transitions=0, **where):
        gates = dict(lower_bound=lower_bound, A_log=A_log, dt_bias=dt_bias)
        launch(constants, q, k, v, g, beta, N=N, scale=scale, transitions=transitions, **gates, **where)

    if segments == 1:
        final_state = states(N) if output_final_state else None
        kept = None if checkpoints is None else states(checkpoints.numel())
        there = dict(cu_seqlens=cu_seqlens, initial_state=initial_state, final_state=final_state)
        run(N, o=o, checkpoints=checkpoints, checkpoint_states=kept, **there)
        return (o, final_state) if kept is None else (o, final_state, kept)
    bounds = cut_whole(T, segments, v.device) if cu_seqlens is None else cut(cu_seqlens, segments)
    # the first segment begins with the initial state, so it needs no transition, and the last one needs neither
    ends = states(2 * segments - 3)
    run(
        segments - 1, o=None, cu_seqlens=bounds, initial_state=initial_state, final_state=ends, transitions=segments - 2
    )
    begins = entries(ends, None if initial_state is None else initial_state[0], segments)
    final = states(segments) if output_final_state else None
    run(segments, o=o, cu_seqlens=bounds, initial_state=begins, final_state=final)
    # a view would keep the states of all segments
    return o, final[-1:].clone() if output_final_state else None

"""Does the CUDA decode kernel compute the step, on this GPU, and how fast? `python -m kda_lab.cuda.accept.decode`

Every case runs on pools whose other slots, and whose own slots but the one that a request begins with, are nan; it is
compared with `kda_lab.parts.features`, `decay` and `rules` in float64 on the same (rounded) inputs. What must not be
touched is compared bit by bit, and so is a second run.
--small   small cases without timing, for compute-sanitizer
--on-cpu  the same through the host compiler, on a machine without a GPU
--resources  registers and spills alone, compiled without a GPU
With OUT set, writes OUT/accept_decode.json. Exits 0 only if every case holds.
"""

import itertools
import math
import sys
from typing import NamedTuple

import torch

from kda_lab import rules
from kda_lab.cuda import compile as cuda_compile
from kda_lab.cuda import decode
from kda_lab.cuda.accept import trial
from kda_lab.cuda.accept.trial import same_bits
from kda_lab.cuda.measure import COPY_RATE, median_ms, relative_error
from kda_lab.parts import decay, features
from kda_lab.parts.inputs import cleared, jittered, rates

# of y: bf16 rounds it to 2^-9 (1.7e-3 in this norm), fp16 to 2^-12; the arithmetic is fp32, some hundred roundings
BOUNDS = {torch.bfloat16: 3e-3, torch.float16: 4e-4, torch.float32: 2e-5}
STATE_BOUND = 2e-5


class Case(NamedTuple):
    """A call of `kda_decode`, or of `decode_core`, and the bound on the relative error of y."""

    name: str
    arguments: dict
    bound: float
    core: bool = False


def make(
    name,
    gates="strong",
    R=3,
    T=1,
    H=1,
    HV=None,
    K=128,
    V=128,
    *,
    dtype=torch.bfloat16,
    accepted=None,
    width=4,
    rows=None,
    padding=(),
    unkept=(),
    core=False,
    scalar=False,
    zero_keys=False,
    device="cpu",
    seed=0,
    **options,
):
    """Build a case: R requests in random slots of pools that are nan wherever the step does not begin.

    gates: strong (raw, bounded), softplus (raw, up to x = 100; one head with A_log = 100 and x = -200), long and weak
    (log decays, a rate for each channel), clears (weak, and some -60, -1e4 and -inf), none.
    accepted: num_accepted   padding: requests without slots   unkept: pairs (request, token) without a slot
    rows: of a window, if more than w - 2 + T.
    """
    generator = torch.Generator().manual_seed(seed)
    HV = HV or H

    normal, uniform = trial.draws(generator)
    columns = max(T, max(accepted or [1]))
    rows, D = rows or width - 2 + columns, 2 * H * K + HV * V
    qkv, wide = normal(R, T, D), (HV,) if scalar else (HV, K)
    if zero_keys:
        qkv[:, :, H * K : 2 * H * K] = 0
    a = dict(A_log=None, dt_bias=None, gate=None)
    if gates in ("strong", "softplus"):
        a.update(gate=normal(R, T, *wide), A_log=uniform(HV), dt_bias=uniform(*wide))
        if gates == "strong":
            a.update(lower_bound=-5.0)
        else:
            a.update(gate=a["gate"].mul(20).clamp_max(100))
            a["A_log"][-1], a["gate"][:, :, -1] = 100.0, -200.0
    elif gates != "none":
        a.update(gate=jittered(rates(gates, uniform(1, 1, *wide)), normal(R, T, *wide)))
        if gates == "clears":
            a["gate"] = cleared(a["gate"], uniform(R, T, *wide))
    slots = torch.randperm(R * columns + 2, generator=generator)[: R * columns].reshape(R, columns).int()
    windows = torch.randperm(R + 2, generator=generator)[:R].int()
    for r in padding:
        slots[r], windows[r] = -1, -1
    for r, t in unkept:
        slots[r, t] = -1
    state, conv = (
        torch.full(x, math.nan, dtype=torch.float32) for x in ((R * columns + 2, HV, V, K), (R + 2, rows, D))
    )
    for r, n in enumerate(accepted or [1] * R):
        if r not in padding and n:
            state[slots[r, n - 1]] = normal(HV, V, K)
            conv[windows[r], n - 1 : n - 2 + width] = 0 if zero_keys else normal(width - 1, D)
    raw = gates in ("strong", "softplus")
    a.update(
        qkv=qkv.to(dtype),
        beta=normal(R, T, HV).to(dtype),
        output_gate=normal(R, T, HV, V).to(dtype),
        conv_weight=normal(D, width),
        norm_weight=normal(V),
        conv_state=conv.to(dtype),
        state=state,
        conv_slots=windows,
        state_slots=slots,
        num_accepted=accepted and torch.tensor(accepted, dtype=torch.int32),
        gate=a["gate"].to(dtype) if raw else a["gate"],
    )
    if core:
        q, k, v = a["qkv"].split((H * K, H * K, HV * V), -1)
        a.update(q=q.unflatten(-1, (H, K)), k=k.unflatten(-1, (H, K)), v=v.unflatten(-1, (HV, V)), g=a["gate"])
        a = {
            name: a[name]
            for name in ("q", "k", "v", "g", "beta", "state", "state_slots", "num_accepted", "A_log", "dt_bias")
        }
        a.update(l2norm=True, beta_sigmoid=True)
    a = {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in a.items()}
    return Case(name, a | options, BOUNDS[dtype], core)


# the arguments of kda_decode, so that a case is a call of both
def oracle(
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
    q=None,
    k=None,
    v=None,
):
    """The step in float64, a request at a time -> y, and what the slots hold afterwards: {slot: state}, {slot: rows}.

    With q, k and v given, the recurrence alone.
    """
    (R, T), (HV, V, K) = beta.shape[:2], state.shape[1:]
    y, states, windows = torch.zeros(R, T, HV, V, dtype=torch.float64, device=state.device), {}, {}
    for r in range(R):
        n = 1 if num_accepted is None else int(num_accepted[r])
        start = int(state_slots[r, n - 1]) if n else -1
        if start < 0 or (conv_slots is not None and conv_slots[r] < 0):
            continue
        if qkv is None:
            parts = q[r].double(), k[r].double(), v[r].double()
        else:
            old, w = conv_state[int(conv_slots[r])], conv_weight.shape[-1]
            before = old[n - 1 : n + w - 2]
            x, _ = features.short_convolution(qkv[r].double(), conv_weight.double(), before.double())
            windows[int(conv_slots[r])] = torch.cat([before[1:], qkv[r], old[w - 2 + T :]])
            keys = (x.shape[-1] - HV * V) // 2
            parts = (p.unflatten(-1, (-1, d)) for p, d in zip(x.split((keys, keys, HV * V), -1), (K, K, V)))
        qr, kr, vr = parts
        qr, kr = (features.l2_normalise(p).repeat_interleave(HV // p.shape[1], 1) for p in (qr, kr))
        alpha = _decay(gate, r, A_log, dt_bias, lower_bound, HV, K)
        write = torch.sigmoid(beta[r].double()) * (1 + allow_neg_eigval)
        S = state[start].double()
        for t in range(T):
            a = torch.ones_like(kr[t]) if alpha is None else alpha[t]
            S, o = torch.vmap(rules.kda)(S, qr[t] * K**-0.5, kr[t], vr[t], a, write[t])
            if state_slots[r, t] >= 0:
                states[int(state_slots[r, t])] = S
            if qkv is not None:
                o = features.rms_norm(o, eps) * norm_weight.double()
                z = output_gate[r, t].double()
                o = o * torch.sigmoid(z) * (z if activation == "swish" else 1)
            y[r, t] = o
    return y, states, windows


def _decay(gate, r, A_log, dt_bias, lower_bound, HV, K):
    """alpha [T, HV, K] of a request, or None."""
    if gate is None:
        return None
    g = gate[r].double()
    g = g.unsqueeze(-1) if g.ndim == 2 else g
    if A_log is not None:
        bias = dt_bias.double().reshape(HV, -1)
        form = decay.softplus_gate if lower_bound is None else decay.bounded_gate
        g = form(g, A_log.double(), bias, *([] if lower_bound is None else [lower_bound]))
    return g.exp().expand(-1, HV, K)


def cases(device, small):
    """The list. Small: a case for each piece of code."""

    def case(*args, **options):
        return make(*args, device=device, **options)

    half, full = torch.float16, torch.float32
    shape = dict(K=32, V=24) if small else {}
    yield case("one token", **shape)
    drafts = dict(R=6, T=4, accepted=[1, 0, 4, 2, 3, 1], padding=[3], unkept=[(4, 3)])
    yield case("0 to 4 accepted, padding, an unkept state", **drafts, **shape)
    yield case("4 accepted, then one token", T=1, accepted=[4, 0, 2], rows=6, **shape)
    yield case("softplus, K17, fp16", "softplus", T=2, H=2, dtype=half, **shape)
    yield case("HV=3H, drafts", "long", R=2, T=2, H=2, HV=6, K=32, V=16, accepted=[2, 1])
    yield case("gates -60, -1e4, -inf, fp32", "clears", T=2, dtype=full, **shape)
    relatives = dict(scalar=True, activation="swish", allow_neg_eigval=True)
    yield case("a gate a head, swish, beta up to 2", "strong", T=2, **relatives, **shape)
    yield case("DeltaNet", "none", **shape)
    yield case("zero keys", "weak", T=2, zero_keys=True, dtype=full, **shape)
    yield case("K=12 V=5", "weak", K=12, V=5, T=2)
    yield case("core", "long", T=3, H=1, HV=2, core=True, accepted=[1, 3, 0], **shape)
    if small:
        return
    for gates in ("strong", "long", "weak"):
        for K, V in ((128, 128), (64, 64), (64, 128), (128, 64), (96, 40)):
            yield case(f"{gates} K={K} V={V}", gates, R=8, T=2, H=4, K=K, V=V, accepted=[1, 2] * 4)
    for dtype in (half, full):
        yield case(str(dtype).removeprefix("torch."), "long", R=8, H=4, dtype=dtype)
    yield case("8 tokens", "long", R=8, T=8, H=4, accepted=list(range(1, 9)))
    yield case("64 requests", "long", R=64, H=32)
    yield case("64 requests, 4 tokens", "long", R=64, T=4, H=8, accepted=[1, 2, 3, 4] * 16)
    yield case("HV=8H", "long", R=4, T=2, H=4, HV=32)
    yield case("core, 64 requests", "long", R=64, H=32, core=True)


def call(case, **pools):
    """The kernel on these arguments, and other pools."""
    return (decode.decode_core if case.core else decode.kda_decode)(**(case.arguments | pools))


def run(case):
    """One case -> its row."""
    a = case.arguments
    names = [name for name in ("conv_state", "state") if name in a]

    def fresh():
        pools = {name: a[name].clone() for name in names}
        return call(case, **pools), pools

    (y, pools), (again, others) = trial.twice(fresh)
    given = {name: x.cpu() if isinstance(x, torch.Tensor) else x for name, x in a.items()}
    if case.core:
        given = {name: x for name, x in given.items() if name not in ("l2norm", "beta_sigmoid")}
        given["gate"] = given.pop("g")
        given |= dict.fromkeys(("qkv", "output_gate", "conv_weight", "norm_weight", "conv_state", "conv_slots"))
    expected, states, windows = oracle(**given)
    state, written = pools["state"].cpu(), list(states)
    untouched = [n for n in range(len(state)) if n not in states]
    kept = same_bits(state[untouched], given["state"][untouched])
    if not case.core:
        conv = given["conv_state"].clone()
        for slot, rows in windows.items():
            conv[slot] = rows
        kept = kept and same_bits(conv, pools["conv_state"].cpu())
    errors = {
        "y": relative_error(y.cpu(), expected),
        "state": relative_error(state[written], torch.stack(list(states.values()))),
    }
    same = same_bits(y, again) and all(same_bits(pools[name], others[name]) for name in names)
    return trial.judge(case.name, errors, {"y": case.bound, "state": STATE_BOUND}, same, kept=kept)


def graph_time(calls):
    """Milliseconds of one of these calls, captured one behind the other in a graph."""
    calls[0]()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for each in calls:
            each()
    return median_ms(graph.replay) / len(calls)


def timing(N, H, T=1, core=False, D=128):
    """The step of N requests, in a graph, beside a copy of as many bytes; ms a call.

    cold: one of many calls in a graph, each on other slots, 256 MB in all, more than the L2 holds; warm: a graph of one
    call, the launch of the graph included; copy: an elementwise kernel that moves as many bytes of states, in a graph
    as cold.
    floor: states once in and T times out at the rate of a large copy; bytes: with all else that the step moves.
    """
    calls, size = max(1, -(-(1 << 28) // (N * H * D * D * 4))), N * H * D * D * 4
    case = make("", R=N, T=T, H=H, K=D, V=D, core=core, device="cuda", **({"gates": "long"} if core else {}))
    a = dict(case.arguments, state=torch.randn(calls * N * T, H, D, D, dtype=torch.float32, device="cuda"))
    slots = torch.randperm(calls * N * T, dtype=torch.int32, device="cuda").reshape(calls, N, T)
    pools = [dict(state_slots=slots[n].contiguous()) for n in range(calls)]
    if not core:
        a["conv_state"] = torch.randn(calls * N, T + 2, 3 * H * D, dtype=torch.float32, device="cuda").to(
            a["qkv"].dtype
        )
        for n, pool in enumerate(pools):
            pool["conv_slots"] = torch.arange(n * N, n * N + N, device="cuda", dtype=torch.int32)
    step = decode.decode_core if core else decode.kda_decode
    todo = [lambda pool=pool: step(**(a | pool)) for pool in pools]
    moved = (1 + T) * size
    other = sum(
        x.numel() * x.element_size() for name, x in a.items() if isinstance(x, torch.Tensor) and "state" not in name
    )
    other += N * T * H * D * 2 + (0 if core else 2 * (T + 2.5) * N * 3 * H * D * 2)
    row = dict(
        N=N, H=H, T=T, core=core, calls=calls, floor=moved / COPY_RATE * 1e3, bytes=(moved + other) / COPY_RATE * 1e3
    )
    row |= dict(cold=graph_time(todo), warm=graph_time(todo[:1]))
    x, y = torch.randn(2, calls, moved // 8, dtype=torch.float32, device="cuda")
    row["copy"] = graph_time([lambda n=n: torch.neg(x[n], out=y[n]) for n in range(calls)])
    return row


def resources():
    """What each variant takes of the chip -> {name: {registers: ..., ...}}."""
    builds = trial.build_all((decode.SOURCE, kind.defines()) for kind in decode.EXAMPLES.values())
    tables = [cuda_compile.resources(built)["kda_decode"]._asdict() for built in builds]
    return dict(zip(decode.EXAMPLES, tables))


def show(result):
    """The table."""
    trial.show_cases(result.get("cases", []), ("y", "state"), "kept")
    for name, r in result.get("resources", {}).items():
        print(
            f"{name:40}{r['registers']:4} registers, {r['spill_stores'] + r['spill_loads']} spill bytes, "
            f"{r['stack']} stack"
        )
    if result.get("timing"):
        print(f"{'ms':24}{'cold':>9}{'warm':>9}{'copy':>9}{'floor':>9}{'bytes':>9}{'cold/floor':>12}{'cold/copy':>12}")
    for r in result.get("timing", []):
        name = f"N={r['N']} H={r['H']} T={r['T']}{' core' if r['core'] else ''}"
        print(
            f"{name:24}"
            + "".join(f"{r[x]:9.4f}" for x in ("cold", "warm", "copy", "floor", "bytes"))
            + f"{r['cold'] / r['floor']:12.3f}{r['cold'] / r['copy']:12.3f}"
        )


def main():
    """The command."""
    parser = trial.parser(__doc__)
    parser.add_argument("--resources", action="store_true", help="registers and spills alone, compiled without a GPU")
    options = trial.started(parser)
    if options.resources:
        show({"resources": resources()})
        return 0
    small = options.small or options.on_cpu
    result = {"torch": torch.__version__}
    if not options.on_cpu:
        result |= trial.machine() | {"resources": resources()}
    result["cases"] = trial.try_all(cases("cpu" if options.on_cpu else "cuda", small), lambda case: [run(case)])
    if not small:
        shapes = [(N, 32) for N in (1, 4, 16, 64, 256)] + [(64, 8)]
        result["timing"] = []
        for T, core, (N, H) in itertools.product((1, 4), (False, True), shapes):
            result["timing"].append(timing(N, H, T, core))
            torch.cuda.empty_cache()
    return trial.finish(result, all(row["ok"] for row in result["cases"]), "accept_decode.json", show)


if __name__ == "__main__":
    sys.exit(main())

"""Does the CUDA chunk kernel compute the rules, on this GPU, and how fast? `python -m kda_lab.cuda.accept.chunk`

Every case runs on memory poisoned with nan and is compared with a token loop of `kda_lab.rules` in float64 on the same
(rounded) inputs.
--small   cases of a few tokens without timing, for compute-sanitizer
--on-cpu  the small cases through the host compiler, on a machine without a GPU
With OUT set, writes OUT/accept_chunk.json. Exits 0 only if every case holds.
"""

import sys
from typing import NamedTuple

import torch

from kda_lab import rules
from kda_lab.cuda import chunk, operands
from kda_lab.cuda import compile as cuda_compile
from kda_lab.cuda.accept import trial
from kda_lab.cuda.measure import graph_ms, hbm_floor_ms, median_ms, relative_error, stage_ms
from kda_lab.parts.inputs import cleared, jittered, rates

# bf16 rounds o to 2^-9 (1.7e-3 in this norm); tf32 products add about 5e-4; nearly equal keys cancel in the inverse
BOUNDS = {torch.bfloat16: 6e-3, torch.float16: 2e-3, torch.float32: 2e-5}
COLLINEAR = 5e-2


class Case(NamedTuple):
    """A call of `kda_chunk_forward` and the bound on the relative error of (o, final state)."""

    name: str
    arguments: dict
    bound: float


def make(
    name,
    gates,
    T,
    *,
    B=1,
    H=2,
    HV=None,
    K=128,
    V=128,
    dtype=torch.bfloat16,
    cu_seqlens=None,
    state=True,
    seed=0,
    device="cpu",
    collinear=False,
    scalar=False,
    erase=True,
    strided=False,
    bound=None,
    **options,
):
    """Build a case.

    gates: strong (raw, bounded in the kernel), softplus (raw, up to x = 100), long and weak (a rate for each channel),
    clears (weak, and some -60, -1e4 and -inf), none.
    """
    generator = torch.Generator().manual_seed(seed)
    HV = HV or H
    N = B if cu_seqlens is None else len(cu_seqlens) - 1

    normal, uniform = trial.draws(generator)
    q, k, v = normal(B, T, H, K), normal(B, T, H, K), normal(B, T, HV, V)
    if collinear:  # one direction and 5 % jitter
        k = normal(1, 1, H, K) + 0.05 * k
    beta = normal(B, T, HV) if not collinear else torch.full((B, T, HV), 6.0, dtype=torch.float32)
    wide = (HV,) if scalar else (HV, K)
    a = dict(gate="given", l2norm=True, beta_sigmoid=True, erase=erase, output_final_state=True, **options)
    if gates in ("strong", "softplus"):
        g, low = normal(B, T, *wide), -5.0
        if gates == "softplus":
            g, low = g.mul(20).clamp_max(100), None
        a.update(gate="bounded" if low else "softplus", A_log=uniform(HV), dt_bias=uniform(*wide), lower_bound=low)
    elif gates == "none":
        g = None
        a["gate"] = "none"
    else:  # a rate for each channel, log-uniform
        g = jittered(rates(gates, uniform(1, 1, *wide)), normal(B, T, *wide))
        if gates == "clears":
            g = cleared(g, uniform(B, T, *wide))
    q, k, v, beta = (x.to(dtype) for x in (q, k, v, beta))
    g = g.to(dtype) if gates in ("strong", "softplus") else g
    if strided:  # heads before tokens in memory; below, every second channel of a wider array
        q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))
    a.update(
        q=q,
        k=k,
        v=v,
        g=g,
        beta=beta if erase else None,
        initial_state=normal(N, HV, V, K) if state else None,
        cu_seqlens=None if cu_seqlens is None else torch.tensor(cu_seqlens, dtype=torch.int64),
    )
    if not erase:
        a.update(beta_sigmoid=False)
    a = {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in a.items()}
    if strided:  # after .to, which keeps the strides of dense tensors only
        a["g"] = torch.stack((a["g"], a["g"]), -1)[..., 0]
    return Case(
        f"{name} T={T}" if name in ("strong", "long", "weak", "collinear") else name,
        a,
        bound or (COLLINEAR if collinear else BOUNDS[dtype]),
    )


def oracle(
    q,
    k,
    v,
    g,
    beta,
    *,
    gate,
    l2norm,
    beta_sigmoid,
    erase,
    initial_state=None,
    cu_seqlens=None,
    A_log=None,
    dt_bias=None,
    lower_bound=None,
    scale=None,
    output_final_state=True,
    exact=None,
):
    """The token loop in float64 over all heads at once: rules.kda, or gated_delta, delta, linear if the case is theirs.

    output_final_state, exact: of the call; no matter here, where the state comes out always and all is exact.
    """
    (B, T, H, K), (HV, V) = k.shape, v.shape[2:]
    q, k, v = (x.double() for x in (q, k, v))
    if l2norm:
        q, k = (x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6) for x in (q, k))
    q, k = ((x.repeat_interleave(HV // H, 2)) for x in (q * (K**-0.5 if scale is None else scale), k))
    if gate in ("bounded", "softplus"):
        rate = A_log.double().exp().reshape(-1, *[1] * (g.ndim - 3))
        x = g.double() + dt_bias.double()
        g = (
            lower_bound * torch.sigmoid(rate * x)
            if gate == "bounded"
            else -rate * torch.nn.functional.softplus(x, threshold=1e9)
        )
    beta = None if beta is None else torch.sigmoid(beta.double()) if beta_sigmoid else beta.double()
    if not erase:
        rule, inputs = rules.linear, (q, k, v)
    elif gate == "none":
        rule, inputs = rules.delta, (q, k, v, beta)
    else:
        rule, inputs = rules.gated_delta if g.ndim == 3 else rules.kda, (q, k, v, g.double().exp(), beta)
    if cu_seqlens is None:
        return token_loop(rule, initial_state, inputs)
    o, states = torch.zeros(B, T, HV, V, dtype=torch.float64, device=v.device), []
    ends = cu_seqlens.tolist()
    if all(b - a == 1 for a, b in zip(ends, ends[1:])):  # many sequences of one token are a batch
        o, S = token_loop(rule, initial_state, [x.transpose(0, 1) for x in inputs])
        return o.transpose(0, 1), S
    for n, (a, b) in enumerate(zip(ends, ends[1:])):
        o[:, a:b], S = token_loop(
            rule, None if initial_state is None else initial_state[n : n + 1], [x[:, a:b] for x in inputs]
        )
        states.append(S)
    return o, torch.cat(states)


def token_loop(rule, S, inputs):
    """inputs [B, T, heads, ...] -> o [B, T, heads, V], S [B, heads, V, K], all heads of all sequences in one vmap."""
    q, v = inputs[0], inputs[2]
    B, T, heads, K = q.shape
    V = v.shape[-1]
    S = q.new_zeros(B, heads, V, K) if S is None else S.double()
    S, inputs = S.flatten(0, 1), [x.transpose(1, 2).flatten(0, 1).contiguous() for x in inputs]
    o = q.new_zeros(B * heads, T, V)
    for t in range(T):
        S, o[:, t] = torch.vmap(rule)(S, *(x[:, t] for x in inputs))
    return o.unflatten(0, (B, heads)).transpose(1, 2), S.unflatten(0, (B, heads))


def cases(device, small):
    """The list. Small: a case for each piece of code, a few tokens each."""

    def case(*args, **options):
        return make(*args, device=device, **options)

    if small:
        yield case(
            "varlen, empty, K=16 V=40, strided, HV=2H",
            "long",
            100,
            H=1,
            HV=2,
            K=16,
            V=40,
            cu_seqlens=[0, 0, 3, 68, 68, 90],
            strided=True,
        )
        yield case("raw bounded gate, K=32 V=16", "strong", 66, H=1, K=32, V=16)
        yield case("raw softplus gate, fp32", "softplus", 66, H=1, K=16, V=16, dtype=torch.float32)
        yield case("clears", "clears", 80, H=1, K=16, V=16)
        yield case("DeltaNet, fp16, no state", "none", 17, H=1, K=16, V=16, dtype=torch.float16, state=False)
        yield case("GDN, B=2", "weak", 65, B=2, H=1, K=16, V=16, scalar=True)
        yield case("linear attention", "none", 65, H=1, K=16, V=16, erase=False)
        return
    for gates in ("strong", "long", "weak"):
        for T in (1, 15, 16, 17, 63, 64, 65, 1000, 8192):
            yield case(gates, gates, T, seed=T)
    yield case("collinear", "weak", 1000, collinear=True)
    yield case("collinear", "weak", 8192, collinear=True)
    yield case("collinear, fp32", "weak", 1000, collinear=True, dtype=torch.float32, bound=1e-4)
    yield case(
        "varlen with empty sequences, rows left over",
        "long",
        1000,
        cu_seqlens=[0, 0, 1, 64, 64, 129, 500, 500, 963, 963],
    )
    yield case("varlen, strong, no state", "strong", 700, cu_seqlens=[0, 300, 300, 700], state=False)
    for K, V in ((64, 128), (128, 64), (96, 40), (1, 1), (3, 128), (16, 16)):
        yield case(f"K={K} V={V}", "long", 200, K=K, V=V)
    yield case("HV=2H", "strong", 300, H=2, HV=4)
    yield case("B=3, HV=4H, no state", "weak", 130, B=3, H=1, HV=4, state=False)
    yield case("gates -60, -1e4, -inf", "clears", 1000)
    yield case("gates -60, -1e4, -inf, fp32", "clears", 1000, dtype=torch.float32, bound=1e-4)
    yield case("softplus gates, x up to 100", "softplus", 500)
    yield case("N*H = 65,600, varlen", "long", 16400, H=4, K=16, V=16, cu_seqlens=list(range(16401)))
    yield case("N*H = 65,600, batch", "long", 1, B=16400, H=4, K=16, V=16)
    yield case("non-contiguous", "long", 200, strided=True, HV=4)
    yield case("T=0", "long", 0)
    yield case("scale 0.5", "long", 100, scale=0.5)
    yield case("GDN", "long", 500, scalar=True, HV=4)
    yield case("GDN, raw softplus", "softplus", 500, scalar=True)
    yield case("DeltaNet", "none", 500)
    yield case("linear attention", "none", 500, erase=False)
    for dtype in (torch.float32, torch.float16):
        yield case(str(dtype).removeprefix("torch."), "long", 1000, dtype=dtype)
    yield case("float32, tf32 products", "long", 1000, dtype=torch.float32, exact=False, bound=2e-3)
    yield case("bfloat16, exact products", "weak", 1000, exact=True)


def run(case, oracle_on=None):
    """One case -> its row. Twice, for bitwise equality; inputs must come out unchanged. oracle_on: a device, if not
    theirs.
    """
    before = {name: x.clone() for name, x in case.arguments.items() if isinstance(x, torch.Tensor)}
    (o, S), again = trial.twice(lambda: chunk.kda_chunk_forward(**case.arguments))
    same = all(trial.same_bits(x, y) for x, y in zip((o, S), again))
    kept = all(trial.same_bits(x, case.arguments[name]) for name, x in before.items())
    o, S, moved = o.to(oracle_on), S.to(oracle_on), {name: x.to(oracle_on) for name, x in before.items()}
    expected_o, expected_S = oracle(**(case.arguments | moved))
    errors = {"o": relative_error(o, expected_o), "state": relative_error(S, expected_S)}
    return trial.judge(case.name, errors, dict.fromkeys(errors, case.bound), same, **{"inputs kept": kept})


def timing(H, T=8192, D=128, **options):
    """A call, a graph replay, each kernel and the HBM floor, in ms.

    bf16, raw bounded gates, L2 norm and sigmoid in the kernel, state in and out.
    """
    arguments = make("", "strong", T, H=H, K=D, V=D, device="cuda", **options).arguments

    def call():
        return chunk.kda_chunk_forward(**arguments)

    moved = [arguments[name] for name in ("q", "k", "v", "g", "beta", "initial_state")]
    row = {"T": T, "H": H, **options, "floor": hbm_floor_ms([*moved, *call()]), "call": median_ms(call)}
    row["graph"], row["graph ok"] = graph_ms(call)
    kernels = chunk.kernels(chunk.constants_of(operands.chunk_call(arguments)), torch.cuda.current_device())
    row |= stage_ms(call, kernels)
    torch.cuda.empty_cache()
    return row


def show(result):
    """The table."""
    trial.show_cases(result["cases"], ("o", "state"), "inputs kept")
    for name, r in result.get("resources", {}).items():
        print(f"{name:14}{r['registers']} registers, {r['spill_stores'] + r['spill_loads']} spill bytes")
    for r in result.get("timing", []):
        print(
            f"T={r['T']} H={r['H']}{' exact' if r.get('exact') else ''}: floor {r['floor']:.3f} ms,",
            f"call {r['call']:.3f},",
            f"graph {r['graph']:.3f} (same bits: {r['graph ok']}), prepare {r['kda_prepare']:.3f},",
            f"state {r['kda_state']:.3f}, output {r['kda_output']:.3f}",
        )


def main():
    """The command."""
    options = trial.started(trial.parser(__doc__))
    small = options.small or options.on_cpu
    todo = list(cases("cpu" if options.on_cpu else "cuda", small))
    result = {"torch": torch.__version__}
    if not options.on_cpu:
        result |= trial.machine()
        kinds = dict.fromkeys(chunk.constants_of(operands.chunk_call(case.arguments)) for case in todo)
        builds = trial.build_all((chunk.SOURCE, kind.defines()) for kind in kinds)
        print(f"{len(builds)} variants compiled for {result['arch']}", flush=True)
        # those of the first case
        result["resources"] = {name: r._asdict() for name, r in cuda_compile.resources(builds[0]).items()}
    # on the CPU for the small cases: compute-sanitizer then watches our kernels only
    result["cases"] = trial.try_all(todo, lambda case: [run(case, "cpu" if small else None)])
    good = all(row["ok"] for row in result["cases"])
    if not small:
        result["timing"] = [timing(H) for H in (32, 8, 96)] + [timing(32, exact=True)]
        good = good and all(row["graph ok"] for row in result["timing"])
    return trial.finish(result, good, "accept_chunk.json", show)


if __name__ == "__main__":
    sys.exit(main())

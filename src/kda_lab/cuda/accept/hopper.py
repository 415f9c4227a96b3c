"""Does the Hopper kernel compute the rules, on this GPU, and how fast? `python -m kda_lab.cuda.accept.hopper`

Every case runs on memory poisoned with nan, one sequence also in segments, a cut case also on few multiprocessors, and
is compared with the token loop in float64. Times are those of a CUDA graph, beside the time in which memory could move
arguments.
--small       cases of a few tokens without timing, for compute-sanitizer
--every-lane  with it, for racecheck: every lane arrives where one would do: it follows a thread's own arrivals
--on-cpu      the small cases through the host compiler, on a machine without a GPU
--time        timing alone; with --all, one sequence also in segments; --shapes (of `workloads`), --gates: lists
With OUT set, writes OUT/accept_hopper.json. Exits 0 only if every case holds.
"""

import contextlib
import math
import sys

import torch

from kda_lab.cuda import chunk, hopper, workloads
from kda_lab.cuda import compile as cuda_compile
from kda_lab.cuda.accept import chunk as acceptance
from kda_lab.cuda.accept import trial
from kda_lab.cuda.measure import graph_ms, hbm_floor_ms, relative_error
from kda_lab.cuda.operands import chunk_call

# a bf16 output alone costs 1.7e-3, bf16 products of a block about the double; nearly equal keys cancel in the solve
BOUND, COLLINEAR = 6e-3, 4e-2
# few multiprocessors have more heads than clusters, and ranges of equal length then cut heads at other places each
FEW = (4, 6, 8)


@contextlib.contextmanager
def replaced(name, function):
    """A function of `hopper` in place of its own.

    >>> with replaced("multiprocessors", lambda device: 7):
    ...     hopper.multiprocessors(None)
    7
    """
    found = getattr(hopper, name)
    setattr(hopper, name, function)
    try:
        yield
    finally:
        setattr(hopper, name, found)


@contextlib.contextmanager
def multiprocessors(count):
    """Launches as on a GPU with so many multiprocessors; None: with as many as there are.

    >>> with multiprocessors(4):
    ...     hopper.multiprocessors(None)
    4
    """
    found = hopper.multiprocessors
    with replaced("multiprocessors", lambda device: count or found(device)):
        yield


def cases(device, small):
    """A case for every piece of code; the large ones also for the errors of other kernels."""

    def case(*args, **options):
        return acceptance.make(*args, device=device, **options)

    ends = [0, 0, 3, 55, 55, 75]
    yield case("raw bounded, tail", "strong", 70, H=1)
    yield case("cut, varlen, empty, HV=2H, rows left over", "strong", 80, H=1, HV=2, cu_seqlens=ends)
    yield case("varlen, given gates", "long", 80, H=1, cu_seqlens=ends, state=False)
    yield case("cut, five heads", "weak", 50, H=5)
    yield case("cut, one sequence, rows left over", "weak", 150, H=1, HV=2, cu_seqlens=[0, 141])
    yield case("clears: -60, -1e4, -inf", "clears", 100, H=1)
    yield case("softplus, x up to 100", "softplus", 66, H=1)
    yield case("cut, collinear, B=2", "weak", 50, B=2, H=2, collinear=True)
    yield case("K=64 V=64", "strong", 50, H=1, K=64, V=64)
    yield case("cut, K=128 V=64", "long", 50, H=5, V=64)
    yield case("K=64 V=128, scale", "strong", 50, H=1, K=64, scale=0.5)
    if small:
        return
    for gates in ("strong", "long", "weak"):
        for T in (1, 15, 16, 17, 31, 32, 33, 1000):
            yield case(gates, gates, T, seed=T)
        yield case(gates, gates, 2048, H=8)
        yield case(f"cut, {gates}, 96 heads", gates, 600, H=96)
    yield case("collinear", "weak", 2048, H=8, collinear=True)
    yield case("collinear, strong", "strong", 1000, collinear=True)
    yield case("cut, varlen, rows left over", "long", 1000, cu_seqlens=[0, 0, 1, 64, 64, 129, 500, 500, 963, 963])
    yield case("B=3, HV=4H, no state", "weak", 130, B=3, H=1, HV=4, state=False)
    yield case("clears: -60, -1e4, -inf", "clears", 1000)
    yield case("softplus, x up to 100", "softplus", 1000)
    yield case("many sequences, varlen", "long", 600, H=4, cu_seqlens=list(range(601)))
    lengths = torch.randint(0, 300, (60,), generator=torch.Generator().manual_seed(1))
    ends = [0, *lengths.cumsum(0).tolist()]
    for gates in ("strong", "weak"):
        yield case(f"cut, {gates}, 60 sequences", gates, ends[-1] + 5, H=8, cu_seqlens=ends)
    # more of them than bounds in shared memory
    lengths = torch.randint(0, 60, (hopper.BOUNDS + 72,), generator=torch.Generator().manual_seed(2))
    ends = [0, *lengths.cumsum(0).tolist()]
    yield case("cut, 200 sequences", "weak", ends[-1] + 5, H=4, cu_seqlens=ends)
    ends = [0, 7, 4103, *range(4120, 5000, 40)]
    yield case("cut, one long among short sequences", "weak", 5000, H=5, HV=10, cu_seqlens=ends)
    yield case("cut, B=5, 100 heads, V=64", "long", 150, B=5, H=20, V=64)
    yield case("T=0", "long", 0)


@contextlib.contextmanager
def every_lane():
    """Launches whose lanes all arrive at mbarriers.

    >>> from kda_lab.cuda.operands import ChunkCall
    >>> x = torch.empty(1, 4, 2, 128, dtype=torch.bfloat16)
    >>> with every_lane():
    ...     hopper.constants_of(ChunkCall(x, x, x, x, x[..., 0], gate="softplus")).every_lane
    True
    """
    found = hopper.constants_of
    with replaced("constants_of", lambda *args, **options: found(*args, **options)._replace(every_lane=True)):
        yield


def ways(k, v, cu_seqlens=None, segments=3):
    """What can compute a case: the kernel on whole sequences, and one sequence with V >= K also in so many segments.

    >>> x = torch.empty(1, 4, 2, 128)
    >>> ways(x, x), ways(x, x[..., :64]), ways(x, x, torch.tensor([0, 1, 4]))
    ([{'segments': 1}, {'segments': 3}], [{'segments': 1}], [{'segments': 1}])
    """
    sequences = len(v) if cu_seqlens is None else cu_seqlens.numel() - 1
    return [dict(segments=n) for n in ((1, segments) if sequences == 1 and v.shape[-1] >= k.shape[-1] else (1,))]


def on_the_way(arguments, rows):
    """The states before some rows of [B T] by the token loop, each from the start of its sequence -> [n, HV, V, K].

    rows: as checkpoints of `hopper.kda_hopper_forward`.
    """
    a = arguments
    (B, T), bounds = a["v"].shape[:2], a["cu_seqlens"]
    ends = [T * b for b in range(B + 1)] if bounds is None else bounds.tolist()
    found = []
    for row in rows:
        n = max(n for n in range(len(ends) - 1) if ends[n] < row <= ends[n + 1])
        b, start, stop = (n, 0, row - ends[n]) if bounds is None else (0, ends[n], row)
        part = (
            a | {name: a[name][b : b + 1, start:stop] for name in ("q", "k", "v", "g", "beta")} | {"cu_seqlens": None}
        )
        part["initial_state"] = None if a["initial_state"] is None else a["initial_state"][n : n + 1]
        found.append(acceptance.oracle(**part)[1])
    return torch.cat(found)


def checkpoints(device):
    """Cases with rows whose states are wanted: inside, at ends, several in a sequence, none in some."""

    def case(*args, **options):
        return acceptance.make(*args, device=device, **options)

    yield case("checkpoints", "weak", 150, H=3), [16, 48, 144]
    yield case("checkpoints, B=2, at ends", "long", 96, B=2, H=2), [32, 96, 112, 192]
    yield (
        case("checkpoints, varlen", "weak", 200, H=3, cu_seqlens=[0, 0, 70, 70, 103, 180]),
        [16, 64, 86, 103, 151, 167],
    )
    yield case("checkpoints, V=64", "strong", 150, H=3, V=64), [128]


def run_checkpoints(case, rows):
    """One case -> a row for each number of multiprocessors. What is asked for on the way changes neither cuts nor bits
    of them.
    """
    a, at = case.arguments, torch.tensor(rows, dtype=torch.int64, device=case.arguments["v"].device)
    expected = (*acceptance.oracle(**a), on_the_way(a, rows))
    found = []
    for count in (None, *FEW):
        with multiprocessors(count):
            found.append(trial.twice(lambda: hopper.kda_hopper_forward(**a, checkpoints=at)))
    for count, (one, two) in zip((None, *FEW), found):
        same = all(trial.same_bits(x, y) for x, y in zip((*one, *two), (*found[0][0], *found[0][0])))
        errors = {name: relative_error(x, y) for name, x, y in zip(("o", "state", "on the way"), one, expected)}
        yield trial.judge(case.name, errors, dict.fromkeys(errors, BOUND), same) | {
            "segments": 1,
            "count": count,
            "inputs kept": True,
        }


def run(case, oracle_on=None):
    """One case -> a row for each way of computing it. Rows of nobody hold nan.   oracle_on: a device, if not theirs."""
    a = case.arguments
    if a["cu_seqlens"] is not None:
        for name in ("q", "k", "v", "g", "beta"):
            a[name][:, int(a["cu_seqlens"][-1]) :] = math.nan
    moved = {name: x.to(oracle_on) for name, x in a.items() if isinstance(x, torch.Tensor)}
    expected = acceptance.oracle(**(a | moved))
    counts = (None, *FEW) if case.name.startswith("cut") else (None,)
    return [compare(case, way, count, expected) for way in ways(a["k"], a["v"], a["cu_seqlens"]) for count in counts]


def compare(case, way, count, expected):
    """Twice, for bitwise equality; inputs must come out unchanged.   count: of multiprocessors, None for all."""
    a = case.arguments
    before = {name: x.clone() for name, x in a.items() if isinstance(x, torch.Tensor)}
    with multiprocessors(count):
        found, again = trial.twice(lambda: hopper.kda_hopper_forward(**a, **way))
    same = all(trial.same_bits(x, y) for x, y in zip(found, again))
    kept = all(trial.same_bits(x, a[name]) for name, x in before.items())
    errors = {name: relative_error(x.to(y.device), y) for name, x, y in zip(("o", "state"), found, expected)}
    bound = COLLINEAR if case.bound == acceptance.COLLINEAR else BOUND
    return (
        trial.judge(case.name, errors, dict.fromkeys(errors, bound), same, **{"inputs kept": kept})
        | way
        | {"count": count}
    )


def timing(name, gates, way, repeats=20):
    """One row: graph time, HBM floor, and the distance from the readable kernel on the same inputs."""
    a = workloads.inputs(torch.Generator("cuda").manual_seed(0), **workloads.shape(name), gates=gates)

    def call():
        return hopper.kda_hopper_forward(**a, **way)

    o, S = call()
    moved = [a[x] for x in ("q", "k", "v", "g", "beta", "initial_state")]
    row = {"shape": name, "gates": gates, **way, "floor": hbm_floor_ms([*moved, o, S])}
    row["graph"], row["graph ok"] = graph_ms(call, repeats)
    wanted = chunk.kda_chunk_forward(**a)
    row["o"], row["state"] = relative_error(o, wanted[0]), relative_error(S, wanted[1])
    # two kernels, each within its bound of the rule
    row["ok"] = row["graph ok"] and row["o"] < 1e-2 and row["state"] < 1e-2
    torch.cuda.empty_cache()
    return row


def label(row):
    """A way of computing, in the table."""
    segments = row["segments"]
    parts = [] if segments == 1 else [f"segments {segments or 'chosen'}"]
    parts += [f"on {row['count']}"] if row.get("count") else []
    return ", ".join(parts)


def show(result):
    """The table. No time of a wrong result."""
    trial.show_cases(result["cases"], ("o", "state"), "inputs kept", lambda row: f"{row['case'][:26]:28}{label(row)}")
    for name, r in result.get("resources", {}).items():
        print(f"{r['registers']} registers, {r['spill_stores'] + r['spill_loads']} spill bytes  {name}")
    for r in result.get("timing", []):
        ms = (
            f"{r['graph']:8.4f} ms {r['graph'] / r['floor']:6.2f} x floor {r['floor']:.3f}" if r["ok"] else "   wrong  "
        )
        print(f"{r['shape']:14}{r['gates']:8}{label(r):16}{ms}  o {r['o']:.1e} S {r['state']:.1e}")


def resources(todo, timed):
    """Compile what the cases and timings will ask for, side by side -> {what: resources}."""
    calls = [case.arguments for case in todo]
    plain = workloads.inputs(torch.Generator("cuda").manual_seed(0), 16, 1, "strong") if timed else None
    kinds = dict.fromkeys(hopper.constants_of(chunk_call(a)) for a in (*calls, *([plain] if timed else ())))
    readable = [(chunk.SOURCE, chunk.constants_of(chunk_call(plain)).defines())] if timed else []
    builds = trial.build_all([*((hopper.SOURCE, kind.defines()) for kind in kinds), *readable])
    return {str(tuple(kind)): cuda_compile.resources(b)[hopper.NAME]._asdict() for kind, b in zip(kinds, builds)}


def main():
    """The command."""
    parser = trial.parser(__doc__)
    parser.add_argument("--every-lane", action="store_true", help="all lanes arrive, for racecheck")
    parser.add_argument("--time", action="store_true", help="timing alone")
    parser.add_argument(
        "--all", action="store_true", help="timing of one sequence also in segments: as many as chosen, 4, 8, 16"
    )
    parser.add_argument("--shapes", default=",".join(workloads.SHAPES), help="what is timed")
    parser.add_argument("--gates", default="strong,long,weak", help="with which gates")
    options = trial.started(parser)
    with every_lane() if options.every_lane else contextlib.nullcontext():
        return examine(options)


def examine(options):
    """The cases and timings that are asked for -> exit status."""
    small = options.small or options.on_cpu
    todo = [] if options.time else list(cases("cpu" if options.on_cpu else "cuda", small))
    timed = [] if small else options.shapes.split(",")
    result = {"torch": torch.__version__}
    if not options.on_cpu:
        result |= trial.machine() | {"resources": resources(todo, timed)}
        print(f"{len(result['resources'])} variants compiled for {result['arch']}", flush=True)
    # on the CPU for the small cases: compute-sanitizer then watches our kernels only
    result["cases"] = trial.try_all(todo, lambda case: run(case, "cpu" if small else None))
    if not (options.time or small):
        rows = {case.name: (case, at) for case, at in checkpoints("cuda")}
        wanted = [case for case, _ in rows.values()]
        result["cases"] += trial.try_all(wanted, lambda case: list(run_checkpoints(case, rows[case.name][1])))
    result["timing"] = [
        timing(shape, gates, dict(segments=n))
        for shape in timed
        # several sequences are not cut
        for n in ((1, None, 4, 8, 16) if options.all and "lengths" not in workloads.shape(shape) else (1,))
        for gates in options.gates.split(",")
    ]
    good = all(row["ok"] for row in result["cases"] + result["timing"])
    return trial.finish(result, good, "accept_hopper.json", show)


if __name__ == "__main__":
    sys.exit(main())

"""What the parts of a Hopper multiprocessor cost, one table: instructions, shared memory, clusters, schedulers,
products, spills, code.

    PYTHONPATH=src python benchmarks/machine/machine.py [--json FILE] [--only costs clusters ...]
    PYTHONPATH=src python benchmarks/machine/machine.py --compile      what each kernel takes, without a GPU

Cycles are of the multiprocessor's clock. A cost is the difference of a long and a short measurement, so that reading
the clock and the way to the first result cancel. "until used" and its like are steps of a chain, with an integer
addition in each.
"""

import argparse
import ctypes
import json
import math
import sys
from pathlib import Path
from typing import NamedTuple

import torch

from kda_lab.bench.environment import environment
from kda_lab.cuda import compile as cuda_compile
from kda_lab.cuda import hopper

HERE = Path(__file__).resolve().parent
SOURCES = {"machine_memory.cu": ("costs", "loaded", "frames"), "machine_warps.cu": ("cluster", "roles", "products")}
CONSTANTS = {"HOPPER": f'"{cuda_compile.HERE / "hopper.cuh"}"'}
# instructions of a loop, and copies of it for the twelve warps of a thread block
CODE = ((512, 1), (1536, 1), (2560, 1), (512, 3), (1024, 3), (64, 12), (160, 12), (256, 12))
NUMBERS = 4  # that a warp writes
UNWRITTEN = -(1 << 31)
ONE, FOUR, EIGHT, OWN = range(4)  # to how many words of shared memory the lanes of a warp go
UNTIL = {
    4: "until loaded back",
    5: "until loaded back",
    6: "until loaded back",
    9: "until waited for",
    10: "until waited for",
}
# name: what, words, bytes of a word
INSTRUCTIONS = {
    "ld.shared.b32, one word": (0, ONE, 4),
    "ld.shared.b32, 32 words": (0, OWN, 4),
    "ld.shared.v4, one word": (1, ONE, 16),
    "ld.shared.v4, 4 words (lane % 4)": (1, FOUR, 16),
    "ld.shared.v4, 8 words (lane / 4)": (1, EIGHT, 16),
    "ld.shared.v4, 32 words": (1, OWN, 16),
    "ldmatrix.x4": (2, OWN, 16),
    "ldmatrix.x4.trans": (3, OWN, 16),
    "st.shared.b32": (4, OWN, 4),
    "st.shared.v4": (5, OWN, 16),
    "stmatrix.x4": (6, OWN, 16),
    "shfl": (7, OWN, 4),
    "mbarrier.try_wait, phase ended": (8, ONE, 4),
    "mbarrier.arrive by a lane": (9, ONE, 4),
    "mbarrier.arrive by 32 lanes": (10, ONE, 4),
}
MIXED = 11
IDLE, MULTIPLY, MULTIPLY_AND_LOAD, LOAD_TILES, PRODUCTS, WAIT = range(6)
RING, ALL_AT_ONCE, STORES_ASYNC, STORES, PING_COPY, PING_ARRIVE, PING_STORE = range(7)
DATA = 1024  # where data begin in shared memory
CLUSTER_SHARED = DATA + 114688 + 65536


class Row(NamedTuple):
    """One line of the table: values by their labels; nan where a wait took too long."""

    part: str
    name: str
    unit: str
    values: dict


class Args(ctypes.Structure):
    """struct Args of machine.cuh."""

    _fields_ = [
        ("out", ctypes.c_void_p),
        *((name, ctypes.c_int) for name in ("what", "a", "b", "c")),
        ("zero", ctypes.c_uint),
    ]


class Machine:
    """The kernels on the current GPU."""

    def __init__(self):
        self.device = torch.device("cuda", torch.cuda.current_device())
        self.blocks = torch.cuda.get_device_properties(self.device).multi_processor_count // 2 * 2
        self.stream = cuda_compile.current_stream(self.device)
        self.built, self.kernels = {}, {}
        for source, names in SOURCES.items():
            self.built |= dict.fromkeys(names, cuda_compile.build(HERE / source, CONSTANTS))

    def take(self, name, built):
        """Another build of a kernel from here on."""
        self.built[name] = built
        self.kernels = {key: kernel for key, kernel in self.kernels.items() if key[0] != name}

    def run(self, name, threads, shared, blocks=None, what=0, a=0, b=0, c=0):
        """One launch, by default on all multiprocessors -> [blocks, warps, NUMBERS] in float64, nan for a wait that
        gave up.
        """
        if (name, shared) not in self.kernels:
            self.kernels[name, shared] = cuda_compile.Kernel(self.built[name], "machine_" + name, shared)
        blocks = blocks or self.blocks
        out = torch.full((blocks, threads // 32, NUMBERS), UNWRITTEN, dtype=torch.int32, device=self.device)
        self.kernels[name, shared].launch(blocks, threads, Args(out.data_ptr(), what, a, b, c, 0), self.stream)
        torch.cuda.synchronize()
        x = out.cpu().double()
        # differences of clocks are positive; what nobody writes stays out of every result
        return x.masked_fill(x < 0, torch.nan)


def costs(m):
    """Instructions in a row and in a chain, by one warp, one a scheduler, two a scheduler."""
    for name, (what, a, c) in INSTRUCTIONS.items():
        values = {}
        for warps in (1, 4, 8):
            t = m.run("costs", 32 * warps, DATA + 48 * 512 + 4096, blocks=1, what=what, a=a, c=c)[0].amax(0)
            values[f"{warps} warp{'s' * (warps > 1)}"] = float(t[1] - t[0]) / 32 / warps
            if warps == 1:
                values[UNTIL.get(what, "until used")] = float(t[3] - t[2]) / 16
        yield Row("costs", name, "cycles of the SM each", values)
    for words, name in ((ONE, "one word"), (FOUR, "4 words")):
        for first, how in ((0, "used at once"), (2, "a round ahead")):
            values = {}
            for warps in (1, 4, 8):
                t = m.run("costs", 32 * warps, DATA + 48 * 512 + 4096, blocks=1, what=MIXED, a=words, c=16)[0].amax(0)
                values[f"{warps} warp{'s' * (warps > 1)}"] = float(t[first + 1] - t[first]) / 64
            yield Row("costs", f"10 ld.shared.v4 {name} + 30 ffma, {how}", "cycles a round", values)


def loaded(m):
    """A load while eleven warps keep shared memory busy to a quarter, a half, three quarters, as far as they can."""
    for period in (-1, 352, 176, 117, 0):
        t = m.run("loaded", 384, DATA + 16384, blocks=1, b=period)[0]
        # an ldmatrix.x4 reads 512 bytes, 128 a cycle; two in a round
        busy = float((t[1:, 0] * 2 * 4 / t[1:, 1]).sum())
        values = {"until used": float(t[0, 0]) / 16, "busy %": 100 * busy}
        yield Row("loaded", "ld.shared.v4, one word, beside ldmatrix", "cycles", values)


def rate(m, threads, warp, counts, size, **args):
    """Bytes a cycle into a multiprocessor, the median of all; size: bytes that one of `counts` moves."""
    few, many = (m.run("cluster", threads, CLUSTER_SHARED, c=count, **args)[:, warp, 0] for count in counts)
    return float(((counts[1] - counts[0]) * size / (many - few)).median())


def clusters(m):
    """Between the two thread blocks of each cluster, on all multiprocessors, both directions at once."""
    for size, counts, at_once in (
        (14336, (32, 160), (16, 64)),
        (4096, (64, 512), (64, 240)),
        (1024, (128, 1024), (200, 1000)),
    ):
        values = {f"{n} in flight": rate(m, 64, 1, counts, size, what=RING, a=size, b=n) for n in (1, 2, 4)}
        values["all at once"] = rate(m, 64, 1, at_once, size, what=ALL_AT_ONCE, a=size)
        yield Row("clusters", f"cp.async.bulk to the partner, {size} B", "B a cycle, each way", values)
    values = {f"{n} warps": rate(m, 32 * n, 0, (32, 1792 // n), 512 * n, what=STORES_ASYNC) for n in (4, 8)}
    yield Row("clusters", "st.async.v4", "B a cycle, each way", values)
    values = {f"{n} warps": rate(m, 32 * n, 0, (64, 512), 512 * n, what=STORES) for n in (4, 8)}
    yield Row("clusters", "st.shared::cluster.v4", "B a cycle, each way", values)

    def one_way(**args):
        few, many = (m.run("cluster", 32, CLUSTER_SHARED, c=count, **args)[::2, 0, 0] for count in (8, 32))
        return float(((many - few) / 24 / 2).median())

    values = {f"{size} B": one_way(what=PING_COPY, a=size) for size in (1024, 4096, 14336, 28672)}
    yield Row("clusters", "cp.async.bulk until the partner knows", "cycles", values)
    values = {"arrive": one_way(what=PING_ARRIVE), "st.async 16 B": one_way(what=PING_STORE)}
    yield Row("clusters", "mbarrier of the partner until it knows", "cycles", values)


def roles(m):
    """Short work of one warp a scheduler beside two busy ones, by where its number stands among the three."""
    others = {
        "idle": IDLE,
        "ffma": MULTIPLY,
        "ffma and ld.shared.v4": MULTIPLY_AND_LOAD,
        "mma.sync": PRODUCTS,
        "ldmatrix": LOAD_TILES,
        "try_wait": WAIT,
    }
    for name, kind in others.items():
        mean, longest = {}, {}
        for third, where in enumerate(("lowest", "middle", "highest")):
            t = m.run("roles", 384, DATA + 16384, blocks=1, a=third, b=kind)[0, 4 * third : 4 * third + 4]
            mean[where], longest[where + ", longest"] = float(t[:, 0].mean()), float(t[:, 1].max())
        yield Row("roles", f"20 ffma, arrive, wait; two others: {name}", "cycles, by warp id", mean | longest)


def products(m):
    """Products of a warpgroup beside eight other warps, and what those do meanwhile."""
    # what the other eight warps do, and how many of these instructions a round of theirs has (machine.cuh)
    others = {"nothing": (IDLE, 0), "ffma": (MULTIPLY, 64), "mma.sync": (PRODUCTS, 16), "ldmatrix": (LOAD_TILES, 2)}
    for name, (kind, count) in others.items():
        values = {}
        for a, how in ((0, "no wgmma"), (1, "A in registers"), (2, "A in shared")):
            t = m.run("products", 384, DATA + 32768, blocks=1, a=a, b=kind)[0]
            if a:
                values[how] = float((t[:4, 0] / t[:4, 2]).mean())
                values[f"{how}, longest"] = float(t[:4, 1].max())
            if count:
                # eight warps on four schedulers
                values[f"others, {how}"] = float(t[4:, 1].mean() / (t[4:, 0].sum() * count / 4))
        yield Row("products", f"8 m64n32k16 beside {name}", "cycles; others: cycles a scheduler each", values)


def frames(m):
    """Words of a stack frame, as a spill loads them, with little and with much of the first cache left."""
    for words in (4, 8, 16):
        for threads in (32, 512):
            for shared in (hopper.SHARED_LIMIT, 0):
                t = m.run("frames", threads, shared, b=words).amax(1).median(0).values
                values = {"stored and loaded": float(t[0]), "loaded": float(t[1]), "longest": float(t[3])}
                values["one after another, each"] = float(t[2]) / words
                name = f"{words} words of local memory, {threads} threads, {shared // 1024} kB shared"
                yield Row("frames", name, "cycles", values)


def loops(size, copies):
    """The kernel of `code`, built for one line of CODE."""
    return cuda_compile.build(HERE / "machine_code.cu", CONSTANTS | {"SIZE": size, "COPIES": copies})


def code(m):
    """Loops of independent multiplications in twelve warps: the mean cycles of a warp for one, where three are full
    speed.
    """
    for size, copies in CODE:
        m.take("code", loops(size, copies))
        rounds, values = 40000 // size, {}
        for blocks in (1, 32, m.blocks):
            for _ in range(2):
                t = m.run("code", 384, 0, blocks=blocks, a=rounds)[..., 0]
            values[f"{blocks} SM{'s' * (blocks > 1)}"] = float(t.mean()) / (rounds * size)
        name = f"{copies} loop{'s' * (copies > 1)} of {size / 64:g} kB, {copies * size / 64:g} kB together"
        yield Row("code", name, "cycles a multiplication and warp", values)


PARTS = {f.__name__: f for f in (costs, loaded, clusters, roles, products, frames, code)}


def main():
    """The table, or with --compile what each kernel takes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the rows to this file, too")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="these parts")
    parser.add_argument("--compile", action="store_true", help="compile only, print what each kernel takes")
    options = parser.parse_args()
    if options.compile:
        built = [cuda_compile.build(HERE / source, CONSTANTS) for source in SOURCES]
        built.append(loops(*CODE[-1]))
        for name, r in sorted(item for b in built for item in cuda_compile.resources(b).items()):
            print(f"{name:20}{r.registers:5} registers{r.stack:5} B stack{r.spill_stores + r.spill_loads:5} B spills")
        return 0
    if not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9:
        print(
            "found no Hopper GPU, and these kernels use its own instructions; run this where there is one",
            file=sys.stderr,
        )
        return 2
    machine, rows = Machine(), []
    print(f"{torch.cuda.get_device_name()}, {machine.blocks} multiprocessors")
    for part in options.only:
        for row in PARTS[part](machine):
            rows.append(row)
            print(
                f"{row.name:58} " + "  ".join(f"{k} {v:.4g}" for k, v in row.values.items()) + f"  [{row.unit}]",
                flush=True,
            )
    if options.json:
        text = json.dumps({"environment": environment(None), "rows": [row._asdict() for row in rows]}, indent=1)
        # nan is no JSON
        options.json.write_text(text.replace("NaN", "null") + "\n")
    bad = [row.name for row in rows if any(map(math.isnan, row.values.values()))]
    if bad:
        print(
            f"{len(bad)} rows have a number that is missing, because a wait took too long: {', '.join(bad)}",
            file=sys.stderr,
        )
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())

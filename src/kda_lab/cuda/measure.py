"""How long a call takes on a GPU, each of its kernels alone, and how long its bytes alone would take.

Times are medians of CUDA event timings in milliseconds. Nothing here knows a device: a rate of memory is measured, too.
"""

import math
import statistics

import torch

WARM_UP = 3  # calls before the first that is timed
COPY_RATE = 4.26e12  # bytes a second, read and written: `copy_bandwidth` of an H200
# what each kernel reads and writes: the arguments, and arrays of the workspace (struct Args)
TRAFFIC = {
    "kda_prepare": (("q", "k", "v", "g", "beta"), ("U", "W", "Q_in", "K_g", "M", "decay")),
    "kda_state": (("U", "W", "K_g", "decay"), ("E", "S")),
    "kda_output": (("Q_in", "M", "S", "E"), ("o",)),
}


def relative_error(x, y):
    """``|x - y| / |y|`` in the Euclidean norm; nan if x has a nan, ``|x|`` if y is zero.

    >>> relative_error(torch.tensor([3.0, 4.1]), torch.tensor([3.0, 4.0]))
    0.0199...
    """
    x, y = x.double(), y.double()
    norm = y.norm().item() if y.numel() else 0.0
    return ((x - y).norm().item() if x.numel() else 0.0) / (norm or 1.0)


def samples_ms(call, repeats=20):
    """The time of each of some calls one after another, work on the host included where the GPU waits for it -> a
    list.
    """
    for _ in range(WARM_UP):
        call()
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
    for start, end in events:
        start.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) for start, end in events]


def median_ms(call, repeats=20):
    """The median time of a call, its work on the host included where the GPU waits for it."""
    return statistics.median(samples_ms(call, repeats))


def graph_samples_ms(call, repeats=20):
    """The time of each replay of a call as a CUDA graph, without the host, and what the last replay left -> (a list,
    results).

    call: returns a sequence of tensors, after a first call that has compiled what it needs. Results are nan before the
    first replay, so that what was not part of the graph stays nan. Raises RuntimeError for a call that cannot be
    captured.
    """
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = call()
    for x in captured:
        x.fill_(math.nan)
    return samples_ms(graph.replay, repeats), captured


def graph_ms(call, repeats=20):
    """The median time of `graph_samples_ms` -> (ms, whether a replay gives the call's bits)."""
    samples, captured = graph_samples_ms(call, repeats)
    return statistics.median(samples), all(torch.equal(x, y) for x, y in zip(captured, call()))


class _Nothing:
    def launch(self, *_):
        pass


def stage_ms(call, kernels, repeats=20):
    """The median time of each kernel of a call: the others' launches do nothing meanwhile -> {name: ms}.

    kernels: what `kda_lab.cuda.chunk.kernels` returns for the call's variant. The call's results are garbage meanwhile.
    """
    kept, times = dict(kernels), {}
    try:
        for name in kept:
            kernels.update({other: _Nothing() for other in kept if other != name})
            times[name] = median_ms(call, repeats)
            kernels.update(kept)
    finally:
        kernels.update(kept)
    return times


def copy_bandwidth(gib=4):
    """Bytes a second, read and written, of a large copy on the current GPU: what memory can do at best."""
    x = torch.empty(gib << 28, dtype=torch.float32, device="cuda")
    y = torch.empty_like(x)
    return 2 * x.numel() * x.element_size() / median_ms(lambda: y.copy_(x)) * 1e3


def hbm_floor_ms(tensors, rate=COPY_RATE):
    """The time in which memory moves these tensors once: no kernel that reads or writes all of them is faster.

    >>> round(hbm_floor_ms([torch.empty(1000, 1000), None], rate=4e9), 9)
    1.0
    """
    return sum(x.numel() * x.element_size() for x in tensors if x is not None) / rate * 1e3


def array_bytes(K=128, V=128, C=64, inputs=2):
    """Bytes a token and head of every array that a kernel reads or writes; those of a chunk count for C tokens.

    >>> [array_bytes()[name] for name in ("q", "U", "M", "S")]
    [256, 512, 256, 1024.0]
    """
    arguments = {"q": K, "k": K, "v": V, "g": K, "beta": 1, "o": V}
    work = {"U": V, "E": V, "W": K, "Q_in": K, "K_g": K, "M": C, "decay": K / C, "S": V * K / C}
    return {name: inputs * n for name, n in arguments.items()} | {name: 4 * n for name, n in work.items()}


def stage_bytes(K=128, V=128, C=64, inputs=2):
    """Bytes a token and head that each kernel moves if it reads and writes every array once -> {name: bytes}.

    >>> stage_bytes()
    {'kda_prepare': 3338.0, 'kda_state': 3080.0, 'kda_output': 2560.0}
    """
    size = array_bytes(K, V, C, inputs)
    return {name: float(sum(size[x] for x in reads + writes)) for name, (reads, writes) in TRAFFIC.items()}

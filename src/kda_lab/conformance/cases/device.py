"""What only a GPU shows: captured graphs, streams, and offsets beyond 31 bits."""

import torch

from kda_lab.conformance import clauses
from kda_lab.conformance.case import case
from kda_lab.conformance.judge.examiner import verdict_of


@case(
    "device",
    input="T=70, captured once, replayed after the inputs changed in place",
    clause=clauses.FUNCTION,
    needs="cuda graph",
)
def a_captured_graph_replays_on_new_values(bench):
    """An answer or a preprocessing that is computed on the host, or only in the first call."""
    named, other = bench.make(70), bench.make(70)
    # compiles and loads what the capture needs
    bench.call(named)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            # not bench.call, which may read values
            got = bench.implementation.call(named | {"output_final_state": bench.can.can("final-state")})
    except Exception as error:
        raise verdict_of(error) from error
    for name, x in other.items():
        if isinstance(x, torch.Tensor):
            named[name].copy_(x)
    graph.replay()
    torch.cuda.synchronize()
    bench.right(named, got, "replayed, ")


@case("device", input="a stream of its own, behind a long copy", clause=clauses.FUNCTION, needs="cuda")
def work_stays_on_the_current_stream(bench):
    """A launch on the default stream, which does not wait for the inputs."""
    named = bench.make(70)
    slow = torch.randn(4096, 4096, device="cuda", dtype=torch.float32)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(20):
            slow = slow @ slow * 1e-3
        v = named["v"].clone()
        late = torch.zeros_like(v)
        late.copy_(v)
        got = bench.call(named | {"v": late})
    stream.synchronize()
    bench.right(named, got, "on another stream, ")


@case(
    "device",
    input="v of more than 2^31 elements, read from its last rows",
    clause=clauses.STRIDES,
    needs="cuda strides",
    alone=True,
)
def offsets_beyond_31_bits(bench):
    """An offset in 32 bits: the last rows of a large tensor are read from its beginning."""
    K, V = bench.sizes()
    B, T, H = 2, 20, 2
    named = bench.make(T, K, V, B=B, H=H)
    # the two batch rows lie 2^31 elements apart, in one allocation
    for name in ("q", "k", "v"):
        x = named[name]
        room = torch.empty(2**31 + x[0].numel(), dtype=x.dtype, device=x.device)
        far = room.as_strided(x.shape, (2**31, *x.stride()[1:]))
        far.copy_(x)
        bench.right(named | {name: far}, what=f"{name} spread over 2^31 elements, ")
        del room, far
        torch.cuda.empty_cache()

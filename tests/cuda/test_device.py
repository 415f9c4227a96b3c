"""The acceptance cases on a GPU, one test each, and what only a GPU shows."""

import threading

import pytest
import torch

from kda_lab.cuda import chunk
from kda_lab.cuda.accept import chunk as acceptance

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine")
CASES = list(acceptance.cases("cpu", small=False)) if torch.cuda.is_available() else []


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_kernel_computes_the_rule(case):
    arguments = {name: x.cuda() if isinstance(x, torch.Tensor) else x for name, x in case.arguments.items()}
    row = acceptance.run(case._replace(arguments=arguments))
    assert row["ok"], row


def arguments(**options):
    return acceptance.make("", "strong", 200, device="cuda", **options).arguments


def test_a_captured_graph_repeats_the_call():
    a = arguments()
    expected = chunk.kda_chunk_forward(**a)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = chunk.kda_chunk_forward(**a)
    for x in captured:
        x.fill_(float("nan"))
    graph.replay()
    assert all(torch.equal(x, y) for x, y in zip(captured, expected))


def test_the_current_stream_and_other_threads_are_served():
    a = arguments()
    expected = chunk.kda_chunk_forward(**a)
    answers = []

    def call():
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.default_stream())
        with torch.cuda.stream(stream):
            answers.append(chunk.kda_chunk_forward(**a))
        stream.synchronize()

    torch.cuda.synchronize()
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert all(torch.equal(x, y) for x, y in zip(answers[0], expected))


def test_a_call_with_cu_seqlens_does_not_wait_for_the_gpu():
    a = arguments(cu_seqlens=[0, 50, 50, 190])
    chunk.kda_chunk_forward(**a)
    torch.cuda.set_sync_debug_mode("error")
    try:
        chunk.kda_chunk_forward(**a)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.mem_get_info()[0] < 90e9, reason="needs 90 GB of GPU memory"
)
def test_offsets_beyond_two_to_the_31_elements():
    T, D = 2**17 + 70, 128
    H = 2**31 // (T * D) + 2
    x = torch.randn(1, T, 1, D, device="cuda", dtype=torch.bfloat16)
    wide = torch.zeros(1, T, H, D, device="cuda", dtype=torch.bfloat16)
    wide[:, :, -1:] = x
    assert wide.numel() > 2**31
    beta = torch.full((1, T, H), 0.5, device="cuda")
    options = dict(l2norm=True, gate="none", output_final_state=True)
    o, S = chunk.kda_chunk_forward(wide, wide, wide, None, beta, **options)
    alone = chunk.kda_chunk_forward(x, x, x, None, beta[:, :, :1], **options)
    assert torch.equal(o[:, :, -1:], alone[0]) and torch.equal(S[:, -1:], alone[1])
    assert not o[:, :, :-1].any()

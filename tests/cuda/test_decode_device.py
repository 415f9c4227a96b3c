"""The decode kernel's acceptance cases on a GPU, one test each, and what only a GPU shows."""

import pytest
import torch

from kda_lab.cuda import decode
from kda_lab.cuda.accept import decode as decode_acceptance

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine")
CASES = list(decode_acceptance.cases("cpu", small=False)) if torch.cuda.is_available() else []


def on_gpu(case):
    return case._replace(
        arguments={name: x.cuda() if isinstance(x, torch.Tensor) else x for name, x in case.arguments.items()}
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_kernel_computes_the_step(case):
    row = decode_acceptance.run(on_gpu(case))
    assert row["ok"], row


def test_a_captured_graph_goes_on_from_the_pools_as_they_are():
    a = on_gpu(decode_acceptance.make("", "long", R=4, H=2)).arguments
    pools = {name: a[name].clone() for name in ("state", "conv_state")}
    expected = [decode.kda_decode(**(a | pools)) for _ in range(3)]
    graph = torch.cuda.CUDAGraph()
    again = {name: a[name].clone() for name in pools}
    with torch.cuda.graph(graph):
        y = decode.kda_decode(**(a | again))
    for row in expected:
        y.fill_(float("nan"))
        graph.replay()
        assert torch.equal(y, row)
    assert all(decode_acceptance.same_bits(pools[name], again[name]) for name in pools)


def test_a_call_does_not_wait_for_the_gpu():
    a = on_gpu(decode_acceptance.make("", R=2, T=2, accepted=[1, 2])).arguments
    decode.kda_decode(**a)
    torch.cuda.set_sync_debug_mode("error")
    try:
        decode.kda_decode(**a)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_slots_beyond_two_to_the_31_elements():
    slots = 2**31 // (128 * 128) + 2
    if torch.cuda.mem_get_info()[0] < slots * 128 * 128 * 4 * 2:
        pytest.skip("needs 18 GB of GPU memory")
    a = on_gpu(decode_acceptance.make("", R=1)).arguments
    begin = int(a["state_slots"][0, 0])
    wide = torch.zeros(slots, 1, 128, 128, device="cuda")
    wide[-1] = a["state"][begin]
    far = dict(a, state=wide, state_slots=torch.tensor([[slots - 1]], dtype=torch.int32, device="cuda"))
    far["conv_state"] = a["conv_state"].clone()
    assert torch.equal(decode.kda_decode(**far), decode.kda_decode(**a)) and torch.equal(wide[-1], a["state"][begin])
    assert not wide[:-1].any()

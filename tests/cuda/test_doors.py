"""No typo in a ladder of benchmarks times another kernel, and no entry depends on torch's default dtype.

tests/house/test_doors.py calls every entry with a misspelt keyword.
"""

import pytest
import torch

from kda_lab.cuda import chunk, decode, hopper
from kda_lab.cuda.accept import chunk as accept_chunk
from kda_lab.cuda.accept import decode as accept_decode
from kda_lab.cuda.accept.trial import poisoned_memory, same_bits
from tests.compilers import needs_compiler


def test_a_ladder_with_a_typo_times_nothing():
    a = accept_chunk.make("", "strong", 4, H=1).arguments
    with pytest.raises(TypeError, match="'teams'; close: team"):
        hopper.kda_hopper_forward(**a, teams=1)


@pytest.fixture(params=[torch.float16, torch.bfloat16, torch.float64], ids=str)
def default_dtype(request):
    before = torch.get_default_dtype()
    torch.set_default_dtype(request.param)
    yield request.param
    torch.set_default_dtype(before)


def bits(found):
    return [x for x in found if x is not None]


CALLS = {
    "chunk": lambda: chunk.kda_chunk_forward(
        **accept_chunk.make("", "long", 20, H=1, K=16, V=16, cu_seqlens=[0, 3, 3, 18]).arguments
    ),
    "hopper": lambda: hopper.kda_hopper_forward(
        **accept_chunk.make("", "strong", 40, H=1, K=64, V=64, cu_seqlens=[0, 7, 40]).arguments
    ),
    "hopper in segments": lambda: hopper.kda_hopper_forward(
        **accept_chunk.make("", "strong", 50, H=1, K=64, V=64).arguments, segments=3
    ),
    "hopper, no tokens": lambda: hopper.kda_hopper_forward(
        **accept_chunk.make("", "strong", 0, H=1, K=64, V=64, state=False).arguments
    ),
    "decode": lambda: [decode.kda_decode(**accept_decode.make("", K=8, V=4).arguments)],
}


@needs_compiler
@pytest.mark.parametrize("name", CALLS)
def test_the_default_dtype_changes_no_bit(name, default_dtype):
    """Buffers state their types: under a smaller default the kernel would write behind them."""
    torch.set_default_dtype(torch.float32)
    expected = bits(CALLS[name]())
    torch.set_default_dtype(default_dtype)
    with poisoned_memory():
        found = bits(CALLS[name]())
    assert all(same_bits(x, y) for x, y in zip(found, expected)), name

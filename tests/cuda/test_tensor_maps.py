"""A tensor map says where a tensor lies, is encoded once for each way to lie, and what is kept is never another
tensor's.
"""

import ctypes
import importlib.util

import pytest
import torch

from kda_lab.cuda import tensor_maps
from kda_lab.cuda.tensor_maps import Map, encode, misfit, tensor_map

needs_bindings = pytest.mark.skipif(not importlib.util.find_spec("cuda"), reason="no cuda-bindings on this machine")


@pytest.fixture(autouse=True)
def nothing_kept():
    encode.cache_clear()
    yield
    encode.cache_clear()


def seen(x, slices):
    return Map.from_buffer_copy(tensor_map(x, slices))


def test_a_map_reads_the_rows_of_a_fused_projection():
    """Every 16-byte row that a map leads to is the row of the tensor, for a slice of q | k | v of several heads."""
    whole = torch.arange(2 * 5 * 3 * 384, dtype=torch.float32).view(2, 5, 3, 384)
    x = whole[..., 128:256]
    m = seen(x, 4)
    (width, T, parts, H, B), (token, part, head, batch) = m.size, m.stride
    assert (width, T, parts, H, B, m.rows, m.slices, m.bytes) == (32, 5, 4, 3, 2, tensor_maps.TOKENS, 4, 4)
    for b, t, h, p in [(0, 0, 0, 0), (1, 4, 2, 3), (1, 2, 0, 1), (0, 3, 1, 2)]:
        at = m.data + b * batch + t * token + h * head + p * part
        assert (ctypes.c_float * width).from_address(at)[:] == x[b, t, h, p * width : (p + 1) * width].tolist()


def test_a_stride_that_is_never_used_is_replaced():
    # torch lets an extent of one have any stride, also one that the driver refuses
    x = torch.zeros(4096, dtype=torch.bfloat16).as_strided((1, 5, 1, 64), (3, 64, 7, 1))
    assert misfit("x", x) is None
    assert seen(x, 1).stride[:] == [128, 128, 128, 128]


def test_each_thing_that_a_map_says_makes_another_map():
    memory = torch.zeros(1 << 14, dtype=torch.uint8)

    def lying(dtype=torch.float32, at=0, shape=(2, 4, 2, 64), strides=(512, 128, 64, 1)):
        return memory[at:].view(dtype).as_strided(shape, strides)

    ways = [
        (lying(), 1, 16),
        (lying(at=16), 1, 16),
        (lying(dtype=torch.bfloat16), 1, 16),
        (lying(shape=(2, 3, 2, 64)), 1, 16),
        (lying(strides=(512, 64, 256, 1)), 1, 16),
        (lying(), 2, 16),
        (lying(), 1, 8),
    ]
    maps = [tensor_map(*way) for way in ways]
    assert len(set(maps)) == len(ways) == encode.cache_info().misses
    # what is kept is what would be encoded anew, also for another tensor that lies there
    assert maps == [encode.__wrapped__(x.data_ptr(), x.dtype, x.shape, x.stride(), *box, None) for x, *box in ways]
    memory.fill_(255)
    assert all(tensor_map(*way) is kept for way, kept in zip(ways, maps)) and encode.cache_info().misses == len(ways)


def test_what_is_kept_is_bounded():
    for n in range(tensor_maps.KEPT + 3):
        encode(16 * n, torch.float32, (1, 1, 1, 64), (64, 64, 64, 1), 1, 16, None)
    assert encode.cache_info().currsize == tensor_maps.KEPT


@needs_bindings
def test_the_driver_is_asked_once_for_each_gpu_and_told_all(monkeypatch):
    from cuda.bindings import driver

    asked, answer = [], ctypes.create_string_buffer(bytes(range(128)), 128)

    class Encoded:
        def getPtr(self):
            return ctypes.addressof(answer)

    def plain(x):
        return list(map(int, x)) if isinstance(x, list) else x if isinstance(x, int) and type(x) is int else x.name

    def stand_in(*told):
        asked.append([plain(x) for x in told])
        return driver.CUresult.CUDA_SUCCESS, Encoded()

    monkeypatch.setattr(driver, "cuTensorMapEncodeTiled", stand_in)
    way = torch.bfloat16, torch.Size((2, 7, 3, 128)), (7 * 3 * 256, 3 * 256, 256, 1), 2, 16
    for device in (0, 1, 0, 1):
        assert encode(4096, *way, device) == bytes(range(128))
    assert len(asked) == 2
    kind, *numbers, interleave, swizzle, promotion, fill = asked[0]
    assert numbers == [5, 4096, [64, 7, 2, 3, 2], [1536, 128, 512, 7 * 3 * 512], [64, 16, 2, 1, 1], [1] * 5]
    assert (kind, interleave) == ("CU_TENSOR_MAP_DATA_TYPE_BFLOAT16", "CU_TENSOR_MAP_INTERLEAVE_NONE")
    assert swizzle == "CU_TENSOR_MAP_SWIZZLE_128B" and promotion.endswith("L2_128B") and fill.endswith("FILL_NONE")
    encode(4096, torch.float32, *way[1:], 0)
    assert asked[2][0] == "CU_TENSOR_MAP_DATA_TYPE_FLOAT32" and asked[2][3][:3] == [32, 7, 4]


@needs_bindings
def test_a_refusal_of_the_driver_is_not_kept(monkeypatch):
    from cuda.bindings import driver

    monkeypatch.setattr(driver, "cuTensorMapEncodeTiled", lambda *_: (driver.CUresult.CUDA_ERROR_INVALID_VALUE, None))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="CUDA_ERROR_INVALID_VALUE"):
            encode(8, torch.float32, (1, 1, 1, 64), (64, 64, 64, 1), 1, 16, 0)
    assert encode.cache_info().currsize == 0


def test_what_the_copy_engine_cannot_read_is_said():
    x = torch.zeros(2, 4, 3, 136, dtype=torch.bfloat16)
    assert misfit("k", x[..., 8:72]) is None
    assert "stride 2" in misfit("k", x[..., :128:2])
    for bad in (x[..., 4:68], x[..., :64].transpose(0, 3)[:64], x[:1].expand(2, 4, 3, 136)):
        assert misfit("k", bad), bad.stride()
    odd = torch.zeros(2, 4, 3, 67, dtype=torch.bfloat16)[..., :64]
    assert misfit("k", odd).endswith("and those of k do not")

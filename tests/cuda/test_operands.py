"""What every launch of a kernel does to its arguments: nothing where they are as the kernel wants them, dense copies
elsewhere.
"""

import ctypes

import pytest
import torch

from kda_lab.cuda import operands


def test_what_is_plain_already_is_not_copied():
    g, bias, cu = torch.zeros(1, 3, 2, 4, dtype=torch.bfloat16).transpose(1, 2), torch.zeros(2, 4), torch.tensor([0, 3])
    assert operands.readable(g) is g and operands.readable(None) is None
    assert operands.plain(bias) is bias and operands.plain(None) is None
    assert operands.boundaries(cu) is cu and operands.boundaries(None) is None


@pytest.mark.parametrize(
    "types, odd", [(operands.TYPES, torch.float64), ((torch.float32, torch.bfloat16), torch.float16)]
)
def test_another_type_becomes_dense_fp32_with_the_same_values(types, odd):
    whole = torch.arange(48.0, dtype=odd).view(2, 4, 3, 2)
    for x in (whole.transpose(1, 2), whole[..., :1], whole[..., 0], whole[:, :1].expand(2, 4, 3, 2)):
        found = operands.readable(x, types)
        assert found.dtype == torch.float32 and found.is_contiguous() and torch.equal(found.to(odd), x)
    assert operands.plain(whole.mT).is_contiguous() and operands.plain(whole.mT).dtype == torch.float32


def test_bounds_are_dense_in_int64():
    wide = torch.tensor([[0, 9], [2, 9], [7, 9]])
    for x in (wide[:, 0], wide.int()[:, 0]):
        found = operands.boundaries(x)
        assert found.tolist() == [0, 2, 7] and found.dtype == torch.int64 and found.stride() == (1,)


def at(r, *place):
    """The fp32 number that a kernel reads through Rows at (batch, token, head, channel)."""
    offset = sum(n * s for n, s in zip(place, (r.batch, r.token, r.head, r.channel)))
    return ctypes.c_float.from_address(r.at + 4 * offset).value


def test_rows_lead_to_each_number():
    x = torch.arange(240.0).view(2, 5, 3, 8)[:, 1:, :, 2:6].transpose(1, 2)
    assert at(operands.rows(x), 1, 2, 3, 1) == x[1, 2, 3, 1]
    # one value for all channels
    assert at(operands.rows(x[..., 1]), 1, 2, 3, 7) == x[1, 2, 3, 1]
    assert operands.rows(None).at is None


@pytest.mark.parametrize("shape", [(3, 4), (12,)])
def test_a_bias_is_head_major_and_the_same_for_all_tokens(shape):
    bias = torch.arange(12.0).view(shape)
    assert at(operands.bias_rows(bias, 3, True), 5, 6, 2, 3) == 11
    assert at(operands.bias_rows(torch.arange(3.0), 3, False), 5, 6, 2, 3) == 2
    assert operands.bias_rows(None, 3, True).at is None


def test_pointers_of_a_struct():
    class Two(ctypes.Structure):
        _fields_ = [("here", ctypes.c_void_p), ("nowhere", ctypes.c_void_p)]

    x, two = torch.zeros(1), Two(nowhere=8)
    operands.point(two, here=x, nowhere=None)
    assert (two.here, two.nowhere) == (x.data_ptr(), None)


def test_numbers_that_are_given_stay():
    assert operands.scale_and_bound(0.0, -5.0, 64) == {"scale": 0.0, "lower_bound": -5.0}


def test_mixed_types_and_devices_are_refused():
    x = torch.zeros(1)
    operands.check_types(x, x, x)
    operands.check_device(x, (x, None))
    for wrong in ((x.half(), x, x), (x, x.half(), x), (x.double(),) * 3):
        with pytest.raises(ValueError, match="must share float32, float16 or bfloat16, got .*; cast them first"):
            operands.check_types(*wrong)
    away = torch.zeros(1, device="meta")
    for v, others in ((x, (None, away)), (away, (away,))):
        with pytest.raises(ValueError, match=f"v is on {v.device}; move the others there"):
            operands.check_device(v, others)

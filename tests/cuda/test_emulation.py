"""The kernel's blocks and roundings in torch, against the token loop in float64: what the arithmetic is worth before
any GPU.
"""

import math

import pytest
import torch

from kda_lab import rules
from kda_lab.cuda import emulate


def inputs(gates, T=200, H=1, K=64, V=48, keys="random"):
    """bf16 inputs of [H, T, .] heads as fp32; a rate for each channel where gates are long or weak."""
    generator = torch.Generator().manual_seed(7)

    def normal(*shape):
        return torch.randn(shape, generator=generator)

    q, k, v = normal(H, T, K), normal(H, T, K), normal(H, T, V)
    beta = torch.sigmoid(normal(H, T))
    if keys == "collinear":
        k, beta = normal(H, 1, K) + 0.05 * k, torch.full((H, T), 6.0).sigmoid()
    if gates == "strong":
        g = -5 * torch.sigmoid(normal(H, T, K) + 0.5)
    else:
        g = -(10 ** (-4 + (4 if gates == "long" else 2) * torch.rand(H, 1, K, generator=generator))).expand(H, T, K)
    q, k, v = (x.bfloat16().float() for x in (q / K**0.5, k, v))
    return q, k, v, g.clone(), beta


def token_loop(q, k, v, g, beta, S):
    q, k, v, g, beta, S = (x.double() for x in (q, k, v, g, beta, S))
    q, k = (x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6) for x in (q, k))
    o = []
    for t in range(q.shape[1]):
        S, y = torch.vmap(rules.kda)(S, q[:, t], k[:, t], v[:, t], g[:, t].exp(), beta[:, t])
        o.append(y)
    return torch.stack(o, 1), S


def errors(q, k, v, g, beta, **rounding):
    S = torch.randn(k.shape[0], v.shape[-1], k.shape[-1], generator=torch.Generator().manual_seed(8))
    pairs = zip(emulate.kda_chunk(q, k, v, g, beta, S, l2norm=True, **rounding), token_loop(q, k, v, g, beta, S))
    return [((x - y).norm() / y.norm()).item() for x, y in pairs]


@pytest.mark.parametrize("gates", ["strong", "long", "weak"])
def test_tf32_products_stay_below_the_rounding_of_a_bf16_output(gates):
    assert max(errors(*inputs(gates))) < 1e-3  # bf16 alone: 1.7e-3


def test_nearly_equal_keys_cost_a_digit_and_no_more():
    assert max(errors(*inputs("weak", keys="collinear"))) < 1e-2


def test_split_products_keep_fp32():
    split = emulate.split_tf32
    assert max(errors(*inputs("weak", keys="collinear"), round_to=split)) < 2e-5


@pytest.mark.parametrize("T", [1, 15, 16, 17, 63, 64, 65])
def test_tails_are_padded_with_tokens_that_change_nothing(T):
    assert max(errors(*inputs("long", T=T))) < 1e-3


def test_gates_of_any_size_are_finite_and_right():
    q, k, v, g, beta = inputs("weak", T=200)
    hit = torch.rand(g.shape, generator=torch.Generator().manual_seed(9))
    for share, value in ((0.06, -60.0), (0.04, -1e4), (0.02, -math.inf)):
        g[hit < share] = value
    assert max(errors(q, k, v, g, beta)) < 1e-3
    assert max(errors(q, k, v, torch.full_like(g, -math.inf), beta)) < 1e-3


def test_gates_after_a_clearing_gate_keep_their_digits():
    q, k, v, g, beta = inputs("weak", T=64)
    g[:, ::16] = -1e4
    assert max(errors(q, k, v, g, beta, round_to=emulate.split_tf32)) < 2e-5


def test_an_inverse_merged_in_bf16_would_be_felt():
    def bf16(x):
        return x.bfloat16().float()

    x = inputs("weak", keys="collinear")
    assert max(errors(*x, round_inverse=bf16)) > 2 * max(errors(*x))

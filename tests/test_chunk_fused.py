"""The formulation of the Hopper kernel on torch: against the token loop over several chunks, and its range in fp32."""

import pytest
import torch

from kda_lab import chunk, chunk_fused, rules
from kda_lab.equations import fused_chunk
from kda_lab.proof import registry


def inputs(C=16, K=6, V=3, chunks=3, low=-5.0, seed=0):
    """Raw keys and queries of several chunks, gates between ``low`` and 0, a state that is not zero; float64."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    T = C * chunks
    g = low * torch.rand((T, K), generator=generator, dtype=torch.float64)
    q, k, v, beta = normal(T, K), normal(T, K), normal(T, V), torch.sigmoid(normal(T))
    return normal(V, K), q, k, v, g.exp(), beta, 1 / k.norm(dim=1), 0.5 / q.norm(dim=1)


@pytest.mark.parametrize("equation", fused_chunk.EQUATIONS, ids=lambda e: e.slug)
def test_the_equation_holds_and_its_mutants_are_rejected(equation):
    assert registry.judge(equation).ok


@pytest.mark.parametrize("low", [-5.0, -1e-3])
def test_chunks_of_16_give_the_token_loop(low):
    S, q, k, v, alpha, beta, kf, qf = inputs(low=low)
    wanted_S, wanted = rules.scan(rules.kda, S, q * qf[:, None], k * kf[:, None], v, alpha, beta)
    got = []
    for i in range(0, len(q), 16):
        S, O = chunk_fused.kda(S, *(x[i : i + 16] for x in (q, k, v, alpha, beta, kf, qf)))
        got.append(O)
    # e^40 times e^-40 costs no digits: products of powers, no sums
    assert torch.allclose(torch.cat(got), torch.stack(list(wanted)), rtol=1e-11, atol=1e-12)
    assert torch.allclose(S, wanted_S, rtol=1e-11, atol=1e-12)


def test_the_strongest_bounded_gates_stay_inside_fp32_and_a_reference_at_the_start_does_not():
    alpha = torch.full((16, 1), -5.0).exp()
    one = torch.ones(16, 1)
    m = chunk_fused.middle_units(one, one, alpha)
    assert all(x.isfinite().all() and (x > 0).all() for x in m)
    # 2^58 of 2^127: raw keys of any bf16 model fit
    assert max(m.read.max(), m.write.max()) < 2.0**58
    assert not (one / chunk.decay_from_start(alpha)).isfinite().all() or (one / chunk.decay_from_start(alpha)).max() > 2.0**115

"""The formulation of the Hopper kernel on torch: over many chunks, cut between workers, and its range in fp32."""

import pytest
import torch

from kda_lab import chunk, chunk_fused, rules
from kda_lab.proof.registry import variant

TOKENS = 53  # three chunks of 16 and a short one
CHOICES = [(), (0,), (2,), (1, 2), (0, 1, 2, 3)]
# a decay at the edges costs no digits, and e^40 times e^-40 neither: products of powers, no sums
CLOSE = {"rtol": 1e-11, "atol": 1e-12}


def inputs(K=6, V=3, low=-5.0, seed=0):
    """Raw keys and queries, gates between ``low`` and 0, a state that is not zero; float64."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    g = low * torch.rand((TOKENS, K), generator=generator, dtype=torch.float64)
    q, k, v, beta = normal(TOKENS, K), normal(TOKENS, K), normal(TOKENS, V), torch.sigmoid(normal(TOKENS))
    return [normal(V, K), q, k, v, g.exp(), beta, 1 / k.norm(dim=1), 0.5 / q.norm(dim=1)]


def loop(S, q, k, v, alpha, beta, kf, qf):
    S, rows = rules.scan(rules.kda, S, q * qf[:, None], k * kf[:, None], v, alpha, beta)
    return S, torch.stack(list(rows))


def agrees(got, wanted):
    return torch.allclose(got[0], wanted[0], **CLOSE) and torch.allclose(torch.stack(list(got[1])), wanted[1], **CLOSE)


@pytest.mark.parametrize("edges", CHOICES, ids=str)
@pytest.mark.parametrize("low", [-5.0, -1e-3])
def test_chunks_of_16_give_the_token_loop(low, edges):
    x = inputs(low=low)
    assert agrees(chunk_fused.kda(*x, edges=edges), loop(*x))


def test_gates_that_clear_a_channel_need_the_edges():
    x = inputs()
    for token in (3, 8, 16, 31, 32, 40):
        x[4][token, token % 6] = 0.0
    wanted = loop(*x)
    assert agrees(chunk_fused.kda(*x, edges=(0, 1, 2)), wanted)
    # 0 / 0 in the units of the middle, for the chunk that is left out
    for missed in (0, 1, 2):
        assert not agrees(chunk_fused.kda(*x, edges={0, 1, 2} - {missed}), wanted)


def in_three_parts(form, edges, S, *x):
    """Each worker begins with the plain state that the one before has left, and knows nothing of that one's units."""
    O = []
    for first, last in ((0, 16), (16, 48), (48, TOKENS)):
        own = [n - first // 16 for n in edges if first <= 16 * n < last]
        S, rows = form(S, *(y[first:last] for y in x), edges=own)
        O += rows
    return S, O


@pytest.mark.parametrize("edges", CHOICES, ids=str)
def test_a_head_cut_at_a_chunk_is_the_whole_head(edges):
    x = inputs(low=-0.1)
    assert agrees(in_three_parts(chunk_fused.kda, edges, *x), loop(*x))


def test_a_state_handed_over_in_the_units_of_a_chunk_is_seen():
    x = inputs(low=-0.1)
    raw = variant(chunk_fused.kda, ("return S * before, rows", "return S, rows"))
    assert not agrees(in_three_parts(raw, (), *x), loop(*x))


def test_the_fold_is_the_exit_of_one_chunk_times_the_entry_of_the_next():
    _, q, k, _, alpha, *_ = inputs()
    first, second = (chunk_fused.middle_units(q[p], k[p], alpha[p]) for p in (slice(0, 16), slice(16, 32)))
    fold, keep = chunk_fused.folded_decays(second, first.exit)
    # tokens 8..23, counted from 0: from the middle of one to the middle of the other
    assert torch.allclose(fold, alpha[8:24].prod(0), rtol=1e-13, atol=0) and torch.equal(fold, keep)


def test_the_strongest_bounded_gates_stay_inside_fp32_and_a_reference_at_the_start_does_not():
    alpha = torch.full((16, 1), -5.0).exp()
    one = torch.ones(16, 1)
    m = chunk_fused.middle_units(one, one, alpha)
    assert all(x.isfinite().all() for x in m) and all((x > 0).all() for x in (m.Q, m.read, m.write, *m[5:]))
    # 2^58 of 2^127: raw keys of any bf16 model fit
    assert max(m.read.max(), m.write.max()) < 2.0**58
    assert (1 / chunk.decay_from_start(alpha)).max() > 2.0**115


def test_no_factor_of_the_edges_is_above_one():
    alpha = torch.rand((16, 5), generator=torch.Generator().manual_seed(0)) * 1e-6
    alpha[4:9] = 0
    one = torch.ones(16, 5)
    m = chunk_fused.edge_units(one, one, alpha)
    assert all(((x >= 0) & (x <= 5)).all() for x in (m.A, m.M))
    assert all(((x >= 0) & (x <= 1)).all() for x in (m.Q, m.read, m.write, *m[5:]))
    assert not all(x.isfinite().all() for x in chunk_fused.middle_units(one, one, alpha))

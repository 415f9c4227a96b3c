"""Exercises of the chapter on reading out."""

import torch

from kda_lab import chunk, costs, inputs, rules


def by_hand():
    """The two outputs o_1 and o_2."""
    # <solution>
    return 3.0, 4.0
    # </solution>


def check_by_hand(by_hand):
    S, K, Q = torch.tensor([[4.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[1.0, 0.0], [2.0, 1.0]])
    V, alpha, beta = torch.tensor([[4.0], [1.0]]), torch.tensor([[0.5, 1.0], [0.5, 1.0]]), torch.tensor([0.5, 1.0])
    want = torch.stack(rules.scan(rules.kda, S, Q, K, V, alpha, beta)[1])[:, 0].tolist()
    assert list(by_hand()) == want, (
        "E first, then Q_in S_0^T + M E; the write of token 1 has decayed once when token 2 reads it"
    )


def outputs(S, Q, K, E, alpha):
    """O [C, V] from the residuals E [C, V], without any state but S [V, K].

    Q, K, alpha: [C, K].
    """
    # <solution>
    Q_in = Q * chunk.decay_from_start(alpha)
    return Q_in @ S.T + chunk.decayed_scores(Q, K, alpha) @ E
    # </solution>


def check_outputs(outputs):
    x = inputs.head(7, K=5, V=3, generator=torch.Generator().manual_seed(5))
    t = chunk.kda(x.S, x.q, x.k, x.v, x.g.exp(), x.beta)
    got = outputs(x.S, x.q, x.k, t.E, x.g.exp())
    assert got.shape == t.O.shape, f"O should be {list(t.O.shape)}, got {list(got.shape)}"
    rows = (got - t.O).abs().amax(-1) > 1e-12
    assert not rows.any(), (
        f"wrong at the tokens {(rows.nonzero()[:, 0] + 1).tolist()}; M keeps its diagonal and the decays of "
        "tokens j+1..i"
    )


def crossover(C, K, V):
    """The shortest causal sequence, a whole number of tokens, for which softmax needs more operations a token than
    chunks of C.
    """
    # <solution>
    per_token = 6 * C * K + 4 * C * V + 6 * K * V + (C * C - 1) / 3
    return int(per_token // (K + V))
    # </solution>


def check_crossover(crossover):
    for C, K, V in ((64, 128, 128), (16, 128, 128), (64, 64, 128)):
        n, chunked = crossover(C, K, V), costs.chunk_flops(C, K, V) / C
        at, before = (costs.causal_softmax_flops(m, K, V) for m in (n, n - 1))
        assert before <= chunked < at, (
            f"C = {C}, K = {K}, V = {V}: at {n} tokens softmax costs {at:,.0f} a token, at one less {before:,.0f}, "
            f"the chunk form {chunked:,.0f}"
        )


def blind(alpha, beta):
    """Gates alpha [C, K] and beta [C] like those given, but such that M times beta passes unseen."""
    # <solution>
    return alpha, beta * 0 + 1
    # </solution>


def check_blind(blind):
    x = inputs.head(6, K=4, V=3, generator=torch.Generator().manual_seed(6))
    alpha, beta = blind(x.g.exp(), x.beta)
    assert alpha.shape == x.g.shape and beta.shape == x.beta.shape and (beta > 0).all(), (
        "keep the shapes, and gates above zero"
    )
    t = chunk.kda(x.S, x.q, x.k, x.v, alpha, beta)
    wrong = t.Q_in @ x.S.T + (t.M * beta[:, None]) @ t.E
    assert torch.allclose(wrong, t.O), "the mistake still shows; when does multiplying by beta change nothing?"
    other = t.Q_in @ x.S.T + chunk.tril(t.M, -1) @ t.E
    assert not torch.allclose(other, t.O), "too easy: this input hides a missing diagonal as well"

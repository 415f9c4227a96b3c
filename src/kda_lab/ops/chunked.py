"""The chunk form for whole batches, in three stages: what chunks compute alone, the state from chunk to chunk, the
outputs.

The rules are one: linear attention and DeltaNet have g = 0, scalar gates have one channel, beta erases and writes, and
without gates nothing is erased (U = V, W = 0). The terms have the names of ``kda_lab.algebra.chunk``; decays are
exponentials of sums of g <= 0.
"""

from typing import NamedTuple

import torch

from kda_lab.algebra import triangular
from kda_lab.parts import decay


class Local(NamedTuple):
    """What a chunk is before it meets a state; X chunks.

    M: [X, HV, C, C]   Q_in, K_g, W: [X, HV, C, K]   U: [X, HV, C, V]   D: [X, HV, K or 1]; W is None where nothing is
    erased.

    >>> Local._fields
    ('M', 'Q_in', 'K_g', 'D', 'U', 'W')
    """

    M: torch.Tensor
    Q_in: torch.Tensor
    K_g: torch.Tensor
    D: torch.Tensor
    U: torch.Tensor
    W: torch.Tensor | None


def run(problem, C):
    """Outputs [B, T, HV, V] and final states [N, HV, V, K] of a problem, C tokens at a time.   Implements
    chunk-by-chunk.

    Third comes what a backward pass needs beside the inputs: the state before each of the X chunks, [X, HV, V, K].

    >>> from kda_lab.ops.prepare import Problem
    >>> one = torch.ones(1, 3, 1, 1)
    >>> run(Problem(one, one, one, 0 * one, None, None, torch.zeros(1, 1, 1, 1), None), 2)[0].flatten().tolist()
    [1.0, 2.0, 3.0]
    """
    p = problem
    plan = layout_of(p, C)
    if plan is None:
        # copies: the caller may write into the state that it gets
        return torch.zeros_like(p.v), p.S.clone(), p.S[:0].clone()
    order, active, rows = plan
    local = local_terms(*cut_problem(p, rows))
    S_in, E, S = pass_states(local, p.S[order], active)
    O = read_out(local, S_in, E)  # [X, HV, C, V]
    return back_to_tokens(O, rows, p.v.shape[:2]), S[order.argsort()], S_in


def layout_of(problem, C):
    """``layout`` of a problem's sequences in chunks of at most C tokens, or None when all of them are empty.

    >>> from kda_lab.ops.prepare import Problem
    >>> one = torch.ones(1, 3, 1, 1)
    >>> layout_of(Problem(one, one, one, one, None, None, one, None), 2)[2]
    tensor([[0, 1],
            [2, 3]])
    """
    B, T = problem.v.shape[:2]
    cu = [T * b for b in range(B + 1)] if problem.cu is None else problem.cu
    longest = max((b - a for a, b in zip(cu, cu[1:])), default=0)
    return layout(cu, min(C, longest), B * T, problem.v.device) if longest else None


def cut_problem(problem, rows):
    """The chunks of q, k, v, g, erase and write, each [X, HV, C, ...]; g as the arithmetic takes it.

    >>> from kda_lab.ops.prepare import Problem
    >>> one = torch.ones(1, 2, 1, 1)
    >>> cut_problem(Problem(one, one, one, -torch.inf * one, None, None, one, None), torch.tensor([[0,
    ...     1]]))[3].flatten().tolist()
    [-104.0, -104.0]
    """
    p = problem
    # exact: the exponential of a sum that contains a gate at the floor is 0 in this dtype, as it is at -inf; and inf -
    # inf cannot occur
    g = p.g.clamp(min=decay.clear_floor(p.g.dtype))
    return (*(None if x is None else cut_into_chunks(x, rows) for x in (p.q, p.k, p.v, g, p.erase, p.write)),)


def layout(cu, C, tokens, device):
    """Which tokens each chunk holds. Sequences go longest first, and chunks by their number within the sequence: the
    sequences that still have a chunk number t are then the first active[t], and those chunks lie side by side.

    cu: boundaries of N sequences   tokens: how many rows there are; that number, as an index, means a neutral row.
    Returns order [N], active (a list), rows [X, C].

    >>> layout([0, 1, 4], C=2, tokens=4, device="cpu")
    (tensor([1, 0]), [2, 1], tensor([[1, 2], [0, 4], [3, 4]]))
    """
    cu = torch.tensor(cu)
    order = (cu[1:] - cu[:-1]).argsort(descending=True, stable=True)  # [N]
    start, end = cu[:-1][order], cu[1:][order]
    active, rows = [], []
    while True:
        n = int((start < end).sum())
        if n == 0:
            return order.to(device), active, torch.cat(rows).to(device)
        token = start[:n, None] + torch.arange(C)  # [n, C]
        rows.append(token.where(token < end[:n, None], tokens))
        active.append(n)
        start = start + C


def cut_into_chunks(x, rows):
    """Chunks [X, HV, C, D] of x [B, T, HV, D]. Missing rows are zero: such a token neither decays, nor writes, nor
    reads.

    >>> cut_into_chunks(torch.tensor([5.0, 6.0]).reshape(1, 2, 1, 1), torch.tensor([[0, 1, 2]])).flatten().tolist()
    [5.0, 6.0, 0.0]
    """
    x = x.flatten(0, 1)  # [B T, HV, D]
    x = torch.cat([x, x.new_zeros(1, *x.shape[1:])])
    return x.index_select(0, rows.flatten()).unflatten(0, rows.shape).transpose(1, 2)


def back_to_tokens(x, rows, batch):
    """The rows of all tokens, from chunks: the inverse of ``cut_into_chunks``.   x: [X, HV, C, D]   batch: (B,
    T)   returns [B, T, HV, D].

    >>> x = torch.tensor([5.0, 6.0, 0.0]).reshape(1, 1, 3, 1)
    >>> back_to_tokens(x, torch.tensor([[0, 1, 2]]), (1, 2)).flatten().tolist()
    [5.0, 6.0]
    """
    B, T = batch
    place = torch.empty(B * T, dtype=torch.long, device=rows.device)  # [B T] where a token lies
    there = rows < B * T  # [X, C]
    place[rows[there]] = there.flatten().nonzero()[:, 0]
    x = x.transpose(1, 2).flatten(0, 1)  # [X C, HV, D]
    return x.index_select(0, place).unflatten(0, (B, T))


def scores(X, Y, g):
    """Gamma(X, Y) [..., C, C].   X, Y: [..., C, K]   g: [..., C, K or 1].   Implements decayed-scores,
    scalar-decay-mask.

    >>> x = torch.randn(1, 20, 3, dtype=torch.float64)
    >>> g = -torch.rand(1, 20, 1, dtype=torch.float64)
    >>> torch.allclose(scores(x, x, g), decay.pairwise_scores(x, x, g.expand(1, 20, 3)))
    True
    """
    if g.shape[-1] > 1:
        return decay.blocked_scores(X, Y, g)
    # one decay for all channels of a pair of tokens: it multiplies the finished product
    one = torch.ones_like(g)
    return X @ Y.mT * decay.blocked_scores(one, one, g)


def local_terms(Q, K, V, g, erase, write):
    """Stage 1, every chunk at once.   Q, K: [X, HV, C, K]   V: [X, HV, C, V]   g: [X, HV, C, K or 1]
    erase: [X, HV, C, K or 1], write: [X, HV, C, V or 1], or None.

    Implements chunk-scores, chunk-readout-scores, chunk-inverse, chunk-inputs, chunk-kg, chunk-u, chunk-w.

    >>> x = torch.ones(1, 1, 2, 1)
    >>> local_terms(x, x, x, 0 * x, x, x).U.flatten().tolist()          # the second token finds its value already there
    [1.0, 0.0]
    """
    G = decay.prefix_sums(g)  # [X, HV, C, K or 1]
    K_in, Q_in = K * G.exp(), Q * G.exp()  # [X, HV, C, K]
    K_g = K * decay.later_sums(g).exp()  # [X, HV, C, K]
    D = G[..., -1, :].exp()  # [X, HV, K or 1]
    if erase is None:
        return Local(scores(Q, K, g), Q_in, K_g, D, V, None)
    # both have K on the right, so one call forms its decays once
    M, A = scores(torch.stack([Q, K * erase]), K, g)  # [X, HV, C, C]
    R = triangular.blocked(A.tril(-1))  # [X, HV, C, C] (I + A)^-1
    U = R @ (V * write)  # [X, HV, C, V]
    W = R @ (K_in * erase)  # [X, HV, C, K]
    return Local(M, Q_in, K_g, D, U, W)


def pass_states(local, S, active):
    """Stage 2, chunk after chunk: the residuals, then the state.   S: [N, HV, V, K], longest sequence first.

    Returns the state at each chunk's entry [X, HV, V, K], E [X, HV, C, V] and the final states [N, HV, V, K].
    Implements chunk-residual, chunk-state.

    >>> x = torch.ones(2, 1, 1, 1)
    >>> local = local_terms(x, x, x, 0 * x, None, None)
    >>> pass_states(local, torch.zeros(1, 1, 1, 1), [1, 1])[2].item()
    2.0
    """
    entries, residuals, finished = [], [], []
    first = 0
    for n in active:
        now = slice(first, first + n)
        first += n
        S, done = S[:n], S[n:]
        finished.append(done)
        E = local.U[now]  # [n, HV, C, V]
        if local.W is not None:
            E = E - local.W[now] @ S.mT
        entries.append(S)
        residuals.append(E)
        S = S * local.D[now][..., None, :] + E.mT @ local.K_g[now]
    return torch.cat(entries), torch.cat(residuals), torch.cat([S, *reversed(finished)])


def read_out(local, S, E):
    """Stage 3, every chunk at once: what the queries read from the old state and from their own chunk.   Implements
    chunk-output.

    S: [X, HV, V, K]   E: [X, HV, C, V]   returns [X, HV, C, V].

    >>> x = torch.ones(1, 1, 2, 1)
    >>> read_out(local_terms(x, x, x, 0 * x, None, None), 5 * x[:, :, :1], x).flatten().tolist()
    [6.0, 7.0]
    """
    return local.Q_in @ S.mT + local.M @ E

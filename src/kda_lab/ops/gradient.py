"""The chunk form with its backward pass by hand: ``kda_lab.algebra.chunk_backward`` for whole batches, with decays that
stay finite.

Kept between the passes, beside the inputs: the state before each chunk. All other terms are made again, for every
chunk at once; only the gradient of the state goes from chunk to chunk, from the last to the first. Every exponent is
at most zero, as in the forward pass. What ``prepare`` does (norms, gates, grouped heads) is ordinary autograd outside.
"""

from typing import NamedTuple

import torch

from kda_lab.algebra import triangular
from kda_lab.ops import chunked
from kda_lab.ops.prepare import Problem
from kda_lab.parts import decay


def run(problem, C):
    """Outputs [B, T, HV, V] and final states [N, HV, V, K], differentiable once.   Implements chunk-by-chunk,
    backward-by-chunk.

    >>> one = torch.ones(1, 3, 1, 1)
    >>> v = one.clone().requires_grad_()
    >>> o, S = run(Problem(one, one, v, 0 * one, None, None, torch.zeros(1, 1, 1, 1), None), 2)
    >>> torch.autograd.grad(o.sum(), v)[0].flatten().tolist()  # a value is read by its own and by later tokens
    [3.0, 2.0, 1.0]
    """
    o, final, _ = ChunkForm.apply(*problem, C)
    return o, final


class ChunkForm(torch.autograd.Function):
    """``chunked.run`` and its adjoint.

    >>> ChunkForm.__name__
    'ChunkForm'
    """

    @staticmethod
    def forward(q, k, v, g, erase, write, S, cu, C):
        return chunked.run(Problem(q, k, v, g, erase, write, S, cu), C)

    @staticmethod
    def setup_context(ctx, inputs, output):
        *tensors, ctx.cu, ctx.C = inputs
        ctx.mark_non_differentiable(output[2])
        ctx.save_for_backward(*tensors, output[2])

    @staticmethod
    def backward(ctx, dO, dS, _):
        *tensors, entries = ctx.saved_tensors
        with torch.no_grad(), torch.autocast(dO.device.type, enabled=False):
            out = backward(Problem(*tensors, ctx.cu), ctx.C, entries, dO, dS)
        out = [x if wanted else None for x, wanted in zip(out, ctx.needs_input_grad)]
        if torch.is_grad_enabled():
            # asked to build a graph: a gradient that looked like a constant would be silently wrong
            out = [None if x is None else Once.apply(x, *tensors, dO, dS) for x in out]
        return *out, None, None


class Once(torch.autograd.Function):
    """A gradient that depends on its other arguments in a way that nobody has written down: differentiating it is an
    error.

    >>> x = torch.ones(1, requires_grad=True)
    >>> Once.apply(torch.ones(1), x).backward()
    Traceback (most recent call last):
    RuntimeError: the chunk form has a first derivative only, got a request for the second; use the recurrent_ or naive_
    form
    """

    @staticmethod
    def forward(gradient, *depends_on):
        return gradient.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, *_):
        raise RuntimeError(
            "the chunk form has a first derivative only, got a request for the second; use the recurrent_ or "
            "naive_ form"
        )


class Kept(NamedTuple):
    """The forward terms that the adjoint needs; X chunks.

    M, R: [X, HV, C, C]   expG, late: [X, HV, C, K or 1]   Q_in, K_in, K_g, W: [X, HV, C, K]   E: [X, HV, C, V]
    D: [X, HV, K or 1]. R and W are None where nothing is erased, and E is then V.

    >>> Kept._fields
    ('M', 'R', 'expG', 'late', 'Q_in', 'K_in', 'K_g', 'W', 'E', 'D')
    """

    M: torch.Tensor
    R: torch.Tensor | None
    expG: torch.Tensor
    late: torch.Tensor
    Q_in: torch.Tensor
    K_in: torch.Tensor
    K_g: torch.Tensor
    W: torch.Tensor | None
    E: torch.Tensor
    D: torch.Tensor


def terms(Q, K, V, g, erase, write, S):
    """The terms of every chunk, from the states before them: one solve gives E at once.   Implements single-solve.

    Q, K: [X, HV, C, K]   V: [X, HV, C, V]   g: [X, HV, C, K or 1]
    erase: [X, HV, C, K or 1], write: [X, HV, C, V or 1], or None   S: [X, HV, V, K].

    >>> x = torch.ones(1, 1, 2, 1)
    >>> terms(x, x, x, 0 * x, x, x, 5 * x[:, :, :1]).E.flatten().tolist()
    [-4.0, 0.0]
    """
    G = decay.prefix_sums(g)
    expG, late = G.exp(), decay.later_sums(g).exp()  # [X, HV, C, K or 1]
    Q_in, K_in, K_g, D = Q * expG, K * expG, K * late, expG[..., -1, :]
    if erase is None:
        return Kept(chunked.scores(Q, K, g), None, expG, late, Q_in, K_in, K_g, None, V, D)
    M, A = chunked.scores(torch.stack([Q, K * erase]), K, g)  # [X, HV, C, C]
    R = triangular.blocked(A.tril(-1))
    read = K_in * erase  # [X, HV, C, K]
    return Kept(M, R, expG, late, Q_in, K_in, K_g, R @ read, R @ (V * write - read @ S.mT), D)


def backward(problem, C, S, dO, dS):
    """Gradients of q, k, v, g, erase, write and of the initial states, in the shapes of the problem's tensors.

    S: [X, HV, V, K] before each chunk   dO: [B, T, HV, V]   dS: [N, HV, V, K].   Implements chunk-backward.

    >>> one = torch.ones(1, 2, 1, 1)
    >>> p = Problem(one, one, one, 0 * one, one, one, None, None)
    >>> backward(p, 2, torch.zeros(1, 1, 1, 1), one, torch.zeros(1, 1, 1, 1))[2].flatten().tolist()
    [1.0, 1.0]
    """
    p = problem
    plan = chunked.layout_of(p, C)
    if plan is None:
        return *(None if x is None else torch.zeros_like(x) for x in p[:6]), dS
    order, active, rows = plan
    Q, K, V, g, erase, write = chunked.cut_problem(p, rows)
    dO = chunked.cut_into_chunks(dO, rows)  # [X, HV, C, V]
    t = terms(Q, K, V, g, erase, write, S)
    dE, dS_out, dS_in = pass_back(t, dO, dS[order], active)
    dQ, dK, dV, dg, derase, dwrite = of_inputs(t, Q, K, V, g, erase, write, S, dO, dE, dS_out)
    back = lambda x: None if x is None else chunked.back_to_tokens(x, rows, p.v.shape[:2])
    # a gate at the floor is a constant
    dg = back(dg).masked_fill(p.g < decay.clear_floor(p.g.dtype), 0)
    return back(dQ), back(dK), back(dV), dg, back(derase), back(dwrite), dS_in[order.argsort()]


def pass_back(t, dO, dS, active):
    """From the last chunks to the first: the adjoint of the residuals, then of the state.   dS: [N, HV, V, K], longest
    sequence first.

    Returns dE [X, HV, C, V], the gradient behind each chunk [X, HV, V, K] and that of the first states [N, HV, V, K].
    Implements backward-residuals, backward-state.

    >>> x = torch.ones(2, 1, 1, 1)
    >>> t = terms(x, x, x, 0 * x, None, None, 0 * x)
    >>> pass_back(t, x, torch.zeros(1, 1, 1, 1), [1, 1])[2].item()         # two queries read the first state
    2.0
    """
    direct, read = t.M.mT @ dO, dO.mT @ t.Q_in  # [X, HV, C, V], [X, HV, V, K]
    behind, residuals = [], []
    flow, first = dS[:0], len(dO)
    for n in reversed(active):
        now = slice(first - n, first)
        first -= n
        # sequences that end with this chunk join
        flow = torch.cat([flow, dS[len(flow) : n]])
        dE = direct[now] + t.K_g[now] @ flow.mT  # [n, HV, C, V]
        behind.append(flow)
        residuals.append(dE)
        flow = flow * t.D[now][..., None, :] + read[now]
        if t.W is not None:
            flow = flow - dE.mT @ t.W[now]
    return torch.cat(residuals[::-1]), torch.cat(behind[::-1]), torch.cat([flow, dS[len(flow) :]])


def of_inputs(t, Q, K, V, g, erase, write, S, dO, dE, dS):
    """Gradients of the chunks' inputs, every chunk at once: dQ, dK, dV, dg, derase, dwrite in their shapes.

    dE: [X, HV, C, V]   dS: [X, HV, V, K] behind each chunk.   Implements backward-solve, backward-scores,
    backward-factors, backward-values, backward-beta, backward-queries, backward-keys, backward-prefix.

    >>> x = torch.ones(1, 1, 2, 1)
    >>> t = terms(x, x, x, 0 * x, None, None, 0 * x[:, :, :1])
    >>> of_inputs(t, x, x, x, 0 * x, None, None, 0 * x[:, :, :1], x, t.M.mT @ x, 0 * x[:, :, :1])[0].flatten().tolist()
    [1.0, 2.0]
    """
    dM = (dO @ t.E.mT).tril()  # [X, HV, C, C]
    if erase is None:
        dV, derase, dwrite, K_row = dE, None, None, 0
        dQ, K_col = scores_backward(dM, Q, K, g)
    else:
        Z = t.R.mT @ dE  # [X, HV, C, V]
        dA = -(Z @ t.E.mT).tril(-1)
        dV = Z * write
        # A is scores(K erase, K): both share the decays, and no gate's gradient needs a division
        (dQ, gated), K_col = scores_backward(torch.stack([dM, dA]), torch.stack([Q, K * erase]), K, g)
        K_col = K_col.sum(0)
        gated = gated - (Z @ S) * t.expG  # of K erase
        K_row = gated * erase
        # a gate of one number gets the sum over its channels
        derase, dwrite = (gated * K).sum_to_size(erase.shape), (Z * V).sum_to_size(write.shape)
    dQ = dQ + (dO @ S) * t.expG
    K_col = K_col + (t.E @ dS) * t.late
    dG = Q * dQ + K * (K_row - K_col)  # [X, HV, C, K]
    dG[..., -1, :] += ((S * t.D[..., None, :] + t.E.mT @ t.K_g) * dS).sum(-2)
    if g.shape[-1] == 1:
        dG = dG.sum(-1, keepdim=True)
    return dQ, K_row + K_col, dV, dG.flip(-2).cumsum(-2).flip(-2), derase, dwrite


def scores_backward(P, X, Y, g, block=decay.BLOCK):
    """The adjoint of ``chunked.scores`` in X and Y: dX_i = sum_{j<=i} P_ij y_j e^(G_i - G_j), dY_j = sum_{i>=j} P_ij
    x_i e^(G_i - G_j).

    The same blocks and reference tokens as forward, so that every exponent is at most zero; pairs of tokens on the
    diagonal.
    P: [..., C, C], zero above the diagonal   X, Y: [..., C, K]   g: [..., C, K or 1]   returns dX, dY [..., C, K].
    Implements backward-score-rows, backward-score-columns.

    >>> x = torch.ones(3, 1)
    >>> dX, dY = scores_backward(torch.ones(3, 3).tril(), x, x, torch.tensor([[2.0], [3.0], [5.0]]).reciprocal().log())
    >>> (15 * dX).flatten().round().tolist(), (15 * dY).flatten().round().tolist()
    ([15.0, 20.0, 19.0], [21.0, 18.0, 15.0])
    """
    C = X.shape[-2]
    if g.shape[-1] == 1:
        one = torch.ones_like(g)
        P = P * decay.blocked_scores(one, one, g)
        return P @ Y, P.mT @ X
    starts = range(0, C, block)
    cut = lambda Z: [Z[..., n : n + block, :] for n in starts]
    Xb, Yb, gb = cut(X), cut(Y), cut(g)
    local = [decay.prefix_sums(x) for x in gb]
    later = [decay.later_sums(x) for x in gb]
    dX, dY = [], []
    for a, m in enumerate(starts):
        Pa = P[..., m : m + block, :]
        left = (local[a] - local[a][..., :1, :]).exp()  # tokens n+1..i, n the first of the block
        X_left = Xb[a] * left
        between = gb[a][..., :1, :]  # from the end of block b to token n
        far = torch.zeros_like(X_left)
        for b in range(a - 1, -1, -1):
            right = (later[b] + between).exp()  # tokens j+1..n
            Pab = Pa[..., starts[b] : starts[b] + block]
            far = far + Pab @ (Yb[b] * right)
            dY[b] = dY[b] + (Pab.mT @ X_left) * right
            between = between + local[b][..., -1:, :]
        near, own = pairs_backward(Pa[..., m : m + block], Xb[a], Yb[a], gb[a])
        dX.append(near + far * left)
        dY.append(own)
    return torch.cat(dX, -2), torch.cat(dY, -2)


def pairs_backward(P, X, Y, g):
    """``scores_backward`` by one decay for each pair of tokens.   P: [..., C, C]   X, Y, g: [..., C, K].

    >>> x = torch.ones(2, 1)
    >>> pairs_backward(torch.ones(2, 2).tril(), x, x, torch.full((2, 1), -torch.inf))[0].flatten().tolist()
    [1.0, 1.0]
    """
    C = g.shape[-2]
    lower = torch.ones(C, C, dtype=torch.bool, device=g.device).tril()[..., None]
    after = torch.ones(C, C, dtype=torch.bool, device=g.device).tril(-1)[..., None]
    sums = g[..., :, None, :].masked_fill(~after, 0).cumsum(-3)  # [..., C, C, K]
    decays = sums.masked_fill(~lower, -torch.inf).exp()
    weights = P[..., None] * decays  # [..., C, C, K]
    return (weights * Y[..., None, :, :]).sum(-2), (weights * X[..., :, None, :]).sum(-3)

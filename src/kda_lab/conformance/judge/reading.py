"""A call as the contract reads it: one problem in float64, its token loop by ``kda_lab.rules``, and its chunks.

Nothing here comes from ``kda_lab.ops``: that is one of the implementations under test, and a fault that judge and
judged share is seen by nobody. Sequences of one length are computed together.
"""

from collections import defaultdict
from typing import NamedTuple

import torch

from kda_lab import rules
from kda_lab.parts import decay, features

# the steps of the specification, and which tensors a token brings; how they are read is written here alone
RULES = rules.RULES


class Problem(NamedTuple):
    """R rows of tokens of N sequences; all float64.

    q (scaled), k: [R, HV, K]   v: [R, HV, V]   g: [R, HV, K], or [R, HV, 1] for one decay a head (0: none)
    gates: the rule's, each [R, HV, channels], or [R, HV, 1] for one number a head
    S: [N, HV, V, K]   bounds: N pairs (first row, row after the last).

    >>> Problem._fields
    ('q', 'k', 'v', 'g', 'gates', 'S', 'bounds')
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    g: torch.Tensor
    gates: list
    S: torch.Tensor
    bounds: list


def read(rule, named):
    """The problem of a call: gates, norms and sigmoids applied, q scaled, a key for each value head.

    rule: a name in RULES   named: keywords of ``kda_lab.ops``. Rows after the last boundary of cu_seqlens are not read.

    >>> x = torch.ones(1, 3, 2, 4)
    >>> p = read("delta_rule", dict(q=x, k=x, v=x, beta=x[..., 0]))
    >>> p.q[0, 0].tolist(), p.bounds
    ([0.5, 0.5, 0.5, 0.5], [(0, 3)])
    """
    B, T, H, K = named["q"].shape
    cu = named.get("cu_seqlens")
    edges = [T * b for b in range(B + 1)] if cu is None else cu.tolist()
    # cut before any arithmetic: a nan in a row of nobody must not reach the gradient of A_log
    q, k, v, *gates = (named[name].flatten(0, 1)[: edges[-1]].double() for name in ("q", "k", "v", *RULES[rule].gates))
    if named.get("use_qk_l2norm_in_kernel"):
        q, k = features.l2_normalise(q), features.l2_normalise(k)
    scale = named.get("scale")
    q = q * (K**-0.5 if scale is None else scale)
    # value head hv reads the key head hv // group
    group = v.shape[1] // H
    q, k = q.repeat_interleave(group, 1), k.repeat_interleave(group, 1)
    if named.get("use_beta_sigmoid_in_kernel"):
        gates = [x.sigmoid() for x in gates]
    gates = [x[..., None] if x.ndim == 2 else x for x in gates]
    S = named.get("initial_state")
    S = v.new_zeros(len(edges) - 1, *v.shape[1:], K) if S is None else S.double()
    return Problem(q, k, v, log_decays(named, v), gates, S, list(zip(edges, edges[1:])))


def log_decays(named, v):
    """g of the rows of v, [R, HV, K] or [R, HV, 1].   v: [R, HV, V].

    >>> log_decays({}, torch.zeros(3, 2, 4)).shape
    torch.Size([3, 2, 1])
    """
    if named.get("g") is None:
        return v.new_zeros(*v.shape[:2], 1)
    g = named["g"].flatten(0, 1)[: len(v)].double()
    g = g if g.ndim == 3 else g[..., None]
    if not named.get("use_gate_in_kernel"):
        return g
    A_log, bias, bound = named["A_log"].double(), named.get("dt_bias"), named.get("lower_bound")
    bias = None if bias is None else bias.double().reshape(len(A_log), -1)  # [HV, K] or [HV, 1]
    return decay.softplus_gate(g, A_log, bias) if bound is None else decay.bounded_gate(g, A_log, bias, bound)


def of_one_length(problem):
    """(sequences, rows) for each length but 0.   sequences: [n]   rows: [n, T], where their tokens lie.

    >>> x = torch.ones(5, 1, 1)
    >>> p = Problem(x, x, x, x, [x], torch.zeros(3, 1, 1, 1), [(0, 2), (2, 2), (2, 4)])
    >>> [(n.tolist(), rows.tolist()) for n, rows in of_one_length(p)]
    [([0, 2], [[0, 1], [2, 3]])]
    """
    lengths = defaultdict(list)
    for n, (start, end) in enumerate(problem.bounds):
        lengths[end - start].append(n)
    device = problem.v.device
    for T, members in lengths.items():
        if T:
            starts = torch.tensor([problem.bounds[n][0] for n in members], device=device)
            yield torch.tensor(members, device=device), starts[:, None] + torch.arange(T, device=device)


def put_together(problem, parts, batch):
    """o [B, T, HV, V] and the final states from (sequences, rows, o, S) of each length; rows of nobody are zero.

    o of a part: [n, HV, T, V]   batch: (B, T) of the call.
    """
    o, S = torch.zeros_like(problem.v), problem.S.clone()
    for members, rows, o_n, S_n in parts:
        o = o.index_copy(0, rows.flatten(), o_n.transpose(1, 2).flatten(0, 1))
        S = S.index_copy(0, members, S_n)
    B, T = batch
    o = torch.cat([o, o.new_zeros(B * T - len(o), *o.shape[1:])])
    return o.reshape(B, T, *o.shape[1:]), S


def token_loop(rule, named):
    """(o, final state) of ``rules.scan``, all heads at once.   Implements kda-recurrence, gdn-recurrence,
    delta-recurrence and so on.

    >>> x = torch.ones(1, 2, 1, 1)
    >>> token_loop("delta_rule", dict(q=x, k=x, v=3 * x, beta=x[..., 0]))[0].flatten().tolist()
    [3.0, 3.0]
    """
    p = read(rule, named)
    alpha = p.g.exp()
    decays = {"channel": [alpha.expand_as(p.k)], "head": [alpha[..., 0]], None: []}[RULES[rule].decay]
    # a gate that the call gives as one number goes to the step as one number
    gates = [x if named[name].ndim == 4 else x[..., 0] for name, x in zip(RULES[rule].gates, p.gates)]

    def head(S, *tokens):
        S, rows = rules.scan(RULES[rule].step, S, *tokens)
        return torch.stack(rows), S  # [T, V], [V, K]

    parts = []
    for members, rows in of_one_length(p):
        tokens = [x[rows].transpose(1, 2).flatten(0, 1) for x in (p.q, p.k, p.v, *decays, *gates)]  # [n HV, T, ...]
        o, S = torch.vmap(head)(p.S[members].flatten(0, 1), *tokens)
        parts.append((members, rows, o.unflatten(0, (len(members), -1)), S.unflatten(0, (len(members), -1))))
    return put_together(p, parts, named["v"].shape[:2])


def cut(x, rows, C):
    """Chunks [n, HV, m, C, D] of x [R, HV, D]. Missing rows are zero: such a token neither decays, nor writes, nor
    reads.

    >>> cut(torch.tensor([5.0, 6.0, 7.0])[:, None, None], torch.tensor([[0, 1, 2]]), 2).flatten().tolist()
    [5.0, 6.0, 7.0, 0.0]
    """
    x = x[rows].transpose(1, 2)  # [n, HV, T, D]
    return torch.nn.functional.pad(x, (0, 0, 0, -x.shape[2] % C)).unflatten(2, (-1, C))


def scores(X, Y, g):
    """X_i . (Y_j decayed over tokens j+1..i), zero above the diagonal.   X, Y: [..., C, K]   g: [..., C, K or 1].

    Implements decayed-scores, scalar-decay-mask.

    >>> one = torch.ones(2, 1)
    >>> scores(one, one, torch.tensor([[-9.0], [-1e4]])).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    if g.shape[-1] == X.shape[-1]:
        return decay.blocked_scores(X, Y, g)
    # one decay for all channels of a pair of tokens: it multiplies the finished product
    one = torch.ones_like(g)
    return X @ Y.mT * decay.blocked_scores(one, one, g)

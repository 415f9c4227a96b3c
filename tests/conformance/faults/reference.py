"""A delta-rule implementation in named stages, from which each fault and each variant overrides one.

It is a chunk form of its own: batched, with every feature of the contract in ``kda_lab.ops``, and differentiated by
torch. Sequences of one length are computed together. n sequences, m chunks of C tokens, blocks of at most 16 tokens
inside a chunk.
"""

from collections import defaultdict
from typing import NamedTuple

import torch

from kda_lab import decay, features
from kda_lab.ops.contract import call_of, check
from kda_lab.rules import RULES


def changed(call, **tensors):
    """The same call with other tensors, also of its gates."""
    gates = {name: tensors.pop(name, x) for name, x in call.gates.items()}
    return call._replace(gates=gates, **tensors)


# apart from ops and from conformance.judge on purpose: planted faults must not break what judges them
class Problem(NamedTuple):
    """q (scaled), k, g [B, T, HV, K]   v [B, T, HV, V]   beta [B, T, HV]   S [N, HV, V, K]   C: tokens a chunk
    bounds: N pairs (start, end) of rows b T + t."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    g: torch.Tensor
    beta: torch.Tensor
    S: torch.Tensor
    bounds: list
    C: int


class Local(NamedTuple):
    """What all chunks compute before they meet a state.

    M [n, HV, m, C, C]   Q_in, K_g, W [n, HV, m, C, K]   U [n, HV, m, C, V]   D [n, HV, m, K].
    """

    M: torch.Tensor
    Q_in: torch.Tensor
    K_g: torch.Tensor
    D: torch.Tensor
    U: torch.Tensor
    W: torch.Tensor


class Reference:
    """kda, gated_delta_rule and delta_rule a chunk at a time; ``rule`` says which of them a call of the object is."""

    rule = RULES["kda"]
    chunk = 64
    block = 16

    def __call__(self, *tensors, **options):
        return self.run(call_of(self.rule, dict(zip(self.rule.tensors, tensors)) | options))

    def run(self, call):
        """o and the final state of a call."""
        self.accept(call)
        o, S = self.sequences(self.prepare(call))
        return self.finish(call, o, S)

    # from the arguments to a problem

    def accept(self, call):
        check(self.rule, call)

    def working_dtype(self, call):
        return torch.float64 if call.q.dtype == torch.float64 else torch.float32

    def prepare(self, call):
        dtype = self.working_dtype(call)
        bounds = self.boundaries(call)
        end = call.q.shape[1] if call.cu_seqlens is None else max((b for _, b in bounds), default=0)
        tensors = call.q, call.k, call.v, call.g, *call.gates.values()
        q, k, v, g, *gates = (None if x is None else self.load(x[:, :end], dtype) for x in tensors)
        if call.use_qk_l2norm_in_kernel:
            q, k = self.normalise(q), self.normalise(k)
        q = q * self.scale(call)
        group = call.v.shape[2] // call.q.shape[2]
        q, k = self.spread(q, group), self.spread(k, group)  # [B, T, HV, K]
        g = self.clear(self.log_decay(call, g, k))  # [B, T, HV, K]
        beta = self.write_gate(call, *gates)
        C = self.chunk if call.chunk_size is None else call.chunk_size
        return Problem(q, k, v, g, beta, self.initial(call, len(bounds), dtype), bounds, C)

    def boundaries(self, call):
        """Where each sequence begins and ends among the rows of all batches."""
        B, T = call.q.shape[:2]
        cu = [T * b for b in range(B + 1)] if call.cu_seqlens is None else call.cu_seqlens.tolist()
        return list(zip(cu, cu[1:]))

    def load(self, x, dtype):
        return x.to(dtype)

    def normalise(self, x):
        return features.l2_normalise(x)

    def scale(self, call):
        return call.q.shape[-1] ** -0.5 if call.scale is None else call.scale

    def spread(self, x, group):
        """A key head for each value head.   x: [B, T, H, K]."""
        return x.repeat_interleave(group, 2)

    def log_decay(self, call, g, like):
        """g [B, T, HV, K] in whatever form the call gives it."""
        if g is None:
            return torch.zeros_like(like)
        if self.rule.decay == "head":
            g = g[..., None]
        if call.use_gate_in_kernel:
            g = self.gate(g, *self.gate_parameters(call, g), call.lower_bound)
        return g.expand_as(like)

    def gate_parameters(self, call, g):
        """A_log [HV] and dt_bias [HV, K] or [HV, 1] or None."""
        bias = None if call.dt_bias is None else call.dt_bias.to(g.dtype).reshape(len(call.A_log), -1)
        return call.A_log.to(g.dtype), bias

    def gate(self, x, A_log, dt_bias, lower_bound):
        if lower_bound is None:
            return decay.softplus_gate(x, A_log, dt_bias)
        return decay.bounded_gate(x, A_log, dt_bias, lower_bound)

    def clear(self, g):
        """Gates from which on a decay is 0 in this dtype, also -inf: sums of them stay finite."""
        return g.clamp(min=decay.clear_floor(g.dtype))

    def write_gate(self, call, beta):
        return beta.sigmoid() if call.use_beta_sigmoid_in_kernel else beta

    def initial(self, call, N, dtype):
        """The states before the first token, [N, HV, V, K]; a copy."""
        if call.initial_state is None:
            return torch.zeros(N, *call.v.shape[2:], call.q.shape[-1], dtype=dtype, device=call.q.device)
        return call.initial_state.to(dtype).clone()

    # from a problem to outputs and states

    def sequences(self, p):
        """o [B, T, HV, V] and the final states: sequences of one length are one batch."""
        flat = [x.flatten(0, 1) for x in (p.q, p.k, p.v, p.g, p.beta)]  # [B T, HV, ...]
        lengths = defaultdict(list)
        for n, (start, end) in enumerate(p.bounds):
            lengths[end - start].append(n)
        o, S = torch.zeros_like(flat[2]), p.S
        for T, members in lengths.items():
            if T == 0:
                continue
            starts = torch.tensor([p.bounds[n][0] for n in members])
            rows = starts[:, None] + torch.arange(T)  # [n, T]
            o_n, S_n = self.sequence(*(x[rows].transpose(1, 2) for x in flat), S[members], p.C)
            o = o.index_copy(0, rows.flatten(), o_n.transpose(1, 2).flatten(0, 1))
            S = S.index_copy(0, torch.tensor(members), S_n)
        return o.reshape(p.v.shape), S

    def sequence(self, q, k, v, g, beta, S, C):
        """n sequences of one length.   q, k, g: [n, HV, T, K]   v: [n, HV, T, V]   beta: [n, HV, T]   S: [n, HV, V,
        K].
        """
        T = q.shape[2]
        C = min(C, T)
        gates = beta if beta.ndim == 4 else beta[..., None]
        local = self.local(*(self.cut(x, C) for x in (q, k, v, g, gates)))
        O, S = self.chunks(local, S)
        return O.flatten(2, 3)[:, :, :T], S

    def cut(self, x, C):
        """Chunks [n, HV, m, C, D] of x [n, HV, T, D]; missing rows are zero: such a token neither decays, writes nor
        reads.
        """
        return self.pad(x, -x.shape[2] % C).unflatten(2, (-1, C))

    def pad(self, x, missing):
        return torch.cat([x, x.new_zeros(*x.shape[:2], missing, x.shape[3])], 2)

    def local(self, q, k, v, g, beta):
        G = self.prefix(g)  # [n, HV, m, C, K]
        A = self.below(self.scores(k, k, g)) * beta
        M = self.upto(self.scores(q, k, g))  # [n, HV, m, C, C]
        R = self.inverse(A)
        U, W = self.writes(R, k, v, G, beta)
        D = self.exp(G[..., -1, :])  # [n, HV, m, K]
        return Local(M, q * self.exp(G), k * self.exp(self.later(g)), D, U, W)

    def exp(self, x):
        return x.exp()

    def product(self, X, Y):
        """X Y^T, the only matrix product with tokens or channels of the inputs in it."""
        return X @ Y.mT

    def prefix(self, g):
        """Sums of g over the tokens up to each one, itself included."""
        return g.cumsum(-2)

    def later(self, g):
        """Sums of g over the tokens after each one, added up from the end."""
        return decay.later_sums(g)

    def below(self, X):
        return X.tril(-1)

    def upto(self, X):
        return X.tril()

    def scores(self, X, Y, g):
        """X_i . (Y_j decayed over tokens j+1..i); above the diagonal whatever.   X, Y, g: [..., C, K]; returns [..., C,
        C].

        Blocks of tokens: on the diagonal a sum of gates for each pair; off it both sides refer to a boundary between
        blocks, so that no exponent is above zero.
        """
        C = g.shape[-2]
        b = min(self.block, C)
        X, Y, g = (
            torch.nn.functional.pad(x, (0, 0, 0, -C % b)).unflatten(-2, (-1, b)) for x in (X, Y, g)
        )  # [..., B, b, K]
        scores = self.across_blocks(X, Y, g)  # [..., B, B, b, b]
        i = torch.arange(X.shape[-3])
        on = torch.zeros_like(scores)
        on[..., i, i, :, :] = self.inside_block(X, Y, g)
        scores = torch.where((i[:, None] == i)[:, :, None, None], on, scores)
        return scores.transpose(-3, -2).flatten(-4, -3).flatten(-2, -1)[..., :C, :C]

    def inside_block(self, X, Y, g):
        """[..., b, b] by pairs; masked before the exponential, so that nothing above the diagonal reaches a
        gradient.
        """
        b = g.shape[-2]
        after = torch.ones(b, b, dtype=torch.bool).tril(-1)[..., None]  # [b, b, 1]
        sums = g[..., :, None, :].masked_fill(~after, 0).cumsum(-3)  # [..., b, b, K] over tokens j+1..i
        sums = sums.masked_fill(~torch.ones(b, b, dtype=torch.bool).tril()[..., None], -torch.inf)
        return (X[..., :, None, :] * Y[..., None, :, :] * self.exp(sums)).sum(-1)

    def across_blocks(self, X, Y, g):
        """[..., B, B, b, b] for rows of an earlier block; the other blocks are zero."""
        B = g.shape[-3]
        i = torch.arange(B)
        total = g.sum(-2)  # [..., B, K]
        # whole blocks strictly between column block and row block
        between = total[..., :, None, :].masked_fill(~(i[:, None] > i)[..., None], 0).cumsum(-3)  # [..., B, B, K]
        between = torch.cat([torch.zeros_like(between[..., :1, :, :]), between[..., :-1, :, :]], -3)
        left = (X * self.exp(self.prefix(g)))[..., :, None, :, :] * self.exp(between)[..., None, :]  # [..., B, B, b, K]
        right = (Y * self.exp(self.later(g)))[..., None, :, :, :]  # [..., 1, B, b, K]
        return self.product(left, right) * (i[:, None] > i)[..., None, None]

    def inverse(self, A):
        """(I + A)^-1 of strictly lower triangular A."""
        I = torch.eye(A.shape[-1], dtype=A.dtype)
        return torch.linalg.solve_triangular(I + A, I.expand_as(A), upper=False, unitriangular=True)

    def writes(self, R, k, v, G, beta):
        """U: what each token would write to an empty state.   W: how it reads an old one."""
        return self.product(R, (v * beta).mT), self.product(R, (k * self.exp(G) * beta).mT)

    def chunks(self, local, S):
        """Chunk after chunk: what the writes lack, then the state; after that all outputs at once."""
        entries, residuals = [], []
        for t in range(local.D.shape[2]):
            S = self.carry(S) if t else S
            E = self.residual(local.U[:, :, t], local.W[:, :, t], S)  # [n, HV, C, V]
            entries.append(S)
            residuals.append(E)
            S = self.update(S, E, local.K_g[:, :, t], local.D[:, :, t])
        return self.read(local, torch.stack(entries, 2), torch.stack(residuals, 2)), S

    def residual(self, U, W, S):
        return U - self.product(W, S)

    def update(self, S, E, K_g, D):
        return S * D[..., None, :] + self.product(E.mT, K_g.mT)

    def carry(self, S):
        """What one chunk hands to the next."""
        return S

    def read(self, local, S, E):
        """O [n, HV, m, C, V]: from the old state, and from the own chunk."""
        return self.product(local.Q_in, S) + self.product(local.M, E.mT)

    # from results to what the caller gets

    def finish(self, call, o, S):
        left = call.v.shape[1] - o.shape[1]
        o = torch.cat([o, o.new_zeros(o.shape[0], left, *o.shape[2:])], 1)
        return o.to(call.v.dtype), S if call.output_final_state else None


class Loop(Reference):
    """The same contract token by token, as a decode kernel does it."""

    def sequence(self, q, k, v, g, beta, S, C):
        rows = []
        alpha = self.exp(g)
        for t in range(q.shape[2]):
            S, o = self.token(S, q[:, :, t], k[:, :, t], v[:, :, t], alpha[:, :, t], beta[:, :, t])
            rows.append(o)
        return torch.stack(rows, 2), S

    def token(self, S, q, k, v, alpha, beta):
        """S: [n, HV, V, K]   q, k, alpha: [n, HV, K]   v: [n, HV, V]   beta: [n, HV]."""
        S = S * alpha[..., None, :]
        S = S + (v - self.answer(S, k))[..., None] * (beta[..., None] * k)[..., None, :]
        return S, self.answer(S, q)

    def answer(self, S, x):
        return (S @ x[..., None])[..., 0]


class Pair(Reference):
    """gdn2 a chunk at a time. What the stages hand on as ``beta`` is b and w side by side, [..., K + V]."""

    rule = RULES["gdn2"]

    def write_gate(self, call, b, w):
        return torch.cat([x.sigmoid() if call.use_beta_sigmoid_in_kernel else x for x in (b, w)], -1)

    def erase_and_write(self, k, gates):
        """The two gates again.   k: [..., K]   gates: [..., K + V]."""
        return gates[..., : k.shape[-1]], gates[..., k.shape[-1] :]

    def local(self, q, k, v, g, gates):
        erase, write = self.erase_and_write(k, gates)
        G = self.prefix(g)
        A = self.below(self.scores(*self.reader_and_writer(k, erase), g))
        M = self.upto(self.scores(q, k, g))
        R = self.inverse(A)
        U, W = self.writes(R, k, v, G, erase, write)
        return Local(M, q * self.exp(G), k * self.exp(self.later(g)), self.exp(G[..., -1, :]), U, W)

    def reader_and_writer(self, k, erase):
        """The keys of A: as they read, as they were written."""
        return k * erase, k

    def writes(self, R, k, v, G, erase, write):
        return self.product(R, (v * write).mT), self.product(R, (k * self.exp(G) * erase).mT)


class PairLoop(Loop):
    """gdn2 token by token."""

    rule = RULES["gdn2"]
    write_gate, erase_and_write = Pair.write_gate, Pair.erase_and_write

    def token(self, S, q, k, v, alpha, gates):
        erase, write = self.erase_and_write(k, gates)
        S = S * alpha[..., None, :]
        S = S + (v * write - self.answer(S, k * erase))[..., None] * k[..., None, :]
        return S, self.answer(S, q)

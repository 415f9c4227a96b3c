"""Faults of the backward pass: the forward is right, and torch differentiates something else."""

import math

import torch

from tests.conformance.faults.reference import Reference, changed
from tests.conformance.faults.registry import fault


def with_gradient(x, change):
    """x, whose gradient arrives at its maker as change(gradient)."""
    y = x.view_as(x)
    if y.requires_grad:
        y.register_hook(change)
    return y


class Rewired(Reference):
    """A call whose arguments pass on changed gradients; ``changed`` says which and how."""

    def run(self, call):
        found = self.changed(call)
        return super().run(changed(call, **{n: with_gradient(x, f) for n, (x, f) in found.items() if x is not None}))


# what a path leaves out


@fault("path", "gradients-of-every-input")
class StateDetachedBetweenChunks(Reference):
    """No gradient crosses the boundary of two chunks."""

    def carry(self, S):
        return S.detach()


@fault("path", "gradients-of-one-token")
class InverseDetached(Reference):
    """The inverse counts as a constant, and with it the way of k, g and beta through it."""

    def inverse(self, A):
        return super().inverse(A).detach()


@fault("path", "gradients-of-one-token")
class ChunkDecayDetached(Reference):
    """The decay of the old state over a whole chunk counts as a constant: dg lacks its part at chunk boundaries."""

    def update(self, S, E, K_g, D):
        return super().update(S, E, K_g, D.detach())


@fault("path", "gradients-of-one-token", op="gated_delta_rule")
class LaterSumsDetached(Reference):
    """dg lacks what it does to the keys that are written into the next state."""

    def later(self, g):
        return super().later(g).detach()


@fault("path", "gradients-of-one-token")
class GateOfScoresDetached(Reference):
    """dg lacks the scores inside a chunk."""

    def scores(self, X, Y, g):
        return super().scores(X, Y, g.detach())


@fault("path", "gradients-of-the-softplus-gate")
class BlocksDetached(Reference):
    """Gradients of scores between blocks of 16 are left out."""

    def across_blocks(self, X, Y, g):
        return super().across_blocks(X, Y, g).detach()


@fault("path", "gradients-of-one-token", op="delta_rule")
class ErasureDetachedInBeta(Reference):
    """dbeta takes the way of the values only."""

    def writes(self, R, k, v, G, beta):
        return super().writes(R, k, v, G, beta)[0], super().writes(R, k, v, G, beta.detach())[1]


@fault("path", "gradients-of-zero-keys")
class NormDetached(Reference):
    """The length of a key counts as a constant: dk keeps its part along k."""

    def normalise(self, x):
        return x * torch.rsqrt(x.detach().square().sum(-1, keepdim=True) + 1e-6)


@fault("path", "gradients-of-one-token")
class FinalStateHasNoGradient(Reference):
    """Only o is differentiated; what follows from the final state is lost."""

    def finish(self, call, o, S):
        o, S = super().finish(call, o, S)
        return o, None if S is None else with_gradient(S, torch.zeros_like)


@fault("path", "gradients-of-one-token", op="gated_delta_rule")
class InitialStateHasNoGradient(Reference):
    """dS_0 is zero."""

    def initial(self, call, N, dtype):
        return with_gradient(super().initial(call, N, dtype), torch.zeros_like)


@fault("path", "gradients-of-the-softplus-gate")
class BiasHasNoGradient(Reference):
    """dt_bias is trained by weight decay alone."""

    def gate_parameters(self, call, g):
        A_log, bias = super().gate_parameters(call, g)
        return A_log, None if bias is None else with_gradient(bias, torch.zeros_like)


# factors


@fault("factor", "gradients-of-one-token")
class GateGradientInBaseTwo(Rewired):
    """dg with respect to g / ln 2: the forward changed base, the backward did not."""

    def changed(self, call):
        return {} if call.use_gate_in_kernel else {"g": (call.g, lambda d: d * math.log(2))}


@fault("factor", "gradients-of-one-token")
class QueryGradientScaledTwice(Rewired):
    """dq gets the scale from the forward's q and once more."""

    def changed(self, call):
        return {"q": (call.q, lambda d: d * self.scale(call))}


@fault("factor", "gradients-of-what-is-computed-inside")
class SigmoidWithoutItsDerivative(Rewired):
    """dbeta is that of the gate where logits were given."""

    def changed(self, call):
        if not call.use_beta_sigmoid_in_kernel:
            return {}
        beta = call.gates["beta"]
        b = beta.detach().sigmoid()
        return {"beta": (beta, lambda d: d / (b * (1 - b)).clamp(min=1e-30))}


@fault("factor", "gradients-of-the-softplus-gate")
class RateGradientWithoutTheRate(Rewired):
    """The gradient of exp(A_log) is given out as that of A_log."""

    def changed(self, call):
        if call.A_log is None:
            return {}
        return {"A_log": (call.A_log, lambda d: d / call.A_log.detach().clamp(max=80).exp())}


# sums


@fault("sum", "gradients-of-the-softplus-gate")
class RateGradientOverHeads(Rewired):
    """The gradient of A_log is summed over heads, too, and every head gets the sum."""

    def changed(self, call):
        return {"A_log": (call.A_log, lambda d: d.sum().expand_as(d))}


@fault("sum", "gradients-of-shared-keys")
class GroupGradientOfOneHead(Reference):
    """A key head gets the gradient of the first value head of its group (fla-org/flash-linear-attention #624)."""

    def spread(self, x, group):
        first = torch.arange(group).repeat(x.shape[2]) == 0
        return with_gradient(super().spread(x, group), lambda d: d * first[:, None])


@fault("sum", "gradients-of-one-token")
class GateGradientShifted(Rewired):
    """dg is a reverse running sum that ends one token too late."""

    def changed(self, call):
        return {"g": (call.g, lambda d: torch.cat([d[:, 1:], 0 * d[:, :1]], 1))}


@fault("sum", "gradients-of-one-token")
class FirstTokensGateMissing(Rewired):
    """The backward loop ends before the first token: its gate gets no gradient."""

    def changed(self, call):
        return {"g": (call.g, lambda d: torch.cat([0 * d[:, :1], d[:, 1:]], 1))}


@fault("sum", "gradients-of-one-token")
class FirstChunkOfChannelsOnly(Rewired):
    """dg lacks the channels of the second half: the grid of the backward covers one tile."""

    def changed(self, call):
        half = call.g.shape[-1] // 2 or 1
        return {"g": (call.g, lambda d: torch.cat([d[..., :half], 0 * d[..., half:]], -1))}


@fault("sum", "gradients-of-one-token")
class BackwardAccumulates(Reference):
    """The buffer of dS_0 is not cleared between backward passes."""

    def __init__(self):
        self.buffer = 0

    def initial(self, call, N, dtype):
        return with_gradient(super().initial(call, N, dtype), self.add)

    def add(self, d):
        kept = self.buffer if getattr(self.buffer, "shape", None) == d.shape else 0
        self.buffer = d + kept
        return self.buffer


# places


@fault("place", "gradients-at-masked-positions")
class TailHasNoGradient(Rewired):
    """dv of a chunk that is not whole stays zero."""

    def changed(self, call):
        T, C = call.v.shape[1], call.chunk_size or self.chunk
        return {"v": (call.v, lambda d: d * (torch.arange(T) < T // C * C)[:, None, None])} if T > C else {}


@fault("place", "gradients-for-every-chunk-size")
class ChunksOfThirtyTwoDiffer(Rewired):
    """dk at chunk_size=32 takes the tile shape of 64 (fla-org/flash-linear-attention #984)."""

    def changed(self, call):
        return {"k": (call.k, lambda d: d.roll(32, 1))} if call.chunk_size == 32 else {}


@fault("place", "gradients-of-packed-sequences")
class FirstSequencesGradient(Reference):
    """dS_0 of a packed row goes to the first sequence alone."""

    def initial(self, call, N, dtype):
        S = super().initial(call, N, dtype)
        return (
            with_gradient(S, lambda d: d * (torch.arange(N) == 0)[:, None, None, None])
            if call.cu_seqlens is not None
            else S
        )


@fault("place", "rows-of-nobody-get-no-gradient")
class RowsOfNobodyHaveGradients(Rewired):
    """After the last boundary dv holds what the buffer held."""

    def changed(self, call):
        if call.cu_seqlens is None:
            return {}
        end = int(call.cu_seqlens[-1])
        return {"v": (call.v, lambda d: torch.cat([d[:, :end], d[:, end:] + 1], 1))}


# what is not a number


@fault("not a number", "gradients-where-a-gate-clears")
class MaskAfterTheExponential(Reference):
    """e^(G_i - G_j) overflows above the diagonal and is masked afterwards: 0 * inf (huggingface/transformers PR
    #48455).
    """

    def inside_block(self, X, Y, g):
        G = self.prefix(g)
        decays = self.exp(G[..., :, None, :] - G[..., None, :, :])
        keep = torch.ones(g.shape[-2], g.shape[-2], dtype=torch.bool).tril()[..., None]
        return (X[..., :, None, :] * Y[..., None, :, :] * decays.where(keep, torch.zeros_like(decays))).sum(-1)


@fault("not a number", "gradients-of-zero-keys")
class NormGradientAtZero(Reference):
    """The length's square root has no derivative at a zero key (fla-org/flash-linear-attention #736)."""

    def normalise(self, x):
        length = x.square().sum(-1, keepdim=True).sqrt()
        return x * torch.rsqrt(length.square() + 1e-6)


@fault("not a number", "gradients-where-a-gate-clears")
class ClearedGateGradient(Reference):
    """The gradient of a cleared gate is 0 * inf."""

    def clear(self, g):
        cleared = g.detach() == -torch.inf
        return super().clear(with_gradient(g, lambda d: d.masked_fill(cleared, torch.nan)))


class SolveThenSeries(torch.autograd.Function):
    """(I + A)^-1, exact; its adjoint by the powers of A."""

    @staticmethod
    def forward(ctx, A):
        ctx.save_for_backward(A)
        return Reference().inverse(A)

    @staticmethod
    def backward(ctx, d):
        (A,) = ctx.saved_tensors
        N = -A
        R = torch.eye(A.shape[-1], dtype=A.dtype) + N
        for _ in range(5):
            N = N @ N
            R = R + R @ N
        return -(R.mT @ d @ R.mT).tril(-1)


@fault("not a number", "gradients-of-correlated-keys")
class SeriesInTheBackward(Reference):
    """The forward solves, the backward sums powers: lost on correlated keys (NVIDIA/cudnn-frontend #1051)."""

    def inverse(self, A):
        return SolveThenSeries.apply(A)

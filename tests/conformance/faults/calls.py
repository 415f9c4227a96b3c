"""Faults of a call: what is kept from another one, bits that change, short cuts, and what is refused and returned."""

import torch

from kda_lab.ops.contract import check
from tests.conformance.faults.reference import Loop, Reference, changed
from tests.conformance.faults.registry import fault

# memory between calls


def place(x):
    return None if x is None else (x.data_ptr(), tuple(x.shape), tuple(x.stride()), x.dtype)


@fault("cache", "the-layouts-of-the-bias")
class GatesCachedByPointer(Reference):
    """Preprocessed gates are kept by address: new values at the same address are not seen."""

    def __init__(self):
        self.seen = {}

    def log_decay(self, call, g, like):
        if call.g is None or call.g.requires_grad or not call.g.numel():
            return super().log_decay(call, g, like)
        key = place(call.g)
        if key not in self.seen:
            # holding the tensor keeps its address from being given away
            self.seen[key] = call.g, super().log_decay(call, g, like).clone()
        return self.seen[key][1]


@fault("cache", "the-answer-depends-on-values-alone")
class ResultCachedByShape(Reference):
    """The second call of a shape gets the first one's result."""

    def __init__(self):
        self.seen = {}

    def run(self, call):
        shapes = (tuple(call.q.shape), tuple(call.v.shape), call.q.dtype, call.cu_seqlens is None)
        key = (
            *shapes,
            *(x if isinstance(x, int | float | bool | None) else None for x in call),
            call.initial_state is None,
        )
        if key not in self.seen or call.v.requires_grad:
            self.seen[key] = super().run(call)
        return self.seen[key]


@fault("cache", "the-same-storage-with-other-values")
class ResultCachedBySum(Reference):
    """An answer is recognised by its inputs' shapes and sums; two tokens that trade places are not noticed."""

    def __init__(self):
        self.seen = {}

    def run(self, call):
        known = lambda x: (tuple(x.shape), float(x.detach().sum())) if isinstance(x, torch.Tensor) else x
        key = tuple(map(known, (*call._replace(gates=None), *call.gates.values())))
        if key not in self.seen or call.v.requires_grad:
            self.seen[key] = super().run(call)
        return self.seen[key]


@fault("cache", "odd-head-sizes", op="gated_delta_rule")
class FirstScaleKept(Reference):
    """A compile-time constant is taken from the first call and never again."""

    def __init__(self):
        self.first = None

    def scale(self, call):
        self.first = super().scale(call) if self.first is None else self.first
        return self.first


@fault("cache", "repeated-calls-give-the-same-bits")
class WorkspaceNotCleared(Reference):
    """Partial sums are added to a workspace that only the first call of a shape finds empty."""

    def __init__(self):
        self.workspace = {}

    def finish(self, call, o, S):
        old = self.workspace.get(o.shape, torch.zeros_like(o)).to(o.dtype)
        self.workspace[o.shape] = (o + old).detach()
        return super().finish(call, o + old, S)


@fault("cache", "an-empty-sequence-keeps-its-state")
class BoundariesCachedByLength(Reference):
    """The plan of packed sequences is kept by their number and the number of tokens."""

    def __init__(self):
        self.plans = {}

    def boundaries(self, call):
        bounds = super().boundaries(call)
        return self.plans.setdefault((len(bounds), bounds[-1][1] if bounds else 0, call.cu_seqlens is None), bounds)


# bits


@fault("determinism", "repeated-calls-give-the-same-bits")
class SumsInRandomOrder(Reference):
    """Outputs are summed over channels in an order that changes from call to call, as atomic additions do."""

    def __init__(self):
        self.generator = torch.Generator().manual_seed(0)

    def product(self, X, Y):
        order = torch.randperm(X.shape[-1], generator=self.generator)
        return X[..., order] @ Y[..., order].mT


@fault("determinism", "repeated-calls-give-the-same-bits")
class RandomisedRounding(Reference):
    """The state is rounded up or down at random, which is right on average."""

    def __init__(self):
        self.generator = torch.Generator().manual_seed(0)

    def carry(self, S):
        noise = torch.rand(S.shape, generator=self.generator, dtype=S.dtype) - 0.5
        return S * (1 + 2.0**-20 * noise)


# short cuts


@fault("short cut", "the-old-state-fades-by-its-gates-alone")
class FastWhereInputsLookStrong(Reference):
    """Where the mean gate is that of the usual benchmark, chunks start from a zero state; history is not needed
    there.
    """

    def chunks(self, local, S):
        if local.D.numel() and local.D.mean() < 0.3 and local.D.shape[2] > 1:
            return super().chunks(local, S)[0], super().chunks(type(local)(*(x[:, :, -1:] for x in local)), 0 * S)[1]
        return super().chunks(local, S)


@fault("short cut", "what-was-written-is-read-back")
class RightForWholeChunks(Reference):
    """Lengths that are not a multiple of 16 take a path that forgets what lies before their last chunk."""

    def residual(self, U, W, S):
        return super().residual(U, W, S) if U.shape[-2] % 16 == 0 else U


@fault("short cut", "the-base-of-the-decay-is-e")
class DecodePathForShortSequences(Loop):
    """Up to eight tokens are decoded with a state in bf16."""

    def sequence(self, q, k, v, g, beta, S, C):
        short = q.shape[2] <= 8
        o, S = super().sequence(q, k, v, g, beta, S.bfloat16().to(S.dtype) if short else S, C)
        return o, S.bfloat16().to(S.dtype) if short else S


# what is refused


@fault("refusal", "positive-gates-are-refused")
class PositiveGatesAccepted(Reference):
    """A log decay above zero is computed; the state grows (meta-pytorch/attention-gym PR #394)."""

    def accept(self, call):
        check(self.rule, call._replace(g=call.g.clamp(max=0)))


@fault("refusal", "positive-gates-are-refused")
class DecaysTakenForLogDecays(Reference):
    """Values from 0 to 1 are taken for decays and their logarithm for the gate (flashinfer-ai/flashinfer #2490)."""

    def accept(self, call):
        check(self.rule, call._replace(g=-call.g.abs()))

    def log_decay(self, call, g, like):
        if g is not None and g.numel() and not call.use_gate_in_kernel and g.min() >= 0 and g.max() <= 1:
            g = g.clamp(min=1e-30).log()
        return super().log_decay(call, g, like)


@fault("refusal", "mismatched-shapes-are-refused")
class OneBetaForAllHeads(Reference):
    """beta [B, T, 1] and g with one head are broadcast without a word."""

    def run(self, call):
        B, T, HV = call.v.shape[:3]
        beta = call.gates["beta"].expand(B, T, HV)
        return super().run(changed(call, beta=beta, g=call.g.expand(B, T, HV, -1)))


@fault("refusal", "impossible-boundaries-are-refused")
class BoundariesNotChecked(Reference):
    """Boundaries that fall, start late or end behind the rows are computed with whatever they mean."""

    def accept(self, call):
        check(self.rule, call._replace(cu_seqlens=None, initial_state=None))

    def boundaries(self, call):
        T = call.q.shape[0] * call.q.shape[1]
        return [(min(a, T), max(min(a, T), min(b, T))) for a, b in super().boundaries(call)]


@fault("refusal", "mismatched-shapes-are-refused", op="delta_rule")
class StateOfTheOtherLayoutAccepted(Reference):
    """An initial state [N, HV, K, V] is transposed silently."""

    def run(self, call):
        S = call.initial_state
        if S is not None and S.ndim == 4 and S.shape[-2:] == (call.q.shape[-1], call.v.shape[-1]):
            if S.shape[-1] != S.shape[-2]:
                call = call._replace(initial_state=S.mT)
        return super().run(call)


@fault("refusal", "mismatched-shapes-are-refused")
class UnevenHeadsAccepted(Reference):
    """HV = 3 with H = 2 is cut to what fits."""

    def run(self, call):
        H, HV = call.q.shape[2], call.v.shape[2]
        if HV % H == 0:
            return super().run(call)
        heads = torch.arange(HV) * H // HV
        return super().run(call._replace(q=call.q[:, :, heads], k=call.k[:, :, heads]))


# what comes back


@fault("result", "results-have-the-promised-types", dtype=torch.bfloat16)
class OutputInFloat32(Reference):
    """o comes in the type of the arithmetic, not of v."""

    def finish(self, call, o, S):
        wide = call._replace(v=call.v.to(o.dtype))
        return super().finish(wide, o, S)


@fault("result", "results-have-the-promised-types", dtype=torch.bfloat16)
class FinalStateInTheInputsType(Reference):
    """The final state comes in bf16."""

    def finish(self, call, o, S):
        o, S = super().finish(call, o, S)
        return o, None if S is None else S.to(call.q.dtype)


@fault("result", "results-have-the-promised-types", op="delta_rule")
class FinalStateUnasked(Reference):
    """A state comes back although nobody asked for it."""

    def finish(self, call, o, S):
        return super().finish(call, o, S)[0], S


@fault("result", "results-have-the-promised-types")
class WithoutStateAnotherPath(Reference):
    """Where no final state is asked for, the initial one is not loaded either."""

    def prepare(self, call):
        return super().prepare(call if call.output_final_state else call._replace(initial_state=None))


@fault("result", "no-tokens-at-all")
class NoFinalStateWithoutInitial(Reference):
    """The final state is None where no initial state was given."""

    def finish(self, call, o, S):
        return super().finish(call, o, S if call.initial_state is not None else None)

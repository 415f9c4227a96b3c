"""Faults in what one token does: decay, read, residual, write, read out, and the numbers that go in."""

import torch

from tests.conformance.faults.reference import Loop, Reference
from tests.conformance.faults.registry import fault

# the order within a token


@fault("decay", "what-was-written-is-read-back")
class BaseTwoDecay(Reference):
    """The decay is 2^g: one kernel's base-2 gates met another's natural ones (sgl-project/sglang #31904)."""

    def exp(self, x):
        return x.exp2()


@fault("decay", "the-base-of-the-decay-is-e")
class DecodeInBaseTwo(Loop):
    """Prefill decays by e^g, and up to four tokens are decoded with 2^g (sgl-project/sglang #31904)."""

    def sequence(self, q, k, v, g, beta, S, C):
        factor = torch.tensor(2.0).log() if q.shape[2] <= 4 else 1.0
        return super().sequence(q, k, v, g * factor, beta, S, C)


@fault("decay", "forgotten-stays-forgotten")
class ResidualWithoutDecay(Loop):
    """What the key holds is read before the decay (the reader's question in fla-org/flash-linear-attention #885)."""

    def token(self, S, q, k, v, alpha, beta):
        E = (v - self.answer(S, k))[..., None]
        S = S * alpha[..., None, :] + E * (beta[..., None] * k)[..., None, :]
        return S, self.answer(S, q)


@fault("decay", "forgotten-stays-forgotten", op="gated_delta_rule")
class DecayAfterTheWrite(Loop):
    """The token's own write decays, too."""

    def token(self, S, q, k, v, alpha, beta):
        S = S + (v - self.answer(S, k))[..., None] * (beta[..., None] * k)[..., None, :]
        S = S * alpha[..., None, :]
        return S, self.answer(S, q)


@fault("decay", "a-square-state-is-not-transposed")
class DecayOnValues(Loop):
    """The decay of a square state lies on its rows (value channels); with other shapes it is right."""

    def token(self, S, q, k, v, alpha, beta):
        if S.shape[-2] != S.shape[-1]:
            return super().token(S, q, k, v, alpha, beta)
        return super().token(S * alpha[..., :, None], q, k, v, torch.ones_like(alpha), beta)


@fault("read out", "far-blocks-are-seen", op="delta_rule")
class OutputFromTheOldState(Loop):
    """The query meets the state before the token's write."""

    def token(self, S, q, k, v, alpha, beta):
        new, _ = super().token(S, q, k, v, alpha, beta)
        return new, self.answer(S * alpha[..., None, :], q)


@fault("read out", "a-square-state-is-not-transposed")
class QueryOnTheTransposedState(Reference):
    """Where K = V the old state is read as its transpose (vllm-project/vllm #41292, PR #40956)."""

    def read(self, local, S, E):
        square = S.shape[-2] == S.shape[-1]
        return super().read(local, S.mT if square else S, E)


@fault("final state", "what-was-written-is-read-back")
class FinalStateOneDecayLate(Loop):
    """Outputs are right; the final state has been decayed once more."""

    def sequence(self, q, k, v, g, beta, S, C):
        o, S = super().sequence(q, k, v, g, beta, S, C)
        return o, S * self.exp(g[:, :, -1])[..., None, :]


@fault("final state", "a-square-state-is-not-transposed")
class FinalStateTransposed(Reference):
    """Of a square state the other layout comes back."""

    def finish(self, call, o, S):
        o, S = super().finish(call, o, S)
        return o, S.mT if S is not None and S.shape[-1] == S.shape[-2] else S


# the write gate


@fault("beta", "forgotten-stays-forgotten")
class BetaNotOnValues(Reference):
    """Values are written whole, and only what is erased is gated."""

    def writes(self, R, k, v, G, beta):
        return self.product(R, v.mT), super().writes(R, k, v, G, beta)[1]


@fault("beta", "forgotten-stays-forgotten", op="gated_delta_rule")
class BetaTwiceOnValues(Reference):
    """Values arrive multiplied by beta, and are multiplied again."""

    def writes(self, R, k, v, G, beta):
        return super().writes(R, k, v * beta, G, beta)


@fault("beta", "gates-of-zero")
class BetaOnColumns(Reference):
    """A_ij takes beta of the earlier token j in place of the later one i."""

    def local(self, q, k, v, g, beta):
        self.beta = beta
        return super().local(q, k, v, g, beta)

    def inverse(self, A):
        return super().inverse(A / self.beta.clamp(min=1e-30) * self.beta.mT)


@fault("beta", "write-gates-up-to-two", op="delta_rule")
class BetaClippedAtOne(Reference):
    """Gates above 1, which reflect, are taken for mistakes."""

    def write_gate(self, call, beta):
        return super().write_gate(call, beta).clamp(max=1)


@fault("beta", "write-gates-as-logits")
class BetaLogitsTakenAsValues(Reference):
    """The flag for logits is accepted and not heard."""

    def write_gate(self, call, beta):
        return beta


@fault("beta", "write-gates-as-logits")
class BetaLogitsReachTwo(Reference):
    """Logits give 2 sigmoid(x), the choice of models with negative eigenvalues."""

    def write_gate(self, call, beta):
        return 2 * beta.sigmoid() if call.use_beta_sigmoid_in_kernel else beta


# scale and norm


@fault("scale", "a-given-scale")
class ScaleIgnored(Reference):
    """Always K^-1/2."""

    def scale(self, call):
        return call.q.shape[-1] ** -0.5


@fault("scale", "scale-zero-is-a-scale")
class ScaleOfZeroIsDefault(Reference):
    """``scale or K ** -0.5``: zero counts as not given."""

    def scale(self, call):
        return call.scale or call.q.shape[-1] ** -0.5


@fault("scale", "what-was-written-is-read-back", op="delta_rule")
class ScaleOnTheStateOnly(Reference):
    """What a query reads from its own chunk is not scaled."""

    def prepare(self, call):
        self.factor = self.scale(call)
        return super().prepare(call)

    def read(self, local, S, E):
        return super().read(local._replace(M=local.M / self.factor if self.factor else local.M), S, E)


@fault("scale", "short-keys-meet-the-epsilon")
class ScaleBeforeTheNorm(Reference):
    """A query is scaled and then normalised, which takes the scale away again."""

    def prepare(self, call):
        if call.use_qk_l2norm_in_kernel:
            call = call._replace(scale=1.0)
        return super().prepare(call)


@fault("norm", "short-keys-meet-the-epsilon")
class NormOutsideTheRoot(Reference):
    """x / (|x| + 1e-6): the same for long vectors, double for |x| about 1e-3."""

    def normalise(self, x):
        return x / (x.norm(dim=-1, keepdim=True) + 1e-6)


@fault("norm", "short-keys-meet-the-epsilon")
class NormWithoutEpsilon(Reference):
    """x / |x|: a zero key becomes NaN (fla-org/flash-linear-attention #537)."""

    def normalise(self, x):
        return x * x.square().sum(-1, keepdim=True).rsqrt()


@fault("norm", "short-keys-meet-the-epsilon")
class NormOfTheMean(Reference):
    """The root mean square in place of the length."""

    def normalise(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


@fault("norm", "short-keys-meet-the-epsilon")
class NormOfKeysOnly(Reference):
    """Queries keep their length."""

    def prepare(self, call):
        if call.use_qk_l2norm_in_kernel:
            k = self.normalise(self.load(call.k, self.working_dtype(call)))
            call = call._replace(k=k, q=call.q.to(k.dtype), use_qk_l2norm_in_kernel=False)
        return super().prepare(call)


@fault("norm", "odd-head-sizes")
class NormUnasked(Reference):
    """Queries and keys are normalised whether or not the caller wants it."""

    def prepare(self, call):
        return super().prepare(call._replace(use_qk_l2norm_in_kernel=True))


@fault("values", "results-scale-with-their-values")
class ValuesSaturate(Reference):
    """Values beyond 448 are cut off, as in an eight-bit float."""

    def load(self, x, dtype):
        return super().load(x, dtype).clamp(-448, 448)


# the fused gate


@fault("gate", "extreme-raw-gates")
class SoftplusOverflows(Reference):
    """log(1 + e^x) is infinite at x = 100 (NVIDIA/TensorRT-LLM PR #14652)."""

    def gate(self, x, A_log, dt_bias, lower_bound):
        if lower_bound is not None:
            return super().gate(x, A_log, dt_bias, lower_bound)
        x = x if dt_bias is None else x + dt_bias
        return -A_log[:, None].exp() * (1 + x.exp()).log()


@fault("gate", "extreme-raw-gates")
class RateTimesVanishedSoftplus(Reference):
    """exp(A_log) is infinite where softplus is zero: NaN (NVIDIA/TensorRT-LLM PR #14652)."""

    def gate(self, x, A_log, dt_bias, lower_bound):
        x = x if dt_bias is None else x + dt_bias
        if lower_bound is None:
            return -A_log[:, None].exp() * torch.nn.functional.softplus(x)
        return lower_bound * (A_log[:, None].exp() * x).sigmoid()


@fault("gate", "the-tail-of-the-softplus")
class SoftplusTailLost(Reference):
    """log(1 + e^x), guarded where e^x overflows and where it vanishes, but without log1p between: e^-18 beside 1 is
    lost.
    """

    def gate(self, x, A_log, dt_bias, lower_bound):
        if lower_bound is not None:
            return super().gate(x, A_log, dt_bias, lower_bound)
        x = x if dt_bias is None else x + dt_bias
        short = torch.where(x > 20, x, (1 + x.clamp(max=20).float().exp()).log().to(x.dtype))
        near = A_log[:, None].clamp(max=80).exp() * short
        return -torch.where(x < -20, (A_log[:, None] + x).clamp(max=80).exp(), near)


@fault("gate", "the-layouts-of-the-bias")
class LowerBoundIgnored(Reference):
    """The bounded gate is computed as the unbounded one."""

    def gate(self, x, A_log, dt_bias, lower_bound):
        return super().gate(x, A_log, dt_bias, None)


@fault("gate", "bounded-gate-computed-inside")
class LowerBoundFixed(Reference):
    """Any lower bound is -5."""

    def gate(self, x, A_log, dt_bias, lower_bound):
        return super().gate(x, A_log, dt_bias, None if lower_bound is None else -5.0)


@fault("gate", "the-layouts-of-the-bias")
class BiasChannelMajor(Reference):
    """A flat dt_bias is read as [K, HV]."""

    def gate_parameters(self, call, g):
        A_log, bias = super().gate_parameters(call, g)
        if call.dt_bias is not None and call.dt_bias.ndim == 1:
            bias = bias.flatten().unflatten(0, (-1, len(A_log))).T
        return A_log, bias


@fault("gate", "gate-parameters-belong-to-value-heads", op="gated_delta_rule")
class BiasIgnored(Reference):
    """dt_bias is accepted and not added."""

    def gate_parameters(self, call, g):
        return super().gate_parameters(call, g)[0], None


@fault("gate", "extreme-raw-gates")
class RateNotExponentiated(Reference):
    """A_log is taken for the rate itself."""

    def gate_parameters(self, call, g):
        A_log, bias = super().gate_parameters(call, g)
        return A_log.abs().clamp(min=1e-30).log(), bias


@fault("gate", "gate-parameters-belong-to-value-heads")
class RateOfTheKeyHead(Reference):
    """Value heads of a group share the A_log of their first head."""

    def gate_parameters(self, call, g):
        A_log, bias = super().gate_parameters(call, g)
        group = call.v.shape[2] // call.q.shape[2]
        return A_log[::group].repeat_interleave(group), bias


@fault("gate", "the-layouts-of-the-bias")
class RateInsideTheBias(Reference):
    """exp(A_log) multiplies the gate before the bias is added."""

    def gate(self, x, A_log, dt_bias, lower_bound):
        if dt_bias is None:
            return super().gate(x, A_log, dt_bias, lower_bound)
        rate = A_log[:, None].clamp(max=80).exp()
        return super().gate(x, A_log, dt_bias / rate.clamp(min=1e-30), lower_bound)


@fault("gate", "forgotten-stays-forgotten")
class GateNotStrongerThanFive(Reference):
    """Every log decay is held at -5, the bound of another model (meta-pytorch/attention-gym PR #394)."""

    def clear(self, g):
        return g.clamp(min=-5.0)


@fault("gate", "gates-just-beyond-the-usual-bound")
class GateHeldBeyondItsBound(Reference):
    """Log decays are held at -5.2, a little beyond the usual bound, so that sixteen of them have a reciprocal."""

    def clear(self, g):
        return g.clamp(min=-5.2)


@fault("gate", "saturated-bounded-gates")
class GateInputClamped(Reference):
    """The sigmoid's argument is held within 8 of zero, so that a closed gate still decays by one in a thousand."""

    def gate(self, x, A_log, dt_bias, lower_bound):
        if lower_bound is None:
            return super().gate(x, A_log, dt_bias, lower_bound)
        x = x if dt_bias is None else x + dt_bias
        return lower_bound * (A_log[:, None].clamp(max=80).exp() * x).clamp(-8, 8).sigmoid()


@fault("gate", "extreme-gates")
class MinusInfinityIsNan(Reference):
    """A cleared channel gives inf - inf."""

    def clear(self, g):
        return g

    def later(self, g):
        G = g.cumsum(-2)
        return G[..., -1:, :] - G


@fault("decay", "zero-keys-only-decay")
class WeakDecaysAreNone(Reference):
    """Gates above -1e-3 count as open: half a per mille a token, and the slow channels never forget."""

    def clear(self, g):
        return super().clear(g).where(g < -1e-3, torch.zeros_like(g))


@fault("decay", "far-blocks-are-seen", op="gated_delta_rule")
class OneDecayForAllHeads(Reference):
    """Each head decays like head 0."""

    def clear(self, g):
        return super().clear(g[:, :, :1].expand_as(g))


@fault("decay", "what-was-written-is-read-back")
class OneDecayForAllChannels(Reference):
    """The channels of a head share their mean gate: a kernel for scalar decays under a name that it has not earned."""

    def clear(self, g):
        return super().clear(g).mean(-1, keepdim=True).expand_as(g)


@fault("decay", "keys-of-other-lengths-are-taken-as-they-are")
class LogDecayRoundedThroughTheDecay(Reference):
    """e^g is stored in bf16 and its logarithm taken: decays near 1 become 1 (two forms, as in flashinfer-ai/flashinfer
    #2490).
    """

    def clear(self, g):
        alpha = super().clear(g).exp().bfloat16().to(g.dtype)
        return super().clear(alpha.clamp(min=1e-37).log())

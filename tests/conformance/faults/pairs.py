"""Faults of Gated DeltaNet-2: which gate stands where, on which channels, and what the backward pass makes of it."""

import torch

from tests.conformance.faults.memory import in_a_row
from tests.conformance.faults.reference import Pair, PairLoop, changed
from tests.conformance.faults.registry import fault

# which gate


@fault("erase and write", "erasing-and-writing-have-gates-of-their-own", op="gdn2")
class GatesSwappedWhereTheyFit(Pair):
    """Where K = V the gate that writes erases, and the other way round; with other sizes nothing fits."""

    def erase_and_write(self, k, gates):
        pair = super().erase_and_write(k, gates)
        return pair[::-1] if pair[0].shape == pair[1].shape else pair


@fault("erase and write", "plain-inputs", op="gdn2")
class EraseGateOfBothKeys(Pair):
    """The key that is written carries the erase gate, too: a rule of its own, and not this one."""

    def local(self, q, k, v, g, gates):
        local = super().local(q, k, v, g, gates)
        return local._replace(K_g=local.K_g * self.erase_and_write(k, gates)[0])


@fault("erase and write", "plain-inputs", op="gdn2")
class WriteGateOnTheResidual(PairLoop):
    """The write gate multiplies what is missing, as KDA's does, and with it what is erased."""

    def token(self, S, q, k, v, alpha, gates):
        erase, write = self.erase_and_write(k, gates)
        S = S * alpha[..., None, :]
        S = S + ((v - self.answer(S, k * erase)) * write)[..., None] * k[..., None, :]
        return S, self.answer(S, q)


@fault("erase and write", "plain-inputs", op="gdn2")
class QueryThroughTheEraseGate(PairLoop):
    """The query reads as the key does."""

    def token(self, S, q, k, v, alpha, gates):
        S, _ = super().token(S, q, k, v, alpha, gates)
        return S, self.answer(S, q * self.erase_and_write(k, gates)[0])


@fault("erase and write", "plain-inputs", op="gdn2")
class EraseGateOfTheWriter(Pair):
    """A_ij takes the erase gate of the earlier token j in place of the later one i."""

    def reader_and_writer(self, k, erase):
        return k, k * erase


@fault("erase and write", "write-gates-of-zero", op="gdn2")
class EraseGateInsideTheChunkOnly(Pair):
    """A has the erase gate, and the old state is erased as if it were open."""

    def writes(self, R, k, v, G, erase, write):
        return super().writes(R, k, v, G, torch.ones_like(erase), write)


# which channels, heads and values


@fault("gates with channels", "plain-inputs", op="gdn2")
class OneEraseGateAHead(Pair):
    """The channels of a head share their mean: KDA's gate under a name that it has not earned."""

    def write_gate(self, call, b, w):
        return super().write_gate(call, b.mean(-1, keepdim=True).expand_as(b), w)


@fault("gates with channels", "plain-inputs", op="gdn2")
class OneWriteGateAHead(Pair):
    """The first value channel's gate for all."""

    def write_gate(self, call, b, w):
        return super().write_gate(call, b, w[..., :1].expand_as(w))


@fault("gates with channels", "value-heads-share-keys-in-groups", op="gdn2")
class EraseGateOfTheGroup(Pair):
    """Value heads that share a key share the erase gate of the first of them, as a layer with few gates has it."""

    def write_gate(self, call, b, w):
        group = call.v.shape[2] // call.q.shape[2]
        return super().write_gate(call, b[:, :, ::group].repeat_interleave(group, 2), w)


@fault("gates with channels", "write-gates-as-logits", op="gdn2")
class LogitsOfOneGateOnly(Pair):
    """The flag for logits is heard for the erase gate and not for the write gate."""

    def write_gate(self, call, b, w):
        return torch.cat([b.sigmoid() if call.use_beta_sigmoid_in_kernel else b, w], -1)


@fault("gates with channels", "write-gates-up-to-two", op="gdn2")
class EraseGateClippedAtOne(Pair):
    """Erase gates above 1, which reflect, are taken for mistakes."""

    def write_gate(self, call, b, w):
        return super().write_gate(call, b.clamp(max=1) if not call.use_beta_sigmoid_in_kernel else b, w)


@fault("gates with channels", "inputs-of-any-strides", op="gdn2")
class StridesOfTheWriteGateIgnored(Pair):
    """w is read as if it were contiguous."""

    def prepare(self, call):
        x = call.gates["w"]
        if x.is_contiguous() or x.requires_grad or not x.numel():
            return super().prepare(call)
        return super().prepare(changed(call, w=in_a_row(x)))


# the decay, which is KDA's


@fault("decay", "forgotten-stays-forgotten", op="gdn2")
class ErasesBeforeTheDecay(PairLoop):
    """What the gated key holds is read before the decay."""

    def token(self, S, q, k, v, alpha, gates):
        erase, write = self.erase_and_write(k, gates)
        r = v * write - self.answer(S, k * erase)
        S = S * alpha[..., None, :] + r[..., None] * k[..., None, :]
        return S, self.answer(S, q)


# gradients


@fault("path", "gradients-of-one-token", op="gdn2")
class EraseGateDetachedInTheState(Pair):
    """The erase gate's gradient lacks the way through the old state."""

    def writes(self, R, k, v, G, erase, write):
        return super().writes(R, k, v, G, erase.detach(), write)


@fault("path", "gradients-of-every-input", op="gdn2")
class EraseGateDetachedInTheChunk(Pair):
    """The erase gate's gradient lacks the way through A: with one token nothing is missing."""

    def reader_and_writer(self, k, erase):
        return super().reader_and_writer(k, erase.detach())


@fault("path", "gradients-of-one-token", op="gdn2")
class WriteGateHasBetasGradient(Pair):
    """The write gate's gradient is that of KDA's beta without its erasing half: the residual times, not the value."""

    def writes(self, R, k, v, G, erase, write):
        U, W = super().writes(R, k, v, G, erase, write.detach())
        seen = (v - v.mean(-1, keepdim=True)).detach() * (write - write.detach())
        return U + self.product(R, seen.mT), W


@fault("sum", "gradients-of-one-token", op="gdn2")
class EraseGateGradientOverChannels(Pair):
    """The erase gate's gradient is summed over channels, and every channel gets the sum: that of a gate a head."""

    def write_gate(self, call, b, w):
        gate = b.view_as(b)
        if gate.requires_grad:
            gate.register_hook(lambda d: d.sum(-1, keepdim=True).expand_as(d))
        return super().write_gate(call, gate, w)

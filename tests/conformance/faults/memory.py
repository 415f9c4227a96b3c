"""Faults of memory: inputs that are written, strides that are not looked at, places that are read or left by
mistake.
"""

import torch

from tests.conformance.faults.reference import Reference, changed
from tests.conformance.faults.registry import fault

# inputs are not written


@fault("mutation", "the-initial-state-is-a-value")
class InitialStateUpdatedInPlace(Reference):
    """The caller's initial state becomes the final state."""

    def finish(self, call, o, S):
        if call.initial_state is not None:
            with torch.no_grad():
                call.initial_state.copy_(S)
        return super().finish(call, o, S)


@fault("mutation", "inputs-are-never-written")
class KeysNormalisedInPlace(Reference):
    """The norm is written back into the caller's keys."""

    def prepare(self, call):
        p = super().prepare(call)
        if call.use_qk_l2norm_in_kernel:
            with torch.no_grad():
                call.k.copy_(self.normalise(call.k))
        return p


@fault("mutation", "inputs-are-never-written")
class GatesSummedInPlace(Reference):
    """The gate's buffer is used for the prefix sums; a second call decays twice."""

    def run(self, call):
        result = super().run(call)
        if call.g is not None and not call.use_gate_in_kernel and call.g.numel() and not call.g.requires_grad:
            with torch.no_grad():
                call.g.copy_(call.g.cumsum(1))
        return result


@fault("mutation", "results-belong-to-the-caller")
class ResultSharesOneBuffer(Reference):
    """All calls of one shape return the same storage: the next call overwrites the last result."""

    def __init__(self):
        self.buffers = {}

    def finish(self, call, o, S):
        o, S = super().finish(call, o, S)
        if o.requires_grad:
            return o, S
        buffer = self.buffers.setdefault((o.shape, o.dtype), o)
        return buffer.copy_(o), S


# strides


def memory(x):
    """All elements of a tensor's storage, in their order."""
    return x.detach().as_strided((x.untyped_storage().nbytes() // x.element_size(),), (1,), 0)


def in_a_row(x):
    """A tensor of x's shape from what lies in memory after x's first element, as a kernel without strides reads it."""
    there = memory(x)
    rows = (x.storage_offset() + torch.arange(x.numel())).clamp(max=len(there) - 1)
    return there[rows].reshape(x.shape)


@fault("strides", "slices-of-a-fused-projection")
class StridesIgnored(Reference):
    """Values are read as contiguous from where they begin."""

    def prepare(self, call):
        x = call.v
        if x.is_contiguous() or x.requires_grad:
            return super().prepare(call)
        return super().prepare(call._replace(v=in_a_row(x)))


@fault("strides", "nothing-outside-is-read", op="delta_rule")
class OffsetIgnored(Reference):
    """Keys are read from the beginning of their storage."""

    def prepare(self, call):
        x = call.k
        if not x.storage_offset() or x.requires_grad or not x.numel():
            return super().prepare(call)
        return super().prepare(call._replace(k=x.detach().as_strided(x.shape, x.stride(), 0)))


@fault("strides", "expanded-inputs")
class StridesOfBetaIgnored(Reference):
    """beta is read as contiguous, and q, k, v with their strides."""

    def prepare(self, call):
        x = call.gates["beta"]
        if x.is_contiguous() or x.requires_grad or not x.numel():
            return super().prepare(call)
        return super().prepare(changed(call, beta=in_a_row(x)))


# what is read and what is written


@fault("memory", "zero-keys-only-decay")
class RowsOfZeroQueriesSkipped(Reference):
    """Where a query is zero its output is not written; the buffer's NaN stays."""

    def finish(self, call, o, S):
        skipped = (call.q[:, : o.shape[1]] == 0).all(-1).repeat_interleave(call.v.shape[2] // call.q.shape[2], 2)
        return super().finish(call, o.masked_fill(skipped[..., None], torch.nan), S)


@fault("memory", "no-tokens-at-all")
class StateFromFreshMemory(Reference):
    """Where no state is given, the first one is what the allocator gave."""

    def initial(self, call, N, dtype):
        S = super().initial(call, N, dtype)
        return torch.empty_like(S) if call.initial_state is None else S


@fault("memory", "nothing-outside-is-read")
class LoadsBeyondTheTensor(Reference):
    """A tile that is not whole is loaded whole; what lies behind v in memory is multiplied by zero."""

    def prepare(self, call):
        p, v = super().prepare(call), call.v
        if not v.is_contiguous() or v.requires_grad or not v.numel():
            return p
        behind = memory(v)[v.storage_offset() + v.numel() :][:8].sum().to(p.v.dtype)
        return p._replace(v=p.v + 0 * behind)


@fault("memory", "a-large-old-state-is-not-cut-off")
class WorkspaceOfTheLongerCall(Reference):
    """The last chunk's missing rows hold what a longer call left there."""

    def __init__(self):
        self.turn, self.rows = 0, {}

    def pad(self, x, missing):
        self.turn = (self.turn + 1) % 5
        place = (self.turn, *x.shape[:2], x.shape[3])
        old = self.rows.get(place)
        self.rows[place] = x.detach()
        padded = super().pad(x, missing)
        if missing and old is not None and old.shape[2] > x.shape[2]:
            left = old[:, :, x.shape[2] :][:, :, :missing]
            padded = torch.cat([x, left, x.new_zeros(*x.shape[:2], missing - left.shape[2], x.shape[3])], 2)
        return padded


@fault("memory", "the-old-state-fades-by-its-gates-alone")
class StateOfClosedGatesSkipped(Reference):
    """A sequence whose write gates are all zero is returned early with its initial state, not decayed."""

    def sequence(self, q, k, v, g, beta, S, C):
        o, final = super().sequence(q, k, v, g, beta, S, C)
        return o, torch.where((beta == 0).all(-1)[..., None, None], S, final)

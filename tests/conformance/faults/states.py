"""Faults of states and sequences: hand-over between chunks, padding, packed sequences, heads, truncation."""

import torch

from tests.conformance.faults.reference import Reference
from tests.conformance.faults.registry import fault

# between chunks


@fault("hand-over", "channels-keep-their-own-clocks")
class StateInBf16(Reference):
    """Between chunks the state is bf16: small steps round away (sgl-project/sglang PR #34299)."""

    def carry(self, S):
        return S.bfloat16().to(S.dtype)


@fault("hand-over", "only-empty-sequences")
class InitialStateInBf16(Reference):
    """A state is rounded where one call hands it to the next."""

    def initial(self, call, N, dtype):
        return super().initial(call, N, dtype).bfloat16().to(dtype)


@fault("hand-over", "forgotten-stays-forgotten", op="gated_delta_rule")
class StateNotDecayedAcrossChunks(Reference):
    """The next state forgets to decay the last one."""

    def update(self, S, E, K_g, D):
        return super().update(S, E, K_g, torch.ones_like(D))


@fault("hand-over", "channels-keep-their-own-clocks")
class ResidualFromTheInitialState(Reference):
    """Each chunk's residual is taken against the state before the first chunk."""

    def chunks(self, local, S):
        self.first = S
        return super().chunks(local, S)

    def residual(self, U, W, S):
        return super().residual(U, W, self.first)


@fault("hand-over", "what-was-written-is-read-back", op="delta_rule")
class UpdateFromTheRawWrites(Reference):
    """The state takes U, what would be written to an empty state."""

    def chunks(self, local, S):
        plain = super().chunks(local._replace(W=0 * local.W), S)[1]
        return super().chunks(local, S)[0], plain


@fault("hand-over", "what-was-written-is-read-back")
class InitialStateNotInShortSequences(Reference):
    """A sequence of at most one chunk starts from zero."""

    def sequence(self, q, k, v, g, beta, S, C):
        return super().sequence(q, k, v, g, beta, S * (q.shape[2] > C), C)


@fault("hand-over", "a-head-size-beyond-the-tiles")
class SingleTokenTakesDecodePath(Reference):
    """A prompt of one token is taken for a decode step whose gate was applied already (vllm-project/vllm #49918)."""

    def sequence(self, q, k, v, g, beta, S, C):
        return super().sequence(q, k, v, g * (q.shape[2] > 1), beta, S, C)


@fault("hand-over", "what-was-written-is-read-back")
class InitialStateOfZerosOnly(Reference):
    """The initial state reaches the outputs but not the final state."""

    def chunks(self, local, S):
        return super().chunks(local, S)[0], super().chunks(local, 0 * S)[1]


# lengths and padding


@fault("padding", "uniform-strong-gates")
class PaddingDecays(Reference):
    """Missing rows of the last chunk carry the last gate on (huggingface/transformers #46190)."""

    def local(self, q, k, v, g, beta):
        missing = (
            (k == 0).all(-1, keepdim=True)
            & (beta == 0)
            & (q == 0).all(-1, keepdim=True)
            & (v == 0).all(-1, keepdim=True)
        )
        return super().local(q, k, v, torch.where(missing, g[:, :, :1, :1].expand_as(g), g), beta)


@fault("padding", "weak-gates", op="delta_rule")
class PaddingRepeatsTheLastToken(Reference):
    """Loads past the end are clamped to the last row, and what they bring is written."""

    def pad(self, x, missing):
        return torch.cat([x, x[:, :, -1:].expand(-1, -1, missing, -1)], 2)


@fault("padding", "identical-keys")
class TailNotInTheState(Reference):
    """The final state is that of the last whole chunk."""

    def sequence(self, q, k, v, g, beta, S, C):
        o, final = super().sequence(q, k, v, g, beta, S, C)
        whole = q.shape[2] // C * C
        if whole in (0, q.shape[2]):
            return o, final
        return o, super().sequence(*(x[:, :, :whole] for x in (q, k, v, g, beta)), S, C)[1]


@fault("padding", "gates-of-zero")
class TailRowsNotWritten(Reference):
    """Rows of a chunk that is not whole keep what was in the buffer."""

    def sequence(self, q, k, v, g, beta, S, C):
        o, S = super().sequence(q, k, v, g, beta, S, C)
        T = q.shape[2]
        return (torch.cat([o[:, :, : T // C * C], 0 * o[:, :, T // C * C :]], 2) if T > C else o), S


@fault("padding", "rows-after-the-last-sequence")
class ReadsPastTheEnd(Reference):
    """A load without a predicate: rows after the last boundary reach the last sequence (MoonshotAI/FlashKDA #24)."""

    def prepare(self, call):
        p = super().prepare(call)
        end = 0 if call.cu_seqlens is None else p.bounds[-1][1] if p.bounds else 0
        if not 0 < end < call.q.shape[1] or end % p.C == 0:
            return p
        # the neighbour's value times a weight of zero: harmless until it is not a number
        beyond = 0 * call.v[:, end].to(p.v.dtype)
        return p._replace(v=torch.cat([p.v[:, :-1], p.v[:, -1:] + beyond[:, None]], 1))


@fault("padding", "each-sequence-is-computed-alone")
class ReadsIntoTheNextSequence(Reference):
    """The last tile of a sequence holds rows of the next one, times zero (vllm-project/vllm PR #51508)."""

    def sequences(self, p):
        v = p.v.flatten(0, 1)
        for (a, b), (c, d) in zip(p.bounds, p.bounds[1:]):
            if b > a and d > c and (b - a) % 16:
                v = v.index_add(0, torch.tensor([b - 1]), 0 * p.v.flatten(0, 1)[c : c + 1])
        return super().sequences(p._replace(v=v.reshape(p.v.shape)))


@fault("padding", "no-tokens-at-all")
class NoTokensNoLaunch(Reference):
    """T = 0 is a grid of size zero (MoonshotAI/FlashKDA #24)."""

    def sequences(self, p):
        if not p.v.numel():
            raise RuntimeError("CUDA error: invalid configuration argument")
        return super().sequences(p)


# packed sequences


@fault("packed", "only-empty-sequences")
class EmptySequenceResets(Reference):
    """The final state of an empty sequence is zero, whatever it began with (MoonshotAI/FlashKDA PR #25)."""

    def sequences(self, p):
        o, S = super().sequences(p)
        return o, S * torch.tensor([b > a for a, b in p.bounds])[:, None, None, None]


@fault("packed", "only-empty-sequences")
class EmptySequencesShiftTheStates(Reference):
    """States are counted over the sequences that have tokens (MoonshotAI/FlashKDA PR #32)."""

    def sequences(self, p):
        full = [n for n, (a, b) in enumerate(p.bounds) if b > a]
        o, S = super().sequences(p._replace(S=p.S[: len(full)], bounds=[p.bounds[n] for n in full]))
        return o, torch.cat([S, torch.zeros_like(p.S[len(full) :])])


@fault("packed", "only-empty-sequences")
class BoundariesIgnored(Reference):
    """All rows are one sequence."""

    def sequences(self, p):
        rows = [(p.bounds[0][0], p.bounds[-1][1])] if p.bounds else []
        o, S = super().sequences(p._replace(S=p.S[:1], bounds=rows))
        return o, S.expand(len(p.bounds), *S.shape[1:]).clone()


@fault("packed", "only-empty-sequences", op="delta_rule")
class StateRunsIntoTheNext(Reference):
    """A sequence without an initial state of its own begins with the final state of the one before."""

    def sequences(self, p):
        outputs, states, before = torch.zeros_like(p.v), [], 0 * p.S[:1]
        for n, (a, b) in enumerate(p.bounds):
            o, S = super().sequences(p._replace(S=p.S[n : n + 1] + before, bounds=[(a, b)]))
            outputs, before = outputs + o, S
            states.append(S)
        return outputs, torch.cat([p.S[:0], *states])


@fault("packed", "rows-after-the-last-sequence")
class ScoresAcrossBoundaries(Reference):
    """Chunks lie on a grid of the whole row: a chunk that holds two sequences lets the second read the first's
    values.
    """

    def sequences(self, p):
        o, S = super().sequences(p)
        if p.v.shape[0] > 1:
            return o, S
        flat = [x.flatten(0, 1) for x in (p.q, p.k, p.v)]
        for (a, b), (c, d) in zip(p.bounds, p.bounds[1:]):
            if b % p.C and b > a and d > c:
                leak = (flat[0][c] * flat[1][b - 1]).sum(-1, keepdim=True) * flat[2][b - 1]  # [HV, V]
                o = o.flatten(0, 1).index_add(0, torch.tensor([c]), leak[None]).reshape(o.shape)
        return o, S


@fault("packed", "rows-after-the-last-sequence")
class LastSequenceIgnored(Reference):
    """``range(len(cu_seqlens) - 2)``."""

    def sequences(self, p):
        bounds = p.bounds if len(p.bounds) < 2 else [*p.bounds[:-1], (0, 0)]
        return super().sequences(p._replace(bounds=bounds))


@fault("packed", "rows-after-the-last-sequence")
class StatesInSortedOrder(Reference):
    """Sequences are sorted, longest first, for balance; outputs go back to their places and states do not."""

    def sequences(self, p):
        o, S = super().sequences(p)
        order = sorted(range(len(p.bounds)), key=lambda n: p.bounds[n][0] - p.bounds[n][1])
        return o, S[order] if len(order) else S


@fault("packed", "many-short-sequences")
class TableOfChunksTooShort(Reference):
    """The table has room for one chunk in C tokens and eight more: many short sequences do not fit."""

    def sequences(self, p):
        room = p.v.shape[1] // p.C + 8
        if p.v.shape[0] > 1 or len(p.bounds) <= room:
            return super().sequences(p)
        return super().sequences(p._replace(bounds=[b if n < room else (0, 0) for n, b in enumerate(p.bounds)]))


@fault("packed", "rows-after-the-last-sequence")
class RowsAfterTheLastAreLeft(Reference):
    """Output rows at and after the last boundary hold what the buffer held."""

    def finish(self, call, o, S):
        end = o.shape[1]
        o, S = super().finish(call, o, S)
        return torch.cat([o[:, :end], o[:, end:] + 7.0], 1), S


@fault("packed", "more-than-65535-sequences-times-heads")
class BlocksBeyondTheGrid(Reference):
    """A grid's second axis ends at 65,535 sequences times heads (fla-org/flash-linear-attention PR #1077)."""

    def finish(self, call, o, S):
        o, S = super().finish(call, o, S)
        if S is None or S.shape[0] * S.shape[1] <= 65535:
            return o, S
        kept = torch.arange(S.shape[0] * S.shape[1]).reshape(S.shape[:2]) < 65535
        return o, S * kept[..., None, None]


@fault("batch", "no-tokens-at-all")
class BatchIsOneSequence(Reference):
    """Rows of a batch run into each other: the second begins with the state of the first."""

    def sequences(self, p):
        if len(p.bounds) < 2 or p.v.shape[0] == 1:
            return super().sequences(p)
        o, S = super().sequences(p._replace(S=p.S[:1], bounds=[(0, p.bounds[-1][1])]))
        return o, S.expand_as(p.S).clone()


@fault("batch", "only-empty-sequences")
class FirstRowsInitialState(Reference):
    """Every row of a batch begins with the state of row 0."""

    def initial(self, call, N, dtype):
        S = super().initial(call, N, dtype)
        return S[:1].expand_as(S)


# heads


@fault("heads", "gate-parameters-belong-to-value-heads")
class HeadsModulo(Reference):
    """Value head hv reads key head hv mod H (fla-org/flash-linear-attention #624)."""

    def spread(self, x, group):
        return x.repeat(1, 1, group, 1)


@fault("heads", "only-empty-sequences", op="gated_delta_rule")
class FirstHeadsInitialState(Reference):
    """Every head begins with the state of head 0."""

    def initial(self, call, N, dtype):
        S = super().initial(call, N, dtype)
        return S[:, :1].expand_as(S)


@fault("heads", "gate-parameters-belong-to-value-heads")
class GroupedKeysCrossHeads(Reference):
    """With groups, queries find their head and keys take head 0."""

    def prepare(self, call):
        return super().prepare(
            call._replace(k=call.k[:, :, :1].expand_as(call.k)) if call.v.shape[2] > call.q.shape[2] else call
        )


@fault("heads", "a-nan-in-one-head-stays-there")
class NeighbourHeadTimesZero(Reference):
    """A tile holds two heads, and the other one's values are multiplied by zero."""

    def load(self, x, dtype):
        x = super().load(x, dtype)
        return x + 0 * x.roll(1, 2) if x.ndim == 4 and x.shape[2] > 1 and not x.requires_grad else x


@fault("sizes", "a-head-size-beyond-the-tiles")
class WidthsInWholeTiles(Reference):
    """Key channels beyond the last multiple of 8 are not loaded (fla-org/flash-linear-attention #1241)."""

    def load(self, x, dtype):
        x = super().load(x, dtype)
        if x.ndim < 4 or x.shape[-1] < 8 or x.shape[-1] % 8 == 0:
            return x
        return x * (torch.arange(x.shape[-1]) < x.shape[-1] // 8 * 8)


# truncation


@fault("truncation", "a-long-sequence-of-slow-gates")
class HistoryOfEightChunks(Reference):
    """Tokens more than eight chunks before the end of a sequence do not reach the rest of it."""

    def chunks(self, local, S):
        m = local.D.shape[2]
        if m <= 8:
            return super().chunks(local, S)
        early, late = (type(local)(*(x[:, :, part] for x in local)) for part in (slice(m - 8), slice(m - 8, m)))
        O, _ = super().chunks(early, S)
        rest, final = super().chunks(late, 0 * S)
        return torch.cat([O, rest], 2), final


@fault("truncation", "the-old-state-fades-by-its-gates-alone")
class ForgottenBelowTwoToMinusTwenty(Reference):
    """The initial state is left out once no channel of it survives by more than 2^-20, however large it was."""

    def chunks(self, local, S):
        (O, final), (O_new, final_new) = super().chunks(local, S), super().chunks(local, 0 * S)
        gone = local.D.cumprod(2).amax(-1) < 2.0**-20  # [n, HV, m] after each chunk
        before = torch.nn.functional.pad(gone[..., :-1], (1, 0))
        return O_new.where(before[..., None, None], O), final_new.where(gone[..., -1, None, None], final)


@fault("truncation", "the-layouts-of-the-bias")
class ForgottenByTheMean(Reference):
    """A segment starts from zero once the mean decay of its past is below 2^-20, though one channel may remember
    all.
    """

    def update(self, S, E, K_g, D):
        forgotten = D.clamp(min=1e-38).log2().mean(-1, keepdim=True) < -20
        return super().update(S, E, K_g, D.masked_fill(forgotten, 0))


@fault("truncation", "the-layouts-of-the-bias")
class SlowestChannelForgotten(Reference):
    """The same with the bound taken from channel 0 for all of them."""

    def update(self, S, E, K_g, D):
        return super().update(S, E, K_g, D.masked_fill(D[..., :1] < 2.0**-10, 0))


@fault("truncation", "old-values-weigh-as-much-as-new-ones")
class SegmentsBeginFromZero(Reference):
    """Each chunk is computed apart, from a zero state so far back that no channel survives the way by more than
    2^-20.
    """

    chunk = 16
    capabilities = "chunk=16"

    def chunks(self, local, S):
        worst = local.D.detach().clamp(min=1e-38).log2().amax((0, 1, 3)).tolist()  # of each chunk
        rows = []
        for t in range(len(worst)):
            start, bound = t, 0.0
            while start and bound > -20:
                start -= 1
                bound += worst[start]
            part = type(local)(*(x[:, :, start : t + 1] for x in local))
            O, final = super().chunks(part, 0 * S if start else S)
            rows.append(O[:, :, -1])
        return torch.stack(rows, 2), final

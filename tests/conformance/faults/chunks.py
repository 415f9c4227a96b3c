"""Faults inside a chunk: exponents, masks, blocks and the triangular inverse."""

import torch

from tests.conformance.faults.reference import Reference
from tests.conformance.faults.registry import fault

# exponents


def referred(self, X, Y, G, reference):
    """Scores from two factors that refer to one token of the whole chunk."""
    return self.product(X * self.exp(G - reference), Y * self.exp(reference - G))


@fault("exponents", "forgotten-stays-forgotten")
class ReferenceAtMidChunk(Reference):
    """One reference in the middle of 64 tokens: e^160 at g = -5 (NVIDIA/cudnn-frontend PR #1017)."""

    def scores(self, X, Y, g):
        G = self.prefix(g)
        middle = G.shape[-2] // 2
        return referred(self, X, Y, G, G[..., middle : middle + 1, :])


@fault("exponents", "forgotten-stays-forgotten")
class FactorsHeldFinite(ReferenceAtMidChunk):
    """The same with exponents cut at 80: no overflow, and a wrong number without a word at g = -3."""

    def exp(self, x):
        return x.clamp(max=80).exp()


@fault("exponents", "forgotten-stays-forgotten")
class ReferenceAtTheFirstToken(Reference):
    """e^(-G_j) as a factor of its own, which overflows at 88 / |g| tokens (inclusionAI/cuLA #89)."""

    def scores(self, X, Y, g):
        G = self.prefix(g)
        return referred(self, X, Y, G, G[..., :1, :])


@fault("exponents", "forgotten-stays-forgotten")
class ExponentsClamped(Reference):
    """Exponents are held at +-126 in base 2, so that what is long forgotten comes back (sgl-project/sglang #39971)."""

    def exp(self, x):
        return (x * torch.tensor(1.0).exp().log2()).clamp(-126, 126).exp2()

    def scores(self, X, Y, g):
        G = self.prefix(g)
        return referred(self, X, Y, G, 0 * G[..., :1, :])


@fault("exponents", "gates-just-beyond-the-usual-bound")
class ReciprocalOfSixteenDecays(Reference):
    """k / e^G over 16 tokens, in float32: it overflows where their gates sum below -88.7."""

    def inside_block(self, X, Y, g):
        G = self.prefix(g)
        return self.product(X * self.exp(G), Y / self.exp(G))


@fault("exponents", "forgotten-stays-forgotten", op="gated_delta_rule")
class DecaysHeldAboveTwoToMinusTwenty(Reference):
    """No product of decays falls below 2^-20."""

    def exp(self, x):
        return x.exp().clamp(min=2.0**-20)


@fault("exponents", "the-state-between-tokens-is-float32")
class PrefixSumsInBf16(Reference):
    """Sums of gates keep 8 bits: after 100 tokens steps of 0.5."""

    def prefix(self, g):
        return super().prefix(g).bfloat16().to(g.dtype)


@fault("exponents", "extreme-gates")
class LaterSumsByDifference(Reference):
    """G_C - G_j from rounded prefix sums: a strong gate costs the weak ones behind it their digits."""

    def later(self, g):
        G = g.cumsum(-2)
        return G[..., -1:, :] - G

    def clear(self, g):
        return g.clamp(min=-1e6)


@fault("exponents", "the-base-of-the-decay-is-e")
class PrefixWithoutTheToken(Reference):
    """The old state decays up to the token before: an exclusive sum where an inclusive one is meant."""

    def prefix(self, g):
        return super().prefix(g) - g


@fault("exponents", "what-was-written-is-read-back")
class KeysDecayOnceMore(Reference):
    """A key's write to the next state decays by its own gate, too: the sum from j in place of j + 1."""

    def later(self, g):
        return super().later(g) + g


@fault("exponents", "the-layouts-of-the-bias")
class IntervalFromTheOtherEnd(Reference):
    """Inside a block the decay runs over tokens j to i - 1 in place of j + 1 to i: the same for equal gates."""

    def inside_block(self, X, Y, g):
        before = torch.cat([g[..., :1, :], g[..., :-1, :]], -2)
        return super().inside_block(X, Y, before)


# masks


@fault("mask", "forgotten-stays-forgotten")
class ErasesItself(Reference):
    """The diagonal of A is kept: a token erases its own write."""

    def below(self, X):
        return X.tril()

    def inverse(self, A):
        return torch.linalg.inv(torch.eye(A.shape[-1], dtype=A.dtype) + A)


@fault("mask", "what-was-written-is-read-back", op="delta_rule")
class ReadsOnlyThePast(Reference):
    """The diagonal of M is dropped: within a chunk a query does not see its own token."""

    def upto(self, X):
        return X.tril(-1)


@fault("mask", "forgotten-stays-forgotten")
class ReadsTheNextToken(Reference):
    """M reaches one token into the future."""

    def local(self, q, k, v, g, beta):
        ahead = torch.diag_embed((q[..., :-1, :] * k[..., 1:, :]).sum(-1), offset=1)
        local = super().local(q, k, v, g, beta)
        return local._replace(M=local.M + ahead)


@fault("mask", "the-base-of-the-decay-is-e")
class NegativeScoresDropped(Reference):
    """Keys that point away from each other are taken for orthogonal."""

    def below(self, X):
        return super().below(X).clamp(min=0)


# blocks of sixteen


@fault("blocks", "gates-of-zero")
class BlocksDoNotErase(Reference):
    """A has its diagonal blocks only: under strong gates nobody sees it."""

    def below(self, X):
        i = torch.arange(X.shape[-1]) // self.block
        return super().below(X) * (i[:, None] == i)


@fault("blocks", "the-future-is-not-read")
class BlocksDoNotRead(Reference):
    """M has its diagonal blocks only."""

    def upto(self, X):
        i = torch.arange(X.shape[-1]) // self.block
        return super().upto(X) * (i[:, None] == i)


@fault("blocks", "a-given-scale")
class OnlyNeighbouringBlocks(Reference):
    """A block sees itself and the one before; two further back nothing is left."""

    def across_blocks(self, X, Y, g):
        i = torch.arange(g.shape[-3])
        return super().across_blocks(X, Y, g) * (i[:, None] - i < 2)[..., None, None]


@fault("blocks", "far-blocks-are-seen")
class DecayBetweenBlocksForgotten(Reference):
    """The decay of the whole blocks that lie between two is left out."""

    def across_blocks(self, X, Y, g):
        i = torch.arange(g.shape[-3])
        left = (X * self.exp(self.prefix(g)))[..., :, None, :, :]
        right = (Y * self.exp(self.later(g)))[..., None, :, :, :]
        return self.product(left, right) * (i[:, None] > i)[..., None, None]


@fault("blocks", "results-have-the-promised-types")
class LastBlockSkipped(Reference):
    """A chunk of fewer than 64 tokens is rounded down to whole blocks where it reads across blocks."""

    def across_blocks(self, X, Y, g):
        scores = super().across_blocks(X, Y, g)
        if g.shape[-3] in (2, 3):
            scores = scores.clone()
            scores[..., -1, :, :, :] = 0
        return scores


# the inverse


@fault("inverse", "scale-zero-is-a-scale")
class MergeIsFirstOrder(Reference):
    """Blocks are inverted well and merged as -A21, without their own inverses beside it."""

    def inverse(self, A):
        i = torch.arange(A.shape[-1]) // self.block
        on = i[:, None] == i
        return super().inverse(A * on) - A * ~on


@fault("inverse", "far-blocks-are-seen", op="delta_rule")
class NeumannSeriesOfFourTerms(Reference):
    """I - A + A^2 - A^3: right for nearly orthogonal keys."""

    def inverse(self, A):
        A2 = A @ A
        return torch.eye(A.shape[-1], dtype=A.dtype) - A + A2 - A2 @ A


@fault("inverse", "opposite-keys")
class PowerSeriesInFp16(Reference):
    """Sixteen terms in fp16, a block at a time: no digit is left on nearly parallel keys (MoonshotAI/FlashKDA #34)."""

    chunk = 16

    def inverse(self, A):
        half = lambda x: x.half().to(x.dtype)
        N = half(-A)
        R = torch.eye(A.shape[-1], dtype=A.dtype) + N
        for _ in range(3):
            N = half(N @ N)
            R = half(R + half(R @ N))
        return R


@fault("inverse", "opposite-keys")
class PowerSeriesOverSixtyFour(Reference):
    """Powers of the whole chunk's A: on correlated keys they overflow before they vanish (NVIDIA/cudnn-frontend
    #1051).
    """

    def inverse(self, A):
        N = -A.float()
        R = torch.eye(A.shape[-1]) + N
        for _ in range(5):
            N = N @ N
            R = R + R @ N
        return R.to(A.dtype)


@fault("inverse", "a-token-reads-its-own-write")
class InverseTransposed(Reference):
    """W takes the inverse from the wrong side."""

    def writes(self, R, k, v, G, beta):
        U, _W = super().writes(R, k, v, G, beta)
        return U, super().writes(R.mT, k, v, G, beta)[1]


@fault("inverse", "nearly-parallel-keys-reflect")
class DegenerateRowsSkipped(Reference):
    """A token whose key is almost the one before is treated as if it had no past in the chunk."""

    def inverse(self, A):
        almost = A.diagonal(-1, -2, -1) > 0.99  # [..., C - 1]
        keep = torch.nn.functional.pad(~almost, (1, 0), value=True)
        return super().inverse(A * keep[..., None])


@fault("inverse", "the-base-of-the-decay-is-e")
class ErasureWithoutInverse(Reference):
    """U and W share one inverse (a reader asks why in fla-org/flash-linear-attention #735); here W takes the
    identity.
    """

    def writes(self, R, k, v, G, beta):
        return super().writes(R, k, v, G, beta)[0], k * self.exp(G) * beta

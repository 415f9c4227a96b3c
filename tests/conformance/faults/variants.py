"""Correct implementations that differ in everything that the contract leaves open: precision, chunks, order, blocks,
layout.
"""

import torch

from kda_lab import triangular
from tests.conformance.faults.reference import Loop, Pair, PairLoop, Reference
from tests.conformance.faults.registry import variant


def rounded(x, dtype):
    """x as an operand of this dtype; its gradient passes unrounded."""
    return x + (x.to(dtype).to(x.dtype) - x).detach()


@variant("itself", dtype=torch.float64)
@variant("itself", dtype=torch.bfloat16)
@variant("itself")
class Chunk64(Reference):
    """The reference."""


@variant("itself", op="gated_delta_rule")
class OneGateAHead(Reference):
    """The reference as a gated delta rule."""


@variant("itself", op="delta_rule")
class NoGate(Reference):
    """The reference as a delta rule."""


@variant("itself", op="gdn2", dtype=torch.bfloat16)
@variant("itself", op="gdn2")
class TwoGates(Pair):
    """The reference with a gate that erases and another that writes."""


@variant("loop", op="gdn2")
class TwoGatesTokenByToken(PairLoop):
    """The same token by token."""


@variant("chunk size")
class Chunk16(Reference):
    """Sixteen tokens at a time."""

    chunk = 16


@variant("chunk size")
class Chunk32(Reference):
    """Thirty-two tokens at a time."""

    chunk = 32


@variant("chunk size")
class Chunk128(Reference):
    """A hundred and twenty-eight tokens at a time."""

    chunk = 128


@variant("precision", dtype=torch.bfloat16)
@variant("precision")
class Bf16Operands(Reference):
    """Matrix products of bf16 operands with fp32 sums, as tensor cores do; state, inverse and diagonal blocks in
    fp32.
    """

    def product(self, X, Y):
        if X.dtype == torch.float64:
            return super().product(X, Y)
        return rounded(X, torch.bfloat16) @ rounded(Y, torch.bfloat16).mT


@variant("precision", dtype=torch.float16)
class Fp16Operands(Reference):
    """The same in fp16 where its range permits; operands outside of it stay in fp32."""

    def product(self, X, Y):
        return self.eleven_bits(X) @ self.eleven_bits(Y).mT

    def eleven_bits(self, x):
        size = x.detach().abs()
        return torch.where((size > 6.2e-5) & (size < 6e4), rounded(x, torch.float16), x)


@variant("precision")
class Tf32Operands(Reference):
    """Operands with ten bits after the point, as tf32 has."""

    def product(self, X, Y):
        if X.dtype == torch.float64:
            return super().product(X, Y)
        return self.ten_bits(X) @ self.ten_bits(Y).mT

    def ten_bits(self, x):
        # adding and taking away a large multiple of x itself rounds x to its leading bits
        big = x * (2.0**13 + 1)
        return x + (big - (big - x) - x).detach()


@variant("order of sums")
class ChannelsBackwards(Reference):
    """Sums over channels and tokens in two halves, the second first."""

    def product(self, X, Y):
        half = X.shape[-1] // 2
        return X[..., half:] @ Y[..., half:].mT + X[..., :half] @ Y[..., :half].mT


@variant("order of sums")
class StateBeforeScores(Reference):
    """The token loop's order at chunk size: the residual from values and old state first, then one solve."""

    def writes(self, R, k, v, G, beta):
        self.R = R
        return v * beta, k * self.exp(G) * beta

    def chunks(self, local, S):
        entries, residuals = [], []
        for t in range(local.D.shape[2]):
            E = self.product(self.R[:, :, t], (local.U[:, :, t] - self.product(local.W[:, :, t], S)).mT)
            entries.append(S)
            residuals.append(E)
            S = self.update(S, E, local.K_g[:, :, t], local.D[:, :, t])
        return self.read(local, torch.stack(entries, 2), torch.stack(residuals, 2)), S


@variant("blocks")
class BlocksOfEight(Reference):
    """Boundary references every eight tokens."""

    block = 8


@variant("blocks")
class PairsOnly(Reference):
    """No blocks: a sum of gates for every pair of a chunk of 32."""

    chunk = 32
    block = 32


@variant("inverse")
class DoublingInBlocks(Reference):
    """Powers inside blocks of 16, where write gates up to 1 keep them small enough, and merges of blocks."""

    capabilities = "no-beta-to-two"

    def inverse(self, A):
        C = A.shape[-1]
        R = triangular.doubling(A[..., :16, :16])
        for n in range(16, C, 16):
            e = min(n + 16, C)
            R2 = triangular.doubling(A[..., n:e, n:e])
            left = triangular.merge(R, A[..., n:e, :n], R2)
            R = torch.cat([torch.nn.functional.pad(R, (0, e - n)), torch.cat([left, R2], -1)], -2)
        return R


@variant("loop")
class TokenLoop(Loop):
    """Token by token in fp32."""


@variant("loop")
class TokenLoopInFloat64(Loop):
    """Token by token in float64, whatever comes in."""

    def working_dtype(self, call):
        return torch.float64

    def finish(self, call, o, S):
        o, S = super().finish(call, o, S)
        return o, S if S is None or call.q.dtype == torch.float64 else S.float()


@variant("layout")
class KeysFirst(Reference):
    """States come and go as [N, HV, K, V]."""

    state_layout = "kv"

    def run(self, call):
        S = call.initial_state
        o, S = super().run(call if S is None else call._replace(initial_state=S.mT))
        return o, None if S is None else S.mT.contiguous()


@variant("refusal")
class EvenSizesOnly(Reference):
    """Odd head sizes and those above 128 are refused, as the contract allows; nothing is declared."""

    def accept(self, call):
        super().accept(call)
        K, V = call.q.shape[-1], call.v.shape[-1]
        if K % 2 or V % 2 or max(K, V) > 128:
            raise ValueError(f"K and V must be even and at most 128, got K = {K}, V = {V}")


@variant("refusal")
class InferenceOnly(Reference):
    """One sequence a row, given gates not below -5, no gradient: what it declares to be missing is refused."""

    capabilities = "no-varlen, no-grouped-heads, no-backward, no-bounded-gate, no-softplus-gate, lowest-gate=-5"

    def accept(self, call):
        super().accept(call)
        refused = {
            "cu_seqlens": call.cu_seqlens is not None,
            "grouped heads": call.v.shape[2] != call.q.shape[2],
            "a raw gate": call.use_gate_in_kernel,
            "a gradient": any(isinstance(x, torch.Tensor) and x.requires_grad for x in call),
            "gates below -5": bool((call.g < -5).any()),
        }
        if any(refused.values()):
            raise NotImplementedError(f"{', '.join(name for name, hit in refused.items() if hit)} not supported")


@variant("layout")
class HeadsFirst(Reference):
    """Outputs are a transposed view of [B, HV, T, V]."""

    def finish(self, call, o, S):
        o, S = super().finish(call, o, S)
        return o.transpose(1, 2).contiguous().transpose(1, 2), S

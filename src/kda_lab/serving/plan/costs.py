"""What keeping states costs, in bytes and operations: checkpoints of a prefix, and the traffic of three ways to
speculate.

Models of bytes, not measurements. Marconi: arXiv 2411.19379. ReplaySSM: dao-lab.ai/blog/2026/replayssm. RecoverSSM:
vLLM
0.32.0 for Kimi K3. S: bytes of a state of one layer   r: bytes of what one token adds to it (a record)   L: records
that a
ring holds   T: tokens of a verified step, one and the drafted ones.
"""

from math import sqrt
from typing import NamedTuple

from kda_lab.serving.plan.specs import BF16, FP32, ceil_div


class Hybrid(NamedTuple):
    """A model as Marconi counts it: layers of each kind, width D, state N, taps of the convolution, bytes of a number.

    >>> Hybrid(4, 24, 28, D=4096, N=128).checkpoint_bytes
    26787840
    """

    attention: int
    ssm: int
    mlp: int
    D: int
    N: int
    taps: int = 4
    number: int = BF16

    def flops(self, L) -> int:
        """Operations that a prefix of L tokens saves: attention 8 L D^2 + 4 L^2 D, MLP 16 L D^2, SSM 12 L D^2 + 16 L D
        N + 10 L.

        >>> Hybrid(1, 0, 0, D=2, N=1).flops(3)
        168
        """
        attention = 8 * L * self.D**2 + 4 * L**2 * self.D
        ssm = 12 * L * self.D**2 + 16 * L * self.D * self.N + 10 * L
        return self.attention * attention + self.mlp * 16 * L * self.D**2 + self.ssm * ssm

    def kv_bytes(self, L) -> int:
        """Keys and values of L tokens: 2 L D numbers a layer."""
        return self.attention * 2 * L * self.D * self.number

    @property
    def checkpoint_bytes(self) -> int:
        """One state of all layers, D N numbers each and `taps` inputs of a convolution over 2 D + 2 N channels."""
        return self.ssm * (self.D * self.N + self.taps * (2 * self.D + 2 * self.N)) * self.number

    def saved(self, L) -> float:
        """Operations saved for each byte kept: what Marconi's eviction weighs against recency.

        >>> model = Hybrid(4, 24, 28, D=4096, N=128)
        >>> [round(model.saved(L) / 1e3, 1) for L in (128, 1024, 32768)]
        [47.6, 143.4, 229.6]
        """
        return self.flops(L) / (self.kv_bytes(L) + self.checkpoint_bytes)

    def prefix_bytes(self, L, checkpoints) -> int:
        """A prefix of L tokens with so many states along it.

        >>> Hybrid(4, 24, 28, D=4096, N=128).prefix_bytes(10_000, 2)
        708935680
        """
        return self.kv_bytes(L) + checkpoints * self.checkpoint_bytes


def dense_checkpoints(L, block):
    """States along a prefix if every full block keeps one.

    >>> dense_checkpoints(10_000, 16), dense_checkpoints(10_000, 640)
    (625, 15)
    """
    return L // block


def eviction_score(recency, saved, alpha):
    """Marconi's score of a node, both terms scaled to [0, 1] over the nodes that may go; the smallest goes. alpha = 0
    is LRU.

    >>> eviction_score(0.5, 0.25, alpha=2)
    1.0
    """
    return recency + alpha * saved


def state_bytes(heads, K, V, number=FP32):
    """S of one layer.

    >>> state_bytes(8, 128, 128)
    524288
    """
    return heads * K * V * number


def record_bytes(heads, K, V, u=FP32, k=BF16, gates=None, gate=BF16):
    """What one token adds: the corrected value u [V], the key k [K], and `gates` log decays a head (K for KDA, 1 for
    GDN).

    >>> record_bytes(8, 128, 128), record_bytes(8, 128, 128, u=BF16, gates=1, gate=FP32)
    (8192, 4128)
    """
    gates = K if gates is None else gates
    return heads * (V * u + K * k + gates * gate)


def baseline_step(S):
    """Bytes of a decode step that reads the state and writes it: 2 S.

    >>> baseline_step(524_288)
    1048576
    """
    return 2 * S


def replay_step(S, r, L):
    """Mean bytes of a step that reads an old state and replays a ring: S + S / L + r + r (L - 1) / 2.

    The state is read each step and written once in L; a record is written each step, and (L - 1) / 2 are read on
    average.

    >>> replay_step(524_288, 8_192, 11) / baseline_step(524_288) < 0.6
    True
    """
    return S + S / L + r + r * (L - 1) / 2


def best_ring(S, r):
    """The ring with the least traffic: L = sqrt(2 S / r), where the write that is saved equals the replay that is
    added.

    >>> round(best_ring(524_288, 8_192), 2)
    11.31
    """
    return sqrt(2 * S / r)


def replay_wins(S, r, L) -> bool:
    """Whether replaying moves fewer bytes than writing: S (1 - 1 / L) > r (L + 1) / 2.

    >>> replay_wins(524_288, 8_192, 1), replay_wins(524_288, 8_192, 2)
    (False, True)
    """
    return r * (L + 1) / 2 < S * (1 - 1 / L)


def speedup(S, r, L):
    """Bytes of the baseline for each byte of replay; below 2 for every ring.

    >>> [round(speedup(524_288, 8_192, L), 3) for L in (1, 2, 11, 64)]
    [0.992, 1.313, 1.688, 1.313]
    """
    return baseline_step(S) / replay_step(S, r, L)


def flushes_per_token(L, B):
    """Times a token that the state is written when a block of B tokens must end with a written state: ceil(B / L) / B.

    >>> flushes_per_token(16, 640) == 1 / 16, flushes_per_token(12, 640) > 1 / 12
    (True, True)
    """
    return ceil_div(B, L) / B


def slots_step(S, T):
    """Bytes of a verified step with a slot for each token: read one state, write T.

    >>> slots_step(524_288, 4)
    2621440
    """
    return S + T * S


def replay_verify(S, r, T):
    """Bytes of a verified step that only writes records: S + T r; the flush is paid later.

    >>> replay_verify(524_288, 8_192, 4)
    557056
    """
    return S + T * r


def recover_commit(S, r, T):
    """Bytes of the commit after sampling: read the state and T records, write the state at the accepted token.

    >>> recover_commit(524_288, 8_192, 4)
    1081344
    """
    return 2 * S + T * r


def recover_step(S, r, T):
    """Bytes of a step of RecoverSSM, which always commits: 3 S + 2 T r.

    >>> [round(slots_step(524_288, T) / recover_step(524_288, 8_192, T), 2) for T in (1, 2, 3, 8)]
    [0.66, 0.98, 1.29, 2.77]
    """
    return replay_verify(S, r, T) + recover_commit(S, r, T)


def slots_memory(S, T):
    """Bytes that a request holds with a slot for each token: T S."""
    return T * S


def recover_memory(S, r, T):
    """Bytes that a request holds with one state and T records: S + T r.

    >>> round(slots_memory(524_288, 4) / recover_memory(524_288, 8_192, 4), 2)
    3.76
    """
    return S + T * r

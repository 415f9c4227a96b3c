"""What keeping states costs, in bytes and operations: checkpoints of a prefix, and the traffic of three ways to
speculate.

Models of bytes, not measurements. Marconi: arXiv 2411.19379. ReplaySSM: dao-lab.ai/blog/2026/replayssm. RecoverSSM:
vLLM 0.32.0 for Kimi K3.

state: bytes of a state S of one layer   record: bytes of what one token adds to it   L: records that a ring holds
T: tokens of a verified step, one and the drafted ones.
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
    """Bytes of a state S [V, K] of each head of one layer; number: bytes of an entry.

    >>> state_bytes(8, 128, 128)
    524288
    """
    return heads * K * V * number


def record_bytes(heads, K, V, u=FP32, k=BF16, gates=None, gate=BF16):
    """Bytes of what one token adds: for each head the corrected value u [V], the key k [K], and `gates` log decays, K
    of them (KDA) if None, 1 for GDN.   u, k, gate: bytes of a number of each.

    >>> record_bytes(8, 128, 128), record_bytes(8, 128, 128, u=BF16, gates=1, gate=FP32)
    (8192, 4128)
    """
    gates = K if gates is None else gates
    return heads * (V * u + K * k + gates * gate)


def baseline_step(state):
    """Bytes of a decode step that reads the state and writes it: 2 state.

    >>> baseline_step(524_288)
    1048576
    """
    return 2 * state


def replay_step(state, record, L):
    """Mean bytes of a step that reads an old state and replays a ring: state + state / L + record + record (L - 1) / 2.

    The state is read each step and written once in L; a record is written each step, and (L - 1) / 2 are read on
    average.

    >>> replay_step(524_288, 8_192, 11) / baseline_step(524_288) < 0.6
    True
    """
    return state + state / L + record + record * (L - 1) / 2


def best_ring(state, record):
    """The ring with the least traffic, in records: L = sqrt(2 state / record), where the write that is saved equals the
    replay that is added.

    >>> round(best_ring(524_288, 8_192), 2)
    11.31
    """
    return sqrt(2 * state / record)


def replay_wins(state, record, L) -> bool:
    """Whether replaying moves fewer bytes than writing: state (1 - 1 / L) > record (L + 1) / 2.

    >>> replay_wins(524_288, 8_192, 1), replay_wins(524_288, 8_192, 2)
    (False, True)
    """
    return record * (L + 1) / 2 < state * (1 - 1 / L)


def speedup(state, record, L):
    """Bytes of the baseline for each byte of replay; below 2 for every ring.

    >>> [round(speedup(524_288, 8_192, L), 3) for L in (1, 2, 11, 64)]
    [0.992, 1.313, 1.688, 1.313]
    """
    return baseline_step(state) / replay_step(state, record, L)


def flushes_per_token(L, B):
    """Times a token that the state is written when a block of B tokens must end with a written state: ceil(B / L) / B.

    >>> flushes_per_token(16, 640) == 1 / 16, flushes_per_token(12, 640) > 1 / 12
    (True, True)
    """
    return ceil_div(B, L) / B


def slots_step(state, T):
    """Bytes of a verified step with a slot for each token: read one state, write T.

    >>> slots_step(524_288, 4)
    2621440
    """
    return state + T * state


def replay_verify(state, record, T):
    """Bytes of a verified step that only writes records: state + T record; the flush is paid later.

    >>> replay_verify(524_288, 8_192, 4)
    557056
    """
    return state + T * record


def recover_commit(state, record, T):
    """Bytes of the commit after sampling: read the state and T records, write the state at the accepted token.

    >>> recover_commit(524_288, 8_192, 4)
    1081344
    """
    return 2 * state + T * record


def recover_step(state, record, T):
    """Bytes of a step of RecoverSSM, which always commits: 3 state + 2 T record.

    >>> [round(slots_step(524_288, T) / recover_step(524_288, 8_192, T), 2) for T in (1, 2, 3, 8)]
    [0.66, 0.98, 1.29, 2.77]
    """
    return replay_verify(state, record, T) + recover_commit(state, record, T)


def slots_memory(state, T):
    """Bytes that a request holds with a slot for each token: T state."""
    return T * state


def recover_memory(state, record, T):
    """Bytes that a request holds with one state and T records: state + T record.

    >>> round(slots_memory(524_288, 4) / recover_memory(524_288, 8_192, 4), 2)
    3.76
    """
    return state + T * record

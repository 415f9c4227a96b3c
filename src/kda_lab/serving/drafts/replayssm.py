"""ReplaySSM: a checkpoint of the state and a ring of records; the state is written when the ring is full or a block
ends.

A step reads the checkpoint and the ring, answers, and appends what its tokens wrote. Rejected tokens are forgotten by
not counting their records. One request, one layer of Kimi Delta Attention; every byte to and from memory is counted.
"""

from typing import NamedTuple

import torch

from kda_lab import rules
from kda_lab.algebra import replay
from kda_lab.parts import inputs
from kda_lab.serving.plan.specs import ceil_div


class Inputs(NamedTuple):
    """What a layer feeds to its memory for T tokens: q, k, g [T, H, K]; v [T, H, V]; beta [T, H].

    >>> Inputs._fields
    ('q', 'k', 'v', 'g', 'beta')
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    g: torch.Tensor
    beta: torch.Tensor


class Traffic:
    """Bytes of states and records that were read and written; inputs and outputs of the layer are the same for
    everyone.

    >>> traffic = Traffic(); traffic.load(torch.zeros(3)); traffic.store(torch.zeros(2, dtype=torch.bfloat16))
    >>> traffic.total
    16
    """

    def __init__(self):
        self.read = self.written = 0

    def load(self, *tensors):
        self.read += sum(x.numel() * x.element_size() for x in tensors)

    def store(self, *tensors):
        self.written += sum(x.numel() * x.element_size() for x in tensors)

    @property
    def total(self):
        return self.read + self.written


def block_ends(before, after, block):
    """Block boundaries that lie behind ``before`` and not behind ``after`` tokens; none without blocks.

    >>> list(block_ends(60, 66, 16)), list(block_ends(64, 66, 16)), list(block_ends(60, 66, None))
    ([64], [], [])
    """
    return range((before // block + 1) * block, after + 1, block) if block else range(0)


def column_of(position, block):
    """The column of the state table where the state after ``position`` tokens stands; one column without blocks.

    >>> column_of(64, 16), column_of(65, 16), column_of(65, None)
    (3, 4, 0)
    """
    return max(ceil_div(position, block) - 1, 0) if block else 0


class Recorded:
    """One request that keeps a state and rows for records, what `ReplaySSM` and `RecoverSSM` have in common.

    S: [H, V, K] after ``position`` tokens   rows: records that it has room for   block: tokens of a block, None without
    prefix caching   u, record: dtypes of the corrected value and of key and log decay; those of S if not given.

    >>> memory = Recorded(torch.zeros(1, 3, 2), rows=4, position=20, block=16, record=torch.bfloat16)
    >>> memory.home, memory.held == 4 * (3 * 2) + 4 * (4 * 3 + 2 * 2 + 2 * 2), memory.cached(16)
    (1, True, None)
    """

    def __init__(self, S, rows, position=0, block=None, u=None, record=None):
        H, V, K = S.shape
        self.block = block
        self.u = S.new_zeros(rows, H, V, dtype=u)
        self.k, self.g = S.new_zeros(rows, H, K, dtype=record), S.new_zeros(rows, H, K, dtype=record)
        # the state stands in one column, earlier columns are blocks that others may hit
        self.home = column_of(position, block)
        self.pool = {self.home: S.clone()}
        self.position, self.verified = position, 0
        self.traffic = Traffic()

    @property
    def S(self):
        """The state that was written last, [H, V, K]."""
        return self.pool[self.home]

    @property
    def held(self):
        """Bytes that the request holds, its state and its records."""
        return sum(x.numel() * x.element_size() for x in (self.S, self.u, self.k, self.g))

    def cached(self, boundary):
        """The state in the block that ends at ``boundary``, as a key would promise it; None if there is no such
        block.
        """
        return self.pool.get(boundary // self.block - 1)


class ReplaySSM(Recorded):
    """One request: ``step`` for a token that counts, ``verify`` and ``accept`` for a token with drafts behind it.

    S: [H, V, K] after ``position`` tokens, the first checkpoint   L: records that the ring holds   block, u, record: as
    for `Recorded`.   ValueError for a ring without a record.

    >>> one = torch.ones(1, 1, 2, dtype=torch.float64)
    >>> x = Inputs(one, one, one[..., :1] * 3, one * -1, one[..., 0])
    >>> memory = ReplaySSM(torch.zeros(1, 1, 2, dtype=torch.float64), L=4); memory.step(x).tolist(), memory.pending
    ([[[6.0]]], 1)
    """

    def __init__(self, S, L, position=0, block=None, u=None, record=None):
        if L < 1:
            raise ValueError(f"a ring holds at least one record, got L = {L}")
        super().__init__(S, L, position, block, u, record)
        # the checkpoint is the state after `anchor` tokens; with the ring it stands for that after `position`
        self.L, self.anchor, self.flushes = L, position, 0

    @property
    def pending(self):
        """Records that count."""
        return self.position - self.anchor

    def records(self, n):
        """The first n records behind the checkpoint, in order: u [n, H, V], k, g [n, H, K]."""
        rows = [(self.anchor + i) % self.L for i in range(n)]
        return self.u[rows], self.k[rows], self.g[rows]

    def on_chip(self, n):
        """The same in the dtype of S, one tuple (S, U, K, alpha) a head."""
        S = self.S
        u, k, g = (x.to(S.dtype) for x in self.records(n))
        return [(S[h], u[:, h], k[:, h], g[:, h].exp()) for h in range(len(S))]

    def state(self):
        """The state that checkpoint and ring stand for, [H, V, K]; for checks, not counted."""
        n = self.pending
        return torch.stack([replay.advance(*head, n)[0] for head in self.on_chip(n)])

    def flush(self, upto, loaded):
        """Write the state after ``upto`` tokens and drop the records before it; they are read first unless
        ``loaded``.
        """
        n = upto - self.anchor
        if not loaded:
            self.traffic.load(self.S, *self.records(n))
        S = torch.stack([replay.advance(*head, n)[0] for head in self.on_chip(n)])
        self.home = column_of(upto, self.block)
        self.pool[self.home] = S
        self.traffic.store(S)
        self.anchor = upto
        self.flushes += 1

    def verify(self, x):
        """Outputs [T, H, V] of T tokens, of which none counts yet; their records are written behind those that
        count.
        """
        T = len(x.q)
        if T > self.L:
            raise ValueError(f"{T} tokens do not fit a ring of {self.L} records; draft fewer or make the ring longer")
        self.traffic.load(self.S, *self.records(self.pending))
        if self.pending + T > self.L:
            self.flush(self.position, loaded=True)
        outputs = torch.stack([self.append(self.pending + t, *(a[t] for a in x)) for t in range(T)])
        self.verified = T
        return outputs

    def append(self, n, q, k, v, g, beta):
        """One token behind n records: its output [H, V]; its record is written."""
        row = (self.anchor + n) % self.L
        a = g.exp()
        both = [replay.step(*head, q[h], k[h], v[h], a[h], beta[h]) for h, head in enumerate(self.on_chip(n))]
        self.u[row] = torch.stack([u for u, _ in both]).to(self.u.dtype)
        self.k[row], self.g[row] = k.to(self.k.dtype), g.to(self.g.dtype)
        self.traffic.store(self.u[row], self.k[row], self.g[row])
        return torch.stack([o for _, o in both])

    def accept(self, n):
        """n of the verified tokens count, the others are forgotten; a block that they finish gets its state."""
        if not 0 <= n <= self.verified:
            raise ValueError(f"{n} tokens cannot count, {self.verified} were verified")
        self.position += n
        self.verified = 0
        for end in block_ends(self.anchor, self.position, self.block):
            self.flush(end, loaded=False)

    def step(self, x, prompt=False):
        """One token that counts, [1, H, V]; checkpoint and ring are on chip, so a flush costs the write alone.

        prompt: it is the last token of a prompt, after which the ring starts anew.
        """
        outputs = self.verify(x)
        self.position, self.verified = self.position + 1, 0
        full = self.pending == self.L
        ends = self.block and self.position % self.block == 0
        if full or ends or prompt:
            self.flush(self.position, loaded=True)
        return outputs


def drift(L, generator, tokens=128, size=24, u=None, record=None, given=None, gates="weak"):
    """How far an fp32 state is from the float64 loop after so many tokens, relative, the mean over the last 16 of them.

    L: None for the plain loop in fp32   size: K, and V + 1   u, record: dtypes as for ``ReplaySSM``   given: the dtype
    in which keys and log decays already arrive   gates: as in ``inputs``.

    >>> 0 < drift(4, torch.Generator().manual_seed(0), tokens=20, size=8) < 1e-6
    True
    """
    x = inputs.head(tokens, size, size - 1, generator, gates)
    memory = ReplaySSM(x.S.float()[None], L, u=u, record=record) if L else None
    wanted, S, errors = x.S.float().double(), x.S.float(), []
    low = [a.float() for a in x[:5]]
    low[1], low[3] = (a.to(given or a.dtype).float() for a in (low[1], low[3]))
    exact = [a.double() for a in low]
    for t in range(tokens):
        q, k, v, g, beta = (a[t] for a in exact)
        wanted, _ = rules.kda(wanted, q, k, v, g.exp(), beta)
        if memory:
            memory.step(Inputs(*(a[t : t + 1, None] for a in low)))
        else:
            S, _ = rules.kda(S, *(a[t] for a in low[:3]), low[3][t].exp(), low[4][t])
        if t >= tokens - 16:
            got = memory.state()[0] if memory else S
            errors.append(((got - wanted).norm() / wanted.norm()).item())
    return sum(errors) / len(errors)

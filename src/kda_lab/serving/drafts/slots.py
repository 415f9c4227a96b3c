"""A slot for each candidate: a step that verifies k drafts writes k + 1 states, and the next one starts from the right
slot.
"""

import torch

from kda_lab import rules
from kda_lab.serving.drafts.replayssm import Traffic, column_of
from kda_lab.serving.drafts.speculation import boundary_copy, running_column, slot


class Slots:
    """One request with a row of state slots; methods as for ``ReplaySSM``.

    S: [H, V, K] after ``position`` tokens   table: ids of its blocks; without ``block`` they are the row of k + 1
    slots, with it the columns of the state table, to which new ids are appended.

    >>> from kda_lab.serving.drafts.replayssm import Inputs
    >>> one = torch.ones(3, 1, 2, dtype=torch.float64)
    >>> x = Inputs(one, one, one[..., :1] * 3, one * -1, one[..., 0])
    >>> memory = Slots(torch.zeros(1, 1, 2, dtype=torch.float64), [41, 9, 72, 18])
    >>> memory.verify(x).shape, memory.accept(2), memory.source
    (torch.Size([3, 1, 1]), None, 9)
    """

    def __init__(self, S, table, position=0, block=None):
        self.table, self.block = list(table), block
        self.column = column_of(position, block)
        self.reach(self.column + 1)
        self.pool = {self.table[self.column]: S.clone()}
        self.position, self.verified, self.accepted = position, 0, 1
        self.copies = []
        self.traffic = Traffic()

    def reach(self, columns):
        """Blocks for so many columns."""
        while self.block and len(self.table) < columns:
            self.table.append(max(self.table) + 1)

    @property
    def row(self):
        """The slots of a step, which are the columns from the running one on."""
        return self.table[self.column :]

    @property
    def source(self):
        """The slot that the next step starts from."""
        return slot(self.row, self.accepted)

    @property
    def held(self):
        """Bytes of the slots that have been written."""
        return sum(S.numel() * S.element_size() for S in self.pool.values())

    def state(self):
        """The state, [H, V, K]."""
        return self.pool[self.source]

    def copy(self, source, target):
        """One block to another, by columns of the table."""
        S = self.pool[self.table[source]]
        self.traffic.load(S)
        self.pool[self.table[target]] = S.clone()
        self.traffic.store(S)
        self.copies.append((source, target))

    def pre_copy(self, running):
        """The running column has changed: its first slot gets the state, and the block that it came from stays."""
        self.copy(self.column + self.accepted - 1, running)
        self.column, self.accepted = running, 1

    def verify(self, x):
        """Outputs [T, H, V]; the states after each of the T tokens go to the slots of the row."""
        T = len(x.q)
        if self.block:
            running = running_column(self.position, T, self.block)
            self.reach(running + T)
            if running != self.column:
                self.pre_copy(running)
        if len(self.row) < T:
            raise ValueError(f"{T} tokens were given, the request has {len(self.row)} slots; draft fewer")
        # read once, before slot 0 is written: the source may be any slot of the row
        S, outputs = self.pool[self.source], []
        self.traffic.load(S)
        for t in range(T):
            both = [rules.kda(S[h], *(a[t, h] for a in (x.q, x.k, x.v, x.g.exp(), x.beta))) for h in range(len(S))]
            S = torch.stack([new for new, _ in both])
            self.pool[self.row[t]] = S
            self.traffic.store(S)
            outputs.append(torch.stack([o for _, o in both]))
        self.verified = T
        return torch.stack(outputs)

    def accept(self, n):
        """n of the verified tokens count; a state at a block's end goes to that block's column."""
        if not 1 <= n <= self.verified:
            raise ValueError(
                f"{n} tokens cannot count, {self.verified} were verified, and the first of them is always right"
            )
        start, T = self.position, self.verified
        self.position, self.verified, self.accepted = start + n, 0, n
        if self.block:
            after = boundary_copy(start, T, T - 1, n, self.block)
            if after.copy:
                self.copy(*after.copy)
            self.accepted = after.accepted

    def step(self, x, prompt=False):
        """One token that counts."""
        outputs = self.verify(x)
        self.accept(1)
        return outputs

    def cached(self, boundary):
        """The state in the block that ends at ``boundary``; None if nothing was written there."""
        return self.pool.get(self.table[boundary // self.block - 1])

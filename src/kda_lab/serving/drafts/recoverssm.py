"""RecoverSSM: verification reads the state and writes a record for each token; after sampling the accepted state is
made.
"""

import torch

from kda_lab.algebra import chunk, rollback
from kda_lab.serving.drafts.replayssm import Recorded, block_ends, column_of


class RecoverSSM(Recorded):
    """One request with one state and num_spec + 1 records; methods as for `ReplaySSM`.

    S: [H, V, K] after ``position`` tokens   num_spec: drafts a step at most   block, u, record: as for `Recorded`.

    >>> from kda_lab.serving.drafts.replayssm import Inputs
    >>> one = torch.ones(2, 1, 2, dtype=torch.float64)
    >>> x = Inputs(one, one, one[..., :1] * 3, one * -1, one[..., 0])
    >>> memory = RecoverSSM(torch.zeros(1, 1, 2, dtype=torch.float64), num_spec=1)
    >>> memory.verify(x)[0].tolist(), memory.accept(1), memory.state().tolist()
    ([[6.0]], None, [[[3.0, 3.0]]])
    """

    def __init__(self, S, num_spec=0, position=0, block=None, u=None, record=None):
        super().__init__(S, num_spec + 1, position, block, u, record)

    def state(self):
        """The state, [H, V, K]."""
        return self.S

    def verify(self, x):
        """Outputs [T, H, V]; the state stays as it is, one record a token is written."""
        T, S = len(x.q), self.S
        if len(self.u) < T:
            raise ValueError(f"{T} tokens were given, there are records for {len(self.u)}; raise num_spec")
        self.traffic.load(S)
        terms = [chunk.kda(S[h], x.q[:, h], x.k[:, h], x.v[:, h], x.g[:, h].exp(), x.beta[:, h]) for h in range(len(S))]
        self.u[:T] = torch.stack([term.E for term in terms], 1).to(self.u.dtype)
        self.k[:T], self.g[:T] = x.k.to(self.k.dtype), x.g.to(self.g.dtype)
        self.traffic.store(self.u[:T], self.k[:T], self.g[:T])
        self.verified = T
        return torch.stack([term.O for term in terms], 1)

    def accept(self, n):
        """Make the state after n of the verified tokens, and those of blocks that they finish, from state and
        records.
        """
        if not 0 <= n <= self.verified:
            raise ValueError(f"{n} tokens cannot count, {self.verified} were verified")
        T, S, start = self.verified, self.S, self.position
        u, k, g = self.u[:T], self.k[:T], self.g[:T]
        self.traffic.load(S, u, k, g)
        u, k, alpha = u.to(S.dtype), k.to(S.dtype), g.to(S.dtype).exp()
        self.position, self.verified = start + n, 0
        for end in sorted({*block_ends(start, self.position, self.block), self.position}):
            heads = [rollback.states(S[h], u[:, h], k[:, h], alpha[:, h], [end - start])[0] for h in range(len(S))]
            self.home = column_of(end, self.block)
            self.pool[self.home] = torch.stack(heads)
            self.traffic.store(self.S)

    def step(self, x, prompt=False):
        """One token that counts: it is verified and committed like any other."""
        outputs = self.verify(x)
        self.accept(1)
        return outputs

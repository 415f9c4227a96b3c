"""The same requests without a cache: every state, row and output from the first token on."""

import numpy as np

from kda_lab.serving.blocks.ring import POOL
from kda_lab.serving.run import tinymodel as tiny


class Reference:
    """One sequence from scratch, extended as tokens come.

    groups: kinds of the groups   states: group -> [n + 1, V, K], the state after n tokens   inputs: group ->
    [n, CHANNELS]   rows: group -> [n, 2 WIDTH].

    >>> reference = Reference(["attention", "state"]); reference.extend([3, 1, 4, 1, 5])
    >>> bool(reference.state(1, 0).any()), reference.output(4).shape
    (False, (4,))
    """

    def __init__(self, groups):
        self.groups = groups
        self.tokens = []
        recurrent = [g for g, kind in enumerate(groups) if kind == "state"]
        self.states = {g: np.zeros((1, tiny.V, tiny.K)) for g in recurrent}
        self.read = {g: np.zeros((0, tiny.V)) for g in recurrent}
        self.inputs = {g: np.zeros((0, tiny.CHANNELS)) for g in recurrent}
        self.rows = {g: np.zeros((0, 2 * tiny.WIDTH)) for g, kind in enumerate(groups) if kind != "state"}

    def extend(self, tokens):
        """Append tokens."""
        tokens = list(tokens)
        if not tokens:
            return
        for g in self.states:
            raw = tiny.embed(tokens, g, tiny.CHANNELS)
            states, read = tiny.run_state(self.states[g][-1], self.window(g, len(self.tokens)), raw)
            self.states[g] = np.concatenate([self.states[g], states])
            self.read[g] = np.concatenate([self.read[g], read])
            self.inputs[g] = np.concatenate([self.inputs[g], raw])
        for g in self.rows:
            self.rows[g] = np.concatenate([self.rows[g], tiny.attention_rows(tokens, g)])
        self.tokens += tokens

    def prefix(self, n):
        """A reference of the first n tokens, which a longer one can grow from."""
        other = Reference(self.groups)
        other.tokens = self.tokens[:n]
        other.states = {g: x[: n + 1] for g, x in self.states.items()}
        other.read = {g: x[:n] for g, x in self.read.items()}
        other.inputs = {g: x[:n] for g, x in self.inputs.items()}
        other.rows = {g: x[:n] for g, x in self.rows.items()}
        return other

    def state(self, group, n):
        """S after n tokens, [V, K]."""
        return self.states[group][n]

    def window(self, group, n):
        """The inputs that the convolution reads before token n, [TAPS - 1, MIXED]; zeros before the first token."""
        w = tiny.TAPS - 1
        inputs = self.inputs[group][max(n - w, 0) : n, : tiny.MIXED]
        return np.concatenate([np.zeros((w - len(inputs), tiny.MIXED)), inputs])

    def output(self, position):
        """What the model puts out at a position: one part a group."""
        parts = []
        for g, kind in enumerate(self.groups):
            if kind == "attention":
                parts.append(tiny.attend(self.rows[g][: position + 1], self.tokens[position], g))
            elif kind == "state":
                parts.append(self.read[g][position])
            else:
                parts.append(tiny.pool_key(self.rows[g][position // POOL * POOL : position + 1]))
        return np.concatenate(parts)

    def length_of(self, group, S):
        """How many tokens S stands for, or None if it is no state of this sequence."""
        same = np.flatnonzero((self.states[group] == S).all((1, 2)))
        return int(same[0]) if len(same) else None


class Library:
    """References of all requests, and which of them first had each prefix.

    >>> library = Library(["attention", "state"], unit=2)
    >>> from kda_lab.serving.blocks.request import Request
    >>> a = Request("A", [1, 2, 3, 4], unit=2); library.see(a)
    >>> library.name(a.chain[1]), library.of("A").tokens
    ('A:4', [1, 2, 3, 4])
    """

    def __init__(self, groups, unit):
        self.groups, self.unit = groups, unit
        self.references, self.order, self.owners, self.named = {}, {}, {}, {}

    def see(self, request):
        """Take notice of a request's tokens and digests so far."""
        order = self.order.setdefault(request.name, len(self.order))
        for i in range(self.named.get(request.name, 0), len(request.chain)):
            known = self.owners.get(request.chain[i])
            if known is None or known[0] > order:
                self.owners[request.chain[i]] = (order, request.name, (i + 1) * self.unit)
        self.named[request.name] = len(request.chain)
        reference = self.references.get(request.name) or self.nearest(request.tokens)
        reference.extend(request.tokens[len(reference.tokens) :])
        self.references[request.name] = reference

    def nearest(self, tokens):
        """The longest known prefix of ``tokens``: from-scratch values of the same tokens are the same values."""
        best, length = Reference(self.groups), 0
        for reference in self.references.values():
            n = min(len(tokens), len(reference.tokens))
            differ = np.flatnonzero(np.asarray(tokens[:n]) != np.asarray(reference.tokens[:n]))
            n = int(differ[0]) if len(differ) else n
            if n > length:
                best, length = reference, n
        return best.prefix(length)

    def of(self, name):
        """The reference of a request."""
        return self.references[name]

    def owner(self, digest):
        """(request, tokens) of the first request that had this prefix."""
        return self.owners[digest][1:]

    def name(self, digest):
        """The prefix as "request:tokens"."""
        return "{}:{}".format(*self.owner(digest))

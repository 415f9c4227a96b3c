"""Checks by value: what a chunk starts from, what a key promises, and what comes out, against the reference, bit by
bit.
"""

from dataclasses import dataclass

import numpy as np

from kda_lab.serving.run import tinymodel as tiny


@dataclass
class Violation:
    """Something in a block that is not what it should be.

    kind: what was wrong   request or key: whose   tokens: what it should stand for   holds: the tokens that its value
    stands for, None if none   inherited: it follows from an earlier wrong start   step: set by a replay, the event.

    >>> Violation("wrong initial state", 1, 10, request="C", tokens=2560, holds=1984).line()
    'wrong initial state: request C starts from group 1, block 10 at 2560 tokens, which holds the state after 1984'
    """

    kind: str
    group: int
    block: int
    request: str = None
    key: str = None
    tokens: int = None
    holds: int = None
    inherited: bool = False
    step: int = None

    def line(self):
        """One sentence."""
        what = f"the state after {self.holds}" if self.holds is not None else "no state of that sequence"
        where = f"group {self.group}, block {self.block}"
        sentence = {
            "wrong initial state": f"request {self.request} starts from {where} at {self.tokens} tokens, which "
            f"holds {what}",
            "cached state does not match its key": f"key {self.key} in {where} holds {what}",
            "cached rows do not match their key": f"key {self.key} in {where}",
            "wrong rows": f"request {self.request} reads {where}, whose row of token {self.holds} is another's",
            "wrong draft row": f"request {self.request}, token {self.tokens} in {where} was drafted before "
            "another token",
            "wrong output": f"request {self.request} after {self.tokens} tokens",
        }[self.kind]
        return f"{self.kind}: {sentence}"


class Checks:
    """Compares a worker's memory with the references; ``violations`` lists what was wrong, ``count`` how much was
    compared.

    worker: whose memory   library: the references.   ``stale_drafts``: drafter rows that saw another request's token.

    >>> Checks(None, None).violations
    []
    """

    @staticmethod
    def equal(left, right):
        """How two arrays are compared, here bit by bit."""
        return np.array_equal(left, right)

    def __init__(self, worker, library):
        self.worker, self.library = worker, library
        self.violations, self.stale_drafts = [], []
        # requests that started from something wrong: what they write is wrong too
        self.tainted = set()
        self.seen, self.current = set(), {}
        self.count = 0

    def report(self, violation):
        """List a violation once."""
        identity = (
            violation.kind,
            violation.group,
            violation.block,
            violation.request,
            violation.key,
            violation.tokens,
        )
        if identity not in self.seen:
            self.seen.add(identity)
            self.violations.append(violation)

    def start(self, group, name, tokens, block, S, window):
        """The state and the window that a chunk starts from are those of its own tokens."""
        reference = self.library.of(name)
        self.count += 1
        if not (self.equal(S, reference.state(group, tokens)) and self.equal(window, reference.window(group, tokens))):
            holds = reference.length_of(group, S)
            self.report(Violation("wrong initial state", group, block, name, None, tokens, holds, name in self.tainted))
            self.tainted.add(name)

    def rows(self, manager, name, tokens, rows):
        """The rows before a chunk are those of its own tokens."""
        right = self.library.of(name).rows[manager.index][:tokens]
        self.count += 1
        if not np.array_equal(rows[:tokens], right):
            wrong = int(np.flatnonzero((rows[:tokens] != right).any(1))[0])
            block = manager.tables[name][wrong // manager.block].id
            self.report(Violation("wrong rows", manager.index, block, name, None, tokens, wrong, name in self.tainted))
            self.tainted.add(name)

    def drafts(self, manager, chunk, table):
        """Whether the drafter's rows before a chunk have seen this request's tokens, and no other's.

        Outputs do not depend on it, drafts do. A block drop after a hit does not exclude it: of two blocks under one
        key a lookup takes the first, and the token after that block may be another request's.
        """
        tokens, B = chunk.request.tokens, manager.block
        if chunk.start:
            columns = [self.worker.rows_of(block, B) for block in table[: (chunk.start - 1) // B + 1]]
            right = tiny.draft_row(tokens[: chunk.start], tokens[1 : chunk.start + 1], manager.index)
            wrong = np.flatnonzero(np.concatenate(columns)[: chunk.start, -1] != right)
            self.count += 1
            if len(wrong):
                first = int(wrong[0])
                found = Violation(
                    "wrong draft row", manager.index, table[first // B], chunk.request.name, None, first + 1
                )
                self.stale_drafts.append(found)

    def keys(self, pool, managers):
        """Every registered key: the block holds what the key promises. Blocks that did not change are not read
        again.
        """
        for key, holders in pool.holders.items():
            for number in holders:
                mark = self.worker.version.get(number, 0)
                if self.current.get((key, number)) != mark:
                    self.current[key, number] = mark
                    self.count += 1
                    self.key(managers[key[1]], key[0], number)

    def key(self, manager, digest, block):
        """One key of one block."""
        group, (owner, tokens) = manager.index, self.library.owner(digest)
        reference, holds = self.library.of(owner), None
        if manager.group.kind == "state":
            content = self.worker.state_of(block)
            window = content.window[: tiny.TAPS - 1]
            same = self.equal(content.S, reference.state(group, tokens))
            same = same and self.equal(window, reference.window(group, tokens))
            kind = "cached state does not match its key"
            holds = None if same else reference.length_of(group, content.S)
        else:
            first = (tokens - 1) // manager.block * manager.block
            rows = self.worker.rows_of(block, manager.block)[: tokens - first, : 2 * tiny.WIDTH]
            same, kind = self.equal(rows, reference.rows[group][first:tokens]), "cached rows do not match their key"
        if not same:
            inherited = self.worker.writer.get(block) in self.tainted
            self.report(Violation(kind, group, block, None, self.library.name(digest), tokens, holds, inherited))

    def outputs(self, name, first, outputs):
        """Outputs through the cache equal those from scratch, from position ``first`` on."""
        reference = self.library.of(name)
        for position, output in enumerate(outputs, first):
            self.count += 1
            if not self.equal(output, reference.output(position)):
                self.report(Violation("wrong output", -1, -1, name, None, position + 1, None, name in self.tainted))

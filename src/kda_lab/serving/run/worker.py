"""The worker: real numbers in every block, copies between blocks, and the forward of the tiny model.

Memory is one content a block id, whatever group holds the id, as in a pool that the groups share.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from kda_lab.serving.blocks.chunking import checkpoint_column
from kda_lab.serving.blocks.ring import POOL
from kda_lab.serving.drafts.speculation import boundary_copy, running_column, window_length, window_offset
from kda_lab.serving.run import tinymodel as tiny
from kda_lab.serving.run.checks import Checks


class StateBlock(NamedTuple):
    """A state's block: S [V, K], and the window [TAPS - 1 + num_spec, MIXED] of inputs to the convolution.

    >>> StateBlock._fields
    ('S', 'window')
    """

    S: np.ndarray
    window: np.ndarray

    def copy(self):
        """A copy that shares nothing."""
        return StateBlock(self.S.copy(), self.window.copy())


@dataclass
class Notes:
    """What happened to one request's states in a step.

    source, target: the column that held the last state (-1: none) and the running one   pre_copy: whether the first was
    copied to the second   bias: accepted drafts, so many slots after the source   post_copy: columns, or
    None   outputs: of the positions that can be sampled.

    >>> Notes().pre_copy
    False
    """

    source: int = -1
    target: int = 0
    pre_copy: bool = False
    bias: int = 0
    post_copy: tuple = None
    outputs: list = field(default_factory=list)


class Worker:
    """Runs the schedule of a step.

    scheduler: whose tables and pool it follows   library: the references, for the checks.

    >>> from kda_lab.serving.run.engine import Engine
    >>> from kda_lab.serving.blocks.scheduler import hybrid
    >>> engine = Engine(hybrid(block=16, budget=64)); engine.add("A", range(40)); _ = engine.step(); engine.violations
    []
    """

    def __init__(self, scheduler, library):
        self.scheduler, self.settings = scheduler, scheduler.settings
        self.checks = Checks(self, library)
        # block id -> content, how often it was written, and for which request
        self.memory, self.version, self.writer = {}, {}, {}
        # request -> the running column and the count of accepted slots of its last step
        self.column, self.accepted = {}, {}
        # (request, group) -> the block that its last state came from
        self.origin = {}

    # memory

    def write(self, block, content, writer):
        """A new content of a block, computed for the request ``writer``."""
        self.memory[block] = content
        self.version[block] = self.version.get(block, 0) + 1
        self.writer[block] = writer

    def state_of(self, block):
        """The state in a block, or one of NaN if the block holds something else."""
        content = self.memory.get(block)
        if isinstance(content, StateBlock):
            return content
        length = window_length(tiny.TAPS, self.settings.num_spec)
        return StateBlock(np.full((tiny.V, tiny.K), np.nan), np.full((length, tiny.MIXED), np.nan))

    def rows_of(self, block, size):
        """The rows of an attention block or a ring, [size, 2 WIDTH + 1], the last number the drafter's."""
        content = self.memory.get(block)
        if isinstance(content, np.ndarray) and len(content) == size:
            return content
        return np.full((size, 2 * tiny.WIDTH + 1), np.nan)

    def state_tables(self, name):
        """(manager, block ids) of each group of states."""
        for manager in self.scheduler.coordinator.managers:
            if manager.group.kind == "state":
                yield manager, [block.id for block in manager.tables.get(name, ())]

    # one step

    def run(self, step):
        """Copies before writes, copies to new running columns, then the forward of every chunk; {name: Notes}."""
        for source, target in step.copies:
            if source in self.memory:
                self.write(target, self.memory[source].copy(), self.writer[source])
        notes = {chunk.request.name: self.pre_copy(chunk) for chunk in step.chunks}
        offset = 0
        for chunk in step.chunks:
            notes[chunk.request.name].outputs = self.forward(chunk, offset)
            offset += chunk.n
        return notes

    def pre_copy(self, chunk):
        """Bring the last state to the running column, if that is a new one; the block that it came from stays as it
        is.
        """
        name, block = chunk.request.name, self.settings.splitting.block
        if chunk.new:
            self.column[name], self.accepted[name] = (chunk.start - 1) // block, 1
        note = Notes(self.column[name], running_column(chunk.start, chunk.n, block))
        note.pre_copy = note.source not in (-1, note.target)
        note.bias = self.accepted[name] - 1 if note.pre_copy else 0
        for manager, table in self.state_tables(name):
            self.origin[name, manager.index] = table[max(note.source, 0) + self.accepted[name] - 1]
            if note.pre_copy:
                self.copy_state(name, table, note.source, note.bias, note.target)
        if note.pre_copy:
            self.accepted[name] = 1
        self.column[name] = note.target
        return note

    def copy_state(self, name, table, running, slot, target):
        """Column ``target`` gets the state of a slot, ``slot`` columns after the running one, and its window.

        The windows of all slots lie in the running column's block, each one input after the other.
        """
        S, window = self.state_of(table[running + slot]).S, self.state_of(table[running]).window
        self.write_state(table[target], S, window[slot : slot + tiny.TAPS - 1], name)

    def write_state(self, block, S, inputs, writer):
        """A state and the first inputs of its window."""
        window = np.zeros((window_length(tiny.TAPS, self.settings.num_spec), tiny.MIXED))
        window[: len(inputs)] = inputs
        self.write(block, StateBlock(S.copy(), window), writer)

    def forward(self, chunk, offset):
        """Run one chunk, ``offset`` tokens into the batch; outputs of its last 1 + drafts positions, none within a
        prompt.
        """
        request = chunk.request
        tokens = (request.tokens + request.drafts)[chunk.start : chunk.end]
        readers = []
        for manager in self.scheduler.coordinator.managers:
            forward = getattr(self, f"forward_{manager.group.kind}")
            readers.append(forward(manager, chunk, tokens, offset))
        if chunk.end < len(request.tokens):
            return []
        return [np.concatenate([read(i) for read in readers]) for i in range(chunk.n - 1 - chunk.drafts, chunk.n)]

    # one layer over one chunk; each returns a function from an index in the chunk to the layer's output there

    def forward_attention(self, manager, chunk, tokens, offset):
        """Write the chunk's rows, read all rows."""
        B, table = manager.block, [block.id for block in manager.tables[chunk.request.name]]
        new = tiny.attention_rows(tokens, manager.index)
        for column in range(chunk.start // B, (chunk.end - 1) // B + 1):
            first, end = max(column * B, chunk.start), min((column + 1) * B, chunk.end)
            rows = self.rows_of(table[column], B).copy()
            rows[first - column * B : end - column * B, : 2 * tiny.WIDTH] = new[first - chunk.start : end - chunk.start]
            self.write(table[column], rows, chunk.request.name)
        rows = np.concatenate([self.rows_of(block, B) for block in table])[:, : 2 * tiny.WIDTH]
        self.checks.rows(manager, chunk.request.name, chunk.start, rows)
        return lambda i: tiny.attend(rows[: chunk.start + i + 1], tokens[i], manager.index)

    def forward_ring(self, manager, chunk, tokens, offset):
        """Write the rows at their place in the ring, token by token, and pool those of the last few tokens."""
        B, block = manager.block, manager.tables[chunk.request.name][0].id
        new, rows = tiny.attention_rows(tokens, manager.index), self.rows_of(block, B).copy()
        pooled = []
        for i, t in enumerate(range(chunk.start, chunk.end)):
            rows[t % B, : 2 * tiny.WIDTH] = new[i]
            pooled.append(tiny.pool_key(rows[[p % B for p in range(t // POOL * POOL, t + 1)], : 2 * tiny.WIDTH]))
        self.write(block, rows, chunk.request.name)
        return lambda i: pooled[i]

    def forward_state(self, manager, chunk, tokens, offset):
        """The recurrence over a chunk: a state for each slot, and the exported one."""
        name, table = chunk.request.name, [block.id for block in manager.tables[chunk.request.name]]
        running = self.column[name]
        S, window = self.initial(manager, chunk, table)
        raw = tiny.embed(tokens, manager.index, tiny.CHANNELS)
        states, outputs = tiny.run_state(S, window, raw)
        # input j + TAPS - 2 is that of the chunk's token j
        inputs = np.concatenate([window, raw[:, : tiny.MIXED]])
        if chunk.checkpoint is not None:
            n, column = self.exported(chunk, offset), checkpoint_column(chunk.end, manager.block)
            self.write_state(table[column], states[n - 1], inputs[n : n + tiny.TAPS - 1], name)
        drafts = self.drafts(chunk)
        first = chunk.n - drafts
        for slot in range(drafts + 1):
            # the first slot's block has the window of the whole step
            kept = inputs[first : first + tiny.TAPS - 1 + (drafts if slot == 0 else 0)]
            self.write_state(table[running + slot], states[first + slot - 1], kept, name)
        return lambda i: outputs[i]

    def initial(self, manager, chunk, table):
        """The state and window that a chunk starts from: zeros at token 0, else the accepted slot."""
        if chunk.start == 0:
            return np.zeros((tiny.V, tiny.K)), np.zeros((tiny.TAPS - 1, tiny.MIXED))
        name = chunk.request.name
        running, accepted = self.column[name], self.slots_accepted(name)
        S = self.state_of(table[running + accepted - 1]).S
        at = self.window_start(accepted)
        window = self.state_of(table[running]).window[at : at + tiny.TAPS - 1]
        self.checks.start(manager.index, name, chunk.start, self.origin[name, manager.index], S, window)
        return S, window

    # decisions of one line each, so that a fault can be planted in one of them

    def slots_accepted(self, name):
        """How many slots of the request's last step count."""
        return self.accepted[name]

    def window_start(self, accepted):
        """The first input of the window that belongs to the accepted slot."""
        return window_offset(accepted)

    def drafts(self, chunk):
        """How many of the chunk's tokens are drafted: known from the schedule, not from their number."""
        return chunk.drafts

    def exported(self, chunk, offset):
        """How many of the chunk's tokens the exported state has seen."""
        return chunk.checkpoint - chunk.start

    def after_sampling(self, chunk, accepted):
        """The copy to a block boundary, see ``boundary_copy``."""
        return boundary_copy(chunk.start, chunk.n, chunk.drafts, accepted, self.settings.splitting.block)

    # after sampling

    def finish(self, chunk, sampled, note):
        """The drafter's rows, and the state of a block boundary that accepted drafts reached."""
        name = chunk.request.name
        for manager in self.scheduler.coordinator.managers:
            if manager.group.eagle:
                self.write_drafts(manager, chunk, chunk.request.tokens + sampled)
        self.accepted[name] = max(len(sampled), 1) if chunk.drafts else 1
        if self.settings.num_spec:
            after = self.after_sampling(chunk, self.accepted[name])
            note.post_copy, running = after.copy, self.column[name]
            if after.copy:
                for _, table in self.state_tables(name):
                    self.copy_state(name, table, running, after.copy[0] - running, after.copy[1])
            self.accepted[name] = after.accepted

    def write_drafts(self, manager, chunk, tokens):
        """The drafter's part of each row, which it can only make when the next token is known."""
        B, table = manager.block, [block.id for block in manager.tables[chunk.request.name]]
        last = min(chunk.end, len(tokens) - 1)
        self.checks.drafts(manager, chunk, table)
        new = tiny.draft_row(tokens[chunk.start : last], tokens[chunk.start + 1 : last + 1], manager.index)
        for column in range(chunk.start // B, (last - 1) // B + 1):
            rows = self.rows_of(table[column], B)
            first, end = max(column * B, chunk.start), min((column + 1) * B, last)
            rows[first - column * B : end - column * B, -1] = new[first - chunk.start : end - chunk.start]

    def forget(self, name):
        """A request has left or was preempted."""
        self.column.pop(name, None)
        self.accepted.pop(name, None)

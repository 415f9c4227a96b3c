"""The engine with records in place of slots: decode steps go through ReplaySSM or RecoverSSM, blocks get the states of
their ends.

Prompts are prefilled as ever. The order of sums differs from the token loop's, so values are compared up to rounding,
and the next token is the largest of a few scores and not a hash of bits.
"""

import numpy as np
import torch

from kda_lab.serving.drafts.recoverssm import RecoverSSM
from kda_lab.serving.drafts.replayssm import Inputs, ReplaySSM, block_ends
from kda_lab.serving.drafts.speculation import AfterSampling
from kda_lab.serving.run import tinymodel as tiny
from kda_lab.serving.run.checks import Checks
from kda_lab.serving.run.engine import Engine
from kda_lab.serving.run.worker import Worker

VOCABULARY = 61


class CloseChecks(Checks):
    """The same checks, with "equal" up to rounding.

    >>> CloseChecks(None, None).violations
    []
    """

    @staticmethod
    def equal(left, right):
        """A few thousand roundings of numbers of order one, in float64."""
        return np.allclose(left, right, rtol=0, atol=1e-12)


class RecordWorker(Worker):
    """A worker whose running requests hold a checkpoint and records for each group of states.

    make: function(S, position, block, num_spec) -> memory, a method of the class; see ``replaying`` and ``recovering``.

    >>> replaying(5).__mro__[1].__name__
    'RecordWorker'
    """

    def __init__(self, scheduler, library):
        super().__init__(scheduler, library)
        self.checks = CloseChecks(self, library)
        # (request, group) -> memory, and the inputs of the convolution of its last step with the token before them
        self.memories, self.inputs = {}, {}
        self.traffic = 0

    def memory_of(self, manager, chunk, S):
        """The memory of a request in a group, made from the block's state at its first decode step."""
        key = chunk.request.name, manager.index
        if key not in self.memories:
            S = torch.from_numpy(np.ascontiguousarray(S))[None]
            self.memories[key] = self.make(S, chunk.start, manager.block, self.settings.num_spec)
        return self.memories[key]

    def decodes(self, chunk):
        """Whether a chunk is one certain token and its drafts, behind everything else."""
        return chunk.start > 0 and chunk.n == 1 + chunk.drafts and chunk.end - chunk.drafts == len(chunk.request.tokens)

    def initial(self, manager, chunk, table):
        """The window as ever; the state of a request that holds a memory is what checkpoint and records stand for."""
        memory = self.memories.get((chunk.request.name, manager.index))
        if memory is None:
            return super().initial(manager, chunk, table)
        name = chunk.request.name
        S, at = memory.state()[0].numpy(), self.window_start(self.slots_accepted(name))
        window = self.state_of(table[self.column[name]]).window[at : at + tiny.TAPS - 1]
        self.checks.start(manager.index, name, chunk.start, self.origin[name, manager.index], S, window)
        return S, window

    def forward_state(self, manager, chunk, tokens, offset):
        """A decode step through the memory; only the window of its tokens goes to the running column."""
        if not self.decodes(chunk):
            self.drop(chunk.request.name, manager.index)
            return super().forward_state(manager, chunk, tokens, offset)
        name, table = chunk.request.name, [block.id for block in manager.tables[chunk.request.name]]
        S, window = self.initial(manager, chunk, table)
        memory = self.memory_of(manager, chunk, S)
        raw = tiny.embed(tokens, manager.index, tiny.CHANNELS)
        q, k, v, alpha, beta = (
            torch.from_numpy(np.ascontiguousarray(a))[:, None] for a in tiny.layer_inputs(window, raw)
        )
        x = Inputs(q, k, v, alpha.log(), beta)
        outputs = memory.verify(x) if chunk.drafts else memory.step(x)
        inputs = np.concatenate([window, raw[:, : tiny.MIXED]])
        self.inputs[name, manager.index] = inputs
        self.write_state(table[self.column[name]], np.full((tiny.V, tiny.K), np.nan), inputs[1:], name)
        return lambda i: outputs[i, 0].numpy()

    def after_sampling(self, chunk, accepted):
        """Nothing to copy: ``finish`` writes the states of finished blocks."""
        if not self.decodes(chunk):
            return super().after_sampling(chunk, accepted)
        return AfterSampling(None, super().after_sampling(chunk, accepted).accepted)

    def finish(self, chunk, sampled, note):
        """Count the accepted records; every block that they finish gets its state and its window."""
        decodes = self.decodes(chunk)
        super().finish(chunk, sampled, note)
        if not decodes:
            return
        name = chunk.request.name
        for manager, table in self.state_tables(name):
            memory = self.memories[name, manager.index]
            if chunk.drafts:
                memory.accept(max(len(sampled), 1))
            for end in block_ends(chunk.start, memory.position, manager.block):
                n = end - chunk.start
                window = self.inputs[name, manager.index][n : n + tiny.TAPS - 1]
                self.write_state(table[end // manager.block - 1], memory.cached(end)[0].numpy(), window, name)

    def drop(self, name, group):
        """A memory is no longer needed."""
        memory = self.memories.pop((name, group), None)
        if memory is not None:
            self.traffic += memory.traffic.total

    def forget(self, name):
        """A request has left or was preempted."""
        super().forget(name)
        for manager in self.scheduler.coordinator.managers:
            self.drop(name, manager.index)


def replaying(L):
    """A ``RecordWorker`` with rings of L records."""
    return type(
        "ReplayWorker",
        (RecordWorker,),
        {"make": lambda self, S, position, block, num_spec: ReplaySSM(S, L, position, block)},
    )


def recovering():
    """A ``RecordWorker`` that commits after every step."""
    return type(
        "RecoverWorker",
        (RecordWorker,),
        {"make": lambda self, S, position, block, num_spec: RecoverSSM(S, num_spec, position, block)},
    )


class ScoreEngine(Engine):
    """An engine that samples the largest of a few scores, which rounding does not change.

    >>> from kda_lab.serving.blocks.scheduler import hybrid
    >>> engine = ScoreEngine(hybrid(block=16, budget=64, num_spec=3), worker=replaying(5))
    >>> engine.add("A", range(40), max_tokens=9); engine.run(); len(engine.requests["A"].output), engine.violations
    (9, [])
    """

    def greedy(self, chunk, outputs):
        """The model's own tokens, as far as the drafts agree with them."""
        tokens = []
        for output, draft in zip(outputs, [*chunk.request.drafts[: chunk.drafts], None]):
            scores = tiny.embed(range(VOCABULARY), 40, len(output))
            tokens.append(int(np.cos(40 * (scores @ output)).argmax()))
            if tokens[-1] != draft:
                break
        return tokens

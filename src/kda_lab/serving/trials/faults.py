"""Planted faults: each is one wrong decision of a serving system, as a small subclass, with traffic that shows it.

``break_it(name)`` runs the same requests with and without the fault: the outputs of some request differ, or, where a
fault costs only hits or drafts, those do. ``seen`` names public reports of such a fault.
"""

from collections.abc import Callable
from typing import NamedTuple

from kda_lab.serving.blocks.attention import AttentionManager
from kda_lab.serving.blocks.coordinator import Coordinator
from kda_lab.serving.blocks.pool import BlockPool
from kda_lab.serving.blocks.retention import retention_mask
from kda_lab.serving.blocks.scheduler import Scheduler
from kda_lab.serving.blocks.state import StateManager
from kda_lab.serving.drafts.speculation import AfterSampling
from kda_lab.serving.run.engine import Engine
from kda_lab.serving.run.worker import Worker
from kda_lab.serving.trials import scenarios


class Fault(NamedTuple):
    """traffic: function(maker of engines) -> engine after the requests   parts: faulty classes, as the engine takes
    them
    seen: public reports   shows: "outputs", "hits" or "drafts".

    >>> FAULTS["no-boundary-copy"].shows
    'outputs'
    """

    traffic: Callable
    parts: dict
    seen: str = ""
    shows: str = "outputs"

    @property
    def sentence(self):
        """What is done wrong."""
        return next(iter(self.parts.values())).__doc__


class Broken(NamedTuple):
    """right, wrong: the engines after the same traffic.

    >>> broken = break_it("no-running-copy"); broken.changed(), broken.first is not None
    (['A', 'B'], True)
    """

    right: Engine
    wrong: Engine

    @property
    def first(self):
        """The first thing that the checks found, as a sentence, or None."""
        return self.wrong.violations[0].line() if self.wrong.violations else None

    def changed(self):
        """Requests whose outputs differ."""
        return [
            name for name, request in self.right.requests.items() if request.output != self.wrong.requests[name].output
        ]

    def hits(self):
        """Tokens that each request hit when it was first admitted: {name: (right, wrong)}."""
        return {name: (hits[0], self.wrong.hits.get(name, [0])[0]) for name, hits in self.right.hits.items()}


def break_it(name):
    """Run a fault's traffic without and with it; KeyError with the known names for another name.

    >>> break_it("one-slot-for-all").first.split(":")[0]
    'wrong initial state'
    """
    if name not in FAULTS:
        raise KeyError(f"no fault is called {name!r}; there are {', '.join(sorted(FAULTS))}")
    fault = FAULTS[name]
    return Broken(fault.traffic(Engine), fault.traffic(lambda *given, **more: Engine(*given, **more, **fault.parts)))


# of the worker


class NoRunningCopy(Worker):
    """A chunk that begins a new column does not bring the last state along."""

    def copy_state(self, name, table, running, slot, target):
        pass


class NoBoundaryCopy(Worker):
    """Accepted drafts reach a block boundary, and its state stays in their slot."""

    def after_sampling(self, chunk, accepted):
        return AfterSampling(None, accepted)


class OneSlotForAll(Worker):
    """Every request starts from the slot that the first one of the batch accepted."""

    def slots_accepted(self, name):
        return next(iter(self.accepted.values()))


class ShapeDecides(Worker):
    """A prompt of 1 + num_spec tokens is taken for a verification: its states go to the slots of drafted tokens."""

    def drafts(self, chunk):
        return self.settings.num_spec if chunk.n == 1 + self.settings.num_spec else chunk.drafts


class WindowStays(Worker):
    """The state of the accepted slot is read with the window of the first one."""

    def window_start(self, accepted):
        return 0


class BatchOffset(Worker):
    """The exported state is counted from the beginning of the batch instead of the request's chunk."""

    def exported(self, chunk, offset):
        return min(chunk.checkpoint - chunk.start + offset, chunk.n)


class StartsFromLeftovers(Worker):
    """A request that begins at token 0 starts from whatever its block holds."""

    def initial(self, manager, chunk, table):
        if chunk.start:
            return super().initial(manager, chunk, table)
        content = self.state_of(table[self.column[chunk.request.name]])
        if content.S[0, 0] != content.S[0, 0]:
            # a block that was never a state reads as zeros
            return super().initial(manager, chunk, table)
        return content.S, content.window[:3]


# of keys, tables and lookups; a manager reaches the engine through its scheduler


def with_manager(**managers):
    """A scheduler whose coordinator uses other managers."""
    coordinator = type("Coordinator", (Coordinator,), managers)
    fault = next(iter(managers.values()))
    return type(fault.__name__, (Scheduler,), {"coordinator_class": coordinator, "__doc__": fault.__doc__})


class KeysUnfinishedColumn(StateManager):
    """A column that a chunk ran past gets the key of its end, though the state there was never written."""

    def __init__(self, *given):
        super().__init__(*given)
        self.safe = False


class NoKeyMove(StateManager):
    """A request goes on writing the block whose partial key it has published."""

    def copy_before_write(self, request):
        self.shared.pop(request.name, None)


class ReaderWritesShared(AttentionManager):
    """A request that hit inside a block appends its own rows to the shared one."""

    def copy_before_write(self, request):
        self.shared.pop(request.name, None)


class AdoptsUnwritten(StateManager):
    """A state may be adopted in the very step that writes it."""

    def waits(self, hit_blocks):
        return False


class ForgetsEagle(StateManager):
    """Retention keeps the boundary that a repeat could use without eagle, and masks the one that it will use."""

    def retained(self, request, first, last):
        return retention_mask(first, last, self.block, self.interval, [len(request.prompt) - 1], self.splitting.grain)


class RefreshesAncestors(StateManager):
    """A hit on one state makes every earlier state of the same prefix look recently used too."""

    def adopt(self, request, blocks, hit):
        super().adopt(request, blocks, hit)
        keys = [(digest, self.index) for digest in request.chain]
        ancestors = [block for key in keys for block in self.pool.holders.get(key, {}).values()]
        for block in ancestors:
            self.pool.touch(block)
        self.pool.free(ancestors)


class DropsState(Coordinator):
    """With eagle, the last block of a state hit is dropped like that of an attention hit."""

    def find(self, group, members, chain, limit):
        blocks, tokens = super().find(group, members, chain, limit)
        if group.kind == "state" and self.splitting.eagle and tokens:
            tokens -= group.block
            # a state cannot be rewound: the column before it is null
            blocks = [columns[:-1] for columns in blocks]
        return blocks, tokens


class NoEagleDrop(Coordinator):
    """Under eagle, attention keeps the last block of its hit."""

    def find(self, group, members, chain, limit):
        return super().find(group._replace(eagle=False), members, chain, limit)


class KeysOutliveBlocks(BlockPool):
    """A block that is reused keeps the keys of its former content."""

    def allocate(self, count):
        kept = {block: (block.primary, list(block.extra), dict(block.promises)) for block in self.free_queue[:count]}
        taken = super().allocate(count)
        for block in taken:
            primary, extra, promises = kept[block]
            for key in ([primary] if primary else []) + extra:
                self.register(block, key, promises[key], full=False)
        return taken


class NoJunction(Scheduler):
    """Chunks do not stop where a shared prefix ends."""

    def chunk_end(self, request, start, want):
        request.junction = 0
        return super().chunk_end(request, start, want)


class Unaligned(Scheduler):
    """Chunks end where the budget ends, and full blocks get their keys all the same."""

    def chunk_end(self, request, start, want):
        return start + want


class KeysSurviveLoss(Scheduler):
    """The forward of a step is lost, and the keys that it published stay."""

    def withdraw(self, step):
        self.pool.recent = []
        super().withdraw(step)


def scheduler_with(**parts):
    """A scheduler with another coordinator or pool."""
    fault = next(iter(parts.values()))
    return type(fault.__name__, (Scheduler,), {**parts, "__doc__": fault.__doc__})


FAULTS = {
    "no-running-copy": Fault(scenarios.resend, {"worker": NoRunningCopy}),
    "no-boundary-copy": Fault(scenarios.verify_across_a_boundary, {"worker": NoBoundaryCopy}, "sglang #37817"),
    "one-slot-for-all": Fault(scenarios.two_verify, {"worker": OneSlotForAll}, "vllm PR #55504"),
    "shape-decides": Fault(scenarios.prompt_of_a_verification, {"worker": ShapeDecides}, "vllm #53051"),
    "window-stays": Fault(scenarios.two_verify, {"worker": WindowStays}),
    "batch-offset": Fault(scenarios.two_export, {"worker": BatchOffset}, "sglang PR #34760"),
    "starts-from-leftovers": Fault(scenarios.preempted_prompt, {"worker": StartsFromLeftovers}, "vllm-metal #488"),
    "keys-unfinished-column": Fault(
        scenarios.resume_inside_a_block,
        {"scheduler": with_manager(state_manager=KeysUnfinishedColumn)},
        "vllm PR #34587",
    ),
    "unaligned-chunks": Fault(scenarios.chunks_across_a_block, {"scheduler": Unaligned}, "vllm PR #34587"),
    "no-key-move": Fault(scenarios.resend_inside_a_block, {"scheduler": with_manager(state_manager=NoKeyMove)}),
    "reader-writes-shared": Fault(
        scenarios.reader_joins, {"scheduler": with_manager(attention_manager=ReaderWritesShared)}
    ),
    "adopts-unwritten": Fault(
        scenarios.twins, {"scheduler": with_manager(state_manager=AdoptsUnwritten)}, "vllm PR #29387"
    ),
    "drops-state": Fault(
        scenarios.resend_with_eagle, {"scheduler": scheduler_with(coordinator_class=DropsState)}, "vllm #43559"
    ),
    "keys-outlive-blocks": Fault(
        scenarios.more_prompts_than_blocks, {"scheduler": scheduler_with(pool_class=KeysOutliveBlocks)}
    ),
    "keys-survive-loss": Fault(scenarios.lost_step, {"scheduler": KeysSurviveLoss}, "vllm PR #56525"),
    "no-junction": Fault(scenarios.three_share, {"scheduler": NoJunction}, "vllm #45238", "hits"),
    "forgets-eagle": Fault(
        scenarios.repeat_119, {"scheduler": with_manager(state_manager=ForgetsEagle)}, "vllm #53504, PR #53945", "hits"
    ),
    "refreshes-ancestors": Fault(
        scenarios.long_and_short,
        {"scheduler": with_manager(state_manager=RefreshesAncestors)},
        "sglang PR #31643",
        "hits",
    ),
    "no-eagle-drop": Fault(
        scenarios.diverge_at_a_block, {"scheduler": scheduler_with(coordinator_class=NoEagleDrop)}, "", "drafts"
    ),
}

"""Which tokens of which request run in a step, in the order of a real engine, so that block ids agree with it."""

from collections import deque
from typing import NamedTuple

from kda_lab.data.doors import known
from kda_lab.serving.blocks.chunking import Splitting, chunk_end
from kda_lab.serving.blocks.coordinator import Coordinator, Hit
from kda_lab.serving.blocks.pool import BlockPool
from kda_lab.serving.blocks.ring import POOL
from kda_lab.serving.blocks.tables import CacheGroup
from kda_lab.serving.plan.specs import tail_ring


class Settings(NamedTuple):
    """A serving configuration.

    groups: CacheGroup of each group   blocks: pool size, the null block included   splitting: where chunks end
    retention: None (every block boundary), 0 (replay boundaries, the default of vLLM 0.32.0) or r   num_spec: drafts a
    step   requests: running at once   safe: never key a column that its chunk did not finish.

    >>> hybrid(block=640, blocks=64).splitting.unit
    640
    """

    groups: tuple
    blocks: int
    splitting: Splitting
    retention: int = 0
    num_spec: int = 0
    requests: int = 8
    safe: bool = True


@known
def hybrid(
    block=640,
    blocks=64,
    unit=None,
    states=1,
    budget=8192,
    eagle=False,
    num_spec=0,
    alignment=None,
    retention=0,
    checkpoint_junction=False,
    long_prefill=0,
    requests=8,
    safe=True,
    rings=0,
    ring=None,
    attention_block=None,
):
    """Settings of one attention group, ``states`` groups of recurrent states and ``rings`` circular buffers.

    What the server of vLLM 0.32.0 is started with; in brackets the default here, and the server's name:

    * block: tokens of a state's block, and of attention's unless ``attention_block`` is another (640; ``--block-size``,
      which the server rounds up until a state fits)
    * blocks: blocks of the pool, the null block included (64; ``--num-gpu-blocks-override``, else from the memory)
    * unit: tokens of a hash; one below a state's block turns on hits inside blocks (None: the smaller block;
      ``--prefix-match-unit``)
    * budget: tokens that a step runs at most, over all requests (8192; ``--max-num-batched-tokens``)
    * requests: requests that run at once at most (8; ``--max-num-seqs``)
    * long_prefill: tokens of one request's chunk at most, 0 for no limit (0; ``--long-prefill-token-threshold``)
    * num_spec: drafted tokens a step (0; ``num_speculative_tokens`` of ``--speculative-config``)
    * eagle: the drafter reads the model's hidden states and keeps rows of its own, so a hit gives up one unit (False;
      ``method`` of ``--speculative-config``: "eagle", "mtp")
    * retention: tokens between two states that are keyed; 0 keys those alone where a repeat or a shared prefix would
      resume, None every full block (0; ``prefix_cache_retention_interval``)
    * checkpoint_junction: a shared prefix that ends inside a block gets a state of its own (False;
      ``--enable-mamba-shared-prefix-checkpoint``)

    What follows from the model and its kernels:

    * states: groups of states (1)
    * rings, ring: groups of circular buffers, and tokens of one (0; None: as many as drafts need)
    * attention_block: tokens of an attention block (None: ``block``)
    * alignment: the kernel exports states inside a chunk, at multiples of so many tokens (None: it cannot)

    And of the simulator alone:

    * safe: never key a column that its chunk did not finish (True; False is what the server does)

    Raises ValueError when the unit does not divide the blocks, or when a hit could end inside a pool of a ring.

    >>> hybrid(unit=64, states=2).splitting.fine, [g.kind for g in hybrid(states=2).groups]
    (True, ['attention', 'state', 'state'])
    """
    attention_block = attention_block or block
    unit = unit or min(block, attention_block)
    if block % unit or attention_block % unit:
        blocks_given = f"{block} and {attention_block}"
        raise ValueError(f"a hash of {unit} tokens does not divide blocks of {blocks_given}; choose a common divisor")
    if rings and unit % POOL:
        raise ValueError(
            f"a hit at a multiple of {unit} tokens may end inside a pool of {POOL}; use multiples of {POOL}"
        )
    groups = (CacheGroup("attention", attention_block, eagle=eagle),) + (CacheGroup("state", block, num_spec),) * states
    groups += (CacheGroup("ring", ring or tail_ring(POOL, num_spec).block),) * rings
    splitting = Splitting(block, unit, unit < block, eagle, alignment, checkpoint_junction, budget, long_prefill)
    return Settings(groups, blocks, splitting, retention, num_spec, requests, safe)


def hybrid_of(groups, **settings):
    """Settings for the groups that a plan has built: their kinds and blocks, without their bytes.

    groups: with ``kind`` and ``block`` each   settings: as for ``hybrid``.   Raises ValueError for a sliding window, or
    without exactly one attention group and some states.

    >>> from kda_lab.serving.plan.groups import packed_groups
    >>> from kda_lab.serving.plan.specs import kda_state, mla_rows
    >>> layers = {"mla": mla_rows(640, 512), "kda.0": kda_state(8, 128, block=640), "kda.1": kda_state(8, 128,
    ...     block=640)}
    >>> [g.kind for g in hybrid_of(packed_groups(layers)).groups]
    ['attention', 'state', 'state']
    """
    blocks = {kind: [group.block for group in groups if group.kind == kind] for kind in ("attention", "state", "ring")}
    if sum(map(len, blocks.values())) < len(groups) or len(blocks["attention"]) != 1 or len(set(blocks["state"])) != 1:
        kinds = [group.kind for group in groups]
        raise ValueError(
            f"the simulator serves one attention group, states of one block and rings, not {kinds}; leave out the rest"
        )
    rings = blocks["ring"]
    return hybrid(
        block=blocks["state"][0],
        attention_block=blocks["attention"][0],
        states=len(blocks["state"]),
        rings=len(rings),
        ring=rings[0] if rings else None,
        **settings,
    )


class Scheduled(NamedTuple):
    """The part of a request that runs in this step.

    start..end: its tokens, the last ``drafts`` of them drafted   new: admitted now   checkpoint: a position whose state
    the kernel exports on the way, or None.

    >>> Scheduled("request", 0, 1920, 0, True, None).n
    1920
    """

    request: object
    start: int
    end: int
    drafts: int
    new: bool
    checkpoint: int

    @property
    def n(self):
        return self.end - self.start


class Step(NamedTuple):
    """One step's schedule: chunks in order, names of preempted requests, block copies before the forward.

    >>> Step([], [], [])._fields
    ('chunks', 'preempted', 'copies')
    """

    chunks: list
    preempted: list
    copies: list


class Scheduler:
    """First come, first served; running requests go before waiting ones.

    >>> from kda_lab.serving.blocks.request import Request
    >>> scheduler = Scheduler(hybrid())
    >>> scheduler.add(Request("A", range(2000), unit=640)); step = scheduler.schedule()
    >>> [(c.start, c.end) for c in step.chunks], scheduler.tables("A")
    ([(0, 1920)], [[1, 2, 3], [0, 0, 4]])
    """

    coordinator_class, pool_class = Coordinator, BlockPool

    def __init__(self, settings):
        self.settings = settings
        self.pool = self.pool_class(settings.blocks)
        rules = settings.splitting, settings.retention, settings.safe
        self.coordinator = self.coordinator_class(settings.groups, self.pool, *rules)
        self.running, self.waiting = [], deque()

    def add(self, request):
        """A request arrives at the end of the queue; ValueError if its digests have another unit."""
        if request.unit != self.settings.splitting.unit:
            unit = self.settings.splitting.unit
            raise ValueError(
                f"request {request.name!r} hashes {request.unit} tokens at a time, the cache {unit}; give it the "
                "cache's unit"
            )
        self.waiting.append(request)

    def finish(self, request):
        """A request leaves, wherever it stands."""
        if request in self.running:
            self.running.remove(request)
        else:
            self.waiting.remove(request)
        self.release(request)

    def release(self, request):
        for manager in self.coordinator.managers:
            manager.release(request)

    def tables(self, name):
        """Block ids of a request, one list a group."""
        return [[block.id for block in manager.tables.get(name, ())] for manager in self.coordinator.managers]

    def schedule(self):
        """Decide on one step: allocate, register keys, preempt where the pool is too small."""
        for manager in self.coordinator.managers:
            manager.start_step()
        self.pool.recent = []
        chunks, preempted = self.schedule_running(self.settings.splitting.budget)
        if not preempted:
            chunks += self.schedule_waiting(self.settings.splitting.budget - sum(c.n for c in chunks))
        copies = [copy for manager in self.coordinator.managers for copy in manager.end_scheduling()]
        for chunk in chunks:
            chunk.request.computed = chunk.end
        return Step(chunks, [request.name for request in preempted], copies)

    def schedule_running(self, budget):
        """Every running request in order; when blocks run out, the last one to come is preempted."""
        chunks, preempted = [], []
        nothing = Hit(0, [[] for _ in self.settings.groups], 0)
        position = 0
        while position < len(self.running) and budget > 0:
            request = self.running[position]
            want = self.limited(len(request.tokens) + len(request.drafts) - request.computed, budget)
            end = self.chunk_end(request, request.computed, want)
            if end == request.computed:
                position += 1
                continue
            while not (chunk := self.allocate(request, request.computed, end, nothing, False)):
                victim = self.running.pop()
                self.preempt(victim)
                preempted.append(victim)
                if victim is request:
                    return chunks, preempted
            chunks.append(chunk)
            budget -= chunk.n
            position += 1
        return chunks, preempted

    def schedule_waiting(self, budget):
        """Waiting requests in order, until one of them does not fit."""
        chunks = []
        while self.waiting and budget > 0 and len(self.running) < self.settings.requests:
            request = self.waiting[0]
            hit = self.coordinator.lookup(request)
            request.junction = hit.junction
            want = self.limited(len(request.tokens) - hit.tokens, budget)
            end = self.chunk_end(request, hit.tokens, want)
            if end == hit.tokens:
                break
            if not (chunk := self.allocate(request, hit.tokens, end, hit, True)):
                break
            self.running.append(self.waiting.popleft())
            chunks.append(chunk)
            budget -= chunk.n
        return chunks

    def limited(self, want, budget):
        """Tokens that a request may take in this step."""
        return min(want, budget, self.settings.splitting.long_prefill or want)

    def chunk_end(self, request, start, want):
        """Where this request's chunk ends."""
        return chunk_end(
            start, want, len(request.prompt), len(request.tokens), request.junction, self.settings.splitting
        )

    def allocate(self, request, start, end, hit, new):
        """Blocks and keys for a chunk, or None when the pool has too few."""
        groups, known = self.coordinator, len(request.tokens)
        checkpoint = groups.checkpoint(request, start, end)
        if new and groups.blocks_needed(request, known, known, hit, False) > self.pool.num_free:
            # it would be admitted only to be preempted
            return None
        for manager in groups.managers:
            manager.skip(request, start if not new else 0)
        # the drafter runs ahead in its own attention rows
        slots = end + (self.settings.num_spec if self.settings.splitting.eagle else 0)
        if groups.blocks_needed(request, end, slots, hit, checkpoint is not None) > self.pool.num_free:
            return None
        groups.extend(request, start, end, slots, min(end, known), hit, checkpoint)
        return Scheduled(request, start, end, max(end - known, 0), new, checkpoint)

    def withdraw(self, step):
        """A step's forward is lost: its keys promise nothing, and its requests begin again."""
        self.pool.withdraw_recent()
        for chunk in reversed(step.chunks):
            self.running.remove(chunk.request)
            self.preempt(chunk.request)

    def preempt(self, request):
        """Take everything from a running request; it starts again from the cache, before everybody who waits."""
        self.release(request)
        request.computed, request.drafts = 0, []
        request.preemptions += 1
        self.waiting.appendleft(request)

    def update(self, chunk, sampled):
        """After the forward: append the sampled tokens, take back rejected drafts, let a finished request go."""
        request = chunk.request
        request.computed -= chunk.drafts - max(len(sampled) - 1, 0) if chunk.drafts else 0
        request.append(sampled)
        request.drafts = []
        if request.finished:
            self.finish(request)

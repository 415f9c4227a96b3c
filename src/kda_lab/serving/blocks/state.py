"""The manager of recurrent states in align mode: a table of columns of which one, the running one, is written.

Column c stands for tokens [c B, (c + 1) B) and holds the state after the last token computed there. The states of other
columns exist only if a chunk stopped at their end; a column that a chunk jumped over is the null block.
"""

from kda_lab.serving.blocks.chunking import checkpoint_column, checkpoint_position, checkpoint_valid
from kda_lab.serving.blocks.hashes import digest_at
from kda_lab.serving.blocks.retention import replay_boundaries, retention_mask
from kda_lab.serving.blocks.tables import Manager, Shared
from kda_lab.serving.plan.specs import ceil_div


class StateManager(Manager):
    """States of the groups ``index``; ``safe``: a column whose end the chunk ran past is not keyed.

    splitting: the settings of chunks   interval: retention (None, 0 or tokens).

    >>> from kda_lab.serving.blocks.chunking import Splitting
    >>> from kda_lab.serving.blocks.pool import BlockPool
    >>> from kda_lab.serving.blocks.request import Request
    >>> from kda_lab.serving.blocks.tables import CacheGroup
    >>> manager = StateManager(0, CacheGroup("state", 640), BlockPool(9), 640, Splitting(640, 640), None, safe=True)
    >>> r = Request("A", range(2000), unit=640)
    >>> manager.extend(r, 1920); manager.cache(r, 0, 1920); [block.id for block in manager.table(r)]
    [0, 0, 1]
    >>> # block 1 is copied to block 2, then written on
    >>> manager.extend(r, 2000); [block.id for block in manager.table(r)]
    [0, 0, 1, 2]
    >>> manager.skip(r, 2000); [block.id for block in manager.table(r)]
    [0, 0, 0, 2]
    """

    def __init__(self, index, group, pool, unit, splitting, interval, safe):
        super().__init__(index, group, pool, unit)
        self.splitting, self.interval, self.safe = splitting, interval, safe
        # names of requests that own scratch blocks, and keys whose states this step's forward has yet to write
        self.started, self.unwritten = set(), set()

    def start_step(self):
        self.unwritten.clear()

    def waits(self, hit_blocks):
        """A hit on a state that another request only writes in this very step has to wait for the next one."""
        return bool(hit_blocks) and hit_blocks[-1].primary in self.unwritten

    def columns(self, tokens):
        """Columns of a table that reaches ``tokens`` tokens: the running one, and one for each drafted token."""
        return ceil_div(tokens, self.block) + self.group.num_spec

    def blocks_needed(self, request, tokens, hit_blocks=(), hit=0, checkpoint=False):
        """Blocks that a chunk up to ``tokens`` takes from the free queue; more than the pool has if it must wait."""
        if self.waits(hit_blocks):
            return len(self.pool.blocks) + 1
        have = len(hit_blocks) + len(self.tables.get(request.name, ()))
        copied = bool(hit % self.block) or request.name in self.shared
        skipped, moved = self.growth(request, have, tokens, checkpoint)
        fresh = max(self.columns(tokens) - have - skipped - len(moved), 0)
        return fresh + copied + self.evictable(hit_blocks)

    def growth(self, request, have, tokens, checkpoint):
        """How a table of ``have`` columns reaches ``tokens`` tokens: null columns to add, and slots to move to the end.

        The rest is new: for a new request the running column and a slot for each draft, for a running one one block;
        and in both cases one for a checkpoint.
        """
        running, k = self.columns(tokens) - self.group.num_spec - 1, self.group.num_spec
        skipped = max(running - checkpoint - have, 0)
        # slots of drafted tokens that the chunk jumps over hold nothing that is needed
        moves = request.name in self.started and not checkpoint
        return skipped, range(have - k, min(have, running)) if moves else ()

    def extend(self, request, tokens, checkpoint=False):
        """Columns up to ``tokens`` tokens; ``checkpoint``: the one before the running column gets a block too."""
        self.copy_before_write(request)
        table = self.table(request)
        skipped, moved = self.growth(request, len(table), tokens, checkpoint)
        table += [self.pool.null] * skipped
        for column in moved:
            table.append(table[column])
            table[column] = self.pool.null
        table += self.pool.allocate(max(self.columns(tokens) - len(table), 0))
        self.started.add(request.name)

    def skip(self, request, processed):
        """Null the columns before the one that the next chunk starts from."""
        table = self.table(request)
        gone = [
            c for c in range(min(max(processed - 1, 0) // self.block, len(table))) if table[c] is not self.pool.null
        ]
        self.pool.free(table[c] for c in reversed(gone))
        for column in gone:
            table[column] = self.pool.null

    def cache(self, request, start, tokens, checkpoint=None):
        """Key the states that the chunk [start, tokens) writes; ``checkpoint``: a position exported on the way."""
        table, B = self.table(request), self.block
        first, last = self.keyed.get(request.name, 0), tokens // B
        mask = self.retained(request, first, last)
        for column in range(first, last):
            position = (column + 1) * B
            unfinished = self.safe and start < position < tokens
            if table[column] is self.pool.null or unfinished or (mask and not mask[column - first]):
                continue
            self.promise(table[column], request, position)
        self.keyed[request.name] = max(first, last)
        self.hold_back(request, tokens)
        if checkpoint is not None:
            self.cache_checkpoint(request, table[checkpoint_column(tokens, B)], checkpoint)
        elif self.splitting.fine and tokens in self.partial_positions(request):
            column = (tokens - 1) // B
            self.promise(table[column], request, tokens, full=tokens % B == 0)
            if tokens % B:
                self.shared[request.name] = Shared(column, table[column], producer=True)

    def hold_back(self, request, tokens):
        """The state at the prompt's checkpoint waits for one step more, as long as its request still has it in its
        table.

        It is written by then. But so the real system does: two equal prompts in traces 70 and 71 start two steps apart.
        """
        position = self.prompt_checkpoint(request)
        if 0 < position <= tokens:
            self.unwritten.update(self.table(request)[(position - 1) // self.block].keys)

    def copy_before_write(self, request):
        shared = self.shared.get(request.name)
        super().copy_before_write(request)
        if shared and shared.producer:
            # the copy that the keys moved to is only filled in this step
            self.unwritten.update(self.pins[-1].keys)

    def cache_checkpoint(self, request, block, position):
        """The exported state replaces whatever the column's place in the table would promise."""
        self.pool.drop_keys(block)
        self.promise(block, request, position)

    def checkpoint(self, request, start, end):
        """The position whose state the chunk [start, end) exports on its way, or None if it cannot or nobody would use
        it.
        """
        s = self.splitting
        position = checkpoint_position(end, s.grain, s.eagle)
        if not checkpoint_valid(start, end, position, s):
            return None
        column = position // self.block - 1
        mask = self.retained(request, column, column + 1)
        kept = position % self.block == 0 and (mask is None or mask[0])
        return (
            position
            if kept or position in (*self.partial_positions(request), self.prompt_checkpoint(request))
            else None
        )

    def promise(self, block, request, tokens, full=True):
        """Register the key of ``tokens`` tokens: the block will hold that state when this step's forward is over."""
        key = (digest_at(request.chain, tokens, self.unit), self.index)
        self.pool.register(block, key, tokens, full)
        self.unwritten.add(key)

    def prompt_checkpoint(self, request):
        """The last position of the prompt that a repeat can resume from."""
        return checkpoint_position(len(request.prompt), self.splitting.grain, self.splitting.eagle)

    def partial_positions(self, request):
        """Positions inside a block whose states get a key: the prompt's last one, and a junction if the setting is
        on.
        """
        junction = request.junction if self.splitting.checkpoint_junction else 0
        return [p for p in (self.prompt_checkpoint(request), junction) if p]

    def retained(self, request, first, last):
        """The retention mask of columns first..last-1."""
        kept = replay_boundaries(len(request.prompt), self.block, self.splitting.eagle)
        kept += (request.junction,) if request.junction else ()
        return retention_mask(first, last, self.block, self.interval, kept, self.splitting.grain)

    def release(self, request):
        super().release(request)
        self.started.discard(request.name)


def find_state(pool, groups, group, chain, unit, limit, grain):
    """The longest prefix of at most ``limit`` tokens after which every one of ``groups`` still has its state.

    One state is enough, so the columns before it are null. An eagle drop never happens here: a state cannot be rewound.
    Returns (blocks for each group, tokens).

    >>> from kda_lab.serving.blocks.pool import BlockPool
    >>> from kda_lab.serving.blocks.tables import CacheGroup
    >>> find_state(BlockPool(2), [0, 1], CacheGroup("state", 2), [], 1, 5, 2)
    ([[], []], 0)
    """
    for position in range(min(limit, len(chain) * unit) // grain * grain, 0, -grain):
        found = pool.lookup(digest_at(chain, position, unit), groups)
        if found is not None:
            return [[pool.null] * (ceil_div(position, group.block) - 1) + [block] for block in found], position
    return [[] for _ in groups], 0

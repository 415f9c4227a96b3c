"""The manager of attention groups (also MLA and an indexer): every token keeps its row, so columns only grow."""

from kda_lab.serving.blocks.chunking import floor_to
from kda_lab.serving.blocks.hashes import digest_at
from kda_lab.serving.blocks.tables import Manager
from kda_lab.serving.plan.specs import ceil_div


class AttentionManager(Manager):
    """Column c holds the rows of tokens [c B, (c + 1) B).

    >>> from kda_lab.serving.blocks.pool import BlockPool
    >>> from kda_lab.serving.blocks.request import Request
    >>> from kda_lab.serving.blocks.tables import CacheGroup
    >>> manager, r = AttentionManager(0, CacheGroup("attention", 2), BlockPool(8), unit=2), Request("A", range(5),
    ...     unit=2)
    >>> manager.extend(r, 5); manager.cache(r, 5)
    >>> [block.promises and max(block.promises.values()) for block in manager.table(r)]
    [2, 4, {}]
    """

    def blocks_needed(self, request, tokens, hit_blocks=(), hit=0):
        """Blocks that rows for ``tokens`` tokens take from the free queue."""
        have = len(hit_blocks) + len(self.tables.get(request.name, ()))
        copied = bool(hit % self.block) or request.name in self.shared
        return max(ceil_div(tokens, self.block) - have, 0) + copied + self.evictable(hit_blocks)

    def extend(self, request, tokens):
        """Rows for ``tokens`` tokens."""
        self.copy_before_write(request)
        table = self.table(request)
        table += self.pool.allocate(max(ceil_div(tokens, self.block) - len(table), 0))

    def cache(self, request, tokens):
        """Key what the first ``tokens`` tokens complete: each full block, and the prompt's last unit inside a block."""
        table, B = self.table(request), self.block
        for column in range(self.keyed.get(request.name, 0), tokens // B):
            position = (column + 1) * B
            self.pool.register(table[column], (digest_at(request.chain, position, self.unit), self.index), position)
        self.keyed[request.name] = max(self.keyed.get(request.name, 0), tokens // B)
        tail = self.tail(request)
        if 0 < tail <= tokens and tail % B:
            # rows are only appended, so this stays true when the block fills up
            self.pool.register(
                table[tail // B], (digest_at(request.chain, tail, self.unit), self.index), tail, full=False
            )

    def tail(self, request):
        """The prompt's last hash boundary that a repeat may use; a multiple of the block without fine hits."""
        prompt = len(request.prompt)
        return floor_to(prompt if self.group.eagle else prompt - 1, self.unit)


def find_attention(pool, groups, group, chain, unit, limit, grain, drop):
    """The longest prefix of at most ``limit`` tokens whose rows every one of ``groups`` holds.

    groups: indices of groups of this spec   chain: digests, one a unit   grain: tokens between two possible hits
    drop: give up the last grain, whose last row the drafter made from a token outside the prefix.
    Returns (blocks for each group, tokens).

    >>> from kda_lab.serving.blocks.pool import BlockPool
    >>> from kda_lab.serving.blocks.tables import CacheGroup
    >>> find_attention(BlockPool(2), [0], CacheGroup("attention", 2), [], 1, 5, 2, False)
    ([[]], 0)
    """
    B = group.block
    limit = min(limit, len(chain) * unit)
    blocks = [[] for _ in groups]
    hit = 0
    while hit + B <= limit:
        found = pool.lookup(digest_at(chain, hit + B, unit), groups)
        if found is None:
            break
        for column, block in zip(blocks, found, strict=True):
            column.append(block)
        hit += B
    if grain < B:
        # inside the next block: the longest part first
        for position in range(min(floor_to(limit, unit), hit + B - unit), hit, -unit):
            found = pool.lookup(digest_at(chain, position, unit), groups)
            if found is not None:
                for column, block in zip(blocks, found, strict=True):
                    column.append(block)
                hit = position
                break
    if drop:
        hit -= min(grain, B, hit)
    hit = floor_to(hit, grain)
    return [column[: ceil_div(hit, B)] for column in blocks], hit

"""The manager of circular buffers: the last few rows of a request, in one block that is never shared.

A pooled key needs the rows of its own few tokens alone, and a hit ends where a pool ends. So a ring starts empty after
a hit, and it is neither keyed nor looked up.
"""

from kda_lab.serving.blocks.tables import Manager

# tokens whose rows a ring pools into one key
POOL = 4


class RingManager(Manager):
    """One block a request: token t is row t mod B.

    >>> from kda_lab.serving.blocks.pool import BlockPool
    >>> from kda_lab.serving.blocks.request import Request
    >>> from kda_lab.serving.blocks.tables import CacheGroup
    >>> manager, r = RingManager(0, CacheGroup("ring", 4), BlockPool(8), unit=640), Request("A", range(5))
    >>> manager.extend(r, 5); manager.extend(r, 9); [block.id for block in manager.table(r)]
    [1]
    """

    def blocks_needed(self, request, tokens, hit_blocks=(), hit=0):
        """One block, once."""
        return 0 if self.tables.get(request.name) else 1

    def adopt(self, request, blocks, hit):
        """Nothing of another request's ring can be used."""

    def extend(self, request, tokens):
        """The one block."""
        table = self.table(request)
        if not table:
            table += self.pool.allocate(1)

    def cache(self, request, tokens):
        """A ring is overwritten as it goes: no key could stay true."""

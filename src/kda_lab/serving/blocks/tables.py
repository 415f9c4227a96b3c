"""What every manager of one cache group does: block tables, copies before a write, and giving blocks back."""

from typing import NamedTuple


class CacheGroup(NamedTuple):
    """What a manager needs to know of a group: no bytes.

    kind: "attention" (also MLA and an indexer), "state" or "ring"   block: tokens a block   num_spec: drafted tokens a
    step, each with a slot of its own in a state's table   eagle: the drafter reads this attention group, so that its
    hits end one unit earlier.

    >>> CacheGroup("state", 640, num_spec=3).kind
    'state'
    """

    kind: str
    block: int
    num_spec: int = 0
    eagle: bool = False


class Shared(NamedTuple):
    """A block inside which a cached position lies, and which is about to be written beyond it.

    column: of the table   block: the block   producer: its own request wrote it and goes on (else: a request that hit
    it).

    >>> Shared._fields
    ('column', 'block', 'producer')
    """

    column: int
    block: object
    producer: bool


class Manager:
    """Tables of one group; ``attention``, ``state`` and ``ring`` say what a column means.

    tables: request name -> blocks, one a column   keyed: request name -> columns already considered for a key
    copies: (source id, target id) that the worker runs before this step's forward   pins: blocks held until then.

    >>> from kda_lab.serving.blocks.pool import BlockPool
    >>> Manager(0, CacheGroup("attention", 16), BlockPool(4), unit=16).block
    16
    """

    def __init__(self, index, group, pool, unit):
        self.index, self.group, self.pool, self.unit = index, group, pool, unit
        self.block = group.block
        self.tables, self.keyed, self.shared = {}, {}, {}
        self.copies, self.pins = [], []

    def table(self, request):
        return self.tables.setdefault(request.name, [])

    def start_step(self):
        """A new step begins: what was registered in the last one is written by now."""

    def skip(self, request, processed):
        """Give back columns that a request with ``processed`` finished tokens never reads again."""

    def evictable(self, blocks):
        """How many hit blocks wait in the free queue: adopting them takes them out of it."""
        return sum(block.refs == 0 and block is not self.pool.null for block in blocks)

    def adopt(self, request, blocks, hit):
        """Begin a table with the blocks of a hit of ``hit`` tokens."""
        for block in blocks:
            self.pool.touch(block)
        self.tables[request.name] = list(blocks)
        self.keyed[request.name] = hit // self.block
        if hit % self.block and blocks:
            # the last block will be written beyond the hit: its other readers must not see that
            self.shared[request.name] = Shared(hit // self.block, blocks[-1], producer=False)

    def copy_before_write(self, request):
        """Copy on write: a private copy for a request that hit inside a block, a keyed copy for the block's writer.

        A reader's table entry becomes the copy. A writer keeps its block, since the worker's table already names it;
        the keys move to the copy.
        """
        shared = self.shared.pop(request.name, None)
        if shared is None:
            return
        (fresh,) = self.pool.allocate(1)
        self.copies.append((shared.block.id, fresh.id))
        if shared.producer:
            self.pool.move_keys(shared.block, fresh)
            self.pins.append(fresh)
        else:
            self.table(request)[shared.column] = fresh
            self.pins.append(shared.block)

    def end_scheduling(self):
        """Hand over the copies and drop the pins; returns the copies."""
        copies, pins = self.copies, self.pins
        self.copies, self.pins = [], []
        self.pool.free(pins)
        return copies

    def release(self, request):
        """The request leaves: its blocks go back in reverse, so that the end of a prefix is evicted before its
        start.
        """
        blocks = self.tables.pop(request.name, [])
        self.keyed.pop(request.name, None)
        self.shared.pop(request.name, None)
        self.pool.free(reversed(blocks))

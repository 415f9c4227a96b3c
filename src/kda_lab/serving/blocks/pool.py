"""The block pool: reference counts, keys, and the free queue that is also the eviction order.

One pool serves every group: a block id belongs to one group while it is referenced or keyed, and to any afterwards.
"""

from collections import OrderedDict


class Block:
    """One block id: how many table entries hold it, and which keys promise what it contains.

    refs: references   primary: the key (digest, group) it was stored under first   extra: further keys, of positions
    before the primary's   promises: key -> tokens that the block's content stands for.

    >>> Block(7).free_of_keys
    True
    """

    __slots__ = ("extra", "id", "primary", "promises", "refs")

    def __init__(self, number):
        self.id, self.refs, self.primary, self.extra, self.promises = number, 0, None, [], {}

    @property
    def free_of_keys(self):
        return not self.promises

    @property
    def keys(self):
        return ([] if self.primary is None else [self.primary]) + self.extra

    def __repr__(self):
        return f"Block({self.id}, refs={self.refs}, tokens={sorted(self.promises.values())})"


class BlockPool:
    """Blocks 0..n-1 with a least-recently-used free queue; block 0 is the null block, which fills skipped columns.

    Raises ValueError for fewer than 2 blocks.

    >>> pool = BlockPool(4)
    >>> a, b, c = pool.allocate(3)
    >>> pool.register(b, (b"digest", 0), 640)
    >>> # a and c hold nothing that could be hit: reused first
    >>> pool.free([c, b, a]); [block.id for block in pool.free_queue]
    [3, 1, 2]
    >>> pool.lookup(b"digest", [0])[0] is b
    True
    """

    def __init__(self, blocks):
        if blocks < 2:
            raise ValueError(
                f"a pool needs the null block and at least one more, got {blocks} blocks; ask for 2 or more"
            )
        self.blocks = [Block(i) for i in range(blocks)]
        self.null = self.blocks[0]
        # front: reused next
        self._free = OrderedDict((block.id, block) for block in self.blocks[1:])
        # (key, block) registered since the scheduler began its step
        self.recent = []
        # key -> {id: block}: two blocks may hold the same content, nobody merges them
        self._holders = {}

    @property
    def free_queue(self):
        return list(self._free.values())

    @property
    def num_free(self):
        return len(self._free)

    @property
    def holders(self):
        """The blocks of each key by their ids, in the order of registration."""
        return self._holders

    def allocate(self, count):
        """Take ``count`` blocks from the front of the free queue; their keys are lost (eviction).

        Raises RuntimeError when fewer are free; ask ``num_free`` first.
        """
        if count > len(self._free):
            raise RuntimeError(
                f"{count} blocks were asked for and {len(self._free)} are free; check num_free before allocating"
            )
        taken = [self._free.popitem(last=False)[1] for _ in range(count)]
        for block in taken:
            self.drop_keys(block)
            block.refs = 1
        return taken

    def free(self, blocks):
        """Drop one reference of each block, in this order; null blocks are skipped.

        A block that nobody holds any more goes to the tail of the queue if it has a key, and to the front if it has
        none: those of one call keep their order among themselves.
        """
        keyless = []
        for block in blocks:
            if block is self.null:
                continue
            block.refs -= 1
            if block.refs == 0:
                if block.free_of_keys:
                    keyless.append(block)
                else:
                    self._free[block.id] = block
        for block in reversed(keyless):
            self._free[block.id] = block
            self._free.move_to_end(block.id, last=False)

    def touch(self, block):
        """One more reference; a block that waited in the free queue leaves it."""
        if block is not self.null:
            if block.refs == 0:
                del self._free[block.id]
            block.refs += 1

    def lookup(self, digest, groups):
        """The first block under this digest in every one of ``groups``, or None if one of them has none."""
        found = [next(iter(self._holders.get((digest, g), {}).values()), None) for g in groups]
        return None if any(block is None for block in found) else found

    def register(self, block, key, tokens, full=True):
        """Promise that ``block`` holds what ``key`` stands for, after ``tokens`` tokens.

        A full block's key replaces the keys of the parts that led to it; a partial key is the primary one only if
        the block has no other. A key that the block already has stays as it is.
        """
        if key in block.promises:
            return
        if full and block.promises and max(block.promises.values()) < tokens:
            self.drop_keys(block)
        if block.primary is None:
            block.primary = key
        else:
            block.extra.append(key)
        block.promises[key] = tokens
        self._holders.setdefault(key, {})[block.id] = block
        self.recent.append((key, block))

    def withdraw_recent(self):
        """Take back every key of this step: what they promise will not be written."""
        for block in {block.id: block for key, block in self.recent if key in block.promises}.values():
            self.drop_keys(block)
            if block.refs == 0:
                self._free.move_to_end(block.id, last=False)
        self.recent = []

    def drop_keys(self, block):
        """Forget every key of a block."""
        for key in block.promises:
            holders = self._holders[key]
            del holders[block.id]
            if not holders:
                del self._holders[key]
        block.primary, block.extra, block.promises = None, [], {}

    def move_keys(self, source, target):
        """Give the keys of ``source`` to ``target``, which has none."""
        moved = [(key, source.promises[key]) for key in source.keys]
        self.drop_keys(source)
        for key, tokens in moved:
            self.register(target, key, tokens, full=False)

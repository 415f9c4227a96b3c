"""All groups together: the joint hit, and blocks for a chunk in every group or in none."""

from typing import NamedTuple

from kda_lab.serving.blocks.attention import AttentionManager, find_attention
from kda_lab.serving.blocks.ring import RingManager
from kda_lab.serving.blocks.state import StateManager, find_state
from kda_lab.serving.plan.specs import ceil_div


class Hit(NamedTuple):
    """What the cache has of a request.

    tokens: that every group holds   blocks: one list a group   longest: tokens that some group alone holds.

    >>> Hit(640, [[]], 1280).junction, Hit(640, [[]], 640).junction
    (1280, 0)
    """

    tokens: int
    blocks: list
    longest: int

    @property
    def junction(self):
        """The end of a prefix that some group has and another lacks, worth a state of its own; 0 if there is none."""
        return self.longest if self.longest > self.tokens else 0


def joint_hit(kinds, find, limit):
    """The longest prefix that every kind of group holds: shorten it until all agree.

    kinds: the kinds of groups, attention first   find(kind, limit) -> (blocks for each group, tokens <= limit)
    limit: at most so many tokens.   Attention is asked once, since a part of an attention hit is a hit; a state group
    is asked again, since its next state may lie far below.   Returns (tokens, {kind: blocks}, longest single hit).
    It ends: the length never grows, and 0 is a hit of everybody.

    >>> have = {"attention": [0, 640, 1280, 1920], "state": [0, 640]}
    >>> joint_hit(["attention", "state"], lambda kind, limit: ([], max(n for n in have[kind] if n <= limit)), 1999)[::2]
    (640, 1920)
    """
    length, longest, found, append_only = limit, 0, {}, {}
    while True:
        current = length
        for kind in kinds:
            if kind in append_only:
                current = min(current, append_only[kind])
                continue
            found[kind], current = find(kind, current)
            longest = max(longest, current)
            if getattr(kind, "kind", kind) == "attention":
                append_only[kind] = current
        if current >= length:
            return length, found, longest
        length = current
        if len(kinds) == 2 and len(append_only) == 1:
            # the state group was asked within attention's hit: asking both again would change nothing
            return length, found, longest


class Coordinator:
    """The managers of all groups.

    groups: CacheGroup of each   pool: the blocks they share   splitting, interval, safe: see StateManager.

    >>> from kda_lab.serving.blocks.chunking import Splitting
    >>> from kda_lab.serving.blocks.pool import BlockPool
    >>> from kda_lab.serving.blocks.tables import CacheGroup
    >>> groups = [CacheGroup("attention", 640), CacheGroup("state", 640)]
    >>> len(Coordinator(groups, BlockPool(9), Splitting(640, 640), None, True).managers)
    2
    """

    attention_manager, state_manager, ring_manager = AttentionManager, StateManager, RingManager

    def __init__(self, groups, pool, splitting, interval, safe):
        self.groups, self.pool, self.splitting = groups, pool, splitting
        makers = {
            "attention": lambda i, g: self.attention_manager(i, g, pool, splitting.unit),
            "state": lambda i, g: self.state_manager(i, g, pool, splitting.unit, splitting, interval, safe),
            "ring": lambda i, g: self.ring_manager(i, g, pool, splitting.unit),
        }
        self.managers = [makers[group.kind](i, group) for i, group in enumerate(groups)]
        # groups of one kind are looked up together; a ring is never cached
        self.members = {}
        for i, group in sorted(enumerate(groups), key=lambda item: item[1].kind != "attention"):
            if group.kind != "ring":
                self.members.setdefault(group, []).append(i)

    def find(self, group, members, chain, limit):
        """The longest hit of some groups of one kind: (blocks for each, tokens)."""
        s = self.splitting
        if group.kind == "state":
            return find_state(self.pool, members, group, chain, s.unit, limit, s.grain)
        # the unit that eagle drops may lie beyond the limit
        margin = (s.unit if s.fine else group.block) if group.eagle else 0
        return find_attention(self.pool, members, group, chain, s.unit, limit + margin, s.grain, group.eagle)

    def lookup(self, request):
        """The joint hit of a request; the last token is never part of it, since its logits are needed."""

        def find(kind, limit):
            return self.find(kind, self.members[kind], request.chain, limit)

        tokens, found, longest = joint_hit(list(self.members), find, len(request.tokens) - 1)
        blocks = [[] for _ in self.groups]
        for kind, members in self.members.items():
            for index, columns in zip(members, found[kind], strict=True):
                blocks[index] = columns[: ceil_div(tokens, kind.block)]
        return Hit(tokens, blocks, longest)

    def lookup_alone(self, request):
        """Tokens that each group alone would hit; None for a ring."""
        limit = len(request.tokens) - 1
        return [
            None if g.kind == "ring" else self.find(g, [i], request.chain, limit)[1] for i, g in enumerate(self.groups)
        ]

    def checkpoint(self, request, start, end):
        """The position whose state the chunk [start, end) exports on its way, or None."""
        return next((m.checkpoint(request, start, end) for m in self.managers if m.group.kind == "state"), None)

    def blocks_needed(self, request, end, slots, hit, checkpoint):
        """Blocks that a chunk up to ``end`` (attention: rows up to ``slots``) takes from the free queue."""
        total = 0
        for manager, blocks in zip(self.managers, hit.blocks, strict=True):
            if manager.group.kind == "state":
                total += manager.blocks_needed(request, end, blocks, hit.tokens, checkpoint)
            else:
                total += manager.blocks_needed(request, slots, blocks, hit.tokens)
        return total

    def extend(self, request, start, end, slots, known, hit, checkpoint):
        """Adopt the hit in every group, then blocks, then keys: a group must not evict what another has hit.

        start..end: the chunk   slots: rows of attention, drafts included   known: tokens that will not be rolled back.
        """
        if hit.tokens:
            for manager, blocks in zip(self.managers, hit.blocks, strict=True):
                manager.adopt(request, blocks, hit.tokens)
        for manager in self.managers:
            if manager.group.kind == "state":
                manager.extend(request, end, checkpoint is not None)
            else:
                manager.extend(request, slots)
        for manager in self.managers:
            if manager.group.kind == "state":
                manager.cache(request, start, known, checkpoint)
            else:
                manager.cache(request, known)

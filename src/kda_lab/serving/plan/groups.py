"""Layers that share block ids: how vLLM 0.32.0 forms the groups of a hybrid cache, and the units of hashing and
scheduling.

A block id belongs to one group at a time, and spans one page of every layer of that group. Two ways lead to groups: if
all pages have the same size, layers of a kind are dealt into groups of equal count; if pages differ and blocks are
outermost in memory, attention decides how large a block is, and states are packed into it.
"""

from collections import Counter
from dataclasses import replace
from math import gcd, lcm
from typing import NamedTuple

from kda_lab.serving.plan.specs import AttentionSpec, RingSpec, StateSpec, ceil_div


class Group(NamedTuple):
    """Layers by name, and what each of them keeps."""

    layers: tuple[str, ...]
    specs: tuple

    @property
    def block(self) -> int:
        """Tokens of a block, or slots of a ring."""
        return self.specs[0].block

    @property
    def page(self) -> int:
        """Bytes of one block of the group, the pages of its layers side by side."""
        return sum(spec.page for spec in self.specs)

    @property
    def cacheable(self) -> bool:
        """Whether a prefix can be found in this group; a ring holds none."""
        return all(spec.cacheable for spec in self.specs)

    @property
    def kind(self) -> str:
        """'attention', 'window', 'state' or 'ring'."""
        first = self.specs[0]
        if isinstance(first, AttentionSpec):
            return "window" if first.window else "attention"
        return "state" if isinstance(first, StateSpec) else "ring"


def group_of(named) -> Group:
    """A group of layers given as (name, spec) pairs."""
    names, specs = zip(*named, strict=True)
    return Group(names, specs)


def deal(layers, count):
    """Deal layers round to `count` groups: sizes differ by one at most, and every pipeline stage has its share of each.

    >>> [len(hand) for hand in deal(range(34), 4)], deal("abcde", 2)
    ([9, 9, 8, 8], ['ace', 'bd'])
    """
    return [layers[i::count] for i in range(count)]


def group_size(counts):
    """Layers of a group when all pages are equal: the rarest kind's count, or the commonest one's if it is below 1.5
    times that.

    >>> group_size([16, 48]), group_size([12, 13]), group_size([20, 30])
    (16, 13, 20)
    """
    low, high = min(counts), max(counts)
    return high if high < 1.5 * low else low


def empty_slots(layers, size):
    """Slots that stay empty when layers are dealt into groups of a size: vLLM's "padding layers".

    >>> empty_slots(20, 7)  # Kimi-Linear: 20 KDA layers beside 7 of attention
    1
    """
    return -layers % size


def by_spec(specs):
    """Layers that keep exactly the same, in the order of first appearance: a list of lists of (name, spec)."""
    kinds = {}
    for name, spec in specs.items():
        kinds.setdefault(spec, []).append((name, spec))
    return list(kinds.values())


def uniform_groups(specs):
    """Groups when all pages have the same size. specs: {layer: spec}.

    >>> from kda_lab.serving.plan.specs import mla_rows, kda_state
    >>> layers = {f"mla.{i}": mla_rows(128, 512) for i in range(2)} | {f"kda.{i}": kda_state(1, 128) for i in range(5)}
    >>> [len(g.layers) for g in uniform_groups(equal_pages(layers))]
    [2, 2, 2, 1]
    """
    kinds = by_spec(specs)
    size = group_size([len(kind) for kind in kinds])
    return [group_of(hand) for kind in kinds for hand in deal(kind, ceil_div(len(kind), size))]


def equal_pages(specs):
    """The same layers with one page size: states are padded, rows whose page divides the largest get a larger block.

    A state is padded and never scaled: its bytes do not depend on the block. NotImplementedError for rows of MLA that
    do not divide the largest page, since their kernel addresses whole rows.
    """
    largest = max(spec.page for spec in specs.values())

    def fit(name, spec):
        if spec.page == largest:
            return spec
        if isinstance(spec, StateSpec):
            return replace(spec, padded=largest)
        if largest % spec.page == 0:
            return replace(spec, block=spec.block * (largest // spec.page))
        if isinstance(spec, AttentionSpec) and spec.width_v != 0:
            return replace(spec, padded=largest)
        raise NotImplementedError(
            f"the page of {name}, {spec.page:,} bytes, does not divide the largest, {largest:,}; use a "
            "block-outermost layout"
        )

    return {name: fit(name, spec) for name, spec in specs.items()}


def uniform(specs) -> bool:
    """Whether layers can share a group though their pages differ: same block, and always the same number of blocks.

    Full attention of any width may; windows only with the same window; states only with the same page and the same
    speculative and checkpoint blocks.

    >>> from kda_lab.serving.plan.specs import mla_rows, index_rows
    >>> uniform([mla_rows(640, 512), index_rows(640, per_state=4)]), uniform([mla_rows(640, 512), index_rows(64)])
    (True, False)
    """

    def need(spec):
        if isinstance(spec, StateSpec):
            return "state", spec.block, spec.page, spec.num_spec, spec.checkpoints, spec.replicated
        return type(spec), spec.block, getattr(spec, "window", None)

    return len({need(spec) for spec in specs}) == 1


def buckets(specs):
    """Layers that may share a group, greedily in order: a list of lists of (name, spec)."""
    found = []
    for layer in specs.items():
        home = next((bucket for bucket in found if uniform([bucket[0][1], layer[1]])), None)
        if home is None:
            found.append([layer])
        else:
            home.append(layer)
    return found


def approximate_gcd(values, lower_bound=None):
    """The size of a group that leaves the fewest empty slots over all kinds; the larger of two equals.

    >>> approximate_gcd([20, 30]), approximate_gcd([8, 34], lower_bound=8)
    (10, 9)
    """
    low = max(1, lower_bound or 1)
    sizes = range(low, max(max(values), low) + 1)
    return min(sizes, key=lambda size: (sum(-x % size for x in values), -size))


def states_per_block(anchor_bytes, page):
    """States that fit into the bytes that a block has anyway: 7,266.875 KiB // 640 KiB.

    >>> states_per_block(7_441_280, 655_360)
    11
    """
    return max(anchor_bytes // page, 1)


class Bucket:
    """One bucket on its way to groups: its layers by page size."""

    def __init__(self, layers):
        self.layers = layers
        self.pages = {}
        for name, spec in layers:
            self.pages.setdefault(spec.page, []).append((name, spec))
        self.first = layers[0][1]
        self.repeats = max(Counter(spec.page for _, spec in layers).values())
        # one layer of each page size is a pattern that can be dealt; other mixtures stay whole
        self.balanced = len({len(same) for same in self.pages.values()}) == 1
        self.mixed = len(self.pages) > 1

    def widest(self, count):
        """Bytes of the largest of `count` groups."""
        return sum(ceil_div(len(same), count) * page for page, same in self.pages.items())

    def split(self, count):
        """`count` groups, dealt pattern by pattern."""
        if count == 1:
            return [group_of(self.layers)]
        patterns = list(zip(*self.pages.values(), strict=True))
        return [group_of([layer for pattern in hand for layer in pattern]) for hand in deal(patterns, count)]


def packed_groups(specs, block_outermost=True):
    """Groups when pages differ and blocks are outermost: attention sets the bytes of a block, states are packed into
    it.

    specs: {layer: spec}. None if the layout cannot do it, or if all pages are equal.

    >>> from kda_lab.serving.plan import specs as s
    >>> from dataclasses import replace
    >>> kda = replace(s.kda_state(8, 128, block=640), padded=655_360)
    >>> layers = {f"mla.{i}": s.mla_rows(640, 512) for i in range(11)} | {f"kda.{i}": kda for i in range(34)}
    >>> layers |= {f"indexer.{i}": s.index_rows(640, per_state=4) for i in range(11)}
    >>> [len(g.layers) for g in packed_groups(layers)], packed_groups(layers)[1].layers[:3]
    ([22, 9, 9, 8, 8], ('kda.0', 'kda.4', 'kda.8'))
    """
    if not block_outermost or len({spec.page for spec in specs.values()}) == 1:
        return None
    found = [Bucket(layers) for layers in buckets(specs)]
    # a mixture that repeats must stay whole, so the largest one bounds the size of a group from below
    floor = max((b.repeats for b in found if b.balanced and b.mixed), default=0)
    repeats = approximate_gcd([b.repeats for b in found if b.balanced], floor) if floor else None

    def count(bucket):
        return ceil_div(bucket.repeats, repeats) if bucket.balanced and repeats else 1

    def holds_states(bucket):
        window = isinstance(bucket.first, AttentionSpec) and bucket.first.window
        return isinstance(bucket.first, StateSpec | RingSpec) or bool(window and repeats is None)

    # what a block holds however the states are split: they can go down to one in a group
    anchor = max(b.widest(len(b.layers) if holds_states(b) else count(b)) for b in found)

    def hands(bucket):
        if not holds_states(bucket):
            return count(bucket)
        return max(count(bucket), ceil_div(len(bucket.layers), states_per_block(anchor, bucket.first.page)))

    return [group for bucket in found for group in bucket.split(hands(bucket))]


def cache_groups(specs, block_outermost=False):
    """The groups of a model: one if all layers can share it, else packed, else by count on equal pages.

    specs: {layer: spec} in the order of the layers.

    >>> from kda_lab.serving.plan.specs import AttentionSpec
    >>> [g.kind for g in cache_groups({"a": AttentionSpec(16, 8, 64), "b": AttentionSpec(16, 8, 64, window=128)})]
    ['attention', 'window']
    """
    if uniform(specs.values()):
        return [group_of(specs.items())]
    return packed_groups(specs, block_outermost) or uniform_groups(equal_pages(specs))


class Units(NamedTuple):
    """Tokens: what the scheduler aligns to, and what one hash covers."""

    scheduler_block: int
    hash_block: int


def block_units(groups, prefix_match_unit=None):
    """The scheduler's block, lcm of all groups, and the hash unit: gcd of the groups that hold prefixes, unless it is
    given.

    One group: both are its block. ValueError for a unit that does not divide every such block, that a single group
    cannot use, or whose hits would fall inside a row that covers several tokens.

    >>> block_units([Group(("a",), (AttentionSpec(96, 1, 64),)), Group(("s",), (StateSpec(640, ((2, 2),), (4,)),))])
    Units(scheduler_block=1920, hash_block=32)
    """
    sizes = [g.block for g in groups]
    if len(groups) == 1:
        if prefix_match_unit not in (None, sizes[0]):
            raise ValueError(
                f"prefix_match_unit={prefix_match_unit} has no use: a single group hits whole blocks, {sizes[0]}; "
                "leave it out"
            )
        return Units(sizes[0], sizes[0])
    hashed = [g.block for g in groups if g.cacheable] or sizes
    unit = gcd(*hashed) if prefix_match_unit is None else prefix_match_unit
    if unit < 1 or any(size % unit for size in hashed):
        raise ValueError(
            f"prefix_match_unit={unit} must divide the blocks of all groups that hold prefixes, {sorted(set(hashed))}"
        )
    units = Units(lcm(*sizes), unit)
    spans = {spec.per_state for g in groups if g.cacheable for spec in g.specs}
    if any(hit_alignment(groups, units) % span for span in spans):
        raise ValueError(
            f"prefix_match_unit={unit} would end hits inside a row of {max(spans)} tokens; use a multiple of "
            f"{lcm(*spans)}"
        )
    return units


def hit_alignment(groups, units):
    """Tokens of which every hit is a multiple: the hash unit if hits may be fine, else the scheduler's block.

    They may if a state's block is wider than the unit, and every group can be searched that finely: windows cannot.
    """
    wider = any(g.kind == "state" and g.block > units.hash_block for g in groups)
    coarse = any(g.kind == "window" and g.block != units.hash_block for g in groups)
    return units.hash_block if wider and not coarse else units.scheduler_block

"""The cache of a hybrid model, planned as vLLM 0.32.0 plans it: block size, padding, groups, bytes, units, and what
fits.

Only bytes are counted that the config decides. Weights, activations and the drafter of another model are not in it: the
memory that is given is what is left for the cache.
"""

import os
from dataclasses import replace
from math import gcd, inf, lcm
from typing import NamedTuple

from kda_lab.data.doors import known
from kda_lab.serving.plan import specs as s
from kda_lab.serving.plan.config import Facts, read
from kda_lab.serving.plan.families import At
from kda_lab.serving.plan.fields import ConfigError, load
from kda_lab.serving.plan.groups import Group, block_units, cache_groups, empty_slots, group_size, hit_alignment
from kda_lab.serving.plan.layout import bytes_per_block, stride_alignment

GIB = 2**30
DEFAULT_BLOCK = 16
# max_num_batched_tokens = 8192, and two steps in flight
IN_FLIGHT = 2 * 8192
ORDER = {"attention": 0, "window": 1, "ring": 2, "state": 3}


class Plan(NamedTuple):
    """A plan for one rank. Bytes and tokens; None where a model has no states, or where no memory or context is given.

    token_bytes: of one token in one layer of the main attention   state: what a state layer keeps
    request_blocks: blocks that one request of `context` tokens holds at most in each group   prefix_tokens,
    prefix_states: what the pool holds at most of one of the two alone.
    """

    facts: Facts
    at: At
    user_block: int | None
    start_block: int
    unit: int
    token_bytes: int
    block_size: int
    attention_page_bytes: int
    state: s.StateSpec | None
    groups: list[Group]
    block_outermost: bool
    alignment: int
    bytes_per_block: int
    hash_block_size: int
    scheduler_block_size: int
    hit_alignment: int
    memory: int | None
    context: int | None
    num_blocks: int | None
    request_blocks: list[int] | None

    @property
    def state_page_bytes(self):
        """Bytes of one state of one layer, without padding."""
        return self.state and self.state.content

    @property
    def padding_fraction(self):
        """Padding of a state's page, for each byte of the state."""
        return self.state and s.padding_fraction(self.state.content, self.state.page)

    @property
    def state_groups(self):
        """Groups that keep states; one state of the whole model takes one block in each."""
        return [group for group in self.groups if group.kind == "state"]

    @property
    def growth(self):
        """Bytes that one more token of a long request adds on a rank, its rows in all layers of full attention.

        Rows of windows do not count, since a long request has a fixed number of them.

        >>> round(plan("glm-5.3-flash", tp=8).growth), plan("kimi-linear-48b-a3b").growth
        (11627, 8064.0)
        """
        return sum(
            spec.content / spec.block for group in self.groups if group.kind == "attention" for spec in group.specs
        )

    @property
    def state_bytes(self):
        """Bytes of one state of the whole model on a rank, without padding; 0 if it keeps none.

        >>> plan("glm-5.3-flash", tp=8).state_bytes, plan("llama-3.1-70b").state_bytes
        (18452480, 0)
        """
        return sum(spec.content for group in self.state_groups for spec in group.specs)

    @property
    def fixed_blocks(self):
        """Blocks that a request holds whatever its length, those of states and rings.

        >>> plan("glm-5.3-flash", tp=8).fixed_blocks, plan("glm-5.3-flash", tp=8, num_spec=1).fixed_blocks
        (13, 13)
        """
        return sum(request_blocks(group, 1) for group in self.groups if group.kind in ("ring", "state"))

    def requests(self, context):
        """Requests of `context` tokens that fit at once, a fraction as vLLM counts them; None if no memory is given.

        ValueError for fewer tokens than one.

        >>> round(plan("glm-5.3-flash", tp=8, memory=60 * GIB).requests(2**17), 2)
        39.57
        """
        check_settings(self.facts, None, context=context)
        if self.num_blocks is None:
            return None
        return self.num_blocks / sum(request_blocks(group, context) for group in self.groups)

    @property
    def concurrency(self):
        """Requests of the plan's own `context` that fit at once; None if no memory or no context is given."""
        return self.requests(self.context) if self.context else None

    @property
    def tokens(self):
        """The size of the cache that vLLM prints, concurrency x context."""
        return None if self.concurrency is None else int(self.concurrency * self.context)

    @property
    def prefix_tokens(self):
        """Tokens in full attention if the pool held nothing else; one block is the null block."""
        full = [group for group in self.groups if group.kind == "attention"]
        if self.num_blocks is None or not full:
            return None
        return max(0, self.num_blocks - 1) // len(full) * min(group.block for group in full)

    @property
    def prefix_states(self):
        """States of the whole model if the pool held nothing else."""
        if self.num_blocks is None or not self.state_groups:
            return None
        return max(0, self.num_blocks - 1) // len(self.state_groups)

    @property
    def request_bytes(self):
        """Bytes that one request of `context` tokens takes from the pool."""
        return self.request_blocks and sum(self.request_blocks) * self.bytes_per_block


def default_block(kernels):
    """The block that the server takes on its own: 16 if every kernel accepts it, else the least that all accept.

    >>> default_block({"attention": 16}), default_block({"mla": 64, "indexer": 64}), default_block({"mla": 64,
    ...     "indexer": 128})
    (16, 64, 128)
    """
    fits = all(DEFAULT_BLOCK % kernel == 0 for kernel in kernels.values())
    return DEFAULT_BLOCK if fits else lcm(*kernels.values())


def request_blocks(group, context, in_flight=IN_FLIGHT):
    """Blocks of one group that a request of `context` tokens holds at most.

    Full attention: all of them. A window: the window and what is in flight, one more for its first block. A ring: 1.
    States: the running one, its predecessor, one for each drafted token, and one that a kernel may fill in the middle.

    >>> from kda_lab.serving.plan.groups import Group
    >>> kda = s.kda_state(8, 128, num_spec=3, block=640, checkpoints=1)
    >>> request_blocks(Group(("a",), (s.mla_rows(640, 512),)), 2000), request_blocks(Group(("b",), (kda,)), 2000)
    (4, 6)
    """
    first = group.specs[0]
    if group.kind == "attention":
        return s.ceil_div(context, group.block)
    if group.kind == "window":
        return s.ceil_div(min(first.window - 1 + in_flight, context), group.block) + 1
    return 1 if group.kind == "ring" else 2 + first.num_spec + first.checkpoints


def layer_specs(facts, at, page=None):
    """{layer: spec}: attention first, then windows, rings and states, each in the order of the layers; states padded to
    `page`.

    With speculation the layers of the built-in drafter count too; they are numbered after the last layer.
    """
    out = {}
    for index, kinds in enumerate(facts.layers + (facts.drafts if at.num_spec else [])):
        for kind in kinds:
            spec = facts.makers[kind](at)
            if isinstance(spec, s.StateSpec) and page not in (None, spec.content):
                spec = replace(spec, padded=page)
            out[f"{kind}.{index}"] = spec
    return dict(sorted(out.items(), key=lambda item: ORDER[Group((item[0],), (item[1],)).kind]))


def main_kind(facts):
    """The attention whose page a state must fit into."""
    kind = next((kind for kind in ("mla", "attention", "rows4", "window") if kind in facts.makers), None)
    if kind is None:
        raise ConfigError(
            "no layer of this config is attention, and the block size follows from attention; plan a hybrid model"
        )
    return kind


def chosen_block(facts, at):
    """(block, unit, bytes of a token in one layer) for a server whose own block would be ``at.block``.

    >>> chosen_block(read(load("glm-5.3-flash")), At(128, tp=8))
    (640, 128, 1024)
    """
    main = main_kind(facts)
    one = facts.makers[main](at)
    token_bytes = one.content // one.block
    states = [facts.makers[kind](at) for kind in ("kda", "gdn", "mamba2", "lightning") if kind in facts.makers]
    if not states:
        return at.block, at.block, token_bytes
    mla, kernel = main == "mla", facts.kernels[main]
    block = s.aligned_block(
        max(spec.content for spec in states), token_bytes, kernel, at.block, mla, facts.kernels.values()
    )
    return block, s.kernel_unit(kernel, at.block, mla), token_bytes


@known
def plan(
    config: dict | str | os.PathLike[str],
    tp: int = 1,
    num_spec: int = 0,
    memory: float | None = None,
    context: int | None = None,
    prefix_match_unit: int | None = None,
    block_size: int | None = None,
    number: int = s.BF16,
    state_number: int | None = None,
) -> Plan:
    """Plan the cache of a published config for one of `tp` ranks.

    config: a dict, a file, or the name of a config that comes with the package   num_spec: drafted tokens a step
    memory: bytes for the cache   context: tokens of a request, the model's own if None   prefix_match_unit: tokens of a
    hash   block_size: the server's --block-size   number: bytes of a cached number   state_number: bytes of a number of
    S. ConfigError for a config that cannot be read, ValueError for a setting that does not fit it.

    >>> p = plan("glm-5.3-flash", tp=8)
    >>> p.block_size, p.state_page_bytes, round(p.padding_fraction, 5), p.bytes_per_block
    (640, 542720, 0.20755, 7468032)
    >>> [len(group.layers) for group in p.groups]
    [22, 11, 9, 9, 8, 8]
    """
    facts = read(config if isinstance(config, dict) else load(config))
    check_settings(facts, tp=tp, num_spec=num_spec, memory=memory, context=context, block_size=block_size)
    start = block_size or default_block(facts.kernels)
    at = At(start, tp, num_spec, number, state_number)
    block, unit, token_bytes = chosen_block(facts, at)
    at = at._replace(block=block)

    page = facts.makers[main_kind(facts)](at).page
    groups = cache_groups(layer_specs(facts, at, page), facts.packed)
    units = block_units(groups, prefix_match_unit)
    size = bytes_per_block(groups, facts.packed)
    context = context or facts.context
    return Plan(
        facts=facts,
        at=at,
        user_block=block_size,
        start_block=start,
        unit=unit,
        token_bytes=token_bytes,
        block_size=block,
        attention_page_bytes=page,
        state=next((g.specs[0] for g in groups if g.kind == "state"), None),
        groups=groups,
        block_outermost=facts.packed,
        alignment=stride_alignment(groups),
        bytes_per_block=size,
        hash_block_size=units.hash_block,
        scheduler_block_size=units.scheduler_block,
        hit_alignment=hit_alignment(groups, units),
        memory=memory,
        context=context,
        num_blocks=None if memory is None else int(memory) // size,
        request_blocks=[request_blocks(group, context) for group in groups] if context else None,
    )


def check_settings(facts, block_size, **settings):
    """ValueError for a setting below what it can be, or for a block that is not whole kernel blocks."""
    for name, value in {**settings, "block_size": block_size}.items():
        low = 0 if name == "num_spec" else 1
        if value is not None and not low <= value < inf:
            raise ValueError(f"{name} must be at least {low} and finite, got {value}")
    kernel = lcm(*facts.kernels.values())
    if block_size and block_size % kernel:
        raise ValueError(f"a block of {block_size} tokens is not whole kernel blocks of {kernel}; choose a multiple")


def finer_unit(p):
    """A hash unit that divides every block in which prefixes are found, 64 tokens at most; None if blocks are that fine
    already.

    Multiples of 16, since a prefill kernel can export a state only there.

    >>> finer_unit(plan("glm-5.3-flash", tp=8)), finer_unit(plan("llama-3.1-70b"))
    (64, None)
    """
    hashed = [g for g in p.groups if g.cacheable]
    if not p.state_groups or any(g.kind == "window" for g in hashed):
        return None
    whole = gcd(*(g.block for g in hashed))
    span = lcm(*(spec.per_state for g in hashed for spec in g.specs))
    return max((u for u in (16, 32, 48, 64) if whole % u == 0 and u % span == 0 and u < whole), default=None)


def padding_layers(p):
    """(empty slots, layers) of each kind whose layers do not fill its groups, where all pages are equal.

    >>> padding_layers(plan("kimi-linear-48b-a3b"))
    [(1, 20)]
    """
    if p.block_outermost or len(p.groups) == 1:
        return []
    counts = {}
    for group in p.groups:
        counts[group.specs[0]] = counts.get(group.specs[0], 0) + len(group.layers)
    size = group_size(list(counts.values()))
    return [(empty_slots(count, size), count) for count in counts.values() if empty_slots(count, size)]


def log_lines(p):
    """What vLLM logs about these numbers, its key phrases only.

    >>> log_lines(plan("glm-5.3-flash", tp=8))[1:3]
    ['Setting attention block size to 640 tokens', 'Padding mamba page size by 20.75%']
    """
    lines = []
    if p.start_block != DEFAULT_BLOCK and not p.user_block:
        lines.append(f"Setting kv cache block size to {p.start_block}")
    if p.block_size != p.start_block:
        lines.append(f"Setting attention block size to {p.block_size} tokens")
    if p.padding_fraction:
        lines.append(f"Padding mamba page size by {100 * p.padding_fraction:.2f}%")
    if len(p.groups) > 1:
        lines.append(f"kv cache group sizes {tuple(group.block for group in p.groups)}")
        lines.append(f"kv lcm block sizes {p.scheduler_block_size}")
    lines += [
        f"Add {empty} padding layers, may waste at most {100 * empty / count:.2f}%"
        for empty, count in padding_layers(p)
    ]
    if p.tokens is not None:
        lines.append(f"GPU KV cache size: {p.tokens:,} tokens")
        lines.append(f"Maximum concurrency for {p.context:,} tokens per request: {p.concurrency:.2f}x")
    return lines

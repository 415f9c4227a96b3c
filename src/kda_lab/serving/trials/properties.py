"""What must hold after every step of every run, and is checked on random traffic.

P1 outputs through the cache equal outputs from scratch · P2 a key's block holds what it promises · P3 a request keeps
few states · P4 references add up · P5 a joint hit is no longer than any group's · P6 requests do not touch each other's
outputs · P7 eviction only shortens hits · P8 looking again changes nothing · P9 every prompt token runs once or is hit.
P1 and P2 are the worker's checks; P6 follows from P1, since the reference of a request knows no other request.
"""

from kda_lab.serving.blocks.request import Request


class PropertyError(AssertionError):
    """A property that does not hold; the message says which and where."""


def require(condition, message):
    """Raise PropertyError with the message unless the condition holds.

    >>> require(1 + 1 == 2, "never seen")
    """
    if not condition:
        raise PropertyError(message)


def check_values(engine):
    """P1, P2: the worker found nothing wrong."""
    found = engine.violations
    require(not found, f"P1/P2: {found[0].line()}" if found else "")


def check_residency(engine):
    """P3: a request holds at most 2 + num_spec states of a group, and with internal checkpoints 1 + num_spec more.

    A chunk that exports a state does not move the slots of drafted tokens but takes new ones for one step.
    """
    settings = engine.settings
    most = 2 + settings.num_spec + (1 + settings.num_spec if settings.splitting.alignment is not None else 0)
    for manager in engine.scheduler.coordinator.managers:
        if manager.group.kind == "state":
            for name, table in manager.tables.items():
                held = sum(block is not engine.scheduler.pool.null for block in table)
                require(
                    held <= most, f"P3: request {name} holds {held} states of group {manager.index}, it needs {most}"
                )


def check_references(engine):
    """P4: references equal table entries, the free queue holds exactly the blocks without, keys agree, null has
    none.
    """
    pool = engine.scheduler.pool
    held = [0] * len(pool.blocks)
    for manager in engine.scheduler.coordinator.managers:
        for table in manager.tables.values():
            for block in table:
                held[block.id] += block is not pool.null
    free = {block.id for block in pool.free_queue}
    require(len(free) == pool.num_free, "P4: a block stands in the free queue twice")
    for block in pool.blocks:
        require(
            block.refs == held[block.id],
            f"P4: block {block.id} counts {block.refs} references and has {held[block.id]}",
        )
        waits = block.refs == 0 and block is not pool.null
        require((block.id in free) == waits, f"P4: block {block.id} is misplaced in the free queue")
        require(set(block.keys) == set(block.promises), f"P4: block {block.id} has keys without a promise")
        for key in block.keys:
            require(pool.holders[key].get(block.id) is block, f"P4: the map of keys does not know block {block.id}")
    known = sum(len(holders) for holders in pool.holders.values())
    require(known == sum(len(block.keys) for block in pool.blocks), "P4: the map has keys that no block carries")
    require(not pool.null.keys, "P4: the null block has a key")


def check_hit(engine, prompt):
    """P5, P8: the joint hit of a prompt against each group's own, its grain, and itself looked up again."""
    coordinator, s = engine.scheduler.coordinator, engine.settings.splitting
    request = Request("?", prompt, s.unit)
    hit = coordinator.lookup(request)
    require(
        hit.tokens <= hit.longest, f"P5: the joint hit {hit.tokens} is longer than the longest single one {hit.longest}"
    )
    require(hit.tokens < len(prompt), f"P5: a hit of {hit.tokens} of {len(prompt)} tokens leaves nothing to run")
    require(hit.tokens % s.grain == 0, f"P5: the hit {hit.tokens} is no multiple of {s.grain}")
    for group, tokens in zip(engine.settings.groups, coordinator.lookup_alone(request), strict=True):
        # a ring has no hit
        short = tokens is not None and tokens < hit.tokens
        require(not short, f"P5: the joint hit {hit.tokens} is longer than the hit {tokens} of a {group.kind} group")
    require(coordinator.lookup(request)[0] == hit.tokens, "P8: a second lookup finds another hit")
    if hit.tokens and not s.eagle and not s.fine:
        # with eagle the unit after the hit is part of the evidence, with fine hits the key of a whole attention block
        # may be
        again = coordinator.lookup(Request("?", prompt[: hit.tokens + 1], s.unit)).tokens
        require(again == hit.tokens, f"P8: the prompt cut after its hit of {hit.tokens} hits {again}")
    return hit


def check_eviction(engine, prompt, block):
    """P7: after the keys of a free block are dropped, the prompt hits no more than before."""
    before = engine.scheduler.coordinator.lookup(Request("?", prompt, engine.settings.splitting.unit)).tokens
    engine.scheduler.pool.drop_keys(block)
    after = engine.scheduler.coordinator.lookup(Request("?", prompt, engine.settings.splitting.unit)).tokens
    require(after <= before, f"P7: the hit grew from {before} to {after} when block {block.id} was evicted")


def check_prefill(engine, computed):
    """P9: a request that was never preempted ran exactly the prompt tokens that it did not hit.

    computed: request name -> prompt tokens that ran.
    """
    for name, tokens in computed.items():
        request = engine.requests[name]
        if request.output and not request.preemptions:
            hit, prompt = engine.hits[name][0], len(request.prompt)
            require(tokens + hit == prompt, f"P9: {name} hit {hit} and ran {tokens} of {prompt} prompt tokens")


def check_step(engine):
    """The properties that hold between any two steps."""
    check_values(engine)
    check_residency(engine)
    check_references(engine)

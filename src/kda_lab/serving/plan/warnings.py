"""What somebody who starts a server should know of its plan: what is wasted, what never hits, what is refused."""

from kda_lab.serving.plan.plan import GIB, finer_unit, main_kind


def warnings(p):
    """What somebody who starts this server should know, a sentence each; an empty list if there is nothing.

    >>> from kda_lab import plan
    >>> warnings(plan("glm-5.3-flash", tp=8))[0][:46]
    'prompts of up to 640 tokens never hit, and hit'
    """
    return [
        text for text in (_coarse(p), _padded(p), _ring(p), _copies(p), _drafter(p), _refused(p), _export(p)) if text
    ]


def _coarse(p):
    A, B = p.hit_alignment, p.block_size
    if not p.state_groups or A <= 64:
        return None
    dropped = p.at.num_spec and p.facts.drafts
    # the last token must run, and a drafter gives up one unit more
    first = f"prompts of up to {A:,} tokens never hit"
    if dropped:
        first = f"prompts of fewer than {2 * A:,} tokens never hit, since a drafter gives up one unit of a hit"
    unit = finer_unit(p)
    advice = (
        f"; --prefix-match-unit {unit} finds tails of earlier prompts to {unit} tokens, a shared middle still to {B:,}"
    )
    return f"{first}, and hits end at multiples of {A:,}" + (advice if unit else "")


def _padded(p):
    if not p.state or p.padding_fraction < 0.1:
        return None
    padding = p.state.page - p.state.content
    return (
        f"{padding:,} of {p.state.page:,} bytes of each state's page are padding: the block must be a multiple of "
        f"{p.unit}, and "
        f"{p.block_size - p.unit:,} tokens hold {(p.block_size - p.unit) * p.token_bytes:,} bytes, less than a state"
    )


def _ring(p):
    rings = [g for g in p.groups if g.kind == "ring"]
    if not rings:
        return None
    used, taken = sum(g.page for g in rings), len(rings) * p.bytes_per_block
    return f"a ring takes a whole block of each request: {used:,} of {taken:,} bytes are used"


def _copies(p):
    tp, main = p.at.tp, main_kind(p.facts)
    heads = p.facts.makers[main](p.at._replace(tp=1)).heads
    if main in ("mla", "rows4"):
        return (
            f"rows of attention are shared by all heads, so each of the {tp} ranks keeps all of them; only "
            "states shrink"
            if tp > 1
            else None
        )
    return f"{heads} key-value heads for {tp} ranks: {tp // heads} ranks keep a copy of each" if tp > heads else None


def _drafter(p):
    if not p.at.num_spec or p.facts.drafts:
        return None
    return (
        "the config names no drafter, so states have room for drafted tokens and the drafter's own cache is not counted"
    )


def _refused(p):
    if p.concurrency is None or p.concurrency >= 1:
        return None
    return (
        f"one request of {p.context:,} tokens needs {p.request_bytes / GIB:.2f} GiB of cache and there are "
        f"{p.memory / GIB:.2f}: "
        "the server refuses to start; give a smaller --context"
    )


def _export(p):
    exports = p.state and p.state.checkpoints and "kda" in p.facts.makers
    if not exports or p.hash_block_size % 16 == 0:
        return None
    return (
        f"a hash unit of {p.hash_block_size} is no multiple of 16, where FlashKDA can export "
        f"states: prefills take more chunks"
    )

"""Where a prefill chunk ends, so that the states which later requests can use are written.

A recurrent state exists only at the token where a chunk stopped. So the scheduler cuts chunks at the positions whose
states are worth a key: the last block boundary, the prompt's last hash boundary, and the end of a shared prefix.
Rules of vLLM 0.32.0.
"""

from typing import NamedTuple

from kda_lab.serving.plan.specs import ceil_div


def floor_to(x, unit):
    """The largest multiple of ``unit`` that is not above x.

    >>> floor_to(1999, 640)
    1920
    """
    return x // unit * unit


class Splitting(NamedTuple):
    """The settings that decide where chunks end.

    block: tokens of a state's block   unit: tokens of a hash   fine: hits inside blocks are on   eagle: the drafter's
    attention drops one unit of every hit   alignment: the kernel can export a state inside a chunk at multiples of
    this many tokens (None: it cannot)   checkpoint_junction: a junction inside a block gets its own state   budget:
    tokens a step   long_prefill: tokens a chunk (0: no limit).

    >>> Splitting(640).fine, Splitting(640, unit=64, fine=True).unit
    (False, 64)
    """

    block: int
    unit: int = None
    fine: bool = False
    eagle: bool = False
    alignment: int = None
    checkpoint_junction: bool = False
    budget: int = 8192
    long_prefill: int = 0

    @property
    def grain(self):
        """Tokens between two positions at which a hit may end."""
        return self.unit if self.fine else self.block

    @property
    def longest_chunk(self):
        """The most prefill tokens that one step can give to one request."""
        return min(self.budget, self.long_prefill) if self.long_prefill else self.budget


def checkpoint_position(tokens, unit, eagle):
    """The last position whose state a repeated prompt of ``tokens`` tokens can resume from.

    The last token always runs again, for its logits; with eagle a whole unit does.

    >>> [checkpoint_position(2000, u, e) for u in (640, 64) for e in (False, True)]
    [1920, 1280, 1984, 1920]
    """
    if eagle:
        return max(floor_to(tokens, unit) - unit, 0)
    return max(floor_to(tokens - 1, unit), 0)


def checkpoint_column(end, block):
    """The table column that holds a state exported inside a chunk: the one before the running column.

    >>> checkpoint_column(2000, 640)                 # not the column of the position: S@1984 also goes there
    2
    """
    return ceil_div(end, block) - 2


def checkpoint_valid(start, end, position, splitting):
    """Whether the kernel can export the state at ``position`` while it runs [start, end).

    >>> inner = Splitting(640, unit=64, fine=True, alignment=16)
    >>> checkpoint_valid(0, 2000, 1984, inner), checkpoint_valid(0, 600, 576, inner), checkpoint_valid(100, 2000,
    ...     1984, inner)
    (True, False, False)
    """
    s = splitting
    return (
        s.alignment is not None
        and start % s.unit == 0
        and checkpoint_column(end, s.block) > (start - 1) // s.block
        and start + s.unit <= position
        and start < position < end
        and (position - start) % s.alignment == 0
    )


def internal_checkpoint(start, end, prefill_end, splitting):
    """The position whose state the chunk [start, end) exports on its way, or None.

    >>> internal_checkpoint(0, 2000, 2000, Splitting(640, unit=640, alignment=16))
    1920
    """
    position = checkpoint_position(prefill_end, splitting.grain, splitting.eagle)
    return position if end >= prefill_end and checkpoint_valid(start, end, position, splitting) else None


def chunk_end(start, want, prompt, tokens, junction, splitting):
    """Where a chunk that begins at ``start`` and may take ``want`` tokens ends; ``start`` itself means: wait.

    prompt: tokens of the prompt   tokens: tokens known (more than the prompt when a preempted request runs its outputs
    again)   junction: end of the longest prefix shared with an earlier request, 0 if none.

    >>> plan = Splitting(640, unit=640)
    >>> chunk_end(0, 2000, 2000, 2000, 0, plan), chunk_end(1920, 80, 2000, 2000, 0, plan)
    (1920, 2000)
    >>> chunk_end(0, 2000, 2000, 2000, 1280, plan)          # a prefix of 1,280 tokens was seen before: keep its state
    1280
    >>> chunk_end(0, 2000, 2000, 2000, 0, Splitting(640, unit=640, alignment=16))
    2000
    """
    s, B = splitting, splitting.block
    prefill_end = max(prompt, tokens - 1)
    end = start + want
    if start >= prefill_end:
        # decode
        return end
    internal = internal_checkpoint(start, end, prefill_end, s) is not None
    last = 0 if internal else checkpoint_position(tokens, B, s.eagle)
    if end < prefill_end and (floor_to(end, B) > start or s.longest_chunk >= B):
        # not the final chunk: stop at a block boundary, or wait for a step with more budget; a block that no step
        # can fill is filled in several
        end = floor_to(end, B)
    stops = [last]
    if start % B and not internal:
        # resumed inside a block: first complete it
        stops.append(floor_to(start, B) + B)
    tail = checkpoint_position(prompt, s.unit, s.eagle)
    if s.fine and not internal and last < tail < prompt:
        stops.append(tail)
    if start < junction < end:
        exact = s.checkpoint_junction and junction <= prompt
        stops.append(junction if exact else start + floor_to(junction - start, B))
    return max(min((stop for stop in stops if start < stop < end), default=end), start)


def prefill_chunks(prompt, splitting, start=0, junction=0):
    """The chunks [start, end) of a prompt that has the server to itself.

    prompt: its length   start: tokens that the cache had   junction: see ``chunk_end``.

    >>> prefill_chunks(2000, Splitting(640, 640)), prefill_chunks(2000, Splitting(640, 640, budget=640))
    ([(0, 1920), (1920, 2000)], [(0, 640), (640, 1280), (1280, 1920), (1920, 2000)])
    >>> prefill_chunks(2000, Splitting(640, 64, fine=True, eagle=True))
    [(0, 1280), (1280, 1920), (1920, 2000)]
    """
    chunks = []
    while start < prompt:
        end = chunk_end(start, min(splitting.longest_chunk, prompt - start), prompt, prompt, junction, splitting)
        chunks.append((start, end))
        start = end
    return chunks

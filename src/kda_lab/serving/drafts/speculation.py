"""Where the states of drafted tokens go, and which of them the next step reads.

A step that verifies k drafts writes k + 1 states, one a slot: the columns of the state's table from the running one on.
When a drafts are accepted, ``accepted`` = a + 1 tokens are new and the next initial state is slot a.
"""

from typing import NamedTuple

from kda_lab.serving.blocks.chunking import floor_to
from kda_lab.serving.plan.specs import ceil_div


class AfterSampling(NamedTuple):
    """What the worker does once it knows how many drafts were right.

    copy: (source column, target column) or None   accepted: how the next step counts its first slot, 1 for the first.

    >>> AfterSampling(None, 1)._fields
    ('copy', 'accepted')
    """

    copy: tuple
    accepted: int


def running_column(start, n, block):
    """The column of the state table that a step writes first; drafts count, since they may reach into the next block.

    >>> running_column(58, 4, 16), running_column(61, 4, 16)
    (3, 4)
    """
    return ceil_div(start + n, block) - 1


def slot(slots, accepted):
    """The block that holds the state after ``accepted`` new tokens.

    >>> [slot([41, 9, 72, 18], accepted) for accepted in (1, 2, 3, 4)]
    [41, 9, 72, 18]
    """
    return slots[accepted - 1]


def window_length(taps, num_spec):
    """Inputs of the convolution in a window of a state's block: those that a later step may still need.

    >>> window_length(4, 0), window_length(4, 3)
    (3, 6)
    """
    return taps - 1 + num_spec


def window_offset(accepted):
    """The first of the window's inputs that precede the next one.

    >>> window_offset(1), window_offset(3)
    (0, 2)
    """
    return accepted - 1


def boundary_copy(start, n, drafts, accepted, block):
    """When the accepted tokens reach a block boundary, its state moves to the boundary's own column.

    A key for that boundary is registered in a later step, and without the copy the column would hold the state after
    the step's first token instead.   start, n: the step's tokens, drafts among them.

    >>> boundary_copy(60, 4, 3, 4, 16), boundary_copy(62, 4, 3, 2, 16), boundary_copy(60, 4, 3, 3, 16)
    (AfterSampling(copy=(6, 3), accepted=1), AfterSampling(copy=(5, 3), accepted=2), AfterSampling(copy=None,
    accepted=3))
    """
    running = running_column(start, n, block)
    first = start + n - drafts
    boundary = floor_to(first + accepted - 1, block)
    if boundary < first:
        return AfterSampling(None, accepted)
    source, target = running + boundary - first, boundary // block - 1
    return AfterSampling((source, target) if source != target else None, 1 if target == running else accepted)

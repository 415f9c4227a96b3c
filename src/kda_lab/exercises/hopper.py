"""Exercises of the chapter on the Hopper kernel."""

import torch

from kda_lab import chunk_fused


def by_hand():
    """Three exponents to base 2 relative to the middle.

    A list for the five read keys, a number for the entry, and one
    for the exit.
    """
    # <solution>
    return [4, 3, 0, -1, -3], -6, -3
    # </solution>


def check_by_hand(by_hand):
    g = torch.tensor([[-2.0], [-1], [-3], [-1], [-2]])
    d, entry = chunk_fused.gate_sums(g)
    got = by_hand()
    assert list(got[0]) == d.flatten().tolist(), f"the middle is the third token: {d.flatten().tolist()}, got {got[0]}"
    assert got[1] == entry.item(), f"the entry decays by the tokens up to the middle: {entry.item():g}, got {got[1]}"
    assert got[2] == d[-1].item(), f"the exit is the exponent of the last token: {d[-1].item():g}, got {got[2]}"


def ranges(heads, blocks, clusters):
    """For each cluster the parts of its range in the order of work.

    A part is (head, first block, block behind the last one).
    """
    total = heads * blocks
    share = max(-(-total // clusters), blocks)
    found = []
    for cluster in range(clusters):
        low = min(cluster * share, total)
        high = min(low + share, total)
        parts = []
        # <solution>
        while high > low:
            head = (high - 1) // blocks
            before = head * blocks
            start = max(before, low)
            parts.append((head, start - before, high - before))
            high = start
        # </solution>
        found.append(parts)
    return found


def check_ranges(ranges):
    for heads, blocks, clusters in ((9, 8, 6), (5, 7, 3), (3, 4, 5), (5, 5, 4), (11, 32, 10), (67, 64, 66)):
        found = ranges(heads, blocks, clusters)
        every = sorted((head, n) for parts in found for head, first, end in parts for n in range(first, end))
        assert every == [(head, n) for head in range(heads) for n in range(blocks)], (
            f"{heads} heads of {blocks} blocks: each block once"
        )
        done, share = {}, max(-(-heads * blocks // clusters), blocks)
        for cluster, parts in enumerate(found):
            now = 0
            for head, first, end in parts:
                if first:
                    there = done.get((head, first))
                    assert there is not None, (
                        f"cluster {cluster} needs head {head} up to block {first}, which no cluster before it has done"
                    )
                    now = max(now, there)
                now += end - first
                done[head, end] = now
            assert now <= share, (
                f"{heads} heads of {blocks} blocks on {clusters}: cluster {cluster} ends at {now}, a range "
                f"takes {share}"
            )


def too_early(slots):
    """(written, wanted) for a ring of so many slots.

    written: how many blocks are finished, from block 0 on;
    wanted: the number of one that is not, whose wait passes.
    """
    # <solution>
    return 1, 1 + slots
    # </solution>


def check_too_early(too_early):
    for slots in (2, 3, 8):
        written, wanted = too_early(slots)
        assert 0 < written <= wanted, (
            f"block {wanted}, counted from 0, must not be among the {written} that are finished, and one at "
            "least must be"
        )
        ended = len(range(wanted % slots, written, slots))  # phases of the slot's mbarrier that have ended
        passes = ended % 2 != wanted // slots % 2
        assert passes, (
            f"{slots} slots: phase {ended} of slot {wanted % slots} runs, so a wait for phase {wanted // slots} "
            "holds; try a block further on"
        )

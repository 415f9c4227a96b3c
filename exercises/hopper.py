"""Exercises of the chapter on the Hopper kernel."""

import torch

from kda_lab import chunk_fused


def by_hand():
    """Exponents to base 2 of the five read keys relative to the middle, the one of the entry, and the one of the exit."""
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
    """For each cluster the parts (head, first block, behind the last block) of its range, in the order of work."""
    total = heads * blocks
    share = max(-(-total // clusters), blocks)
    found = []
    for cluster in range(clusters):
        low, high = min(cluster * share, total), min((cluster + 1) * share, total)
        parts = []
        # <solution>
        while high > low:
            head = (high - 1) // blocks
            start = max(head * blocks, low)
            parts.append((head, start - head * blocks, high - head * blocks))
            high = start
        # </solution>
        found.append(parts)
    return found


def check_ranges(ranges):
    for heads, blocks, clusters in ((9, 8, 6), (5, 7, 3), (3, 4, 5), (96, 512, 66)):
        found = ranges(heads, blocks, clusters)
        every = sorted((head, n) for parts in found for head, first, end in parts for n in range(first, end))
        assert every == [(head, n) for head in range(heads) for n in range(blocks)], f"{heads} heads of {blocks} blocks: each block once"
        done = {}
        for cluster, parts in enumerate(found):
            now = 0
            for head, first, end in parts:
                if first:
                    there = done.get((head, first))
                    assert there is not None and there <= now, f"cluster {cluster} needs head {head} up to block {first} at time {now}, it is there at {there}"
                now += end - first
                done[head, end] = now


def too_early(slots):
    """(written, wanted): blocks that are finished, and a later block for which a wait by parity passes all the same."""
    # <solution>
    return 1, 1 + slots
    # </solution>


def check_too_early(too_early):
    for slots in (2, 3, 8):
        written, wanted = too_early(slots)
        assert 0 < written <= wanted, f"block {wanted} (from 0) must not be among the {written} that are finished"
        ended = len(range(wanted % slots, written, slots))  # phases of the slot's mbarrier that have ended
        passes = ended % 2 != wanted // slots % 2
        assert passes, f"with {slots} slots, {ended} phases of the slot have ended, and the wait for phase {wanted // slots} holds; ask for a block further on"

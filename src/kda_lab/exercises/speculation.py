"""Exercises of the chapter on speculation and rollback."""

import torch

import kda_lab as kl
from kda_lab import rules
from kda_lab.serving import Inputs, Slots, costs

running_column = kl.serving.speculation.running_column
run = kl.serving.speculation_faults.run


def by_hand():
    """Only d1 is right: slot, its state, and the next token's u."""
    # <solution>
    return 9, (3.0, 5.0), 1.5
    # </solution>


def check_by_hand(by_hand):
    S = torch.tensor([[8.0, 2.0]])
    keys, values, slots = torch.eye(2), torch.tensor([[6.0], [5.0]]), [41, 9, 72, 18]
    alpha = torch.tensor([0.5, 1.0])
    for k, v in zip(keys, values):
        S, _ = rules.kda(S, k, k, v, alpha, 1.0)
    _, answer = rules.kda(S, keys[0], keys[0], torch.tensor([3.0]), alpha, 0.0)
    number, state, u = by_hand()
    assert number == slots[1], "with one draft accepted, two tokens count: the second slot of the row is read"
    assert tuple(state) == tuple(S[0].tolist()), "the slot holds the state after x0 and d1"
    assert u == 3.0 - answer.item(), "r decays the state before it reads it: u = v minus what the decayed state answers"


def moves(start, drafts, accepted, block):
    """The copies of one verification, as (source, target).

    Both are columns. start: tokens that the state has seen
    drafts: of this and of the next step   accepted: tokens that
    count, 1 to drafts + 1. First the copy after sampling, then the
    pre-copy of the next step, if there are any. Leave out a copy
    of a column onto itself (the pre-copy after start = 60 and
    accepted = 2 would be one). Do not use ``boundary_copy``.
    """
    # <solution>
    new = start + accepted
    running = running_column(start, drafts + 1, block)
    out, at = [], running + accepted - 1
    boundary = new // block * block
    if boundary > start:
        source = running + boundary - start - 1
        target = boundary // block - 1
        if source != target:
            out.append((source, target))
        if target == running:
            at = running
    following = running_column(new, drafts + 1, block)
    if following not in (running, at):
        out.append((at, following))
    return out
    # </solution>


def check_moves(moves):
    one = torch.ones(4, 1, 1)
    x = Inputs(one, one, one, -one, one[..., 0])
    for start in range(40, 70):
        for accepted in range(1, 5):
            # what a memory does in this step and at the start of the next one
            memory = Slots(one[0:1, 0], [1], start, 16)
            memory.verify(x)
            before = len(memory.copies)
            memory.accept(accepted)
            memory.verify(x)
            want = [copy for copy in memory.copies[before:] if copy[0] != copy[1]]
            got = list(moves(start, 3, accepted, 16))
            assert got == want, f"start {start}, {accepted} tokens count: the copies are {want}, got {got}"


def tokens_to_win(state, record):
    """The fewest tokens a step for which RecoverSSM beats slots.

    state, record: bytes of one. To beat is to move fewer bytes in
    a step; None if no number of tokens does.
    """
    # <solution>
    # state + T state > 3 state + 2 T record
    if 2 * record >= state:
        return None
    return 2 * state // (state - 2 * record) + 1
    # </solution>


def check_tokens_to_win(tokens_to_win):
    real, odd = [(524_288, r) for r in (8_192, 4_128)], [(1000, r) for r in (300, 499, 250, 500, 800)]
    for state, record in real + odd:
        wins = lambda T: costs.recover_step(state, record, T) < costs.slots_step(state, T)
        want = next(filter(wins, range(1, 5000)), None)
        got = tokens_to_win(state, record)
        assert got == want, f"state = {state}, record = {record}: {want} tokens, got {got}"


def sleeping():
    """How many of three drafts are right in each step.

    None is a step without drafts. 80 tokens after a prompt of 21,
    blocks of 16; the list is repeated. At least ten of the first
    thirty steps have drafts, and the missing copy does not show:
    no token is wrong, and no block.
    """
    # <solution>
    # three single tokens reach 32, then four each further multiple
    return [3, 3] + 3 * [None] + 5 * ([3, 3, 3] + 4 * [None])
    # </solution>


def check_sleeping(sleeping):
    pattern = sleeping()
    assert sum(n is not None for n in pattern[:30]) >= 10, "at least ten steps of the first thirty should have drafts"
    broken = run("no-boundary-copy", right=pattern)
    assert broken.first is None, f"token {broken.first} is wrong: a step with drafts finished a block"
    assert not broken.blocks, f"the blocks that end at {broken.blocks} are wrong: steps with drafts finished them"

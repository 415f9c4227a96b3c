"""Chats that share system prompts: what policies save, in tokens."""

import numpy as np
import pytest

from kda_lab.serving.blocks.scheduler import hybrid
from kda_lab.serving.trials.workload import Chat, chats, measure

TALK = chats(np.random.default_rng(1), 10, systems=2, system_tokens=150, turns=3, question=20, answer=12)


def usage(**settings):
    return measure(hybrid(**{"block": 16, "blocks": 400, "requests": 4} | settings), TALK)


def test_every_prompt_token_is_hit_or_runs_once_when_nobody_is_preempted():
    u = usage()
    answers = sum(len(chat.turns) * (chat.answer - 1) for chat in TALK)
    assert u.preempted == 0 and u.ran + u.hit == u.prompt + answers


def test_dense_retention_saves_more_tokens_than_the_default_where_there_is_room():
    assert usage(retention=None).hit > usage(retention=64).hit > usage(retention=0).hit


def test_a_finer_hash_saves_more_and_writes_more_states():
    coarse, fine = usage(), usage(unit=4)
    assert fine.hit > coarse.hit and fine.states > coarse.states


def test_a_small_pool_costs_hits():
    assert usage(blocks=80).hit < usage().hit


def test_a_shared_prompt_is_served_from_the_third_chat_on():
    shared = list(range(100))
    talk = [Chat(shared, [[1000 + i] * 20], 2) for i in range(5)]
    one_by_one = measure(hybrid(block=16, requests=1), talk)
    # 96 of its 100 tokens, for three of the five
    assert one_by_one.hit == 3 * 96


def test_a_prompt_that_cannot_fit_is_named():
    with pytest.raises(RuntimeError, match="a prompt of .* tokens does not fit"):
        usage(blocks=6)

"""Synthetic traffic for questions of policy: chats that share system prompts, served by the scheduler without numbers.

What a policy saves is a count of tokens, so no model runs: a sample is a token that nobody else has.
"""

import itertools
from collections import deque
from typing import NamedTuple

from kda_lab.serving.blocks.request import Request
from kda_lab.serving.blocks.scheduler import Scheduler


class Chat(NamedTuple):
    """One conversation.

    system: tokens of the system prompt, the same for many chats   turns: tokens of each question   answer: tokens of an
    answer.

    >>> Chat([1, 2], [[3], [4]], 5).answer
    5
    """

    system: list
    turns: list
    answer: int


class Usage(NamedTuple):
    """prompt: tokens of all prompts   hit: of these found in the cache   ran: tokens that ran, answers and replays
    included
    states: states that chunks wrote for a block's end, a prompt's end or a junction   steps   preempted: how often.

    >>> Usage(200, 50, 170, 3, 9, 0).hit_rate
    0.25
    """

    prompt: int
    hit: int
    ran: int
    states: int
    steps: int
    preempted: int

    @property
    def hit_rate(self):
        """The part of all prompt tokens that did not run."""
        return self.hit / self.prompt


def chats(rng, count, systems=3, system_tokens=1500, turns=4, question=120, answer=200):
    """Chats in order of arrival: each picks a system prompt, the first ones more often; lengths vary by a half.

    rng: numpy Generator.

    >>> import numpy as np
    >>> talk = chats(np.random.default_rng(0), 2, turns=3); len(talk), len(talk[0].turns)
    (2, 3)
    """
    ids = itertools.count(1_000_000)

    def fresh(mean):
        return list(itertools.islice(ids, int(mean * rng.uniform(0.5, 1.5))))

    prompts = [fresh(system_tokens) for _ in range(systems)]
    weights = [1 / (i + 1) for i in range(systems)]
    picks = rng.choice(systems, count, p=[w / sum(weights) for w in weights])
    return [
        Chat(prompts[i], [fresh(question) for _ in range(turns)], int(answer * rng.uniform(0.5, 1.5))) for i in picks
    ]


def measure(settings, talk, at_once=None, scheduler=Scheduler):
    """Serve chats, each turn after the answer to the one before, and count; RuntimeError if one cannot fit.

    at_once: conversations that are open at a time (None: as many as requests may run).

    >>> import numpy as np
    >>> from kda_lab.serving.blocks.scheduler import hybrid
    >>> talk = chats(np.random.default_rng(0), 6, turns=2)
    >>> usage = measure(hybrid(blocks=400), talk); 0 < usage.hit_rate < 1
    True
    """
    server, unit = scheduler(settings), settings.splitting.unit
    names, samples = itertools.count(), itertools.count(1 << 40)
    later, open_chats = deque(talk), {}
    counts = {"prompt": 0, "hit": 0, "ran": 0, "states": 0, "steps": 0, "preempted": 0}

    def ask(chat, turn, before):
        request = Request(f"{next(names)}", before + chat.turns[turn], unit, chat.answer)
        open_chats[request.name] = (chat, turn)
        counts["prompt"] += len(request.prompt)
        server.add(request)

    while later or open_chats:
        while later and len(open_chats) < (at_once or settings.requests):
            chat = later.popleft()
            ask(chat, 0, chat.system)
        step = server.schedule()
        if not step.chunks and not step.preempted:
            raise RuntimeError(
                f"a prompt of {len(server.waiting[0].tokens)} tokens does not fit; give the pool more blocks"
            )
        counts["steps"] += 1
        counts["preempted"] += len(step.preempted)
        for chunk in step.chunks:
            request = chunk.request
            if chunk.new and not request.preemptions:
                counts["hit"] += chunk.start
            counts["ran"] += chunk.n
            counts["states"] += (chunk.end <= len(request.prompt)) + (chunk.checkpoint is not None)
            server.update(chunk, [next(samples)] if chunk.end >= len(request.tokens) else [])
            if request.finished:
                chat, turn = open_chats.pop(request.name)
                if turn + 1 < len(chat.turns):
                    ask(chat, turn + 1, request.tokens)
    return Usage(**counts)

"""Random traffic under random settings, with every property and every value checked after each step.

``python -m kda_lab.serving.trials.fuzz --steps 20000 --seed 1``
"""

import argparse
import sys

import numpy as np

from kda_lab.serving.blocks.ring import POOL
from kda_lab.serving.blocks.scheduler import hybrid
from kda_lab.serving.run import tinymodel as tiny
from kda_lab.serving.run.engine import Engine
from kda_lab.serving.trials.properties import (
    PropertyError,
    check_eviction,
    check_hit,
    check_prefill,
    check_step,
    require,
)


def random_settings(rng):
    """Settings that make the rules meet: small blocks, tight budgets and pools.

    rng: numpy Generator.

    >>> random_settings(np.random.default_rng(0)).safe
    True
    """
    block = int(rng.choice([8, 16]))
    num_spec, states = int(rng.choice([0, 0, 1, 3])), int(rng.choice([1, 2]))
    unit = block // int(rng.choice([1, 1, 2, 4]))
    finer = [size for size in (unit, 2 * unit, block) if block % size == 0]
    attention_block = int(rng.choice(finer)) if rng.random() < 0.3 else block
    # what the longest request needs alone, and little more
    blocks = 6 + 14 * block // attention_block + states * (3 + 2 * num_spec) + int(rng.integers(0, 30))
    return hybrid(
        block=block,
        unit=unit,
        blocks=blocks,
        states=states,
        budget=int(rng.choice([block // 2 + 1, block + 3, 3 * block, 200])),
        eagle=bool(rng.integers(2)),
        num_spec=num_spec,
        alignment=rng.choice([None, None, 1, 2]),
        retention=rng.choice([None, 0, 0, 2 * block]),
        checkpoint_junction=bool(rng.integers(2)),
        long_prefill=int(rng.choice([0, 0, block + 1])),
        requests=int(rng.integers(1, 7)),
        rings=int(rng.integers(2)) if unit % POOL == 0 else 0,
        attention_block=attention_block,
    )


class Traffic:
    """Prompts that share prefixes with a few stems and with earlier requests, outputs included.

    >>> len(Traffic(np.random.default_rng(0), 16).prompt([])) > 0
    True
    """

    def __init__(self, rng, block):
        self.rng, self.block = rng, block
        self.stems = [[int(t) for t in rng.integers(0, 5000, 6 * block)] for _ in range(3)]

    def prompt(self, requests):
        """A prompt: a prefix of a stem or of an earlier request, and a tail of its own or none."""
        rng = self.rng
        source = self.stems[rng.integers(3)]
        if requests and rng.random() < 0.5:
            source = requests[rng.integers(len(requests))].tokens
        most = min(len(source), 8 * self.block)
        # block boundaries and their neighbours are where the rules change
        shared = int(rng.integers(most + 1))
        if rng.random() < 0.5:
            shared = min(shared // self.block * self.block + int(rng.integers(-1, 2)), most)
        own = int(rng.integers(0, 2 * self.block))
        return [*source[: max(shared, 0)], *(int(t) for t in rng.integers(10_000, 10_000_000, own))] or [1]


def drafter(rng, num_spec, right=0.7):
    """A drafter that guesses the model's next tokens, each with probability ``right``.

    >>> drafter(np.random.default_rng(0), 0) is None
    True
    """
    if not num_spec:
        return None

    def draft(request, library):
        ahead = library.of(request.name).prefix(len(request.tokens))
        tokens = []
        for _ in range(int(rng.integers(num_spec + 1))):
            tokens.append(tiny.next_token(ahead.output(len(ahead.tokens) - 1)) + int(rng.random() > right))
            ahead.extend(tokens[-1:])
        return tokens

    return draft


def run(settings, rng, steps, engine=Engine):
    """One run of about ``steps`` steps; returns the engine; raises PropertyError with the first property that fails.

    >>> run(hybrid(block=8, budget=20), np.random.default_rng(0), 30).violations
    []
    """
    server = engine(settings, drafter(rng, settings.num_spec))
    traffic = Traffic(rng, settings.splitting.block)
    computed = {}
    while server.steps < steps:
        if rng.random() < 0.3 and len(server.scheduler.waiting) < 4:
            prompt = traffic.prompt(list(server.requests.values()))
            check_hit(server, prompt)
            server.add(f"R{len(server.requests)}", prompt, int(rng.integers(1, 4 * settings.splitting.block)))
        step = server.schedule()
        moved = step.chunks or step.preempted or not server.busy
        require(moved, f"nothing can be scheduled in step {server.steps} and requests wait")
        for chunk in step.chunks:
            name = chunk.request.name
            computed[name] = computed.get(name, 0) + max(min(chunk.end, len(chunk.request.prompt)) - chunk.start, 0)
        server.execute(step)
        check_step(server)
        if rng.random() < 0.02 and server.scheduler.running:
            server.finish(server.scheduler.running[rng.integers(len(server.scheduler.running))].name)
        if rng.random() < 0.05:
            free = [block for block in server.scheduler.pool.free_queue if not block.free_of_keys]
            if free:
                check_eviction(server, traffic.prompt(list(server.requests.values())), free[rng.integers(len(free))])
    check_prefill(server, computed)
    return server


def main(argv=None):
    """Random runs until ``--steps`` steps are done; exit 1 at the first property that fails."""
    parser = argparse.ArgumentParser(prog="python -m kda_lab.serving.trials.fuzz", description=main.__doc__)
    parser.add_argument("--steps", type=int, default=5000, help="steps in all")
    parser.add_argument("--run", type=int, default=120, help="steps of one run")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first run")
    args = parser.parse_args(argv)
    done = checks = preempted = 0
    seed = args.seed
    while done < args.steps:
        rng = np.random.default_rng(seed)
        settings = random_settings(rng)
        try:
            server = run(settings, rng, args.run)
        except PropertyError as error:
            print(f"seed {seed}: {error}; settings {settings}", file=sys.stderr)
            return 1
        done, checks = done + server.steps, checks + server.worker.checks.count
        preempted += sum(request.preemptions for request in server.requests.values())
        seed += 1
    print(
        f"{seed - args.seed} runs, {done} steps, {checks} values checked, {preempted} preemptions: every property holds"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

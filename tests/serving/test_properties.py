"""Random traffic under random settings: outputs, keys, references, hits and residency, after every step."""

import numpy as np
import pytest

from kda_lab.serving.blocks.scheduler import hybrid
from kda_lab.serving.run.engine import Engine
from kda_lab.serving.trials import fuzz, properties
from kda_lab.serving.trials.scenarios import fresh, right_drafts, serve


@pytest.mark.parametrize("seed", range(20))
def test_every_property_holds_on_random_traffic(seed):
    rng = np.random.default_rng(seed)
    server = fuzz.run(fuzz.random_settings(rng), rng, steps=110)
    assert server.worker.checks.count > 100


def test_the_module_runs_from_the_command_line(capsys):
    assert fuzz.main(["--steps", "60", "--run", "30", "--seed", "900"]) == 0
    assert "every property holds" in capsys.readouterr().out


def test_preemption_and_rejected_drafts_are_among_the_traffic():
    preempted = 0
    for seed in range(200, 206):
        rng = np.random.default_rng(seed)
        settings = hybrid(block=8, blocks=26, num_spec=3, requests=4, budget=40)
        server = fuzz.run(settings, rng, steps=60)
        preempted += sum(request.preemptions for request in server.requests.values())
    assert preempted > 0


def test_a_request_that_comes_or_goes_does_not_change_anothers_output():
    alone = serve(Engine(hybrid(block=16, num_spec=3), right_drafts(3)), {"A": range(45)}, outputs=12)
    crowd = {"B": range(45), "A": range(45), "C": [*range(33), *fresh(30)], "D": fresh(70)}
    settings = hybrid(block=16, blocks=40, num_spec=3, budget=32)
    together = serve(Engine(settings, right_drafts(2)), {"E": range(60)}, crowd, outputs=12)
    assert together.requests["A"].output == alone.requests["A"].output


def test_speculation_emits_the_tokens_of_plain_decoding():
    plain = serve(Engine(hybrid(block=16)), {"A": range(45)}, outputs=40)
    for wrong_every in (0, 2, 3, 5):
        engine = Engine(hybrid(block=16, num_spec=3, eagle=True), right_drafts(wrong_every))
        assert serve(engine, {"A": range(45)}, outputs=40).requests["A"].output == plain.requests["A"].output
        assert engine.steps < plain.steps


def break_reference(engine):
    next(iter(engine.scheduler.coordinator.managers[0].tables.values()))[0].refs += 1


def break_key(engine):
    block = next(b for b in engine.scheduler.pool.blocks if b.keys)
    engine.scheduler.pool.holders[block.primary].clear()


def break_queue(engine):
    engine.scheduler.pool._free.popitem()


def break_residency(engine):
    table = next(iter(engine.scheduler.coordinator.managers[1].tables.values()))
    table += engine.scheduler.pool.allocate(4)


def break_value(engine):
    block = next(b for b in engine.scheduler.pool.blocks if b.keys)
    engine.worker.write(block.id, engine.worker.memory[block.id] * 2, "A")
    engine.worker.checks.keys(engine.scheduler.pool, engine.scheduler.coordinator.managers)


@pytest.mark.parametrize(
    "change, name",
    [(break_reference, "P4"), (break_key, "P4"), (break_queue, "P4"), (break_residency, "P3"), (break_value, "P2")],
    ids=lambda x: getattr(x, "__name__", x),
)
def test_a_broken_property_is_found(change, name):
    engine = Engine(hybrid(block=16))
    engine.add("A", range(40), 5)
    for _ in range(3):
        engine.step()
    properties.check_step(engine)
    change(engine)
    with pytest.raises(properties.PropertyError, match=name):
        properties.check_step(engine)


def test_a_hit_that_is_too_long_is_found():
    class Generous(Engine):
        pass

    engine = serve(Generous(hybrid(block=16)), {"A": range(60)})
    coordinator = engine.scheduler.coordinator
    right = coordinator.lookup
    coordinator.lookup = lambda request: right(request)._replace(tokens=64)
    with pytest.raises(properties.PropertyError, match="P5"):
        properties.check_hit(engine, list(range(60)))

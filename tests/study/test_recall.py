"""The recall experiments: answers against a dictionary, the model against the public functions, runs apart from each
other.
"""

import pytest
import torch

from kda_lab import inputs, ops
from kda_lab.study.recall import models, tasks, training

TASKS = {
    "recall": tasks.Task(writes=(2, 5), keys=12, values=6),
    "overwrite": tasks.Task(writes=(3, 7), pool=3, keys=12, values=6),
    "reset": tasks.Task(writes=(2, 6), pool=4, resets=True, keys=12, values=6),
}


def by_dictionary(task, tokens):
    """The answers that a reader with a dictionary gives, token by token; and how often a reset cleared one."""
    memory, first_value = {}, tasks.FIRST_KEY + task.keys
    for key, value in tokens[: 2 * task.slots].view(-1, 2).tolist():
        if key == tasks.RESET:
            memory = {k: (task.values if (k - tasks.FIRST_KEY) % 2 else v) for k, v in memory.items()}
        elif key != tasks.BLANK:
            memory[key] = value - first_value
    return [memory[q] for q in tokens[2 * task.slots :].tolist()]


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("writes", [None, 2, 3])
def test_answers_are_those_of_a_dictionary(name, writes):
    task = TASKS[name]
    x = tasks.draw(task, 60, torch.Generator().manual_seed(0), writes)
    assert x.tokens.shape == (60, task.length)
    assert x.answers.tolist() == [by_dictionary(task, row) for row in x.tokens]


@pytest.mark.parametrize("name", TASKS)
def test_a_sequence_has_its_writes_its_pool_and_its_reset(name):
    task = TASKS[name]
    x = tasks.draw(task, 200, torch.Generator().manual_seed(1))
    first = x.tokens[:, : 2 * task.slots : 2]
    is_key = first >= tasks.FIRST_KEY
    assert (is_key.sum(1) == x.writes).all() and set(x.writes.tolist()) == set(task.writes)
    different = [len(set(row[live].tolist())) for row, live in zip(first, is_key)]
    assert different == [min(n, task.pool or n) for n in x.writes.tolist()]
    resets = (first == tasks.RESET).sum(1)
    assert (resets == int(task.resets)).all()
    if task.resets:
        place = (first == tasks.RESET).long().argmax(1)
        begins = is_key.long().argmax(1)
        assert (place > begins).all() and (place < task.slots - 1).all()
        assert (x.answers == task.values).any() and (x.answers < task.values).any()


@pytest.mark.parametrize("gates", inputs.GATES)
@pytest.mark.parametrize("rule", ["kda", "gated_delta_rule", "delta_rule", "linear_attention"])
def test_one_chunk_is_the_token_loop(rule, gates):
    x = inputs.batch(2, 37, 3, 5, 4, torch.Generator().manual_seed(2), gates)
    q, k, v, g, beta = (y.transpose(1, 2) for y in (x.q, x.k, x.v, x.g, x.beta[..., None]))
    given = {
        "kda": ([x.g, x.beta], {"g": g, "beta": beta}),
        "gated_delta_rule": ([x.g[..., 0], x.beta], {"g": g[..., :1], "beta": beta}),
        "delta_rule": ([x.beta], {"beta": beta}),
        "linear_attention": ([], {}),
    }[rule]
    want, _ = getattr(ops, f"naive_{rule}")(x.q, x.k, x.v, *given[0], scale=1.0)
    got = models.one_chunk(q, k, v, **given[1]).transpose(1, 2)
    # float64: a few hundred roundings of numbers of order one
    assert (got - want).abs().max() < 1e-12


@pytest.mark.parametrize("memory", models.MEMORIES)
def test_runs_do_not_see_each_other_and_nothing_looks_ahead(memory):
    shape, generator = models.Shape(20, 7, D=16, H=2, K=4, V=4), torch.Generator().manual_seed(3)
    weights = models.initial(memory, shape, 3, generator)
    tokens = torch.randint(20, (2, 9, 3), generator=generator)
    whole = models.logits(memory, shape, weights, tokens, 9)
    for r in range(3):
        alone = [{name: w[r : r + 1] for name, w in part.items()} for part in weights]
        # the same sums in another order, in float32
        assert (
            models.logits(memory, shape, alone, tokens[..., r : r + 1], 9)[:, :, 0] - whole[:, :, r]
        ).abs().max() < 1e-4
    changed = tokens.clone()
    changed[:, 6] = (changed[:, 6] + 1) % 20
    moved = (models.logits(memory, shape, weights, changed, 9) - whole).abs().amax((0, 2, 3))
    assert moved[:6].max() < 1e-5 and moved[6] > 1e-3


def test_runs_are_rates_then_tasks_then_seeds():
    quiet = TASKS["reset"]._replace(writes=(3, 7), pool=3, resets=False)  # one pair more, no reset: the same length
    plan = training.Plan(rates=(1e-3, 1e-2), seeds=3)
    tokens, answers = training.batch([quiet, TASKS["reset"]], 5, plan, torch.Generator().manual_seed(6))
    runs = tokens.shape[2]
    assert (tokens == tasks.RESET).any(1).all(0).tolist() == [False, False, False, True, True, True] * 2 and runs == 12
    for r in range(runs):
        task = TASKS["reset"] if r % 6 >= 3 else quiet
        assert answers[..., r].tolist() == [by_dictionary(task, row) for row in tokens[..., r]]


def test_every_weight_is_trained_and_at_the_rate_of_its_run():
    plan = training.Plan(rates=(0.0, 1e-2), seeds=2, steps=4, batch=4, every=2, tested=4)
    task = tasks.Task(writes=(2,), keys=4, values=3, queries=3)
    shape = models.Shape(task.words, task.answers, D=8, K=4, V=4)
    before = models.initial("KDA", shape, 4, torch.Generator().manual_seed(4))
    kept = []
    made = training._weights

    def watched(*arguments):
        joined, optimiser = made(*arguments)
        kept.append(joined)
        return joined, optimiser

    training._weights = watched
    try:
        training.train("KDA", {"recall": task}, plan, torch.Generator().manual_seed(4), shape)
    finally:
        training._weights = made
    for part, old in zip(kept[0](), before):
        for name, w in part.items():
            moved = (w.detach() - old[name]).flatten(1).abs().amax(1)
            assert (moved[:2] == 0).all() and (moved[2:] > 1e-4).all(), name


def test_a_model_learns_to_overwrite():
    task = tasks.Task(writes=(4,), pool=2, keys=4, values=4, queries=4)
    plan = training.Plan(rates=(2e-2,), seeds=1, steps=120, batch=32, every=20, tested=128)
    shape = models.Shape(task.words, task.answers, D=16, H=1)
    out = training.train("DeltaNet", {"over": task}, plan, torch.Generator().manual_seed(5), shape)["over"]
    assert out["test"]["4"][0][0] > 0.6 and out["curve"][0][0][0] < 0.5  # one answer in four by chance


def test_the_best_rate_is_chosen_by_validation_alone():
    result = {
        "validation": {"4": [[0.5], [0.9]], "8": [[0.6], [0.1]]},
        "test": {"4": [[0.0], [1.0]], "8": [[0.0], [1.0]]},
    }
    assert training.best_rate(result) == 0


def test_tasks_of_different_lengths_do_not_train_together():
    with pytest.raises(ValueError, match="one length"):
        training.train("KDA", {"a": TASKS["recall"], "b": TASKS["overwrite"]}, training.Plan(), torch.Generator())


def test_an_unknown_memory_is_answered_with_the_known_ones():
    with pytest.raises(ValueError, match="DeltaNet"):
        models.initial("LSTM", models.Shape(4, 2), 1, torch.Generator())

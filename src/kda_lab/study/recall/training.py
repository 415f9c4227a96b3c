"""Training: tasks, learning rates and seeds side by side, one memory at a time."""

from typing import NamedTuple

import torch
from torch.nn.functional import cross_entropy

from kda_lab.study.recall import models, tasks


class Plan(NamedTuple):
    """rates: learning rates   seeds: runs for each task and rate   steps, batch: of training   every: steps between
    looks, a divisor of steps
    tested: sequences that a run is tested on, for each number of writes.

    >>> Plan().rates
    (0.005, 0.01, 0.02)
    """

    rates: tuple[float, ...] = (5e-3, 1e-2, 2e-2)
    seeds: int = 3
    steps: int = 3000
    batch: int = 32
    every: int = 100
    tested: int = 256


def train(memory, chosen, plan, generator, shape=None):
    """Train one memory on all tasks of a dict {name: Task}, with every rate and seed of a plan, and test it.

    Returns plain numbers for a record: {name: {"curve": [rates][seeds][looks], "validation" and "test": {writes:
    [rates][seeds]}}}. A curve is the accuracy on the batches since the last look, each of them new; validation and test
    are two different draws, so that a rate can be chosen by the one and reported by the other.
    Raises ValueError unless the tasks agree in length, vocabulary and queries.

    >>> task = tasks.Task(writes=(2,), keys=4, values=2, queries=2)
    >>> plan = Plan(rates=(1e-2,), seeds=2, steps=2, batch=4, every=1, tested=8)
    >>> out = train("linear attention", {"recall": task}, plan, torch.Generator().manual_seed(0))
    >>> len(out["recall"]["curve"][0]), len(out["recall"]["test"]["2"][0])
    (2, 2)
    """
    first, *others = chosen.values()
    if any(
        (t.length, t.words, t.answers, t.queries) != (first.length, first.words, first.answers, first.queries)
        for t in others
    ):
        raise ValueError(
            f"tasks that train side by side need one length, vocabulary and number of queries, got {chosen}; change "
            "their sizes"
        )
    shape = shape or models.Shape(first.words, first.answers)
    joined, optimiser = _weights(memory, shape, len(chosen), plan, generator)
    warmup = max(1, plan.steps // 20)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda t: min((t + 1) / warmup, 1.0) * (1 - t / plan.steps))
    tokens, answers = batch(chosen.values(), plan.batch, plan, generator)
    right = torch.zeros(answers.shape[-1], device=generator.device, dtype=torch.float32)

    def step():
        scores = models.logits(memory, shape, joined(), tokens, first.queries)  # [B, queries, runs, answers]
        # the sum over runs of their means: no run's gradient knows of another run
        loss = cross_entropy(scores.flatten(0, 2), answers.flatten()) * answers.shape[-1]
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        right.add_(accuracy(scores.detach(), answers))

    looks = []
    step = _captured(step) if generator.device.type == "cuda" else step
    right.zero_()
    for _ in range(plan.steps // plan.every):
        fresh = batch(chosen.values(), plan.batch * plan.every, plan, generator)
        for new_tokens, new_answers in zip(*(x.split(plan.batch) for x in fresh)):
            tokens.copy_(new_tokens)
            answers.copy_(new_answers)
            step()
            schedule.step()
        looks.append(right / plan.every)
        right.zero_()
    weights = joined()
    with torch.no_grad():
        tests = [_tests(memory, shape, weights, chosen, plan, generator) for _ in ("validation", "test")]
    curves = torch.stack(looks, -1).unflatten(0, (len(plan.rates), len(chosen), plan.seeds))
    return {
        name: {"curve": _plain(curves[:, i]), "validation": tests[0][name], "test": tests[1][name]}
        for i, name in enumerate(chosen)
    }


def best_rate(result):
    """The number of the learning rate with the best validation accuracy, averaged over numbers of writes and seeds.

    >>> best_rate({"validation": {"4": [[0.1, 0.3], [0.5, 0.6]]}})
    1
    """
    return int(torch.tensor(list(result["validation"].values())).mean((0, 2)).argmax())


def batch(chosen, size, plan, generator, writes=None):
    """New sequences for every run: rates, then tasks, then seeds.   returns tokens [size, T, runs], answers [size,
    queries, runs].

    >>> task = tasks.Task(writes=(2,), keys=4, values=2, queries=2)
    >>> batch([task], 5, Plan(seeds=3), torch.Generator().manual_seed(0))[0].shape
    torch.Size([5, 6, 9])
    """
    drawn = [
        tasks.draw(task, len(plan.rates) * plan.seeds * size, generator, writes and writes[i])
        for i, task in enumerate(chosen)
    ]

    def side_by_side(parts):
        each = [x.reshape(len(plan.rates), 1, plan.seeds, size, -1) for x in parts]
        return torch.cat(each, 1).flatten(0, 2).permute(1, 2, 0)

    return side_by_side([x.tokens for x in drawn]), side_by_side([x.answers for x in drawn])


def accuracy(scores, answers):
    """Share of right answers of each run.   scores: [B, queries, runs, answers]   answers: [B, queries, runs]   returns
    [runs].

    >>> accuracy(torch.eye(2)[None, :, None], torch.tensor([[[0], [0]]])).tolist()
    [0.5]
    """
    return (scores.argmax(-1) == answers).float().mean((0, 1))


def _weights(memory, shape, kinds, plan, generator):
    """A function that gives all weights, each [runs, ...]; and the optimiser of its leaves, which stand apart for each
    rate.
    """
    weights = models.initial(memory, shape, len(plan.rates) * kinds * plan.seeds, generator)
    names = [(i, name) for i, part in enumerate(weights) for name in part]
    groups = [
        [weights[i][name].chunk(len(plan.rates))[r].clone().requires_grad_() for i, name in names]
        for r in range(len(plan.rates))
    ]

    def joined():
        out = [{} for _ in weights]
        for (i, name), parts in zip(names, zip(*groups)):
            out[i][name] = torch.cat(parts)
        return out

    # a rate that a captured step reads anew each time
    settings = [
        {"params": leaves, "lr": torch.tensor(rate, device=generator.device)}
        for leaves, rate in zip(groups, plan.rates)
    ]
    return joined, torch.optim.Adam(settings, betas=(0.9, 0.95), fused=True, capturable=generator.device.type == "cuda")


def _captured(step):
    """A training step as a CUDA graph: thousands of small kernels, launched as one. It trains three steps to warm
    up.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def _tests(memory, shape, weights, chosen, plan, generator):
    """{name: {writes: [rates][seeds]}}: the accuracy on new sequences, as long as those of training, for each number of
    writes.
    """
    out = {name: {} for name in chosen}
    for i in range(max(len(task.writes) for task in chosen.values())):
        # a task with fewer numbers of writes repeats its last
        writes = [task.writes[min(i, len(task.writes) - 1)] for task in chosen.values()]
        tokens, answers = batch(chosen.values(), plan.tested, plan, generator, writes)
        right = accuracy(models.logits(memory, shape, weights, tokens, answers.shape[1]), answers)
        right = right.unflatten(0, (len(plan.rates), len(chosen), plan.seeds))
        for j, name in enumerate(chosen):
            out[name][str(writes[j])] = _plain(right[:, j])
    return out


def _plain(x):
    return x.double().round(decimals=4).tolist()

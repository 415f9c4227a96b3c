"""Pictures of the chapter on what the memory can hold."""

import torch

from kda_lab import rules
from kda_lab.pages.figures import INK, axes, rule, show, style
from kda_lab.study import capacity
from kda_lab.study.recall import models, tasks, training


def _delta(S, k, v, alpha=1.0):
    return rules.gated_delta(S, k, k, v, alpha, 1.0)[0]


def _linear(S, k, v, alpha=1.0):
    return rules.linear(S * alpha, k, k, v)[0]


def _draws(n, K, draws, generator):
    """Uniform unit keys [draws, n, K] and values [draws, n, 16]."""
    keys, values = capacity.random_keys(draws * n, K, generator), capacity.random_values(draws * n, 16, generator)
    return keys.unflatten(0, (draws, n)), values.unflatten(0, (draws, n))


def errors_over_keys(K=16, counts=(2, 4, 8, 12, 16, 20, 24, 32, 40, 48), draws=40):
    """Mean squared error over the number of pairs, measured (marks) and expected (lines), as a share of a value's
    squared length.

    K: channels of a key   counts: numbers of pairs   draws: over which the mean is taken.

    >>> errors_over_keys(counts=(2, 16, 32), draws=2)
    <figure: Mean error against the number of pairs in 16 key dims. ...>
    """
    generator = torch.Generator().manual_seed(0)
    ways = {
        "linear attention": (_linear, 1),
        "delta rule, one pass": (_delta, 1),
        "delta rule, 20 passes": (_delta, 20),
        "least squares": (None, 1),
    }
    measured = {name: [] for name in ways}
    for n in counts:
        drawn = _draws(n, K, draws, generator)
        for name, (way, passes) in ways.items():
            measured[name].append(capacity.average_errors(way, *drawn, passes=passes).mean().item())
    fig, ax = axes(height=3.7)
    # a rule is a form of mark here, since the lines are what is expected; all in ink
    expected = {
        "linear attention": [float(capacity.additive_error(n, K)) for n in counts],
        "delta rule, one pass": [sum(2 - 2 * float(capacity.retained(m, K)) for m in range(n)) / n for n in counts],
        "least squares": [float(capacity.floor(n, K)) for n in counts],
    }
    lines = {"linear attention": "linear attention", "delta rule, one pass": "DeltaNet", "least squares": "softmax"}
    for name, line in expected.items():
        ax.plot(counts, line, **rule(lines[name]))
    for (name, errors), mark in zip(measured.items(), "osDX"):
        ax.plot(counts, errors, label=name, color=INK, linestyle="none", marker=mark, fillstyle="none")
    ax.axvline(K, color=style("decay")["color"], linewidth=0.8, linestyle=":")
    ax.text(K - 0.5, 2.85, "n = K", fontsize=9, ha="right")
    ax.set(xlabel=f"pairs n, in K = {K} key dims", ylabel="mean squared error", ylim=(-0.06, 3.1))
    fig.legend(loc="outside lower center", ncols=2, handlelength=3.2)
    return show(
        fig,
        "Mean error against the number of pairs in 16 key dims. Linear attention lies on the line (n - 1)/K. One "
        "pass of the delta rule "
        "errs by less, 0.6 at n = K and 1.3 at 48, and lies under its bound. Twenty passes err by nearly nothing up "
        "to twelve pairs "
        "and by as much as one pass at 48. Least squares is zero up to n = K and follows 1 - K/n.",
    )


def errors_by_age(K=16, n=48, draws=400):
    """Squared error of each pair over the number of pairs written after it: four rules, and the expectation for the
    delta rule.

    K: channels of a key   n: pairs   draws: over which the mean is taken.

    >>> errors_by_age(K=4, n=8, draws=2)
    <figure: Error of a pair against how many came after it. The delta ...>
    """
    drawn = _draws(n, K, draws, torch.Generator().manual_seed(1))
    ways = {
        "linear attention": ("linear attention", _linear),
        "linear att., decay 0.9": ("RetNet", lambda S, k, v: _linear(S, k, v, 0.9)),
        "delta rule": ("DeltaNet", _delta),
        "delta rule, decay 0.9": ("GDN", lambda S, k, v: _delta(S, k, v, 0.9)),
    }
    fig, ax = axes(height=3.6)
    age = torch.arange(n)
    ax.plot(age, [2 - 2 * float(capacity.retained(m, K)) for m in range(n)], color=style("decay")["color"], linewidth=1)
    for label, (name, way) in ways.items():
        ax.plot(age, capacity.average_errors(way, *drawn).flip(0), label=label, **rule(name))
    ax.set(xlabel="pairs written later, m", ylabel="squared error", ylim=(0, 3.4))
    ax.axhline(1, color=style("decay")["color"], linewidth=0.8, linestyle=":")
    ax.text(n - 1, 0.96, "empty memory", fontsize=9, ha="right", va="top")
    fig.legend(loc="outside lower center", ncols=2, handlelength=3.2)
    return show(
        fig,
        "Error of a pair against how many came after it. The delta rule starts at zero for the newest and rises to "
        "nearly 2; linear attention is "
        "level near 3; with a decay both level off near 1.3, the delta rule from zero.",
    )


def learning(results, names, plan):
    """Training accuracy over steps at the rate that was chosen: the mean of the seeds, and their range.

    results: {memory: {task: result of `training.train`}}, shares from 0 to 1   names: the tasks, a panel each
    plan: a `training.Plan`, whose `every` is the steps between two looks.
    """
    names = list(names)
    fig, panels = axes(len(names), 1, height=2.1 * len(names) + 0.5, sharex=True)
    for ax, task in zip(panels, names):
        for memory in models.MEMORIES:
            found = results[memory]
            curves = torch.tensor(found[task]["curve"][training.best_rate(found[task])])  # [seeds, looks]
            steps = [plan.every * (i + 1) for i in range(curves.shape[1])]
            ax.plot(steps, curves.mean(0), label=memory, **rule(memory))
            ax.fill_between(steps, curves.amin(0), curves.amax(0), color=INK, alpha=0.08, linewidth=0)
        ax.set(title=task, ylabel="accuracy", ylim=(0, 1.02))
    panels[-1].set(xlabel="steps")
    fig.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, handlelength=3.2)
    return show(
        fig,
        "Training accuracy over steps for three tasks and five memories, a curve for the mean of the seeds and a "
        "band for their range.",
    )


def guessing(task, drawn=4000):
    """The accuracy, 0 to 1, of the one answer that is right most often.

    task: a `recall.tasks.Task`   drawn: examples that are counted.
    """
    answers = tasks.draw(task, drawn, torch.Generator().manual_seed(0)).answers
    return answers.flatten().bincount().max().item() / answers.numel()


def accuracy(results, chosen):
    """Test accuracy over the number of writes at the rate that was chosen: mean of the seeds and range, and guessing.

    results: as for `learning`   chosen: {name: `recall.tasks.Task`}, a panel each.
    """
    names = list(chosen)
    fig, panels = axes(len(names), 1, height=2.1 * len(names) + 0.5)
    for ax, task in zip(panels, names):
        for memory in models.MEMORIES:
            found = results[memory]
            rate, tests = training.best_rate(found[task]), found[task]["test"]
            counts = sorted(map(int, tests))
            seeds = torch.tensor([tests[str(n)][rate] for n in counts])  # [counts, seeds]
            ax.plot(counts, seeds.mean(1), label=memory, **rule(memory))
            ax.fill_between(counts, seeds.amin(1), seeds.amax(1), color=INK, alpha=0.08, linewidth=0)
        ax.axhline(guessing(chosen[task]), color=style("decay")["color"], linewidth=0.8, linestyle=":")
        ax.set(title=task, ylabel="test accuracy", ylim=(0, 1.02), xscale="log")
        ax.set_xticks(counts, [str(n) for n in counts], minor=False)
        ax.minorticks_off()
    panels[-1].set(xlabel="writes")
    fig.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, handlelength=3.2)
    return show(
        fig,
        "Test accuracy over the number of writes for three tasks and five memories, mean and range of the seeds, and "
        "what guessing gets.",
    )

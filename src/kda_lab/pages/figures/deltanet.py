"""Pictures of the chapter on DeltaNet."""

import torch

from kda_lab import rules
from kda_lab.pages.figures import axes, name_lines, rule, show, style


def same_key_many_times(writes=8):
    """What one key answers after each of so many writes of the value 1: linear attention, and DeltaNet at three gates.

    >>> same_key_many_times()
    <figure: The answer of one key against the number of writes: linear ...>
    """
    key, one = torch.ones(1, dtype=torch.float32), torch.ones(1, dtype=torch.float32)
    fig, ax = axes(height=2.8)
    ax.axhline(1, color=style("decay")["color"], linewidth=1)
    runs = [
        ("linear attention", "linear attention", None),
        ("DeltaNet, β = 1", "DeltaNet", 1.0),
        ("β = 0.5", "DeltaNet", 0.5),
        ("β = 0.2", "DeltaNet", 0.2),
    ]
    for label, name, beta in runs:
        S, answers = torch.zeros(1, 1, dtype=torch.float32), [0.0]
        for _ in range(writes):
            S = (rules.linear(S, key, key, one) if beta is None else rules.delta(S, key, key, one, beta))[0]
            answers.append((S @ key).item())
        ax.plot(range(writes + 1), answers, label=label, **rule(name))
    ax.set(xlabel="writes of the value 1", ylabel="answer of the key", ylim=(0, 8.3))
    name_lines(ax)
    return show(
        fig,
        "The answer of one key against the number of writes: linear attention rises without end, DeltaNet reaches 1 "
        "and stays.",
    )


def growth(tokens=400):
    """The length of the state over so many tokens: hostile keys, random keys, and hostile keys with a decay of 0.98.

    >>> growth()
    <figure: Length of the state over 400 tokens: with hostile keys it ...>
    """
    generator = torch.Generator().manual_seed(0)
    one = torch.ones(1, dtype=torch.float64)

    def hostile(S):
        row = S[0]
        return (
            torch.stack([-row[1], row[0]]) / row.norm()
            if row.norm() > 0
            else torch.tensor([1.0, 0.0], dtype=torch.float64)
        )

    def random(S):
        return torch.nn.functional.normalize(torch.randn(2, generator=generator, dtype=torch.float64), dim=0)

    fig, ax = axes(height=2.8)
    for label, role, choose, alpha in [
        ("hostile keys", "query", hostile, 1.0),
        ("random keys", "state", random, 1.0),
        ("hostile, decay 0.98", "decay", hostile, 0.98),
    ]:
        S, lengths = torch.zeros(1, 2, dtype=torch.float64), []
        for _ in range(tokens):
            k = choose(S)
            S, _ = rules.gated_delta(S, k, k, one, alpha, 1.0)
            lengths.append(S.norm().item())
        ax.plot(range(1, tokens + 1), lengths, label=label, markevery=50, **style(role))
    ax.set(xlabel="tokens", ylabel="norm of the state")
    name_lines(ax)
    return show(
        fig,
        "Length of the state over 400 tokens: with hostile keys it grows as the square root, with random keys or a "
        "decay it stays bounded.",
    )

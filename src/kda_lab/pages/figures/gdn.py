"""Pictures of the chapter on Gated DeltaNet and its relatives."""

import torch

from kda_lab import rules
from kda_lab.algebra import chunk
from kda_lab.pages.figures import axes, heat, rule, show

RULES = [
    ("linear attention", "linear attention", None),
    ("DeltaNet", "DeltaNet", 1.0),
    ("GDN, decay 0.97", "GDN", 0.97),
]


def change_of_topic(tokens=200, lean=0.3, draws=20):
    """Eight tokens of an old topic, then a new topic whose keys are at right angles to all old ones.

    Left: what the old keys still answer, as a share of what they were given. Right: each token's value is read back
    with its key plus `lean` times a unit vector of the old topic; the root mean square error. All values have norm
    one.

    tokens: of the new topic   draws: over which the mean is taken.

    >>> change_of_topic(tokens=40, draws=1)
    <figure: Left: after a change of topic the old keys answer in full ...>
    """
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)
    unit = lambda x: torch.nn.functional.normalize(x, dim=-1)
    zeros, old = torch.zeros(tokens, 8, dtype=torch.float64), torch.eye(16, dtype=torch.float64)[:8]
    share = {label: [] for label, _, _ in RULES}
    squares = {label: torch.zeros(tokens, dtype=torch.float64) for label, _, _ in RULES}
    for number in range(draws):
        old_values, v = unit(draw(8, 4)), unit(draw(tokens, 4))
        k = torch.cat([zeros, unit(draw(6, 8))[torch.arange(tokens) % 6]], 1)  # six keys, again and again
        q = k + lean * torch.cat([unit(draw(tokens, 8)), zeros], 1)
        for label, _, alpha in RULES:
            S = old_values.T @ old  # [4, 16]
            for t in range(tokens):
                S, o = (
                    rules.linear(S, q[t], k[t], v[t])
                    if alpha is None
                    else rules.gated_delta(S, q[t], k[t], v[t], alpha, 1.0)
                )
                squares[label][t] += (o - v[t]).square().sum()
                if number == 0:  # the same in every draw
                    share[label].append((((old @ S.T) * old_values).sum() / old_values.square().sum()).item())
    fig, (left, right) = axes(1, 2, height=2.7)
    for label, name, alpha in RULES:
        left.plot(range(1, tokens + 1), share[label], label=label, **rule(name))
        if alpha is not None:
            right.plot(range(10, tokens, 20), (squares[label] / draws).view(-1, 20).mean(1).sqrt(), **rule(name))
    left.set(xlabel="tokens of the new topic", title="old keys still answer", ylim=(0, 1.1))
    right.set(xlabel="tokens of the new topic", title="error of new reads", ylim=(0, None))
    fig.legend(loc="outside lower center", ncols=3, handlelength=3)
    return show(
        fig,
        "Left: after a change of topic the old keys answer in full for linear attention and DeltaNet and fade for "
        "Gated DeltaNet. "
        "Right: the error of new reads stays near 0.3 for DeltaNet and falls to zero for Gated DeltaNet.",
    )


def one_mask(C=8):
    """K K^T, the decays D of a chunk of C tokens, and their product below the diagonal.

    >>> one_mask()
    <figure: Three 8 by 8 matrices: the scores of all pairs of keys, the ...>
    """
    generator = torch.Generator().manual_seed(4)
    K = torch.nn.functional.normalize(torch.randn(C, 3, generator=generator, dtype=torch.float64), dim=1)
    alpha = 0.6 + 0.4 * torch.rand(C, generator=generator, dtype=torch.float64)
    alpha[4] = 0.1  # one strong gate: what lies before it is cut off from what comes after
    D = chunk.decay_between(alpha)
    fig, panels = axes(1, 3, height=2.2)
    for ax, matrix, title in zip(panels, (K @ K.T, D, chunk.tril(K @ K.T * D, -1)), ("K Kᵀ", "D", "A, before β")):
        heat(ax, matrix.where((matrix >= 0) | (matrix < -0.05), 0))  # hatching would outshine a smaller value
        ax.set(title=title, xticks=[j + 0.5 for j in range(C)], yticks=[i + 0.5 for i in range(C)])
        ax.set_xticklabels(range(1, C + 1), fontsize=7)
        ax.set_yticklabels(range(1, C + 1), fontsize=7)
        ax.tick_params(length=0)
    return show(
        fig,
        "Three 8 by 8 matrices: the scores of all pairs of keys, the lower triangle of decays with a pale lower "
        "left corner "
        "behind the strong gate of token 5, and their product strictly below the diagonal.",
    )

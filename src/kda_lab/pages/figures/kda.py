"""Pictures of the chapter on Kimi Delta Attention."""

import torch

from kda_lab import rules
from kda_lab.algebra import chunk
from kda_lab.pages.figures import axes, heat, show, style


def clocks(half_lives=(2, 512), scalar=32, tokens=2048):
    """What is left of a value after 1 to `tokens` tokens: two channels with clocks of their own, and one clock for
    both.

    half_lives, scalar: in tokens.

    >>> clocks(tokens=64)
    <figure: Share left of a value against tokens since the write, on a ...>
    """
    lives = torch.tensor([*half_lives, scalar], dtype=torch.float64)
    alpha = 0.5 ** (1 / lives)
    S, none, one = (
        torch.ones(1, 3, dtype=torch.float64),
        torch.zeros(3, dtype=torch.float64),
        torch.zeros(1, dtype=torch.float64),
    )
    left = [S[0]]
    for _ in range(tokens):
        S, _ = rules.kda(S, none, none, one, alpha, 0.0)
        left.append(S[0])
    left = torch.stack(left)
    fig, ax = axes(height=3.2)
    lines = [
        (f"bracket channel, half life {half_lives[0]}", "value"),
        (f"name channel, half life {half_lives[1]}", "key"),
        (f"one gate for both, half life {scalar}", "decay"),
    ]
    for c, (label, role) in enumerate(lines):
        marks = [int(2 ** (n / 2)) for n in range(2 * tokens.bit_length() - 1)]
        ax.plot(range(1, tokens + 1), left[1:, c], label=label, markevery=[m - 1 for m in marks], **style(role))
    ax.set(xscale="log", xlabel="tokens since the write", ylabel="share left", ylim=(0, 1.05), yticks=(0, 0.5, 1))
    ax.set_xticks([1, 10, 100, 1000], ["1", "10", "100", "1000"])
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1))
    return show(
        fig,
        "Share left of a value against tokens since the write, on a logarithmic axis: the fast channel is empty "
        "after ten tokens, "
        "the slow one holds for hundreds, and one gate for both is wrong for each.",
    )


def masks(C=5, K=8):
    """Decayed scores divided by plain ones: a mask with a scalar gate, no mask with a gate per channel.

    C: tokens   K: channels of a key.

    >>> masks(C=3)
    <figure: Two lower triangular tables of decayed score over plain ...>
    """
    generator = torch.Generator().manual_seed(4)
    keys = torch.nn.functional.normalize(torch.randn(C, K, generator=generator, dtype=torch.float64), dim=-1)
    alpha = torch.exp(-2 * torch.rand(C, K, generator=generator, dtype=torch.float64))
    gates = {"one decay a token": alpha.mean(-1, keepdim=True).expand(C, K), "a decay for each channel": alpha}
    ratios = {title: chunk.decayed_scores(keys, keys, a) / (keys @ keys.T) for title, a in gates.items()}
    top = max(ratio.abs().max() for ratio in ratios.values())
    fig, panels = axes(1, 2, height=2.9)
    for ax, (title, ratio) in zip(panels, ratios.items()):
        heat(ax, ratio, positive="state", negative="error", numbers=".2f")
        ax.set(title=title, xlabel="written at j", ylabel="read at i")
        for cell in ax.patches:  # one scale of colour for both panels
            *colour, opacity = cell.get_facecolor()
            cell.set_facecolor((*colour, opacity * float(ratio.abs().max() / top)))
        for number in [text for text in ax.texts if text.get_position()[0] > text.get_position()[1]]:
            number.remove()  # above the diagonal nothing has been written yet
    return show(
        fig,
        "Two lower triangular tables of decayed score over plain score. With one decay a token the entries fall from "
        "1 along each "
        "column; with a decay for each channel they are irregular, and some are negative or above one.",
    )

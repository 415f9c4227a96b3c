"""Pictures of the chapter on the backward pass."""

from kda_lab.pages.figures import axes, show, style
from kda_lab.proof.equations.serving.rollback import taken_back


def kept_states(tokens=8192, heads=32, K=128, V=128):
    """Gigabytes of fp32 states kept for the backward pass of one layer, against the tokens of a chunk.

    tokens: of the sequence   heads, K, V: the size of the state, [heads, V, K].

    >>> kept_states()
    <figure: Bytes of kept states against the chunk length, both on log ...>
    """
    lengths = [2**n for n in range(9)]
    fig, ax = axes(height=2.7)
    ax.plot(
        lengths,
        [tokens // C * heads * K * V * 4 / 1e9 for C in lengths],
        label="one fp32 state a chunk",
        **style("state"),
    )
    # q, k, v in bf16, g in fp32, beta in bf16
    ax.axhline(
        tokens * heads * (2 * (2 * K + V) + 4 * K + 2) / 1e9,
        label="q, k, v, g and β",
        color=style("decay")["color"],
        linestyle="--",
    )
    ax.set(
        xlabel="tokens in a chunk",
        ylabel="gigabytes",
        xscale="log",
        yscale="log",
        xticks=[1, 4, 16, 64, 256],
        xticklabels=[1, 4, 16, 64, 256],
    )
    ax.minorticks_off()
    ax.legend(loc="upper right")
    return show(
        fig,
        "Bytes of kept states against the chunk length, both on log scales: 17 gigabytes with one state a token, "
        "0.27 with one for 64 tokens.",
    )


def rollback_errors(tokens=12):
    """The relative error in fp32 after 1 to `tokens` tokens were taken back by division, for three log decays a token.

    >>> rollback_errors(tokens=4)
    <figure: Relative error of the recovered state against the tokens ...>
    """
    fig, ax = axes(height=2.7)
    for g, role in ((-5.0, "error"), (-1.0, "value"), (-0.1, "key")):
        ax.plot(
            range(1, tokens + 1),
            [taken_back(g, n) for n in range(1, tokens + 1)],
            label=f"$g$ = −{-g:g}",
            **style(role),
        )
    ax.axhline(1, color=style("decay")["color"], linewidth=1)
    ax.set(xlabel="tokens taken back", ylabel="relative error of $S_0$", yscale="log")
    ax.legend(loc="upper left")
    return show(
        fig,
        "Relative error of the recovered state against the tokens taken back: at g = -5 it passes one at the fourth "
        "token, at -0.1 it stays at 1e-7.",
    )

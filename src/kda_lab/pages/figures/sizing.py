"""Pictures of the chapter on sizing."""

from kda_lab.pages.figures import axes, show, style
from kda_lab.serving.plan.plan import GIB, plan

BUDGET = 60 * GIB
RANKS = (1, 2, 4, 8, 16, 32)


def promises():
    """GLM on 1 to 32 ranks: requests if all its bytes were divided by the ranks, and those of the plan.

    >>> promises()
    <figure: Requests that fit, against ranks. Dividing all bytes by the ...>
    """
    plans = [plan("glm-5.3-flash", tp=tp, memory=BUDGET) for tp in RANKS]
    fig, panels = axes(1, 2, width=5.0, height=2.9, sharex=True)
    for ax, context in zip(panels, (2**17, 2**13), strict=True):
        whole = context * plans[0].growth + plans[0].state_bytes
        promised = [tp * BUDGET / whole for tp in RANKS]
        found = [p.requests(context) for p in plans]
        ax.plot(RANKS, promised, label="all bytes divided by the ranks", **style("error"))
        ax.plot(RANKS, found, label="the plan", **style("state"))
        for at in (0, 3):
            ax.annotate(
                f"{found[at]:.0f}",
                (RANKS[at], found[at]),
                xytext=(0, -14),
                textcoords="offset points",
                ha="center",
                fontsize=9,
            )
        high = promised[3]
        ax.annotate(f"{high:,.0f}", (8, high), xytext=(0, 8), textcoords="offset points", ha="center", fontsize=9)
        ax.set(xscale="log", yscale="log", title=f"{context // 1024}k tokens each", xlabel="ranks")
        ax.set_xticks(RANKS, [str(tp) for tp in RANKS])
        ax.set_ylim(found[0] / 2, promised[-1] * 2)
        ax.minorticks_off()
    panels[0].set_ylabel("requests that fit")
    fig.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return show(
        fig,
        "Requests that fit, against ranks. Dividing all bytes by the ranks promises a line that doubles with them. "
        "The plan stays between 29 and 41 at 128k; at 8k it grows from 85 to 476.",
    )


CURVES = (
    ("llama-3.1-70b", "Llama 70B, GQA", "query"),
    ("deepseek-v3", "DeepSeek-V3, MLA", "decay"),
    ("qwen3.5-397b-a17b", "Qwen3.5-397B, GDN + GQA", "value"),
    ("glm-5.3-flash", "GLM-5.3-Flash, KDA + MLA", "key"),
    ("kimi-linear-48b-a3b", "Kimi Linear, KDA + MLA", "state"),
)


def concurrency():
    """Requests that fit against their length, for attention alone and for hybrids, on eight ranks.

    >>> concurrency()
    <figure: Requests that fit into 60 GiB of each of eight ranks, ...>
    """
    fig, ax = axes(width=4.8, height=4.0)
    for name, label, role in CURVES:
        p = plan(name, tp=8, memory=BUDGET)
        top = min(2**20, p.context)
        lengths = [2 ** (n / 8) for n in range(72, 161) if 2 ** (n / 8) <= top]
        fits = [p.requests(int(n)) for n in lengths]
        (line,) = ax.plot(lengths, fits, label=label, **{**style(role), "marker": ""})
        ax.plot(lengths[0], fits[0], **{**style(role), "linestyle": ""})
        if p.state_bytes:
            bound = [BUDGET / (n * p.growth + p.state_bytes) for n in lengths]
            ax.plot(lengths, bound, color=line.get_color(), linewidth=0.8, alpha=0.8)
    ticks = [2**n for n in range(9, 21, 2)]
    ax.set(xscale="log", yscale="log", xlabel="tokens of every request", ylabel="requests that fit")
    ax.set_xticks(ticks, [f"{n / 1024:g}k" if n < 2**19 else f"{n // 1024}k" for n in ticks])
    ax.minorticks_off()
    fig.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=2, columnspacing=1.2)
    return show(
        fig,
        "Requests that fit into 60 GiB of each of eight ranks, against their length. Attention alone falls as one "
        "over the length from the start. Hybrids are flat up to a few thousand tokens, where states set the number, "
        "and fall beyond; thin lines without padding lie up to three times higher in the flat part.",
    )

"""Pictures of the chapter on prefill and decode."""

from kda_lab.pages.figures import axes, show, style
from kda_lab.study.intensity import Work, attention, fits, gpus, linear_layer, models, prefill_attention, together

GB, K = 1e9, 1024


def throughput():
    """Tokens per second that eight H200 can reach at most with Llama-3.1-70B, against the requests in the batch."""
    model, node = models()["Llama-3.1-70B"], together(gpus()["H200"], 8)
    fig, ax = axes(height=3.1)
    batches = [2 ** (n / 4) for n in range(0, 49)]
    no_cache = [b / node.seconds(Work(2 * b * model.active, model.touched(1))) for b in batches]
    ax.plot(batches, no_cache, label="without any cache", **{**style("decay"), "marker": ""})
    for context, role in ((2 * K, "key"), (16 * K, "state"), (128 * K, "value")):
        most = fits(model, context, node)
        xs = [b for b in batches if b < most] + [most]
        ys = [b / node.seconds(model.work(context, b)) for b in xs]
        ax.plot(xs, ys, label=f"{context // K}k tokens of context", **style(role), markevery=[len(xs) - 1])
        ax.annotate(f"{most}", (most, ys[-1]), xytext=(5, -11), textcoords="offset points", fontsize=9)
    ax.set(
        xscale="log",
        yscale="log",
        xlabel="requests in the batch",
        ylabel="tokens/s, all together",
        ylim=(150, 3e5),
        xlim=(0.9, 4000),
    )
    ax.legend(loc="upper left")
    return show(
        fig,
        "Tokens per second against batch size, logarithmic: with 2k tokens of context the curve rises to about "
        "50,000; with 128k it flattens below 900 and ends at 22 requests, where memory is full. Without caches a "
        "bound of 57,000 is reached at about 200 requests.",
    )


def roofline():
    """Share of each card's peak against operations per byte, with the two phases of two models.

    >>> roofline()
    <figure: Rooflines of three cards, and points on that of the H200: ...>
    """
    fig, ax = axes(height=3.6)
    low, high = 0.5, 8192
    for name, role, width in (("H200", "state", 2.0), ("H20", "decay", 1.2), ("B200", "decay", 1.2)):
        card = gpus()[name]
        xs = [low, card.ridge, high]
        ax.plot(
            xs,
            [card.busy(Work(x, 1)) * card.flops / 1e12 for x in xs],
            color=style(role)["color"],
            linewidth=width,
            linestyle="-" if name == "H200" else ":",
        )
        ax.annotate(name, (high, card.flops / 1e12), xytext=(0, 4), textcoords="offset points", ha="right", fontsize=9)
    card = gpus()["H200"]
    llama = dict(query_heads=64, row=2 * 8 * 128, flop=4 * 128)
    latent = dict(query_heads=128, row=576, flop=2 * (576 + 512))
    points = [
        ("A", "weights, 1 request", linear_layer(1, 8192, 28672), "key"),
        ("B", "weights, 64 requests", linear_layer(64, 8192, 28672), "key"),
        ("C", "weights, prompt of 8k", linear_layer(8 * K, 8192, 28672), "key"),
        ("D", "attention, any batch", attention(1, 8 * K, **llama), "value"),
        ("E", "attention, 5 queries", attention(5, 8 * K, **llama), "value"),
        ("F", "attention, prompt of 8k", prefill_attention(8 * K, 128, 64, 8, 128), "value"),
        ("G", "MLA, 128 heads", attention(1, 8 * K, **latent), "query"),
        ("H", "KDA state", Work(7, 8), "state"),
    ]
    for letter, label, work, role in points:
        look, y = style(role), card.busy(work) * card.flops / 1e12
        ax.plot(work.intensity, y, look["marker"], color=look["color"], markersize=7, label=f"{letter}  {label}")
        ax.annotate(
            letter,
            (work.intensity, y),
            xytext=(-5, 6) if letter not in "A" else (6, -10),
            textcoords="offset points",
            fontsize=10,
            ha="right" if letter != "A" else "left",
        )
    ax.set(
        xscale="log",
        yscale="log",
        xlabel="operations per byte",
        ylabel="Tflop/s at most",
        xlim=(low, high),
        ylim=(2, 6000),
    )
    fig.legend(
        *ax.get_legend_handles_labels(), loc="outside lower center", ncols=2, handletextpad=0.2, columnspacing=1.2
    )
    return show(
        fig,
        "Rooflines of three cards, and points on that of the H200: decoding weights for one request and attention "
        "lie far down the slope, prefill on the flat roof; batching moves only the weights.",
    )


def growth():
    """Bytes of one request against its context, for six models.

    >>> growth()
    <figure: Memory of one request against its context, both axes ...>
    """
    fig, ax = axes(height=3.4)
    contexts = [2**n for n in range(10, 21)]
    picked = [
        ("Llama-3.1-70B", "query", 0),
        ("DeepSeek-V3", "value", 0),
        ("Qwen3-Next-80B-A3B", "key", 0),
        ("GLM-5.3-Flash", "state", 0),
        ("Kimi-Linear-48B-A3B", "state", 1),
        ("DeepSeek-V4-Flash", "decay", 0),
    ]
    for name, role, hollow in picked:
        ys = [models()[name].stored(n) / GB for n in contexts]
        more = {"fillstyle": "none", "linewidth": 1.2} if hollow else {}
        ax.plot(contexts, ys, label=name, markevery=2, **{**style(role), **more})
    card = gpus()["H200"].memory / GB
    ax.axhline(card, color=style("decay")["color"], linewidth=0.8)
    ax.annotate("memory of one H200", (contexts[0], card), xytext=(0, 3), textcoords="offset points", fontsize=9)
    ax.set_xticks([2**n for n in (10, 13, 15, 17, 20)], ["1k", "8k", "32k", "128k", "1M"])
    ax.set(xscale="log", yscale="log", xlabel="tokens in the context", ylabel="GB of one request", ylim=(0.004, 1500))
    ax.set_xticks([2**n for n in (10, 13, 15, 17, 20)], ["1k", "8k", "32k", "128k", "1M"])
    ax.minorticks_off()
    fig.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=2, columnspacing=1.2)
    return show(
        fig,
        "Memory of one request against its context, both axes logarithmic: all six models grow in proportion at the "
        "end; Llama is two orders above the compressed and hybrid models, whose states show as a flat start.",
    )

"""Pictures of the chapter on the layer."""

import torch

from kda_lab.layer import KimiDeltaAttention
from kda_lab.pages.figures import Board, axes, show, style
from kda_lab.parts.features import short_convolution
from kda_lab.study import intensity


def damaged_caches(prompt=24, tokens=300):
    """Relative error of each output after the handover, for caches that lost or mixed up something.

    prompt: tokens before the handover   tokens: after it.
    """
    generator = torch.Generator().manual_seed(3)
    layer = KimiDeltaAttention(64, head_dim=16, num_heads=4, generator=generator, dtype=torch.float64)
    x = torch.randn(1, prompt + tokens, 64, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        whole = layer.prefill(x)[0, prompt:]
        cache = layer.new_cache(requests=1)
        layer.prefill(x[:, :prompt], cache)
        kept = cache.snapshot()
        inputs = layer.project(x[:, :prompt])[0]
        outputs, _ = short_convolution(inputs, layer.fused_weights()[1])
        damages = {
            "no state": ("state", kept._replace(S=torch.zeros_like(kept.S))),
            "outputs in the window": ("value", kept._replace(window=outputs[:, -3:])),
            "window one token late": ("error", kept._replace(window=inputs[:, -4:-1])),
            "the right cache": ("key", kept),
        }
        fig, ax = axes(height=3.4)
        for name, (role, snapshot) in damages.items():
            cache.restore(snapshot)
            y = layer.prefill(x[:, prompt:], cache)[0]
            error = (y - whole).norm(dim=-1) / whole.norm(dim=-1)
            ax.plot(range(1, tokens + 1), error, label=name, markevery=[0, 2, 3, 9, 29, 99, 299], **style(role))
    ax.set(
        xscale="log", xlabel="tokens after the handover", ylabel="relative error", ylim=(-0.05, 1.4), yticks=(0, 0.5, 1)
    )
    ax.set_xticks([1, 3, 10, 100], ["1", "3", "10", "100"])
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2)
    return show(
        fig,
        "Relative error of outputs against tokens since the handover, on a logarithmic axis. A lost state and two "
        "damaged windows start "
        "near one and fade over a hundred tokens; the right cache stays at zero.",
    )


def data_path(hidden, heads, key, value, rank, taps=4):
    """The way of T tokens through a KDA layer, with shapes; what is kept for the next call is drawn on the right.

    hidden: width of the model   heads, key, value: heads, and channels of each   rank: of the gate's two narrow
    maps   taps: of the convolution.

    >>> data_path(2304, 32, 128, 128, 128)
    <figure: The way through the layer. One projection of x feeds four ...>
    """
    board = Board(540, 560)
    channels = 2 * heads * key + heads * value
    columns = {"qkv": 100, "gate": 262, "beta": 362, "out": 462}

    def box(x, y, width, label, shape, role="state"):
        board.box(x - width / 2, y, width, 26, label, role=role)
        board.text(x, y + 38, shape, size=11)

    def down(x, y0, y1):
        board.arrow((x, y0), (x, y1))

    board.text(262, 14, f"x  [T, {hidden:,}]")
    board.box(16, 40, 508, 30, "one projection for all of it", role="key")
    down(262, 24, 38)
    for name, shape in {
        "qkv": f"[T, {channels:,}]",
        "gate": f"[T, {rank}]",
        "beta": f"[T, {heads}]",
        "out": f"[T, {rank}]",
    }.items():
        down(columns[name], 72, 100)
        board.text(columns[name] + 8, 84, shape, size=11, anchor="start")

    # what the next call needs stands in bold inside its box
    board.box(16, 102, 168, 42, role="value")
    board.text(columns["qkv"], 115, f"convolution of {taps}, SiLU")
    board.text(columns["qkv"], 132, f"keeps {taps - 1} inputs [{taps - 1}, {channels:,}]", size=11, bold=True)
    board.text(columns["qkv"], 156, f"q, k [T, {heads}, {key}], v [T, {heads}, {value}]", size=11)
    box(columns["gate"], 102, 90, "to channels", f"raw g [T, {heads}, {key}]", role="decay")
    box(columns["beta"], 102, 80, "sigmoid", f"beta [T, {heads}]", role="decay")
    box(columns["out"], 102, 92, "to channels", f"z [T, {heads}, {value}]")

    down(columns["qkv"], 164, 186)
    box(columns["qkv"], 188, 168, "q, k to length 1", "v passes", role="key")
    down(columns["gate"], 148, 178)
    box(columns["gate"], 180, 110, "gate, g \u2264 0", f"{heads * key:,} channels", role="decay")

    board.box(40, 270, 340, 44, role="state")
    board.text(210, 284, "the memory: decay, read, write, read out")
    board.text(210, 302, f"keeps S [{heads}, {value}, {key}] in fp32", size=11, bold=True)
    board.arrow((columns["qkv"], 234), (columns["qkv"], 268))
    board.arrow((columns["gate"], 226), (columns["gate"], 268))
    board.arrow((columns["beta"], 148), (columns["beta"], 268))
    board.text(210, 328, f"o [T, {heads}, {value}]", size=11)
    board.arrow((210, 337), (210, 358))
    board.box(40, 360, 340, 30, "RMSNorm of each head", role="state")
    board.arrow((210, 392), (210, 416))
    board.arrow((columns["out"], 148), (columns["out"], 431))
    board.arrow((columns["out"], 431), (382, 431))
    board.box(40, 416, 340, 30, "times sigmoid(z)", role="state")
    board.arrow((210, 448), (210, 472), f"[T, {heads * value:,}]")
    board.box(40, 474, 340, 30, "output projection", role="key")
    board.arrow((210, 506), (210, 528))
    board.text(210, 542, f"y  [T, {hidden:,}]")
    return board.show(
        "The way through the layer. One projection of x feeds four branches: q, k and v through a convolution, the "
        "gate and the output "
        f"gate through rank {rank}, beta through a sigmoid. The memory takes q, k, v, g and beta; its output is "
        "normed, gated and projected."
    )


def decode_times(times, key=128, value=128):
    """Steps of N requests on a roofline, and their times over the floor.

    times: rows of `kda_lab.cuda.accept.decode.timing`, milliseconds   key, value: channels of a head.
    """
    card = intensity.gpus()["H200"]
    fig, (left, right) = axes(1, 2, height=3.3)
    roof = [0.1, card.ridge, 1000]
    left.plot(roof, [min(card.flops, x * card.bandwidth) for x in roof], **style("decay") | {"marker": ""})
    for tokens, role in ((1, "state"), (4, "value")):
        rows = [r for r in times if r["T"] == tokens]
        # operations of an entry of the state: intensity.STATE_OPERATIONS; bytes: read once, written for each token
        per_byte = intensity.STATE_OPERATIONS * tokens / (4 * (1 + tokens))
        flops = [intensity.STATE_OPERATIONS * tokens * r["N"] * r["H"] * key * value / (r["cold"] / 1e3) for r in rows]
        left.plot(
            [per_byte] * len(rows),
            flops,
            **style(role) | {"linestyle": ""},
            label=f"{tokens} token{'s' * (tokens > 1)}",
        )
        right.plot([r["N"] for r in rows], [r["cold"] / r["floor"] for r in rows], **style(role))
    left.set(
        xscale="log",
        yscale="log",
        xlabel="operations a byte",
        ylabel="operations a second",
        title="roofline of an H200",
    )
    right.axhline(1, **style("decay") | {"marker": ""})
    right.set(xscale="log", xlabel="requests", ylabel="time / floor", title="over the floor", ylim=(0, None))
    right.set_xticks([1, 4, 16, 64, 256], ["1", "4", "16", "64", "256"])
    fig.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return show(
        fig,
        "Left, a roofline: steps with one and with four tokens stand near one operation a byte, on the slope, and "
        "rise with the number of "
        "requests. Right, time over floor falls from several at one request to little above one at 256.",
    )

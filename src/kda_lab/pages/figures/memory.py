"""Pictures of the chapter on linear attention."""

import torch

from kda_lab.algebra import chunk
from kda_lab.pages.figures import INK, axes, show, style

MIB = 2**20


def bytes_of_memory(heads=32, D=128):
    """Bytes of one layer against tokens: the cache of keys and values (all heads, then 8 shared ones) and the state.

    heads: of queries   D: channels of a head, for keys and for values.

    >>> bytes_of_memory()
    <figure: Memory of one layer against tokens, both axes logarithmic: ...>
    """
    tokens = [2**n for n in range(0, 21, 2)]
    state = heads * D * D * 4
    fig, ax = axes(height=3.0)
    caches = [
        (f"cache, {heads} heads", "key", heads, (-4, 7), "right"),
        ("cache, 8 shared heads", "value", 8, (4, -14), "left"),
    ]
    for label, role, kv_heads, beside, side in caches:
        ax.plot(tokens, [n * kv_heads * 2 * D * 2 / MIB for n in tokens], label=label, **style(role))
        crossing = state / (kv_heads * 2 * D * 2)
        ax.plot(crossing, state / MIB, "o", color=INK, markersize=8, fillstyle="none")
        ax.annotate(f"{crossing:.0f}", (crossing, state / MIB), xytext=beside, textcoords="offset points", ha=side)
    ax.plot(tokens, [state / MIB] * len(tokens), label="state", **style("state"))
    ax.set(xscale="log", yscale="log", xlabel="tokens in the context", ylabel="MiB in one layer")
    ax.legend(loc="upper left")
    return show(
        fig,
        "Memory of one layer against tokens, both axes logarithmic: two caches rise in proportion and cross the "
        f"flat line of the state at {D} and {D * heads // 8} tokens.",
    )


def recall(V=64, draws=8):
    """Relative error of recall against the number of keys: random unit keys, the formula, and keys at right angles.

    V: channels of a value   draws: over which the mean is taken.
    """
    generator = torch.Generator().manual_seed(0)
    counts = [1, 2, 4, 8, 16, 32, 64, 128, 256]

    def error(keys):
        v = torch.randn(len(keys), V, generator=generator, dtype=torch.float32)
        S = chunk.linear(torch.zeros(V, keys.shape[1], dtype=torch.float32), keys, keys, v).S
        return ((keys @ S.T - v).square().sum() / v.square().sum()).item()

    def random(n, K):
        return torch.nn.functional.normalize(torch.randn(n, K, generator=generator, dtype=torch.float32), dim=1)

    fig, ax = axes(height=3.2)
    for K, role in ((16, "key"), (64, "state")):
        measured = [(sum(error(random(n, K)) for _ in range(draws)) / draws) ** 0.5 for n in counts]
        ax.plot(counts, measured, **{**style(role), "linestyle": "none"}, label=f"random keys, K = {K}")
        ax.plot(
            range(1, 257), [((n - 1) / K) ** 0.5 for n in range(1, 257)], **{**style(role), "marker": ""}, linewidth=1
        )
    exact = [error(torch.eye(64, dtype=torch.float32).repeat(4, 1)[:n]) ** 0.5 for n in counts]
    ax.plot(counts, exact, label="right angles, K = 64", **style("value"))
    ax.axhline(1, color=style("decay")["color"], linewidth=0.8)
    ax.set(xscale="log", xlabel="keys stored", ylabel="error / length of value", ylim=(-0.1, 3))
    ax.set_xticks(counts, [str(n) for n in counts])
    ax.minorticks_off()
    ax.legend(loc="upper left")
    return show(
        fig,
        "Recall error against the number of stored keys: measured points for K = 16 and K = 64 lie on the curve root "
        "of (n - 1) / K; keys at right angles have no error up to n = K.",
    )

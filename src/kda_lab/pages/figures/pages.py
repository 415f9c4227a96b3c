"""Pictures of the chapter on pages, groups and layouts."""

from math import inf

from kda_lab.pages.figures import Board, axes, show, style
from kda_lab.serving.plan import specs as s
from kda_lab.serving.plan.groups import cache_groups
from kda_lab.serving.plan.layout import kernel_block_table, make_layout
from kda_lab.serving.plan.plan import GIB, plan, request_blocks

UNIT, TOKEN = 128, 1024
HEADS = (2, 4, 8, 16, 32, 64)


def two_pools():
    """Requests that fit, for each request that would fit without any padding: one pool of blocks, and two pools of
    fixed size.

    >>> two_pools()
    <figure: Share of the requests that would fit without padding, ...>
    """
    p = plan("glm-5.3-flash", tp=8, memory=40 * GIB)
    row = sum(spec.page for spec in p.groups[0].specs) / p.block_size
    # a running request holds the states that vLLM counts for it
    states = request_blocks(p.state_groups[0], 1)
    fixed = p.groups[1].page + states * sum(len(g.layers) for g in p.state_groups) * p.state.content
    lengths = [2 ** (n / 4) for n in range(36, 69)]

    def one_pool(n):
        return p.num_blocks // sum(request_blocks(g, int(n)) for g in p.groups)

    def split(n, made_for):
        part = fixed / (fixed + made_for * row)
        return min(p.memory * part // fixed, p.memory * (1 - part) // (n * row))

    ideal = [p.memory / (fixed + n * row) for n in lengths]
    fig, ax = axes(height=3.1)
    for made_for, role in ((2**11, "decay"), (2**13, "value"), (2**16, "key")):
        shares = [100 * split(n, made_for) / most for n, most in zip(lengths, ideal, strict=True)]
        ax.plot(
            lengths,
            shares,
            label=f"two pools, split for {made_for // 1024}k",
            **{**style(role), "marker": "", "linewidth": 1.4},
        )
    shares = [100 * one_pool(n) / most for n, most in zip(lengths, ideal, strict=True)]
    ax.plot(
        lengths,
        shares,
        label="one pool of blocks",
        **{**style("state"), "linestyle": "-", "linewidth": 2.6},
        markevery=4,
    )
    ticks = [2**n for n in range(9, 18, 2)]
    ax.set(
        xscale="log",
        xlabel="tokens of every request",
        ylabel="% of the requests\nthat fit without padding",
        ylim=(0, 105),
    )
    ax.set_xticks(ticks, [f"{n / 1024:g}k" for n in ticks])
    ax.minorticks_off()
    fig.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=2, columnspacing=1.2)
    return show(
        fig,
        "Share of the requests that would fit without padding, against their length: each pair of pools reaches 99 "
        "or 100 % at the length that it is made for and falls away from it; one pool of blocks rises from 58 % for "
        "short requests to 96 % for long ones, above the pairs wherever they are far from their length.",
    )


def staircase():
    """Block size and padding against the bytes of a state, with the states of 2 to 64 heads and 0 to 7 drafts on it.

    >>> staircase()
    <figure: Block size and padding against the bytes of a state: the ...>
    """
    fig, (top, low) = axes(2, 1, height=4.6, sharex=True)
    sizes = [2 ** (16.5 + n / 400) for n in range(0, 2500)]
    blocks = [s.aligned_block(size, TOKEN, UNIT) for size in sizes]
    padding = [100 * s.padding_fraction(size, b * TOKEN) for size, b in zip(sizes, blocks, strict=True)]
    # a vertical line where the block grows
    jumps = [inf if b != before else x for x, b, before in zip(padding, blocks, blocks[:1] + blocks, strict=False)]
    grey = {"color": style("decay")["color"], "linewidth": 1.0}
    top.plot(sizes, blocks, **grey, drawstyle="steps-pre")
    low.plot(sizes, jumps, **grey)
    low.plot(
        sizes,
        [100 * UNIT * TOKEN / size for size in sizes],
        linestyle="--",
        **{**grey, "color": style("error")["color"]},
    )
    for heads in HEADS:
        states = [s.kda_state(heads, 128, num_spec=k).page for k in range(8)]
        found = [s.aligned_block(state, TOKEN, UNIT) for state in states]
        shares = [100 * s.padding_fraction(state, b * TOKEN) for state, b in zip(states, found, strict=True)]
        for ax, ys in ((top, found), (low, shares)):
            ax.plot(states, ys, color=style("value")["color"], linewidth=1.6)
            ax.plot(states[0], ys[0], **{**style("key"), "linestyle": ""})
        name = f"{heads} heads" if heads == HEADS[0] else f"{heads}"
        top.annotate(
            name,
            (states[0], found[0]),
            xytext=(-3, 7),
            textcoords="offset points",
            ha="center" if heads == HEADS[0] else "right",
            fontsize=9,
        )
        low.annotate(
            f"{shares[0]:.0f} %", (states[0], shares[0]), xytext=(1, 7), textcoords="offset points", fontsize=9
        )
    top.set(xscale="log", yscale="log", ylabel="tokens of a block")
    top.set_yticks([128, 640, 1152, 4352], ["128", "640", "1152", "4352"])
    low.set(
        xscale="log",
        ylabel="padding, % of the state",
        xlabel="bytes of a state, of one layer and rank",
        ylim=(0, 112),
        xlim=(1e5, 6e6),
    )
    ticks = [2**n for n in range(17, 23)]
    low.set_xticks(ticks, [f"{n // 1024}k" if n < 2**20 else f"{n // 2**20}M" for n in ticks])
    top.minorticks_off()
    low.minorticks_off()
    return show(
        fig,
        "Block size and padding against the bytes of a state: the block climbs a staircase in steps of 128 tokens; "
        "padding is a saw whose teeth shrink as states grow, 93 % at 2 heads a rank, 21 % at 8, 3 % at 64.",
    )


def toy():
    """The chapter's small model, {layer: spec}: two layers of attention with an indexer each, five states.

    >>> list(toy())
    ['a0', 'a1', 'i0', 'i1', 's0', 's1', 's2', 's3', 's4']
    """
    rows = s.AttentionSpec(6, heads=1, width=4, width_v=0, number=1, stride_bytes=4)
    keys = s.AttentionSpec(6, heads=1, width=3, width_v=0, number=1, per_state=2, stride_tokens=2)
    state = s.StateSpec(6, ((22,),), (1,), padded=24)
    return {"a0": rows, "a1": rows, "i0": keys, "i1": keys} | {f"s{n}": state for n in range(5)}


def layouts():
    """Two blocks of the small model in both layouts, with the page ids that the kernel of the first indexer uses.

    >>> layouts()
    <figure: Two blocks of a small model. Layer-outermost, the pages of ...>
    """
    groups = cache_groups(toy(), block_outermost=True)
    board, x0, unit = Board(440, 290), 30, 2.62
    roles = {"a": "key", "i": "value", "s": "state"}

    def unused(y, pool, owners):
        # from the last byte of the group that owns a block to the block's end
        for block, owner in enumerate(owners):
            rest = pool.bytes_per_block - owner.page
            board.box(x0 + unit * (pool.bytes_per_block * block + owner.page), y, unit * rest, 36, role="decay")
        for block in range(len(owners) + 1):
            board.box(x0 + unit * pool.bytes_per_block * block - 0.2, y - 6, 0.4, 48, role="decay")

    def draw(y, pool, layers, blocks=(0, 1)):
        for layer in layers:
            for block in blocks:
                start, stop = pool.region(layer, block)
                board.box(x0 + unit * start, y, unit * (stop - start), 36, role=roles[layer[0]])
                board.text(x0 + unit * (start + stop) / 2, y + 11, layer, size=13)
                board.text(
                    x0 + unit * (start + stop) / 2,
                    y + 26,
                    f"block {block}" if stop - start > 12 else str(block),
                    size=11,
                )

    def ids(y, pool, stride):
        for block in (0, 1):
            first, *_, last = kernel_block_table([block], 6, 2, stride)
            start, stop = pool.region("i0", block)
            board.text(x0 + unit * (start + stop) / 2, y, f"{first}\u2013{last}", size=11, role="value")

    board.text(x0, 12, "layer-outermost: the blocks of a layer touch", anchor="start", bold=True)
    outer = make_layout(groups[:1], 2, block_outermost=False)
    draw(26, outer, groups[0].layers)
    ids(71, outer, 0)
    board.text(x0, 98, "block-outermost, both blocks hold attention", anchor="start", bold=True)
    inner = make_layout(groups, 2, block_outermost=True)
    unused(112, inner, (groups[0], groups[0]))
    draw(112, inner, groups[0].layers)
    ids(157, inner, inner.bytes_per_block // 3)
    board.text(x0, 184, "the same bytes, block 1 holds states", anchor="start", bold=True)
    unused(198, inner, groups[:2])
    draw(198, inner, groups[0].layers, (0,))
    draw(198, inner, groups[1].layers, (1,))
    for block in (0, 1, 2):
        at = x0 + unit * inner.bytes_per_block * block
        board.text(at, 250, f"byte {inner.bytes_per_block * block}", size=12)
    board.text(x0, 276, "below a page of i0: its numbers, from i0's first byte", size=12, anchor="start")
    return board.show(
        "Two blocks of a small model. Layer-outermost, the pages of one indexer are numbered 0 to 5; "
        "block-outermost, 0 to 2 and 24 to 26, with unused bytes at the end of each block of 72; below, block 1 "
        "holds two states instead of attention, from the block's first byte."
    )

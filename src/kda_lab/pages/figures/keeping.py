"""Pictures of the chapter on which states to keep."""

import textwrap

import numpy as np

from kda_lab.pages.figures import axes, name_lines, show, style
from kda_lab.serving.blocks.request import Request
from kda_lab.serving.blocks.scheduler import Scheduler, hybrid
from kda_lab.serving.plan import costs
from kda_lab.serving.trials.faults import FAULTS, Unaligned, break_it
from kda_lab.serving.trials.workload import Chat, chats, measure

MODEL = costs.Hybrid(attention=4, ssm=24, mlp=28, D=4096, N=128)
# a tenth of a block of 640 tokens, of its step and of every length below
BLOCK, BUDGET = 64, 819
POLICIES = (("dense", None, "key"), ("every second block", 2 * BLOCK, "value"), ("0", 0, "state"))


def served(prompt, settings, scheduler=Scheduler):
    """A scheduler after one request of ``prompt`` tokens that answers one token.

    settings: of `hybrid`   scheduler: the class.

    >>> from kda_lab.serving.blocks.scheduler import hybrid
    >>> len(served(40, hybrid(block=16)).pool.holders)
    3
    """
    server = []
    measure(
        settings, [Chat([], [list(range(prompt))], 1)], scheduler=lambda s: server.append(scheduler(s)) or server[0]
    )
    return server[0]


def hit_of(server, shared, length=2600):
    """What a request of ``length`` tokens hits that shares its first ``shared`` tokens with the one before, as a
    `Hit`.

    server: a scheduler, as `served` makes it.

    >>> from kda_lab.serving.blocks.scheduler import hybrid
    >>> hit_of(served(40, hybrid(block=16)), shared=33).tokens
    32
    """
    tokens = [*range(shared), *range(10_000, 10_000 + length - shared)]
    return server.coordinator.lookup(Request("probe", tokens, server.settings.splitting.unit))


def told(name, width=68):
    """A planted fault in words: what is done wrong, the traffic, what the checks find first, and what changes for its
    requests. KeyError with the known names for another.

    name: of a fault   width: characters of a line.

    >>> print(told("no-eagle-drop").splitlines()[0])
    no-eagle-drop: Under eagle, attention keeps the last block of its
    """
    broken, fault = break_it(name), FAULTS[name]
    lengths = ", ".join(f"{request} {len(known.prompt)}" for request, known in broken.right.requests.items())
    hits = [f"{request} {right} -> {wrong}" for request, (right, wrong) in broken.hits().items() if right != wrong]
    lines = {
        name: fault.sentence,
        "  traffic": fault.traffic.__doc__,
        "  tokens": lengths,
        "  found": broken.first or "nothing",
        "  other outputs": ", ".join(broken.changed()) or "none",
        "  other hits": ", ".join(hits) or "none",
    }
    return "\n".join(
        textwrap.fill(f"{what}: {' '.join(text.split())}", width, subsequent_indent="    ")
        for what, text in lines.items()
    )


def forks():
    """Tokens that a second request need not run, for each number of tokens that it shares with a prompt of 2,000.

    >>> forks()
    <figure: Tokens reused against tokens shared: rows of attention give ...>
    """
    shared = list(range(0, 2001, 10))
    runs = (
        ("kept by case B: every boundary", {"budget": 640}, Scheduler, "state"),
        ("kept by cases A and A': S@1920", {}, Scheduler, "value"),
        ("one chunk, no export: S@2000 alone", {}, Unaligned, "error"),
    )
    fig, ax = axes(width=4.6, height=3.3)
    for i, (name, how, scheduler, role) in enumerate(runs):
        server = served(2000, hybrid(retention=None, **how), scheduler)
        hits = [hit_of(server, d) for d in shared]
        if not i:
            ax.step(
                shared,
                [hit.longest for hit in hits],
                where="post",
                color=style("key")["color"],
                linewidth=7,
                alpha=0.55,
                label="rows of attention",
            )
        # moved apart by 60 tokens, so that no line hides another
        ax.step(
            shared,
            [hit.tokens + 60 * (1 - i) for hit in hits],
            where="post",
            label=name,
            **{**style(role), "marker": ""},
        )
    ax.set(
        xlabel="tokens shared with the first request",
        ylabel="tokens reused",
        xticks=range(0, 2001, 640),
        yticks=range(0, 2001, 640),
    )
    fig.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=1)
    return show(
        fig,
        "Tokens reused against tokens shared: rows of attention give a staircase of 640; states of case B follow it; "
        "with S@1920 alone everything below 1920 shared tokens is worth nothing; without a kept state nothing is "
        "ever reused.",
    )


class Watched(Scheduler):
    """Counts, every few steps, how many cached blocks a later request could use."""

    def __init__(self, settings):
        super().__init__(settings)
        self.seen, self.steps, self.counts = {}, 0, []

    def schedule(self):
        self.steps += 1
        if self.steps % 20 == 0:
            self.counts.append(self.count())
        return super().schedule()

    def add(self, request):
        super().add(request)
        self.seen[request.name] = request

    def count(self):
        """Blocks with a key that are usable, rows without a state, states without rows."""
        pool, states = self.pool, [i for i, group in enumerate(self.settings.groups) if group.kind == "state"]
        live = set()
        for request in self.seen.values():
            path = []
            for digest in request.chain:
                held = pool.lookup(digest, [0])
                if held is None:
                    break
                path.append(held[0].id)
                found = pool.lookup(digest, states)
                if found:
                    live.update(path, (block.id for block in found))
        cached = [(number, key[1]) for key, holders in pool.holders.items() for number in holders]
        rows = sum(group == 0 and number not in live for number, group in cached)
        other = sum(group != 0 and number not in live for number, group in cached)
        return len(cached) - rows - other, rows, other


def orphans(pools=(48, 64, 96, 160, 320)):
    """Which part of the cached blocks no later request could use, against the size of the pool.

    pools: sizes, in blocks.

    >>> orphans(pools=(48,))
    <figure: Part of the cached blocks that no later request could use, ...>
    """
    talk = chats(np.random.default_rng(0), 24, systems=4, system_tokens=150, turns=4, question=12, answer=20)
    fig, panels = axes(1, 2, height=2.7, sharey=True)
    for ax, (name, interval) in zip(panels, (("dense", None), ("retention 0", 0)), strict=True):
        shares = []
        for blocks in pools:
            server = []
            settings = hybrid(block=BLOCK, blocks=blocks, retention=interval, states=4, budget=BUDGET)
            measure(
                settings, talk, at_once=4, scheduler=lambda s, server=server: server.append(Watched(s)) or server[0]
            )
            counts = np.array(server[0].counts, dtype=float)
            counts = counts[len(counts) // 3 :]
            shares.append(100 * counts.sum(0) / counts.sum())
        shares = np.array(shares)
        ax.plot(pools, shares[:, 1], label="rows without a state", **style("key"))
        ax.plot(pools, shares[:, 2], label="states without their rows, or not in all four groups", **style("state"))
        ax.set(title=name, xscale="log", xlabel="blocks of the pool")
        ax.set_xticks(pools, [str(n) for n in pools])
        ax.minorticks_off()
    panels[0].set_ylabel("% of the cached blocks")
    fig.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=1)
    return show(
        fig,
        "Part of the cached blocks that no later request could use, against the size of the pool, with dense "
        "retention and with retention 0.",
    )


def bytes_and_worth():
    """Gigabytes of a prefix against the tokens between its states, and operations saved for each byte against its
    length.

    >>> bytes_and_worth()
    <figure: Left: bytes of a prefix of 10,000 tokens fall from 17.4 GB ...>
    """
    fig, (left, right) = axes(1, 2, height=3.1)
    spacing = [2**n for n in range(4, 11)]
    total = [MODEL.prefix_bytes(10_000, costs.dense_checkpoints(10_000, s)) / 1e9 for s in spacing]
    left.plot(spacing, total, **style("state"), label="a state every so many")
    left.axhline(MODEL.prefix_bytes(10_000, 2) / 1e9, color=style("value")["color"], linestyle="--", label="two states")
    left.axhline(MODEL.kv_bytes(10_000) / 1e9, color=style("key")["color"], linestyle=":", label="rows alone")
    left.set(xscale="log", yscale="log", xlabel="tokens between states", ylabel="GB for 10,000 tokens")
    left.set_xticks(spacing[::2], [str(s) for s in spacing[::2]])
    left.set_yticks([1, 3, 10], ["1", "3", "10"])
    left.minorticks_off()
    fig.legend(*left.get_legend_handles_labels(), loc="outside lower left", ncols=3, columnspacing=1.0)
    lengths = [2**n for n in range(7, 17)]
    for attention, ssm, role in ((0, 28, "state"), (4, 24, "value"), (14, 14, "decay"), (28, 0, "key")):
        model = MODEL._replace(attention=attention, ssm=ssm)
        right.plot(lengths, [model.saved(n) / 1e3 for n in lengths], label=f"{attention} : {ssm}", **style(role))
    right.set(xscale="log", yscale="log", xlabel="tokens of the prefix", ylabel="thousand operations a byte")
    right.set_xticks(lengths[::3], [str(n) for n in lengths[::3]])
    right.minorticks_off()
    right.set_title("attention : SSM")
    name_lines(right)
    return show(
        fig,
        "Left: bytes of a prefix of 10,000 tokens fall from 17.4 GB with a state every 16 tokens towards the 0.66 GB "
        "of its rows. Right: operations saved a byte grow in proportion to the length where all layers are "
        "recurrent, and much less with more attention.",
    )


def traffic():
    """Two kinds of traffic, {name: chats}; a new turn repeats all before it, a single question nothing but the prompt.

    >>> [len(chats) for chats in traffic().values()]
    [28, 40]
    """
    many, few = np.random.default_rng(0), np.random.default_rng(1)
    return {
        "chats of four turns": chats(many, 28, systems=4, system_tokens=150, turns=4, question=12, answer=20),
        "one question, long answer": chats(few, 40, systems=6, system_tokens=200, turns=1, question=20, answer=200),
    }


def rate(talk, blocks, interval):
    """Part of all prompt tokens that did not run, 0 to 1, with four groups of states.

    talk: chats, as `traffic` makes them   blocks: of the pool   interval: retention, as for `hybrid`.
    """
    return measure(
        hybrid(block=BLOCK, blocks=blocks, retention=interval, states=4, budget=BUDGET), talk, at_once=6
    ).hit_rate


def hit_rates(pools=(48, 80, 128, 256, 512)):
    """Hit rate, 0 to 1, against the size of the pool for two kinds of traffic and three settings of retention.

    pools: sizes, in blocks.
    """
    fig, panels = axes(1, 2, height=2.9, sharey=True)
    for ax, (name, talk) in zip(panels, traffic().items(), strict=True):
        for label, interval, role in POLICIES:
            ax.plot(pools, [100 * rate(talk, blocks, interval) for blocks in pools], label=label, **style(role))
        ax.set(title=name, xscale="log", xlabel="blocks of the pool")
        ax.set_xticks(pools, [str(n) for n in pools])
        ax.minorticks_off()
    panels[0].set(ylabel="% of prompt tokens reused", ylim=(0, 85))
    fig.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return show(
        fig,
        "Hit rate against pool size: in chats of four turns dense retention wins at every size; for single questions "
        "with long answers retention 0 is far ahead at 128 blocks, and all meet at 512.",
    )

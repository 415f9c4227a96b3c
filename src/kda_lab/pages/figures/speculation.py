"""Pictures of the chapter on speculation and rollback."""

import torch

from kda_lab import rules
from kda_lab.pages.figures import axes, rule, show, style
from kda_lab.parts import inputs
from kda_lab.serving.drafts.replayssm import drift
from kda_lab.serving.plan import costs

BF16 = torch.bfloat16
# at 390 px still about 9 px
LEGEND = 11


def kept_drafts(tokens=400, drafts=3):
    """The relative error of the state, token by token, after a verification that was not rolled back, or one token too
    far.

    tokens: after the verification   drafts: rejected ones.

    >>> kept_drafts()
    <figure: Relative error of the state against tokens since a ...>
    """
    x = inputs.head(tokens + drafts + 1, 32, 24, torch.Generator().manual_seed(1), "long")
    token = lambda t: (x.q[t], x.k[t], x.v[t], x.g[t].exp(), x.beta[t])
    # the last tokens are the rejected ones
    kept, one = x.S, rules.kda(x.S, *token(tokens))[0]
    for t in range(tokens, tokens + drafts):
        kept, _ = rules.kda(kept, *token(t))
    states = {"three rejected drafts kept": kept, "one rejected draft kept": one, "right": x.S}
    errors = {name: [] for name in states}
    for t in range(tokens):
        states = {name: rules.kda(S, *token(t))[0] for name, S in states.items()}
        for name, S in states.items():
            errors[name].append(((S - states["right"]).norm() / states["right"].norm()).item())
    fig, ax = axes(height=2.7)
    for (name, error), role in zip(errors.items(), ("error", "value", "state")):
        ax.plot(range(1, tokens + 1), error, label=name, markevery=[0, 2, 9, 29, 99, 299], **style(role))
    ax.set(xscale="log", xlabel="tokens after the verification", ylabel="relative error of $S$")
    ax.set_xticks([1, 3, 10, 30, 100, 300], ["1", "3", "10", "30", "100", "300"])
    ax.legend(loc="upper right", fontsize=LEGEND)
    return show(
        fig,
        "Relative error of the state against tokens since a verification. With three rejected drafts kept it starts "
        "near one third and "
        "fades only with the slow channels; with one it starts lower; rolled back it is zero.",
    )


RECORDS = {
    "KDA: u fp32, k and g bf16": (costs.record_bytes(8, 128, 128), "KDA", 1),
    "KDA: all bf16": (costs.record_bytes(8, 128, 128, u=2), "KDA", 0.5),
    "GDN: u, k bf16, one g a head": (costs.record_bytes(8, 128, 128, u=2, gates=1, gate=4), "GDN", 1),
}


def speedups(longest=64):
    """Bytes of plain decoding for each byte of ReplaySSM, against the records of the ring, for three kinds of record;
    the best rings are marked.   longest: records.

    >>> speedups()
    <figure: Bytes of plain decoding over bytes of ReplaySSM against the ...>
    """
    state, lengths = costs.state_bytes(8, 128, 128), range(1, longest + 1)
    fig, ax = axes(height=3.0)
    for name, (record, kind, share) in RECORDS.items():
        look, best = rule(kind), costs.best_ring(state, record)
        times = [costs.speedup(state, record, L) for L in (*lengths, best)]
        ax.plot(lengths, times[:-1], label=name, **look | {"linewidth": share * look["linewidth"]})
        ax.plot([best], times[-1:], marker="o", color=look["color"], linestyle="none")
    ax.axhline(1, color=style("decay")["color"], linewidth=1)
    ax.set(xscale="log", xlabel="records in the ring, $L$", ylabel="times fewer bytes", ylim=(0.95, 2))
    ax.set_xticks([1, 2, 4, 8, 16, 32, 64], ["1", "2", "4", "8", "16", "32", "64"])
    ax.minorticks_off()
    ax.legend(loc="center", bbox_to_anchor=(0.5, 0.3), fontsize=LEGEND)
    return show(
        fig,
        "Bytes of plain decoding over bytes of ReplaySSM against the ring's length: below one at L = 1, highest at "
        "11, 13 and 16 for three "
        "kinds of record, near 1.7, and falling after that.",
    )


def drifts(lengths=(1, 4, 16, 48), tokens=80):
    """The relative error of an fp32 state that is made again from records, against the records of the ring, for four
    kinds of record, and of the loop.

    lengths: of rings, in records   tokens: after which it is measured.

    >>> drifts(lengths=(4,), tokens=20)
    <figure: Relative error of the replayed state against the ring's ...>
    """
    fig, ax = axes(height=3.3)
    kinds = (
        ("k, g in bf16; fp32 keys and gates", "error", {"record": BF16}),
        ("all fp32", "state", {}),
        ("u in bf16, too; bf16 keys and gates", "value", {"u": BF16, "record": BF16, "given": BF16}),
        ("k, g in bf16; bf16 keys and gates", "key", {"record": BF16, "given": BF16}),
    )
    seed = lambda: torch.Generator().manual_seed(0)
    for name, role, options in kinds:
        ax.plot(lengths, [drift(L, seed(), tokens, 16, **options) for L in lengths], label=name, **style(role))
    ax.axhline(drift(None, seed(), tokens, 16), color=style("decay")["color"], linestyle=":", label="the loop in fp32")
    ax.set(
        xscale="log", yscale="log", xlabel="records in the ring, $L$", ylabel="relative error of $S$", ylim=(3e-8, 1e-1)
    )
    ax.set_xticks(lengths, [str(L) for L in lengths])
    ax.minorticks_off()
    ax.legend(loc="center", bbox_to_anchor=(0.5, 0.42), fontsize=LEGEND)
    return show(
        fig,
        "Relative error of the replayed state against the ring's length, both on log scales: four flat lines: near "
        "2e-3 for bf16 records of "
        "fp32 inputs and for u in bf16, at 2e-7 for fp32 records and for u in fp32 with bf16 inputs, like the "
        "plain loop.",
    )

"""Pictures and tables of the chapter on reading out."""

import torch

from kda_lab import rules
from kda_lab.algebra import chunk
from kda_lab.pages.figures import axes, rule, show, style
from kda_lab.pages.table import Table
from kda_lab.parts import inputs
from kda_lab.proof.equations.chunk.mutants import CHUNK_MUTANTS
from kda_lab.study import costs

# an input that is easier than it should be, by what was made easy
EASY = {
    "S₀ = 0": {"S": lambda S: S * 0},
    "α = 1": {"alpha": lambda a: a * 0 + 1},
    "β = 1": {"beta": lambda b: b * 0 + 1},
    "equal β": {"beta": lambda b: b * 0 + 0.7},
    "C = 1": {"C": 1},
    "C = 2": {"C": 2},
    "axis keys": {"k": lambda k: torch.eye(6, dtype=k.dtype)},
    "axis keys, turned": {"k": lambda k: torch.linalg.qr(k)[0]},
    "equal channels": {"alpha": lambda a: a[:, :1].expand_as(a)},
}


def three_wrong_readings(C=16):
    """The relative error of each of C outputs of a chunk: read from the last state, without the token's own write, and
    from the old state alone.

    >>> three_wrong_readings()
    <figure: Relative error of the output at each of 16 tokens: reading ...>
    """
    x = inputs.head(C, 16, 8, torch.Generator().manual_seed(0))
    t = chunk.kda(x.S, x.q, x.k, x.v, x.g.exp(), x.beta)
    wrong = {
        "all read the last state": x.q @ t.S.T,
        "M without its diagonal": t.O - t.M.diagonal()[:, None] * t.E,
        "only what is left of the old state": t.Q_in @ x.S.T,
    }
    fig, ax = axes(height=3.0)
    for (label, O), role in zip(wrong.items(), ("error", "key", "decay")):
        ax.plot(range(1, C + 1), (O - t.O).norm(dim=-1) / t.O.norm(dim=-1), label=label, **style(role))
    ax.set(xlabel="token of the chunk", ylabel="relative error of o", ylim=(0, None))
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1))
    return show(
        fig,
        "Relative error of the output at each of 16 tokens: reading the last state is wrong for all but the last "
        "token, leaving out the diagonal "
        "is wrong at every token, and reading only the old state soon misses nearly everything.",
    )


def pieces(C=64, K=128, V=128):
    """The steps of a chunk in order: (term, formula, shape, numbers, flop, where it runs: for all chunks at once, in
    the walk, or in the readout).

    C: tokens   K, V: channels of a key and of a value. A product [a, b] [b, c] counts 2 a b c and scores are full
    squares, as in `costs.chunk_flops`; the first three rows count entries.

    >>> [term for term, *_ in pieces()][:4]
    ['G', 'K_{in},Q_{in}', 'K_g', 'A']
    """
    score = 2 * C * C * K
    spread = [
        ("G", "G_i=\\sum_{t\\le i}g_t", "[C, K]", C * K, C * K, "all chunks"),
        (
            "K_{in},Q_{in}",
            "\\mathbf K\\odot e^{G},\\ \\mathbf Q\\odot e^{G}",
            "2 [C, K]",
            2 * C * K,
            2 * C * K,
            "all chunks",
        ),
        ("K_g", "\\mathbf K\\odot e^{G_C-G}", "[C, K]", C * K, C * K, "all chunks"),
    ]
    return spread + [
        ("A", "\\mathrm{tril}(B\\,\\Gamma(\\mathbf K,\\mathbf K),-1)", "[C, C]", C * C, score, "all chunks"),
        ("M", "\\Gamma(\\mathbf Q,\\mathbf K)", "[C, C]", C * C, score, "all chunks"),
        ("R", "(I+A)^{-1}", "[C, C]", C * C, C * (C * C - 1) // 3, "all chunks"),
        ("U", "RB\\mathbf V", "[C, V]", C * V, 2 * C * C * V, "all chunks"),
        ("W", "RB\\mathbf K_{in}", "[C, K]", C * K, 2 * C * C * K, "all chunks"),
        ("E", "U-WS_0^\\top", "[C, V]", C * V, 2 * C * K * V, "walk"),
        ("O", "\\mathbf Q_{in}S_0^\\top+ME", "[C, V]", C * V, 2 * C * K * V + 2 * C * C * V, "readout"),
        ("S_C", "S_0D_C+E^\\top\\mathbf K_g", "[V, K]", V * K, 2 * C * K * V, "walk"),
    ]


def order_of_computation(C=64, K=128, V=128):
    """The steps of a chunk as a table, with their bytes in fp32 and their operations.

    C: tokens   K, V: channels of a key and of a value.

    >>> order_of_computation(C=16).head[:3]
    ['term', 'formula', 'Mflop']
    """
    rows = [
        [f"${term}$", f"${formula}$", f"{flop / 1e6:.2f}", where, f"{numbers * 4 / 1024:,.0f}", shape]
        for term, formula, shape, numbers, flop, where in pieces(C, K, V)
    ]
    return Table(["term", "formula", "Mflop", "runs in", "KiB, fp32", "shape"], rows)


def given(**easy):
    """(inputs by name, state, outputs) of a chunk: some inputs made easy as `EASY` says, with the state [V, K] and the
    outputs [C, V] of the token loop.

    easy: C, the tokens, and {name: a function of that input}.

    >>> {name: list(x.shape) for name, x in given(C=4)[0].items()}
    {'S': [3, 6], 'q': [4, 6], 'k': [4, 6], 'v': [4, 3], 'alpha': [4, 6], 'beta': [4]}
    """
    x = inputs.head(easy.pop("C", 6), 6, 3, torch.Generator().manual_seed(0), gates="long")
    made = {"S": x.S, "q": x.q, "k": x.k, "v": x.v, "alpha": x.g.exp(), "beta": x.beta * 1.8}
    made |= {name: change(made[name]) for name, change in easy.items()}
    S, rows = rules.scan(rules.kda, *made.values())
    return made, S, torch.stack(rows)


def _same(t, S, O):
    return torch.allclose(t.S, S, atol=1e-10) and torch.allclose(t.O, O, atol=1e-10)


def hidden(**easy):
    """The mutants of the chunk that an input does not tell from the token loop, by name.   easy: as for `given`.

    >>> hidden()
    []
    """
    made, S, O = given(**easy)
    return [m.name for m in CHUNK_MUTANTS if _same(m.subject(*made.values()), S, O)]


def hides_one_decay(**easy):
    """Whether an input hides a chunk in which every channel decays like the first.   easy: as for `given`.

    >>> hides_one_decay(), hides_one_decay(alpha=lambda alpha: alpha * 0 + 0.5)
    (False, True)
    """
    made, S, O = given(**easy)
    return _same(chunk.kda(*(made | {"alpha": made["alpha"][:, :1].expand_as(made["alpha"])}).values()), S, O)


def mistakes():
    """The mutants of the chunk, those together that the same easy inputs hide: they give the loop's state and outputs
    there.

    >>> mistakes().head
    ['hidden by', 'mistakes']
    """
    found, groups = {easy: hidden(**changes) for easy, changes in EASY.items()}, {}
    for m in CHUNK_MUTANTS:
        groups.setdefault(", ".join(e for e, names in found.items() if m.name in names) or "none of these", []).append(
            m.name.replace("_", "\\_")
        )
    return Table(["hidden by", "mistakes"], [[easy, "; ".join(names)] for easy, names in groups.items()])


def cost_per_token(K=128, V=128):
    """Operations a token against the length of the sequence: causal softmax, the token loop, and chunks of 16 and 64.

    K, V: channels of a key and of a value.

    >>> cost_per_token()
    <figure: Operations a token against sequence length, logarithmic: ...>
    """
    lengths = [2**n for n in range(6, 15)]
    fig, ax = axes(height=3.0)
    lines = [
        ("softmax, mean of a causal pass", "softmax", [costs.causal_softmax_flops(n, K, V) for n in lengths]),
        *(
            (f"chunks of {C}", role, [costs.chunk_flops(C, K, V) / C] * len(lengths))
            for C, role in ((64, "key"), (16, "state"))
        ),
        ("token loop (just below)", "decay", [costs.recurrent_flops(K, V)] * len(lengths)),
    ]
    for label, role, cost in lines:
        look = rule(role) if role == "softmax" else style(role)
        ax.plot(lengths, [c / 1e6 for c in cost], label=label, **look)
    ax.set(xscale="log", yscale="log", xlabel="tokens of the sequence", ylabel="Mflop a token and head")
    ax.set_xticks([64, 256, 1024, 4096, 16384], ["64", "256", "1k", "4k", "16k"])
    ax.set_yticks([0.1, 1], ["0.1", "1"])
    ax.legend(loc="upper left")
    return show(
        fig,
        "Operations a token against sequence length, logarithmic: softmax attention grows in proportion and crosses "
        "chunks of 64 at about 700 "
        "tokens; the chunk form and the loop are flat.",
    )

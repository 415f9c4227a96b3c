"""Pictures and tables of the chapter on reading out."""

import torch

from kda_lab import chunk, costs, inputs, rules
from kda_lab.equations.chunk_mutants import CHUNK_MUTANTS
from kda_lab.figures import axes, show, style
from kda_lab.notation import Table

# an input that is easier than it should be, by what was made easy
EASY = {
    "S₀ = 0": {"S": lambda S: S * 0}, "α = 1": {"alpha": lambda a: a * 0 + 1}, "β = 1": {"beta": lambda b: b * 0 + 1},
    "equal β": {"beta": lambda b: b * 0 + 0.7}, "C = 1": {"C": 1}, "C = 2": {"C": 2}, "keys at right angles": {"k": lambda k: torch.eye(6, dtype=k.dtype)},
}  # fmt: skip


def three_wrong_readings(C=16):
    """The error of each output of a chunk: read from the last state, without the token's own write, and from the old state alone."""
    x = inputs.head(C, 16, 8, torch.Generator().manual_seed(0))
    t = chunk.kda(x.S, x.q, x.k, x.v, x.g.exp(), x.beta)
    wrong = {
        "all read the last state": x.q @ t.S.T, "M without its diagonal": t.O - t.M.diagonal()[:, None] * t.E, "only what is left of the old state": t.Q_in @ x.S.T,
    }  # fmt: skip
    fig, ax = axes(height=3.0)
    for (label, O), role in zip(wrong.items(), ("error", "key", "decay")):
        ax.plot(range(1, C + 1), (O - t.O).norm(dim=-1) / t.O.norm(dim=-1), label=label, **style(role))
    ax.set(xlabel="token of the chunk", ylabel="relative error of o", ylim=(0, None))
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1))
    return show(fig, "Relative error of the output at each of 16 tokens: reading the last state is wrong for all but the last token, leaving out the diagonal "
                     "is wrong at every token, and reading only the old state soon misses nearly everything.")  # fmt: skip


def pieces(C=64, K=128, V=128):
    """The steps of a chunk in order: (term, formula, shape, numbers, flop, whether the state is needed).

    A product [a, b] [b, c] counts 2 a b c and scores are full squares, as in `costs.chunk_flops`; the first three rows count entries.
    """
    score = 2 * C * C * K
    spread = [
        ("G", "G_i=\\sum_{t\\le i}g_t", "[C, K]", C * K, C * K, False),
        ("K_{in},Q_{in}", "\\mathbf K\\odot e^{G},\\ \\mathbf Q\\odot e^{G}", "2 [C, K]", 2 * C * K, 2 * C * K, False),
        ("K_g", "\\mathbf K\\odot e^{G_C-G}", "[C, K]", C * K, C * K, False),
    ]  # fmt: skip
    return spread + [
        ("A", "\\mathrm{tril}(B\\,\\Gamma(\\mathbf K,\\mathbf K),-1)", "[C, C]", C * C, score, False),
        ("M", "\\Gamma(\\mathbf Q,\\mathbf K)", "[C, C]", C * C, score, False),
        ("R", "(I+A)^{-1}", "[C, C]", C * C, C * (C * C - 1) // 3, False),
        ("U", "RB\\mathbf V", "[C, V]", C * V, 2 * C * C * V, False),
        ("W", "RB\\mathbf K_{in}", "[C, K]", C * K, 2 * C * C * K, False),
        ("E", "U-WS_0^\\top", "[C, V]", C * V, 2 * C * K * V, True),
        ("O", "\\mathbf Q_{in}S_0^\\top+ME", "[C, V]", C * V, 2 * C * K * V + 2 * C * C * V, True),
        ("S_C", "S_0D_C+E^\\top\\mathbf K_g", "[V, K]", V * K, 2 * C * K * V, True),
    ]  # fmt: skip


def order_of_computation(C=64, K=128, V=128):
    """The steps of a chunk as a table, with their bytes in fp32 and their operations."""
    rows = [
        [f"${term}$", f"${formula}$", shape, f"{numbers * 4 / 1024:,.0f}", f"{flop / 1e6:.2f}", "yes" if state else ""]
        for term, formula, shape, numbers, flop, state in pieces(C, K, V)
    ]
    return Table(["term", "formula", "shape", "KiB, fp32", "Mflop", "needs $S_0$"], rows)


def hidden(**easy):
    """The mutants of the chunk that an input does not tell from the token loop, by name."""
    x = inputs.head(easy.pop("C", 6), 6, 3, torch.Generator().manual_seed(0), gates="long")
    given = {"S": x.S, "q": x.q, "k": x.k, "v": x.v, "alpha": x.g.exp(), "beta": x.beta * 1.8}
    given |= {name: change(given[name]) for name, change in easy.items()}
    S, rows = rules.scan(rules.kda, *given.values())
    O, terms = torch.stack(rows), {m.name: m.subject(*given.values()) for m in CHUNK_MUTANTS}
    return [name for name, t in terms.items() if torch.allclose(t.S, S, atol=1e-10) and torch.allclose(t.O, O, atol=1e-10)]


def mistakes():
    """Each mutant of the chunk with the easy inputs on which it gives the loop's state and outputs."""
    found = {easy: hidden(**changes) for easy, changes in EASY.items()}
    return Table(["mistake", "hidden by"], [[m.name.replace("_", "\\_"), ", ".join(e for e, names in found.items() if m.name in names) or "none of these"] for m in CHUNK_MUTANTS])


def cost_per_token(K=128, V=128):
    """Operations a token against the length of the sequence: causal softmax, the token loop, and chunks of 16 and 64."""
    lengths = [2**n for n in range(6, 15)]
    fig, ax = axes(height=3.0)
    lines = [
        ("softmax, mean of a causal pass", "error", [costs.causal_softmax_flops(n, K, V) for n in lengths]),
        *((f"chunks of {C}", role, [costs.chunk_flops(C, K, V) / C] * len(lengths)) for C, role in ((64, "key"), (16, "state"))),
        ("token loop", "decay", [costs.recurrent_flops(K, V)] * len(lengths)),
    ]  # fmt: skip
    for label, role, cost in lines:
        ax.plot(lengths, [c / 1e6 for c in cost], label=label, **style(role))
    ax.set(xscale="log", yscale="log", xlabel="tokens of the sequence", ylabel="Mflop a token and head")
    ax.set_xticks([64, 256, 1024, 4096, 16384], ["64", "256", "1k", "4k", "16k"])
    ax.set_yticks([0.1, 1], ["0.1", "1"])
    ax.legend(loc="upper left")
    return show(fig, "Operations a token against sequence length, logarithmic: softmax attention grows in proportion and crosses chunks of 64 at about 700 "
                     "tokens; the chunk form and the loop are flat.")  # fmt: skip

"""Pictures of the chapter on shared prefixes, and what a server finds of each prompt."""

from itertools import accumulate
from typing import NamedTuple

from kda_lab.pages.figures import Board, axes, show, style
from kda_lab.serving.blocks.request import Request
from kda_lab.serving.blocks.scheduler import Scheduler, hybrid
from kda_lab.serving.run import tinymodel as tiny
from kda_lab.serving.trials.faults import NoJunction
from kda_lab.serving.trials.scenarios import fresh


class Found(NamedTuple):
    """attention, state: tokens that each kind of group has of a prompt   hit: that both have   junction: where its
    chunks
    stop for the next one, 0 if nowhere   ends: of its chunks.
    """

    attention: int
    state: int
    hit: int
    junction: int
    ends: list


def found(settings, *prompts, scheduler=Scheduler):
    """What a server without numbers finds of each prompt, one served after another.

    >>> a, b, c = found(hybrid(), *family(3)); b.junction, c.hit, c.ends
    (1280, 1280, [1920, 2000])
    """
    server, results = scheduler(settings), []
    for name, prompt in enumerate(prompts):
        request = Request(str(name), prompt, settings.splitting.unit, 1)
        hit, (rows, state, *_) = server.coordinator.lookup(request), server.coordinator.lookup_alone(request)
        server.add(request)
        ends = []
        while server.running or server.waiting:
            for chunk in server.schedule().chunks:
                ends.append(chunk.end)
                server.update(chunk, [0] if chunk.end >= len(request.tokens) else [])
        results.append(Found(rows, state, hit.tokens, hit.junction, ends))
    return results


def family(count, shared=1300, tokens=2000, first=1):
    """Prompts that share their first tokens and nothing after them.

    >>> [len(prompt) for prompt in family(2)], family(2)[0][:1300] == family(2)[1][:1300]
    ([2000, 2000], True)
    """
    return [[*range(shared), *fresh(tokens - shared, first + i)] for i in range(count)]


def third_occurrence(requests=8):
    """Prompt tokens that had to run, summed over so many requests that share 1,300 of 2,000 tokens.

    >>> third_occurrence(requests=3)
    <figure: Prompt tokens that ran against the number of requests: ...>
    """
    prompts = family(requests)
    runs = {
        "stops at the prompt's end only": (found(hybrid(), *prompts, scheduler=NoJunction), "error"),
        "and at the junction": (found(hybrid(), *prompts), "state"),
        "at every block": (found(hybrid(budget=640, retention=None), *prompts), "key"),
    }
    fig, ax = axes(height=2.9)
    for name, (results, role) in runs.items():
        ran = list(accumulate(2000 - f.hit for f in results))
        ax.plot(range(1, requests + 1), ran, label=name, **style(role))
        ax.annotate(
            f"{ran[-1]:,}",
            (requests, ran[-1]),
            (6, 0),
            textcoords="offset points",
            va="center",
            color=style(role)["color"],
        )
    ax.set(xlabel="requests so far", ylabel="prompt tokens that ran", xlim=(0.8, requests + 1.1), ylim=(0, 17500))
    ax.legend(loc="upper left")
    return show(
        fig,
        "Prompt tokens that ran against the number of requests: without a stop at the junction a line to 16,000; "
        "with it the first two "
        "requests run in full and the sum after eight is 8,320; with a state at every block it is 7,040.",
    )


def finer_unit(unit=64):
    """Tokens that a repeat has to run again against its length, and tokens that a third request hits against the
    length it shares.   unit: tokens of a hash, beside those of a block.

    >>> finer_unit()
    <figure: Above: tokens that a repeated prompt runs again rise to 640 ...>
    """
    fig, (top, low) = axes(2, 1, height=4.8)
    near = low.inset_axes((0.08, 0.6, 0.3, 0.34))
    for h, role in ((640, "key"), (unit, "value")):
        settings, look = hybrid(unit=h), {**style(role), "marker": ""}
        # a hit changes one token after a unit is full, and between two such lengths the curve is a straight line
        lengths = sorted({n + more for n in range(0, 2600, unit) for more in (0, 1)} - {0})
        again = [n - found(settings, range(n), range(n))[1].hit for n in lengths]
        # teeth of 64 tokens would look torn when dashed
        top.plot(lengths, again, label=f"unit {h}", **look | {"linestyle": "-", "linewidth": 1.3})
        # tokens beyond a shared unit change no hash: the steps lie at units
        shared = [*range(0, 2000, unit), 2000]
        hits = [found(settings, *family(3, s))[2].hit for s in shared]
        for ax in (low, near):
            ax.plot(shared, hits, drawstyle="steps-post", **look)
    top.axhline(unit, color=style("decay")["color"], linewidth=0.8, linestyle=":")
    top.set(xlabel="tokens of a prompt that is sent twice", ylabel="tokens that run again")
    low.set(
        xlabel="first tokens that three prompts of 2,000 share",
        ylabel="hit of the third",
        xlim=(-40, 2040),
        ylim=(-60, 2100),
    )
    low.set_xticks([0, 640, 1280, 1920])
    low.set_yticks([0, 640, 1280, 1920])
    near.set(xlim=(1900, 2000), ylim=(1900, 2000), xticks=[1920, 1984], yticks=[1920, 1984])
    near.tick_params(labelsize=8)
    top.legend(loc="upper left")
    return show(
        fig,
        "Above: tokens that a repeated prompt runs again rise to 640 and fall back at each block with unit 640, and "
        f"stay below {unit + 1} with unit {unit}. "
        "Below: the hit of a third request climbs in steps of 640 for both units; only from 1,984 shared tokens the "
        "finer one reaches 1,984.",
    )


def draft_slots(block=4):
    """Rows of a drafter in the first block of A, and whether B would have made the same, when the prompts part inside
    a block and at its end.   block: tokens.

    >>> draft_slots()
    <figure: Two cases of prompts A and B with blocks of four tokens. ...>
    """
    board, x0, cell = Board(440, 236), 70, 46
    for case, d in enumerate((block + 2, block)):
        y = 16 + 118 * case
        a, b = ([*range(d), *(f"{who}{i}" for i in range(d, 2 * block))] for who in ("a", "b"))
        numbers = [[t if isinstance(t, int) else 1000 * ord(t[0]) + i for i, t in enumerate(x)] for x in (a, b)]
        rows = [tiny.draft_row(x[:-1], x[1:], 0) for x in numbers]
        board.text(8, y, f"A and B share {d} tokens, a block has {block}", anchor="start", bold=True)
        for label, tokens, at in (("A", a, y + 26), ("B", b, y + 48)):
            board.text(8, at, label, anchor="start")
            for i, token in enumerate(tokens):
                own = not isinstance(token, int)
                board.text(
                    x0 + cell * (i + 0.5),
                    at,
                    f"t_{i}" if not own else token[0] + f"_{i}",
                    role="error" if own and label == "B" else "",
                    size=13,
                )
        board.text(8, y + 78, "A's rows", anchor="start")
        for i in range(block):
            wrong = bool(rows[0][i] != rows[1][i])
            board.box(x0 + cell * i, y + 64, cell - 4, 28, role="error" if wrong else "key")
            board.text(
                x0 + cell * (i + 0.5) - 2,
                y + 78,
                f"f(x_{i},{'t' if i + 1 < d else 'a'}_{i + 1})",
                size=11,
                role="error" if wrong else "",
            )
        board.text(x0 + cell * block + 6, y + 78, "B's hit, nothing dropped", size=12, anchor="start")
    return board.show(
        "Two cases of prompts A and B with blocks of four tokens. When they share six tokens, all four drafter rows "
        "of the first block serve B; when they share four, the last row was made from A's fifth token and is "
        "wrong for B."
    )

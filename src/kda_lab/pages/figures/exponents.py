"""Pictures of the chapter on exponents that stay finite."""

import math

import torch

from kda_lab.pages.figures import ROLES, axes, show

FP32 = math.log(torch.finfo(torch.float32).max)


def references(C=64, step=4, g=-5.0):
    """The largest exponent that each kept pair of tokens needs, for three choices of the reference; a cell is `step`
    by `step` pairs.

    C: tokens of a chunk   g: log decay of every token, natural.

    >>> references()
    <figure: Three triangles of token pairs. With one reference for 64 ...>
    """
    from matplotlib.patches import Rectangle

    plans = [
        ("$G_0$ = 0", lambda i: -1),
        ("token 33", lambda i: C // 2),
        ("first of its 16 rows", lambda i: i - i % 16),
    ]
    fig, panels = axes(1, 3, height=2.3)
    for ax, (title, reference) in zip(panels, plans):
        for a in range(0, C, step):
            for b in range(0, a + 1, step):
                # token j against reference n: the factors hold g (i - n) and g (n - j)
                pairs = [(i, j) for i in range(a, a + step) for j in range(b, min(b + step, i + 1))]
                most = max(max(g * (i - reference(i)), g * (reference(i) - j)) for i, j in pairs)
                over = most > FP32
                look = ROLES["error" if over else "value" if most > 0 else "state"]
                ax.add_patch(
                    Rectangle(
                        (b, a),
                        step,
                        step,
                        facecolor=(look.light, 0.75 if over else 0.35),
                        linewidth=0.3,
                        hatch=look.hatch if over else None,
                    )
                )
        ax.set(xlim=(0, C), ylim=(C, 0), aspect="equal", xticks=[0, 16, 32, 48], yticks=[0, 16, 32, 48], title=title)
    panels[0].set(xlabel="token j", ylabel="token i")
    return show(
        fig,
        "Three triangles of token pairs. With one reference for 64 tokens, many cells overflow; with the first of "
        "each 16 rows, none do.",
    )

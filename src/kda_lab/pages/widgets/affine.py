"""Things to move in the chapter on affine steps."""

import torch

from kda_lab.algebra import affine
from kda_lab.pages.widgets import Choice, Range, Static, Widget
from kda_lab.parts import inputs

TOKENS = 8


def _tokens():
    """Eight tokens with K = 2, V = 1, whose gates leave something of the state."""
    x = inputs.head(TOKENS, K=2, V=1, generator=torch.Generator().manual_seed(9), gates="weak")
    return x.k, x.v * 2, x.g.exp(), x.beta * 0.4


def cut():
    """Cut eight steps into two parts, and join the parts in either order: T and H of both parts and of the whole.

    Controls: the token after which the cut is, 1 to 7; which part goes first.

    >>> cut()
    <widget: Two parts of eight steps, joined>
    """
    tokens = _tokens()
    parts = []
    for n in range(1, TOKENS):
        two = [affine.fold(*(x[p] for x in tokens)) for p in (slice(n), slice(n, None))]
        joined = [affine.compose(*two), affine.compose(*two[::-1])]
        parts.append([[T.tolist(), H.tolist()] for T, H in (*two, *joined)])
    draw = """
      const [first, second, right, wrong] = data[v.cut - 1], joined = v.order ? wrong : right;
      const a = [`tokens 1 to ${v.cut}`, first], b = [`tokens ${v.cut + 1} to ${data.length + 1}`, second];
      const groups = [...(v.order ? [b, a] : [a, b]), ["joined", joined]];
      let svg = "";
      groups.forEach(([name, [T, H]], g) => {
        const x = 24 + 152 * g, role = g < 2 ? "key" : v.order ? "error" : "state";
        svg += kit.text(x + 44, 12, name, { role });
        svg += kit.text(x - 14, 74, "T") + kit.matrix(x, 30, T, { cell: 44, role: "state", digits: 2, top: 1 });
        svg += kit.text(x - 14, 162, "H") + kit.matrix(x, 140, H, { cell: 44, role: "value", digits: 2, top: 3 });
        if (g < 2) svg += kit.text(x + 116, 74, g ? "=" : "\\u2217", { size: 22 });
      });
      const show = (H) => "(" + H[0].map((h) => kit.fmt(h, 2)).join(", ") + ")";
      const say = v.order
        ? `Later part first: H is ${show(wrong[1])} instead of ${show(right[1])}.`
        : `Cut after token ${v.cut}: together H is ${show(right[1])}, wherever the cut is.`;
      return { svg, say };
    """
    controls = [
        Range("cut", "cut after token", 1, TOKENS - 1, 1, 4),
        Choice("order", "order", ["earlier part first", "later part first (wrong)"]),
    ]
    return Widget(
        Static("cut", "Two parts of eight steps, joined", controls, parts, draw, size=(430, 192)), live=_live_cut
    )


def _live_cut():
    import ipywidgets

    def join(cut=4, later_part_first=False):
        tokens = _tokens()
        two = [affine.fold(*(x[p] for x in tokens)) for p in (slice(cut), slice(cut, None))]
        T, H = affine.compose(*(two[::-1] if later_part_first else two))
        print("T =", [[round(a, 3) for a in row] for row in T.tolist()], "  H =", [round(a, 3) for a in H[0].tolist()])

    return ipywidgets.interactive(join, cut=(1, TOKENS - 1), later_part_first=False)

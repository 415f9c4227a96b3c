"""Pictures of the chapter on learning."""

import torch

from kda_lab import rules
from kda_lab.pages.figures import axes, rule, show, style
from kda_lab.study import learning


def two_losses(writes=8):
    """Length of the state and error of the prediction while one pair is written again, so many times.

    >>> two_losses()
    <figure: Two losses over eight writes of one pair. Linear attention ...>
    """
    k, v = torch.tensor([0.6, 0.8], dtype=torch.float64), torch.tensor([2.0], dtype=torch.float64)
    fig, (left, right) = axes(1, 2, height=2.7)
    runs = [("linear attention", "linear attention", None), ("delta, β = 0.5", "DeltaNet", 0.5)]
    for label, name, beta in runs:
        S = torch.tensor([[-1.0, -0.5]], dtype=torch.float64)
        own, fit = [], []
        for _ in range(writes + 1):
            own.append(learning.inner_product_loss(S, k, v).item())
            fit.append(learning.reconstruction_loss(S, k, v).item())
            S = (rules.linear(S, k, k, v) if beta is None else rules.delta(S, k, k, v, beta))[0]
        left.plot(range(writes + 1), own, label=label, **rule(name))
        right.plot(range(writes + 1), fit, **rule(name))
    left.set(xlabel="writes of one pair", title="$-v\\cdot Sk$")
    right.set(xlabel="writes of one pair", title="$\\frac{1}{2}\\|Sk-v\\|^2$")
    left.legend(loc="lower left")
    return show(
        fig,
        "Two losses over eight writes of one pair. Linear attention lowers the first without end and raises the "
        "second; "
        "the delta rule brings the second to zero.",
    )


def explicit_and_implicit():
    """What one write leaves of the error, and one decay of a weight, over the rate: explicit steps and implicit ones.

    >>> explicit_and_implicit()
    <figure: What a write leaves of the error and a penalty of a weight, ...>
    """
    eta = torch.linspace(0, 3, 121, dtype=torch.float64)
    fig, (left, right) = axes(1, 2, height=3.2, sharey=True)
    for ax in (left, right):
        ax.axhspan(-1, 1, color=style("decay")["color"], alpha=0.12, linewidth=0)
        ax.axhline(0, color=style("decay")["color"], linewidth=0.8)
    for size, role in ((1.0, "state"), (2.0, "key")):
        k = torch.tensor([size**0.5], dtype=torch.float64)
        explicit = [1 - (k @ k) * e for e in eta]
        implicit = [1 - (k @ k) * learning.implicit_gate(k, e) for e in eta]
        left.plot(
            eta, explicit, markevery=20, label=f"explicit, |k|² = {size:g}", **style("error" if size == 1 else "value")
        )
        left.plot(eta, implicit, markevery=20, label=f"implicit, |k|² = {size:g}", **style(role))
    right.plot(eta, 1 - eta, markevery=20, label="1 − βλ", **style("error"))
    right.plot(eta, learning.proximal_decay(eta), markevery=20, label="1/(1 + βλ)", **style("decay"))
    left.set(xlabel="rate η", title="left of the error", ylim=(-3, 1.25))
    right.set(xlabel="βλ", title="left of a weight")
    fig.legend(loc="outside lower center", ncols=3)
    return show(
        fig,
        "What a write leaves of the error and a penalty of a weight, over the rate. Explicit lines fall below "
        "minus one; "
        "implicit curves stay between zero and one.",
    )

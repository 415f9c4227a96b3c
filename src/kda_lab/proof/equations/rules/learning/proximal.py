"""The rules as proximal steps: the nearest matrix that is also small, or also fits. No rate can be too large."""

import sympy
import torch

from kda_lab import rules
from kda_lab.proof.equations.common import agree, normal, require
from kda_lab.proof.equations.rules.learning.calculus import double, square
from kda_lab.proof.equations.rules.learning.losses import STEP
from kda_lab.proof.registry import Check, Equation, Mutant, polynomial, wrong
from kda_lab.study import learning

KIMI = "Kimi Linear (2025), section 2"
PROXIMAL = "Parikh and Boyd (2014), Proximal algorithms"
LONGHORN = "Kulis and Bartlett (2010), Implicit online learning; Liu et al. (2024), Longhorn"
_PROX = [{"K": 3, "V": 2}, {"K": 8, "V": 4}]


def nearest(objective, excess):
    """A claim: f(X) - f(answer) equals a sum of squares for every X, so the answer is the one minimum.

    objective, excess: (x, X or X - answer) -> twice the value.
    """

    def claim(x, subject):
        answer = subject(x)
        yield objective(x, x.X) - objective(x, answer), excess(x, x.X - answer)

    return claim


def columns(X, lam):
    return (X * X * lam).sum()


claim_proximal_decay = nearest(
    lambda x, X: square(X - x.S) + columns(X, x.lam), lambda x, Y: square(Y) + columns(Y, x.lam)
)
claim_implicit = nearest(
    lambda x, X: square(X - x.S) + double(X, x.k, x.v) * x.eta, lambda x, Y: square(Y) + (Y @ x.k) @ (Y @ x.k) * x.eta
)
claim_joint = nearest(
    lambda x, X: square(X - x.S) + columns(X, x.lam) + double(X, x.k, x.v) * x.eta,
    lambda x, Y: square(Y) + columns(Y, x.lam) + (Y @ x.k) @ (Y @ x.k) * x.eta,
)


def claim_linearised(x, rule):
    """KDA's step minimises ``<grad at the decayed point, X> + |X - decayed|^2 / (2 beta)``; here times 2 beta: no
    division.
    """
    decayed = x.S * x.alpha
    grad = rules.outer(decayed @ x.k - x.v, x.k)
    f = lambda X: (grad * X).sum() * x.beta * 2 + square(X - decayed)
    answer, _ = rule(x.S, x.k, x.k, x.v, x.alpha, x.beta)
    yield f(x.X) - f(answer), square(x.X - answer)


def claim_two_steps(x, rule):
    """KDA with alpha = 1/(1 + lambda), ``beta = eta/(1 + eta |k|^2)``: the nearest small matrix, then the nearest that
    fits.
    """
    alpha, beta = 1 / (1 + x.lam), x.eta / (1 + x.k @ x.k * x.eta)
    S, _ = rule(x.S, x.k, x.k, x.v, alpha, beta)
    # both minima, by their zero gradients: (1 + lambda) Z = S_old, and X + eta (X k - v) k^T = Z
    yield (S + rules.outer(S @ x.k - x.v, x.k) * x.eta) * (1 + x.lam), x.S


def claim_implicit_loss(x, factor):
    """The loss after an implicit step, and the gate's share of the overwrite, which stays below one."""
    S = learning.implicit_step(x.S, x.k, x.v, x.eta)
    yield double(S, x.k, x.v) * (1 + x.k @ x.k * x.eta) ** 2, double(x.S, x.k, x.v)
    yield factor(x.k, x.eta), learning.loss_factor(x.k, learning.implicit_gate(x.k, x.eta))


def implicit_loss_factor(k, eta):
    """What an implicit step of rate eta leaves of the loss: ``1 / (1 + eta |k|^2)^2``, below one for every rate.

    Implements implicit-loss.

    >>> import numpy as np
    >>> implicit_loss_factor(np.array([1, 1]), 0.5)
    np.float64(0.25)
    """
    return 1 / (1 + k @ k * eta) ** 2


def sigmoid_rate(logit):
    """The rate of the implicit step whose gate, for a unit key, is sigmoid(logit): e^logit.   Implements
    sigmoid-write-gate.

    >>> sigmoid_rate(torch.tensor(0.0)).item()                   # a gate of 1/2: half of what is missing
    1.0
    """
    return logit.exp() if isinstance(logit, torch.Tensor) else sympy.exp(logit)


def prove_sigmoid(rate):
    x = sympy.Symbol("x", real=True)
    eta = rate(x)
    rest = sympy.numer(sympy.together((eta / (1 + eta) - 1 / (1 + sympy.exp(-x))).rewrite(sympy.exp)))
    require(sympy.simplify(sympy.expand(rest)) == 0, f"{rest} is left over")


def check_sigmoid(rate):
    for x in (-20.0, -1.0, 0.0, 2.5, 20.0):
        logit = torch.tensor(x, dtype=torch.float64)
        k = torch.tensor([0.6, -0.8], dtype=torch.float64)
        S, v = normal(2, 2, seed=8), normal(2, seed=9)
        want, _ = rules.delta(S, k, k, v, torch.sigmoid(logit))
        agree(learning.implicit_step(S, k, v, rate(logit)), want, f"logit {x}")


_DECAY, _R = "    S = S * alpha  # column c decays by alpha_c\n", "r = (v - S @ k) * beta"
_WRITE = "    S = S + outer(r, k)\n"

EQUATIONS = [
    polynomial(
        "proximal-decay",
        "Staying near S and being small at once gives each column the decay 1/(1 + lambda): in (0, 1] for "
        "every lambda.",
        PROXIMAL,
        shapes="S:V,K X:V,K lam:K=gate",
        claim=lambda x, decay: claim_proximal_decay(x, lambda x: x.S * decay(x.lam)),
        subject=learning.proximal_decay,
        field_sizes=_PROX,
        real=[{"K": 4, "V": 3}],
        mutants=[
            Mutant("the explicit step, 1 - lambda", lambda lam: 1 - lam),
            Mutant("e^-lambda, to second order", lambda lam: 1 - lam + lam * lam / 2),
            Mutant("the penalty without its half", lambda lam: 1 / (1 + lam * 2)),
            Mutant("one decay for all channels", lambda lam: lam * 0 + 1 / (1 + lam[0])),
        ],
    ),
    polynomial(
        "implicit-write",
        "Staying near S and fitting the pair at once is the delta rule with beta = eta/(1 + eta |k|^2).",
        LONGHORN,
        shapes=STEP + " X:V,K eta=gate",
        claim=lambda x, f: claim_implicit(x, lambda x: f(x.S, x.k, x.v, x.eta)),
        subject=learning.implicit_step,
        field_sizes=_PROX,
        real=[{"K": 4, "V": 3}],
        mutants=[
            Mutant("the explicit step", lambda S, k, v, eta: rules.delta(S, k, k, v, eta)[0]),
            Mutant("the formula for unit keys", lambda S, k, v, eta: rules.delta(S, k, k, v, eta / (1 + eta))[0]),
            Mutant("an exact overwrite", lambda S, k, v, eta: rules.delta(S, k, k, v, 1 / (k @ k))[0]),
            Mutant("the loss without its half", lambda S, k, v, eta: learning.implicit_step(S, k, v, eta * 2)),
        ],
    ),
    polynomial(
        "implicit-loss",
        "An implicit step leaves 1/(1 + eta |k|^2)^2 of the loss: less than all, for every rate and key.",
        LONGHORN,
        shapes=STEP + " eta=gate",
        claim=claim_implicit_loss,
        subject=implicit_loss_factor,
        field_sizes=_PROX,
        real=[{"K": 4, "V": 3}],
        mutants=[
            wrong(implicit_loss_factor, "not squared", (" ** 2", "")),
            Mutant("that of the explicit step", learning.loss_factor),
            wrong(implicit_loss_factor, "the formula for unit keys", ("k @ k * eta", "eta")),
        ],
    ),
    Equation(
        "sigmoid-write-gate",
        "For a unit key, the gate sigmoid(x) is an implicit step of rate e^x.",
        "follows from implicit-write",
        "proved",
        Check("calculus", "every logit", prove_sigmoid),
        Check("float64", "logits from -20 to 20", check_sigmoid),
        sigmoid_rate,
        (
            Mutant("the rate is the logit", lambda x: x),
            Mutant(
                "the rate is the gate",
                lambda x: torch.sigmoid(x) if isinstance(x, torch.Tensor) else 1 / (1 + sympy.exp(-x)),
            ),
            Mutant("the sign of the logit", lambda x: sigmoid_rate(-x)),
            Mutant(
                "softplus",
                lambda x: sigmoid_rate(x).log1p() if isinstance(x, torch.Tensor) else sympy.log(1 + sympy.exp(x)),
            ),
        ),
    ),
    polynomial(
        "kda-linearised",
        "KDA's step is the minimum of <gradient at the decayed point, X> + |X - decayed|^2 / (2 beta).",
        KIMI,
        shapes=STEP + " X:V,K alpha:K=decay beta=gate",
        claim=claim_linearised,
        subject=rules.kda,
        ring=[{"K": 2, "V": 2}],
        field_sizes=_PROX[1:],
        real=[{"K": 4, "V": 3}],
        mutants=[
            wrong(
                rules.kda, "the gradient at the old point", (_DECAY, ""), (_WRITE, "    S = S * alpha + outer(r, k)\n")
            ),
            wrong(rules.kda, "decays after the step", (_DECAY, ""), (_WRITE, "    S = (S + outer(r, k)) * alpha\n")),
            wrong(rules.kda, "no erase", (_R, "r = v * beta")),
            Mutant("twice the rate", lambda S, q, k, v, alpha, beta: rules.kda(S, q, k, v, alpha, beta * 2)),
        ],
    ),
    polynomial(
        "kda-two-proximal-steps",
        "KDA with alpha = 1/(1 + lambda) and beta = eta/(1 + eta |k|^2) is two proximal steps, one after the other.",
        PROXIMAL,
        shapes=STEP + " lam:K=gate eta=gate",
        claim=claim_two_steps,
        subject=rules.kda,
        field_sizes=_PROX,
        real=[{"K": 4, "V": 3}],
        mutants=[
            wrong(
                rules.kda, "the gradient at the old point", (_DECAY, ""), (_WRITE, "    S = S * alpha + outer(r, k)\n")
            ),
            wrong(rules.kda, "decays after the step", (_DECAY, ""), (_WRITE, "    S = (S + outer(r, k)) * alpha\n")),
            Mutant(
                "both at once",
                lambda S, q, k, v, alpha, beta: (
                    learning.joint_step(S, k, v, 1 / alpha - 1, beta / (1 - k @ k * beta)),
                    None,
                ),
            ),
            wrong(rules.kda, "no erase", (_R, "r = v * beta")),
        ],
    ),
    polynomial(
        "joint-step",
        "Small, near and fitting at once reads as KDA does, but writes along alpha . k with beta = eta/(1 + eta k . "
        "(alpha . k)).",
        PROXIMAL,
        shapes=STEP + " X:V,K lam:K=gate eta=gate",
        claim=lambda x, f: claim_joint(x, lambda x: f(x.S, x.k, x.v, x.lam, x.eta)),
        subject=learning.joint_step,
        field_sizes=_PROX,
        real=[{"K": 4, "V": 3}],
        mutants=[
            wrong(
                learning.joint_step,
                "KDA: the write along k",
                ("outer(v - decayed @ k, short)", "outer(v - decayed @ k, k)"),
            ),
            wrong(learning.joint_step, "the gate of a key at full length", ("1 + k @ short * eta", "1 + k @ k * eta")),
            wrong(learning.joint_step, "the residual of the undecayed state", ("v - decayed @ k", "v - S @ k")),
            wrong(learning.joint_step, "the read is shortened too", ("decayed @ k", "decayed @ short")),
        ],
    ),
]

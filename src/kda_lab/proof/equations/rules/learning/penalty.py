"""Decay as a penalty on the loss: in the same step, before it, or in the place of forgetting."""

from kda_lab import rules
from kda_lab.proof.equations.rules.learning.calculus import (
    _DECAY,
    _R,
    _WRITE,
    delta_state,
    fit,
    gla_state,
    kda_after,
    kda_state,
    linear_state,
    overlap,
    squares,
    steps_of,
)
from kda_lab.proof.equations.rules.learning.losses import KIMI, STEP
from kda_lab.proof.registry import Equation, Mutant, polynomial, wrong
from kda_lab.study import learning

LOSHCHILOV = "Loshchilov and Hutter (2019), Decoupled weight decay regularization"
GLA = "Yang et al. (2023), Gated linear attention transformers"


def claim_decoupled(x, gap):
    """Gated DeltaNet minus the coupled step with lambda = (1 - alpha) / beta."""
    decoupled, _ = rules.gated_delta(x.S, x.k, x.k, x.v, x.alpha, x.beta)
    coupled = x.S * x.alpha - learning.reconstruction_gradient(x.S, x.k, x.v) * x.beta
    yield decoupled - coupled, gap(x.S, x.k, x.alpha, x.beta)
    yield gap(x.S, x.k, 1, x.beta), x.S * 0


def decoupling_gap(S, k, alpha, beta):
    """What decaying first changes, beta (1 - alpha) S k k^T.   returns [V, K].   Implements decoupled-decay.

    >>> import numpy as np
    >>> decoupling_gap(np.array([[4, 2]]), np.array([1, 1]), 0.5, 0.5)
    array([[1.5, 1.5]])
    """
    return rules.outer(S @ k, k) * (1 - alpha) * beta


_gla = steps_of(lambda X, k, v, a, b: overlap(X, k, v) + squares(X, 1 - a), lambda S, a, b: (S, 1))
_kda = steps_of(lambda X, k, v, a, b: fit(X, k, v), lambda S, a, b: (S * a, b))
# the penalty of each channel is lambda = a
_coupled = steps_of(lambda X, k, v, a, b: fit(X, k, v) + squares(X, a), lambda S, a, b: (S, b))

EQUATIONS = [
    Equation(
        "coupled-decay",
        "A step on loss plus lambda |S|^2 / 2 is (1 - beta lambda) S - beta (S k - v) k^T.",
        KIMI,
        "proved",
        *_coupled,
        lambda S, k, v, lam, beta: learning.coupled_step(S, k, v, beta, lam),
        (
            Mutant("decay first", lambda S, k, v, lam, beta: learning.decoupled_step(S, k, v, 1 - lam * beta, beta)),
            Mutant(
                "without beta on the penalty",
                lambda S, k, v, lam, beta: learning.coupled_step(S, k, v, beta, 0) - S * lam,
            ),
            Mutant(
                "the penalty without its half", lambda S, k, v, lam, beta: learning.coupled_step(S, k, v, beta, lam * 2)
            ),
            Mutant("grows", lambda S, k, v, lam, beta: learning.coupled_step(S, k, v, beta, lam * -1)),
        ),
    ),
    polynomial(
        "decoupled-decay",
        "Decay first, then correct: this differs from the coupled step by beta (1 - alpha) S k k^T.",
        LOSHCHILOV,
        shapes=STEP + " alpha=decay beta=gate",
        claim=claim_decoupled,
        subject=decoupling_gap,
        ring=[{"K": 2, "V": 2}, {"K": 3, "V": 2}],
        real=[{"K": 4, "V": 3}],
        mutants=[
            Mutant("no difference", lambda S, k, alpha, beta: S * 0),
            wrong(decoupling_gap, "the sign", ("* (1 - alpha) * beta\n", "* (alpha - 1) * beta\n")),
            wrong(decoupling_gap, "of the decayed state", ("outer(S @ k, k)", "outer(S @ k * alpha, k)")),
            wrong(decoupling_gap, "along the state", ("rules.outer(S @ k, k)", "S")),
        ],
    ),
    Equation(
        "kda-gradient-step",
        "KDA decays each channel, then takes a step of rate beta on the loss at the decayed point.",
        KIMI,
        "proved",
        *_kda,
        kda_state,
        (
            kda_after("the gradient at the old point", (_DECAY, ""), (_WRITE, "    S = S * alpha + outer(r, k)\n")),
            kda_after("decays after the step", (_DECAY, ""), (_WRITE, "    S = (S + outer(r, k)) * alpha\n")),
            kda_after("the inner-product loss", (_R, "r = v * beta")),
            Mutant("no decay", delta_state),
            Mutant("twice the rate", lambda S, k, v, alpha, beta: kda_state(S, k, v, alpha, beta * 2)),
        ),
    ),
    Equation(
        "gla-loss",
        "GLA is a step of rate 1 on -(v . S k) plus half the sum of (1 - alpha_c) |column c|^2.",
        GLA,
        "proved",
        *_gla,
        gla_state,
        (
            Mutant("no penalty", linear_state),
            Mutant(
                "the penalty alpha instead of 1 - alpha",
                lambda S, k, v, alpha, beta: gla_state(S, k, v, 1 - alpha, beta),
            ),
            Mutant("KDA", kda_state),
            Mutant("the write decays too", lambda S, k, v, alpha, beta: (S + rules.outer(v, k)) * alpha),
        ),
    ),
]

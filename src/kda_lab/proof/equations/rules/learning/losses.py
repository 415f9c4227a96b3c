"""The state as weights that learn while they read: losses, their gradients, and the rules that step on them."""

import numpy as np
import sympy
import torch

from kda_lab import rules
from kda_lab.proof.engines import stack
from kda_lab.proof.equations.common import agree, require
from kda_lab.proof.equations.rules.learning.calculus import (
    CALCULUS,
    delta_state,
    double,
    fit,
    gradient,
    gradient_check,
    kda_state,
    linear_state,
    numbers,
    overlap,
    sizes,
    slope,
    square,
    steps_of,
    symbols,
)
from kda_lab.proof.registry import Check, Equation, Mutant, polynomial, wrong
from kda_lab.study import learning

SCHLAG = "Schlag et al. (2021), Linear transformers are secretly fast weight programmers"
DUAL = "Irie et al. (2022), The dual form of neural networks revisited"
KIMI = "Kimi Linear (2025), section 2"
WIDROW = "Widrow and Hoff (1960), Adaptive switching circuits"
STEP = "S:V,K k:K v:V"


def claim_dual(x, read):
    """Linear attention writes its values, DeltaNet its residuals; the weights it ends with read the same."""
    for rule, gates in ((rules.linear, ()), (rules.delta, (x.beta,))):
        S, writes = x.S, []
        for t in range(len(x.k)):
            writes.append(x.v[t] if rule is rules.linear else (x.v[t] - S @ x.k[t]) * x.beta[t])
            S, _ = rule(S, x.k[t], x.k[t], x.v[t], *[g[t] for g in gates])
        yield read(x.S, x.k, stack(writes), x.q), S @ x.q


def prove_chain(chained):
    """For a loss f of the prediction that nobody has chosen: df/dS_rc = f_r k_c."""
    for S, k, v in sizes():
        f, y = sympy.Function("f"), symbols("y", len(v))
        prediction = [sum(S[r, c] * k[c] for c in range(len(k))) for r in range(len(v))]
        at = dict(zip(y, prediction))
        slopes = np.array([f(*y).diff(x).subs(at, simultaneous=True).doit() for x in y], dtype=object)
        exact = gradient(f(*prediction), S)
        got = chained(slopes, k)
        require(got.shape == exact.shape, f"shape {got.shape}")
        for index in np.ndindex(*exact.shape):
            require(sympy.simplify((got[index] - exact[index]).doit()) == 0, f"S {S.shape}, entry {index}")


def check_chain(chained):
    """Losses that are used: squares, absolute values to the power 1.5, Huber's, and cross-entropy."""
    S, k, v = numbers(seed=4)
    kinds = {
        "square": lambda y: (y - v).square().sum() / 2,
        "power 1.5": lambda y: (y - v).abs().pow(1.5).sum(),
        "huber": lambda y: torch.nn.functional.huber_loss(y, v, reduction="sum"),
        "cross-entropy": lambda y: -torch.log_softmax(y, 0)[1],
    }
    for name, f in kinds.items():
        y = (S @ k).requires_grad_()
        agree(chained(torch.autograd.grad(f(y), y)[0], k), slope(lambda X: f(X @ k), S), name)


def claim_unbounded(x, loss):
    """From any state, c steps along v k^T lower the loss by ``c |v|^2 |k|^2``: no bottom."""
    for c in (1, 2, 7):
        yield loss(x.S + rules.outer(x.v, x.k) * c, x.k, x.v), overlap(x.S, x.k, x.v) - (x.v @ x.v) * (x.k @ x.k) * c


def claim_loss_factor(x, factor):
    S, _ = rules.delta(x.S, x.k, x.k, x.v, x.beta)
    yield double(S, x.k, x.v), double(x.S, x.k, x.v) * factor(x.k, x.beta)


def claim_curvature(x, bend):
    """L(S + Y) = L(S) + <grad, Y> + bend / 2, exactly; along v k^T the bend is ``|k|^2 |Y|^2``."""
    grad = learning.reconstruction_gradient(x.S, x.k, x.v)
    yield double(x.S + x.Y, x.k, x.v), double(x.S, x.k, x.v) + (grad * x.Y).sum() * 2 + bend(x.S, x.k, x.Y)
    along = rules.outer(x.v, x.k)
    yield bend(x.S, x.k, along), (along * along).sum() * (x.k @ x.k)


_fit_proof, _fit_numeric = gradient_check(fit, learning.reconstruction_loss)
_overlap_proof, _overlap_numeric = gradient_check(overlap, learning.inner_product_loss)
_linear = steps_of(lambda X, k, v, a, b: overlap(X, k, v), lambda S, a, b: (S, 1))
_delta = steps_of(lambda X, k, v, a, b: fit(X, k, v), lambda S, a, b: (S, b))

EQUATIONS = [
    polynomial(
        "dual-form",
        "Weights after T rank-one writes read S_0 q + sum (k_t . q) write_t: attention over the training pairs.",
        DUAL,
        shapes="S:V,K q:K k:C,K v:C,V beta:C=gate",
        claim=claim_dual,
        subject=learning.dual_read,
        ring=[{"C": 3, "K": 2, "V": 2}],
        field_sizes=[{"C": 16, "K": 4, "V": 3}],
        real=[{"C": 7, "K": 4, "V": 3}],
        mutants=[
            wrong(learning.dual_read, "forgets the first weights", ("S @ q + ", "S @ q * 0 + ")),
            wrong(learning.dual_read, "every pair counts the same", ("K @ q", "(K @ q) * 0 + 1")),
            wrong(learning.dual_read, "the last pair alone", ("writes.T @ (K @ q)", "writes[-1] * (K[-1] @ q)")),
            wrong(learning.dual_read, "the signs", ("S @ q + writes", "S @ q - writes")),
        ],
    ),
    Equation(
        "inner-product-gradient",
        "The loss -(v . S k) has the gradient -v k^T, wherever S stands.",
        SCHLAG,
        "proved",
        _overlap_proof,
        _overlap_numeric,
        learning.inner_product_gradient,
        (
            wrong(learning.inner_product_gradient, "the sign", ("* -1", "* 1")),
            Mutant("half of it", lambda S, k, v: learning.inner_product_gradient(S, k, v) / 2),
            Mutant("of the reconstruction loss", learning.reconstruction_gradient),
            wrong(learning.inner_product_gradient, "by the key", ("outer(v, k) * -1", "outer(v, v @ S) * -1")),
        ),
    ),
    Equation(
        "linear-gradient-step",
        "Linear attention is a step of rate 1 on -(v . S k).",
        KIMI,
        "proved",
        *_linear,
        linear_state,
        (
            Mutant("with the write gate", lambda S, k, v, alpha, beta: linear_state(S, k, v * beta, alpha, beta)),
            Mutant("uphill", lambda S, k, v, alpha, beta: linear_state(S, k, v * -1, alpha, beta)),
            Mutant("the delta rule", delta_state),
        ),
    ),
    polynomial(
        "inner-product-unbounded",
        "Along v k^T the loss -(v . S k) falls by |v|^2 |k|^2 a step, for ever.",
        KIMI,
        shapes=STEP,
        claim=claim_unbounded,
        subject=learning.inner_product_loss,
        ring=[{"K": 2, "V": 2}, {"K": 3, "V": 2}],
        real=[{"K": 4, "V": 3}],
        mutants=[
            Mutant("the reconstruction loss", learning.reconstruction_loss),
            Mutant("normalised", lambda S, k, v: learning.inner_product_loss(S, k, v) * (k @ k)),
            Mutant("the other sign", lambda S, k, v: -learning.inner_product_loss(S, k, v)),
        ],
    ),
    Equation(
        "reconstruction-gradient",
        "|S k - v|^2 / 2 has the gradient (S k - v) k^T.",
        WIDROW,
        "proved",
        _fit_proof,
        _fit_numeric,
        learning.reconstruction_gradient,
        (
            Mutant("without the half in the loss", lambda S, k, v: learning.reconstruction_gradient(S, k, v) * 2),
            wrong(learning.reconstruction_gradient, "the residual's sign", ("S @ k - v", "v - S @ k")),
            wrong(learning.reconstruction_gradient, "the target alone", ("S @ k - v", "v * -1")),
            wrong(
                learning.reconstruction_gradient,
                "not along the key",
                ("outer(S @ k - v, k)", "outer(S @ k - v, k * 0 + 1)"),
            ),
        ),
    ),
    Equation(
        "delta-gradient-step",
        "The delta rule is a step of rate beta on |S k - v|^2 / 2.",
        KIMI,
        "proved",
        *_delta,
        delta_state,
        (
            Mutant("linear attention", linear_state),
            Mutant("twice the rate", lambda S, k, v, alpha, beta: delta_state(S, k, v, alpha, beta * 2)),
            Mutant("beta on the target only", lambda S, k, v, alpha, beta: delta_state(S, k, v * beta, alpha, 1)),
            Mutant("decays", kda_state),
        ),
    ),
    Equation(
        "prediction-chain-rule",
        "Every loss f(S k) has the gradient (df/dy) k^T: of rank one, along the key.",
        "the chain rule",
        "proved",
        Check("calculus", CALCULUS + ", any f", prove_chain),
        Check("float64", "four losses, V=3 K=4", check_chain),
        learning.chain,
        (
            wrong(learning.chain, "without the inner derivative", ("outer(slope, k)", "outer(slope, k * 0 + 1)")),
            wrong(learning.chain, "the inner derivative squared", ("outer(slope, k)", "outer(slope, k * k)")),
            wrong(
                learning.chain, "the mean slope", ("outer(slope, k)", "outer(slope * 0 + sum(slope) / len(slope), k)")
            ),
        ),
    ),
    polynomial(
        "loss-after-write",
        "One write leaves (1 - beta |k|^2)^2 of the loss: it falls exactly for 0 < beta |k|^2 < 2.",
        WIDROW,
        shapes=STEP + " beta=gate",
        claim=claim_loss_factor,
        subject=learning.loss_factor,
        ring=[{"K": 2, "V": 2}, {"K": 3, "V": 1}],
        real=[{"K": 4, "V": 3}],
        mutants=[
            wrong(learning.loss_factor, "the formula for unit keys", ("1 - k @ k * rate", "1 - rate")),
            wrong(learning.loss_factor, "not squared", ("left * left", "left")),
            wrong(learning.loss_factor, "twice the rate", ("1 - k @ k * rate", "1 - k @ k * rate * 2")),
            Mutant("solved at once", lambda k, rate: k @ k * 0),
        ],
    ),
    polynomial(
        "loss-curvature",
        "The loss bends by |Y k|^2 along Y, at most |k|^2 |Y|^2: a unit key makes the steepest curvature 1.",
        WIDROW,
        shapes=STEP + " Y:V,K",
        claim=claim_curvature,
        subject=learning.curvature,
        ring=[{"K": 2, "V": 2}, {"K": 3, "V": 1}],
        real=[{"K": 4, "V": 3}],
        mutants=[
            Mutant("the same in all directions", lambda S, k, Y: square(Y) * (k @ k)),
            Mutant("that of a unit key", lambda S, k, Y: square(Y)),
            Mutant("none: a straight line", lambda S, k, Y: square(Y) * 0),
            wrong(learning.curvature, "depends on the state", ("Y @ k", "(Y + S) @ k")),
        ],
    ),
]

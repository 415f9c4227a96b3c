"""The rules as learning: which loss, which gradient, at which point, with which rate; and what needs no small step."""

import numpy as np
import sympy
import torch

from kda_lab import rules
from kda_lab.proof.engines import stack
from kda_lab.proof.equations.common import agree, normal, require
from kda_lab.proof.registry import Check, Equation, Mutant, polynomial, variant, wrong
from kda_lab.study import learning

SCHLAG = "Schlag et al. (2021), Linear transformers are secretly fast weight programmers"
DUAL = "Irie et al. (2022), The dual form of neural networks revisited"
KIMI = "Kimi Linear (2025), section 2"
WIDROW = "Widrow and Hoff (1960), Adaptive switching circuits"
LOSHCHILOV = "Loshchilov and Hutter (2019), Decoupled weight decay regularization"
GLA = "Yang et al. (2023), Gated linear attention transformers"
CALCULUS = "V x K = 2x2, 3x2, 2x3"
STEP = "S:V,K k:K v:V"


def symbols(name, *shape):
    """An object array of SymPy symbols.

    >>> symbols("k", 2).tolist()
    [k0, k1]
    """
    return np.array(sympy.symbols(f"{name}:{int(np.prod(shape))}"), dtype=object).reshape(shape)


def sizes():
    """S, k, v as symbols, for each size of the calculus proofs."""
    for V, K in ((2, 2), (3, 2), (2, 3)):
        yield symbols("s", V, K), symbols("k", K), symbols("v", V)


def same(left, right, what):
    """Raise unless two arrays of expressions are equal entry by entry."""
    left, right = np.asarray(left, dtype=object), np.asarray(right, dtype=object)
    require(left.shape == right.shape, f"{what}: shapes {left.shape} and {right.shape}")
    for a, b in zip(left.ravel(), right.ravel()):
        require(sympy.numer(sympy.together(a - b)).expand() == 0, f"{what}: {a} is not {b}")


def gradient(expression, S):
    """The derivative by each entry of S, by SymPy.   returns [V, K]."""
    out = np.empty(S.shape, dtype=object)
    for index in np.ndindex(*S.shape):
        out[index] = sympy.diff(expression, S[index])
    return out


def slope(loss, S):
    """The derivative by each entry of S, by autograd.   returns [V, K]."""
    X = S.clone().requires_grad_()
    return torch.autograd.grad(loss(X), X)[0]


def fit(S, k, v):
    """``|S k - v|^2 / 2``, entry by entry."""
    return sum((sum(S[r, c] * k[c] for c in range(len(k))) - v[r]) ** 2 for r in range(len(v))) / 2


def overlap(S, k, v):
    """-(v . S k), entry by entry."""
    return -sum(v[r] * S[r, c] * k[c] for r in range(len(v)) for c in range(len(k)))


def squares(S, lam):
    """Half the sum of lambda_c S_rc^2, entry by entry.   lam: one number for each channel."""
    return sum(S[r, c] ** 2 * lam[c] for r in range(S.shape[0]) for c in range(S.shape[1])) / 2


def numbers(seed=0, V=3, K=4):
    return normal(V, K, seed=seed), normal(K, seed=seed + 1), normal(V, seed=seed + 2)


def claim_dual(x, read):
    """Linear attention writes its values, DeltaNet its residuals; the weights it ends with read the same."""
    for rule, gates in ((rules.linear, ()), (rules.delta, (x.beta,))):
        S, writes = x.S, []
        for t in range(len(x.k)):
            writes.append(x.v[t] if rule is rules.linear else (x.v[t] - S @ x.k[t]) * x.beta[t])
            S, _ = rule(S, x.k[t], x.k[t], x.v[t], *[g[t] for g in gates])
        yield read(x.S, x.k, stack(writes), x.q), S @ x.q


def gradient_check(loss, library_loss):
    """(proof, numeric) for a gradient function: SymPy's derivative of the loss, and autograd through the library's."""

    def prove(of):
        for S, k, v in sizes():
            same(of(S, k, v), gradient(loss(S, k, v), S), f"S {S.shape}")

    def check(of):
        S, k, v = numbers()
        agree(library_loss(S, k, v), loss(S, k, v), "the loss")
        agree(of(S, k, v), slope(lambda X: library_loss(X, k, v), S), "autograd")

    return Check("calculus", CALCULUS, prove), Check("float64", "V=3 K=4", check)


def steps_of(loss, rate):
    """(proof, numeric) for a rule (S, k, v, *gates) -> state: one step on ``loss``, from the point that ``rate`` names.

    rate: (S, *gates) -> (point, rate).   loss: (S, k, v, *gates) -> expression.
    """

    def trial(update, S, k, v, gates, by):
        point, eta = rate(S, *gates)
        return update(S, k, v, *gates), point - by(lambda X: loss(X, k, v, *gates), point) * eta

    def by_sympy(f, point):
        X = symbols("x", *point.shape)
        at = dict(zip(X.ravel(), point.ravel()))
        return np.vectorize(lambda e: e.subs(at, simultaneous=True), otypes=[object])(gradient(f(X), X))

    def prove(update):
        for S, k, v in sizes():
            same(*trial(update, S, k, v, (symbols("a", len(k)), sympy.Symbol("b")), by_sympy), f"S {S.shape}")

    def check(update):
        S, k, v = numbers(seed=3)
        gates = torch.sigmoid(normal(4, seed=7)), torch.tensor(0.7, dtype=torch.float64)
        agree(*trial(update, S, k, v, gates, slope), "autograd")

    return Check("calculus", CALCULUS, prove), Check("float64", "V=3 K=4", check)


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


def double(S, k, v):
    """Twice the reconstruction loss, so that no half is needed among integers."""
    error = S @ k - v
    return error @ error


def square(X):
    """The squared Frobenius norm."""
    return (X * X).sum()


def claim_loss_factor(x, factor):
    S, _ = rules.delta(x.S, x.k, x.k, x.v, x.beta)
    yield double(S, x.k, x.v), double(x.S, x.k, x.v) * factor(x.k, x.beta)


def claim_curvature(x, bend):
    """L(S + Y) = L(S) + <grad, Y> + bend / 2, exactly; along v k^T the bend is ``|k|^2 |Y|^2``."""
    grad = learning.reconstruction_gradient(x.S, x.k, x.v)
    yield double(x.S + x.Y, x.k, x.v), double(x.S, x.k, x.v) + (grad * x.Y).sum() * 2 + bend(x.S, x.k, x.Y)
    along = rules.outer(x.v, x.k)
    yield bend(x.S, x.k, along), (along * along).sum() * (x.k @ x.k)


def claim_decoupled(x, gap):
    """Gated DeltaNet minus the coupled step with lambda = (1 - alpha) / beta."""
    decoupled, _ = rules.gated_delta(x.S, x.k, x.k, x.v, x.alpha, x.beta)
    coupled = x.S * x.alpha - learning.reconstruction_gradient(x.S, x.k, x.v) * x.beta
    yield decoupled - coupled, gap(x.S, x.k, x.alpha, x.beta)
    yield gap(x.S, x.k, 1, x.beta), x.S * 0


def decoupling_gap(S, k, alpha, beta):
    """What decaying first changes, beta (1 - alpha) S k k^T.   returns [V, K].   Implements decoupled-decay.

    >>> decoupling_gap(np.array([[4, 2]]), np.array([1, 1]), 0.5, 0.5)
    array([[1.5, 1.5]])
    """
    return rules.outer(S @ k, k) * (1 - alpha) * beta


_fit_proof, _fit_numeric = gradient_check(fit, learning.reconstruction_loss)
_overlap_proof, _overlap_numeric = gradient_check(overlap, learning.inner_product_loss)
_linear = steps_of(lambda X, k, v, a, b: overlap(X, k, v), lambda S, a, b: (S, 1))
_delta = steps_of(lambda X, k, v, a, b: fit(X, k, v), lambda S, a, b: (S, b))
_gla = steps_of(lambda X, k, v, a, b: overlap(X, k, v) + squares(X, 1 - a), lambda S, a, b: (S, 1))
_kda = steps_of(lambda X, k, v, a, b: fit(X, k, v), lambda S, a, b: (S * a, b))
# the penalty of each channel is lambda = a
_coupled = steps_of(lambda X, k, v, a, b: fit(X, k, v) + squares(X, a), lambda S, a, b: (S, b))


def linear_state(S, k, v, alpha, beta):
    return rules.linear(S, k, k, v)[0]


def delta_state(S, k, v, alpha, beta):
    return rules.delta(S, k, k, v, beta)[0]


def gla_state(S, k, v, alpha, beta):
    return rules.gla(S, k, k, v, alpha)[0]


def kda_state(S, k, v, alpha, beta):
    return rules.kda(S, k, k, v, alpha, beta)[0]


def kda_after(name, *patches):
    wrong_rule = variant(rules.kda, *patches)
    return Mutant(name, lambda S, k, v, alpha, beta: wrong_rule(S, k, k, v, alpha, beta)[0])


_DECAY, _R = "    S = S * alpha  # column c decays by alpha_c\n", "r = (v - S @ k) * beta"
_WRITE = "    S = S + outer(r, k)\n"

EQUATIONS = [
    polynomial(
        "dual-form",
        "Weights after T rank-one writes read S_0 q + sum (k_t . q) write_t: attention over the training pairs.",
        DUAL,
        shapes="S:V,K q:K k:C,K v:C,V beta:C",
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
        shapes=STEP + " beta:",
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
        shapes=STEP + " alpha: beta:",
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

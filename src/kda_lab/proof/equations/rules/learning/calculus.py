"""Losses of a prediction, their derivatives by SymPy and by autograd, and steps on them."""

import numpy as np
import sympy
import torch

from kda_lab import rules
from kda_lab.proof.equations.common import agree, normal, require
from kda_lab.proof.registry import Check, Mutant, variant

CALCULUS = "V x K = 2x2, 3x2, 2x3"


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


def double(S, k, v):
    """Twice the reconstruction loss, so that no half is needed among integers."""
    error = S @ k - v
    return error @ error


def square(X):
    """The squared Frobenius norm."""
    return (X * X).sum()


def numbers(seed=0, V=3, K=4):
    return normal(V, K, seed=seed), normal(K, seed=seed + 1), normal(V, seed=seed + 2)


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

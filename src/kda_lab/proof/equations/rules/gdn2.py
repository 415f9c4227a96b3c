"""Gated DeltaNet-2: one token in several ways, its special case, its chunk form, its adjoint, and how it can grow."""

import sympy
import torch

from kda_lab import rules
from kda_lab.algebra import affine, chunk
from kda_lab.algebra.chunk import gated_delta_2 as chunk_form
from kda_lab.algebra.chunk_backward import gated_delta_2 as adjoint
from kda_lab.proof.engines import stack
from kda_lab.proof.equations.common import affine_step, agree, lower_unit, matrix, normal, read, require, token_by_token
from kda_lab.proof.equations.duals import gradient_pairs
from kda_lab.proof.registry import Check, Equation, Mutant, polynomial, variant, wrong
from kda_lab.rules import gated_delta_2 as rule

GDN2 = "Hatamizadeh et al. (2026), Gated DeltaNet-2"
SHAPES = "S:V,K q:C,K k:C,K v:C,V alpha:C,K=decay erase:C,K=gate write:C,V=gate"
REAL = [{"C": 7, "K": 3, "V": 3}, {"C": 9, "K": 4, "V": 3}]  # K = V first: there swapped gates type-check


def by_entries(S, q, k, v, alpha, erase, write):
    """S Diag(alpha) (I - (b . k) k^T) + (w . v) k^T, read with q after the write."""
    S = affine_step(
        S, lambda e, c: alpha[e] * (int(e == c) - erase[e] * k[e] * k[c]), lambda r, c: write[r] * v[r] * k[c]
    )
    return S, read(S, q)


def forms(S, k, v, alpha, erase, write):
    """Four ways to write one step: transition, transition multiplied out, erase from the undecayed state, DPLR.

    S: [V, K]   k, alpha, erase: [K]   v, write: [V]   returns four states [V, K].   Implements gdn2-forms.

    >>> import numpy as np
    >>> x = np.array([[4, 8]]), np.array([1, 1]), np.array([6]), np.array([2, 3]), np.array([1, 0]), np.array([2])
    >>> [S.tolist() for S in forms(*x)]
    [[[12, 28]], [[12, 28]], [[12, 28]], [[12, 28]]]
    """
    D = affine.eye(k) * alpha  # Diag(alpha)
    gated = k * erase  # [K] the key that reads
    H = rules.outer(v * write, k)  # [V, K]
    return (
        S @ D @ (affine.eye(k) - rules.outer(gated, k)) + H,
        S @ (D - rules.outer(alpha * gated, k)) + H,
        S * alpha - rules.outer(S @ (alpha * gated), k) + H,
        rules.dplr(S, k, k, v * write, alpha, -(alpha * gated), k)[0],
    )


def claim_forms(x, forms):
    S, _ = rule(x.S, x.k, x.k, x.v, x.alpha, x.erase, x.write)
    for form in forms(x.S, x.k, x.v, x.alpha, x.erase, x.write):
        yield form, S


def claim_kda(x, rule):
    """Both gates one number: KDA; one decay besides: Gated DeltaNet."""
    for t in range(len(x.k)):
        token = x.q[t], x.k[t], x.v[t]
        gates = x.k[t] * 0 + x.beta[t], x.v[t] * 0 + x.beta[t]
        for got, wanted in zip(rule(x.S, *token, x.alpha[t], *gates), rules.kda(x.S, *token, x.alpha[t], x.beta[t])):
            yield got, wanted
        one = x.alpha[t] * 0 + x.alpha[t, 0]
        plain = rules.gated_delta(x.S, *token, x.alpha[t, 0], x.beta[t])
        for got, wanted in zip(rule(x.S, *token, one, *gates), plain):
            yield got, wanted


def claim_chunk(x, chunk_form):
    """State and outputs are the loop's; A, U and W are what their names say."""
    tokens = x.q, x.k, x.v, x.alpha, x.erase, x.write
    S, rows = rules.scan(rule, x.S, *tokens)
    terms = chunk_form(x.S, *tokens)
    yield terms.S, S
    yield terms.O, stack(rows)
    yield terms.A, chunk.tril(chunk.decayed_scores(x.k * x.erase, x.k, x.alpha), -1)
    yield lower_unit(terms.A) @ terms.U, x.v * x.write
    yield lower_unit(terms.A) @ terms.W, x.k * x.erase * chunk.decay_from_start(x.alpha)


def loop_loss(constants, q=0, k=0, v=0, g=0, erase=0, write=0, S=0):
    """<dO, O> + <dS, S_C> of the token loop. A change of g multiplies the decay by 1 + g: the slope in ln alpha."""
    S0, Q, K, V, alpha, b, w, dO, dS = constants
    S1, rows = rules.scan(rule, S0 + S, Q + q, K + k, V + v, alpha + alpha * g, b + erase, w + write)
    return (dO * stack(rows)).sum() + (dS * S1).sum()


def claim_backward(x, adjoint):
    """Every input's gradient is the derivative of the token loop."""
    inputs = x.S, x.q, x.k, x.v, x.alpha, x.erase, x.write
    d = adjoint(*inputs, chunk_form(*inputs), x.dO, x.dS)
    named = {
        "q": (d.dQ, x.hK),
        "k": (d.dK, x.hK),
        "v": (d.dV, x.hV),
        "g": (d.dg, x.hK),
        "erase": (d.derase, x.hK),
        "write": (d.dwrite, x.hV),
        "S": (d.dS, x.hS),
    }
    yield from gradient_pairs(loop_loss, (*inputs, x.dO, x.dS), named)


def step_polynomial(x, k, erase):
    """The characteristic polynomial of T T^T, T = I - (b . k) k^T with |k| = 1: its roots are the squared stretches.

    k, erase: [K]. At x = 4/3 its last factor is (p - 1/3)^2 + 4/3 sum_c b_c (1 - b_c) k_c^2, p = sum_c b_c k_c^2: not
    negative for gates in 0..1. The mean of its two roots is at most 1, so both lie at or below 4/3, and no step
    stretches by more than 2/sqrt(3).   Implements gdn2-growth.

    >>> sympy.factor(step_polynomial(sympy.Symbol("x"), (1, 0), (1, 1)))  # a full erase: one direction goes
    x*(x - 1)
    """
    p = sum(b * c * c for b, c in zip(erase, k))
    n = sum(b * b * c * c for b, c in zip(erase, k))
    return (x - 1) ** (len(k) - 2) * (x * x - x * (2 - p * 2 + n) + (1 - p) ** 2)


def pair_polynomial(x, c2):
    """The characteristic polynomial of two steps in turn: keys -(c, s) and (s, c), erase gates (0, 1) and (1, 0).

    c2: c^2 = 1 - s^2. At 5/6 its roots are 5/4 and 5/9: every pair of such tokens grows the state by a quarter.
    Implements gdn2-growth.

    >>> sympy.roots(pair_polynomial(sympy.Symbol("x"), sympy.Rational(5, 6)))
    {5/4: 1, 5/9: 1}
    """
    return x * x - x * c2 * (3 - c2) + c2 * c2


def transition(k, b):
    """I - (b . k) k^T, entry by entry.   k, b: [K]   returns [K, K]."""
    return matrix(len(k), len(k), lambda r, c: int(r == c) - b[r] * k[r] * k[c])


def prove_growth(subject):
    """Both polynomials for symbolic keys and gates, the bound 4/3 with the input that reaches it, and 5/4."""
    step, pair = subject
    x, third = sympy.Symbol("x"), sympy.Rational(1, 3)
    for K in (2, 3):
        k, b = sympy.symbols(f"k:{K}"), sympy.symbols(f"b:{K}")
        # on the unit sphere: k_0^2 is what the other squares leave of 1
        zero = lambda f, k=k: sympy.rem(sympy.expand(f), sum(c * c for c in k) - 1, k[0]) == 0
        T = sympy.Matrix(transition(k, b))
        require(zero((T * T.T).charpoly(x).as_expr() - step(x, k, b)), f"K = {K}: the squared stretches")
        p = sum(e * c * c for e, c in zip(b, k))
        left = (p - third) ** 2 + 4 * third * sum(e * (1 - e) * c * c for e, c in zip(b, k))
        require(zero(step(4 * third, k, b) * 3 ** (K - 2) - left), f"K = {K}: what is left at 4/3")
    extreme = (sympy.sqrt(2 * third), sympy.sqrt(third)), (0, 1)
    require(sympy.simplify(step(4 * third, *extreme)) == 0, "4/3 is reached")
    c, s = sympy.symbols("c s")
    product = sympy.Matrix(transition((-c, -s), (0, 1))) * sympy.Matrix(transition((s, c), (1, 0)))
    left = product.charpoly(x).as_expr() - pair(x, c * c)
    require(sympy.rem(sympy.expand(left), c * c + s * s - 1, s) == 0, "the pair")
    require(pair(sympy.Rational(5, 4), sympy.Rational(5, 6)) == 0, "the pair grows by 5/4")


def check_growth(subject):
    """Stretches of 400 random steps, the extreme one, and 60 pairs of tokens through the rule."""
    step, pair = subject
    bound, S = 4 / 3, normal(1, 2, seed=3)
    for seed in range(400):
        K = 2 + seed % 4
        k = torch.nn.functional.normalize(normal(K, seed=seed), dim=0)
        b = normal(K, seed=seed + 1000).sigmoid() if seed % 2 else (normal(K, seed=seed + 1000) > 0).double()
        T = torch.eye(K, dtype=k.dtype) - torch.outer(b * k, k)
        largest = torch.linalg.matrix_norm(T, 2).square()
        require(largest <= bound + 1e-12, f"draw {seed} stretches by more than 2/sqrt(3)")
        require(abs(step(largest, k, b)) < 1e-12, f"draw {seed}: its stretch is no root")
    k, b = torch.tensor([2 / 3, 1 / 3], dtype=torch.float64).sqrt(), torch.tensor([0.0, 1.0], dtype=torch.float64)
    T = torch.eye(2, dtype=k.dtype) - torch.outer(b * k, k)
    agree(torch.linalg.matrix_norm(T, 2).square(), k.new_tensor(bound), "the extreme step")
    require(abs(step(bound, k, b)) < 1e-12, "the extreme step is no root")
    c, s = (5 / 6) ** 0.5, (1 / 6) ** 0.5
    keys = torch.tensor([[-c, -s], [s, c]], dtype=torch.float64)
    sizes = []
    for _ in range(60):
        for k, erase in zip(keys, (b, 1 - b)):
            S, _ = rule(S, k, k, S.new_zeros(1), torch.ones(2, dtype=torch.float32), erase, S.new_ones(1))
        sizes.append(S.norm())
    agree(sizes[-1] / sizes[-2], 1.25, "a pair of tokens")
    require(abs(pair(sizes[-1] / sizes[-2], 5 / 6)) < 1e-12, "the growth of a pair is no root")


_DECAY = "    S = S * alpha  # column c decays by alpha_c\n"
_R = "r = v * write - S @ (k * erase)"
_WRITE = "    S = S + outer(r, k)\n"
_SWAPPED = Mutant("the gates swapped", lambda S, q, k, v, alpha, b, w: rule(S, q, k, v, alpha, w, b))
RULE_MUTANTS = (
    wrong(rule, "reads before the decay", (_DECAY, ""), (_WRITE, "    S = S * alpha + outer(r, k)\n")),
    wrong(rule, "decays after the write", (_DECAY, ""), (_WRITE, "    S = (S + outer(r, k)) * alpha\n")),
    wrong(rule, "one decay for all channels", ("S * alpha", "S * alpha[0]")),
    wrong(rule, "the erase gate left out", (_R, "r = v * write - S @ k")),
    wrong(rule, "the write gate left out", (_R, "r = v - S @ (k * erase)")),
    wrong(rule, "the write gate on the residual", (_R, "r = (v - S @ (k * erase)) * write")),
    wrong(
        rule, "the erase gate on the written key", (_R, "r = v * write - S @ k"), ("outer(r, k)", "outer(r, k * erase)")
    ),
    wrong(rule, "the erase gate on both keys", ("outer(r, k)", "outer(r, k * erase)")),
    wrong(rule, "the first channel's erase gate for all", ("k * erase", "k * erase[0]")),
    wrong(rule, "the query reads through the erase gate", ("S @ q", "S @ (q * erase)")),
    wrong(rule, "reads out before the write", (_WRITE + "    return S, S @ q", "    return S + outer(r, k), S @ q")),
    _SWAPPED,
)
# with equal gates these are right, or the claim does not look
_NOT_IN_KDA = ("the write gate on the residual", "the first channel's erase gate for all", "the gates swapped")

_form = lambda name, *patches, **extra: wrong(chunk_form, name, *patches, **extra)
_A = "A = tril(decayed_scores(K * erase, K, alpha), -1)"
_U, _W, _E = "U = R @ (V * write)", "W = R @ (K_in * erase)", "E = U - W @ S.T"
CHUNK_MUTANTS = (
    _form("A takes the erase gate of the writer", (_A, _A.replace("K * erase, K", "K, K * erase"))),
    _form("A without the erase gate", (_A, _A.replace("K * erase", "K"))),
    _form("A has the write gate too", (_A, _A.replace("K * erase", "K * erase * write[:, :1]"))),
    _form("W without the erase gate", (_W, "W = R @ K_in")),
    _form("the erase gate behind the solve", (_W, "W = (R @ K_in) * erase")),
    _form("the write gate behind the solve", (_U, "U = (R @ V) * write")),
    _form("the write gate on the residual", (_U, "U = R @ V"), (_E, "E = (U - W @ S.T) * write")),
    _form("the written key carries the erase gate", ("K_g = K *", "K_g = K * erase *")),
    _form("the queries see gated keys", ("M = decayed_scores(Q, K, alpha)", "M = decayed_scores(Q, K * erase, alpha)")),
    _form("E drops the old state", (_E, "E = U")),
    Mutant("the gates swapped", lambda S, Q, K, V, alpha, b, w: chunk_form(S, Q, K, V, alpha, w, b)),
)

_back = lambda name, *patches, **extra: wrong(adjoint, name, *patches, **extra)
_GATED = "gated = read * expG + decayed_rows(dA, K, alpha)"
_COL = "decayed_columns(dA, K * erase, alpha)"
_OUT = "Z * write, dg, gated * K, Z * V, dS0"
BACKWARD_MUTANTS = (
    _back(
        "derase without the path through A",
        (_GATED, "gated = read * expG"),
        ("gated * erase", "(gated + decayed_rows(dA, K, alpha)) * erase"),
    ),
    _back("derase without the old state", (_OUT, _OUT.replace("gated * K", "decayed_rows(dA, K, alpha) * K"))),
    _back("derase with the gate itself", (_OUT, _OUT.replace("gated * K", "K_row * K"))),
    _back("derase from the written key", (_OUT, _OUT.replace("gated * K", "K_col * K"))),
    _back("dwrite from the residual, as beta's", (_OUT, _OUT.replace("Z * V", "Z * (V - terms.K_in @ S.T)"))),
    _back("dwrite is not solved", (_OUT, _OUT.replace("Z * V", "dE * V"))),
    _back("dV without the write gate", (_OUT, _OUT.replace("Z * write", "Z"))),
    _back("K_row without the erase gate", ("K_row = gated * erase", "K_row = gated")),
    _back("K_col with the gate of the writer", (_COL, "decayed_columns(dA, K, alpha) * erase")),
    _back("K_col without the erase gate", (_COL, "decayed_columns(dA, K, alpha)")),
    _back("dS_0 without the erase gate", ("Z.T @ (terms.K_in * erase)", "Z.T @ terms.K_in")),
    _back("dS_0 through the write gate", ("Z.T @ (terms.K_in * erase)", "(Z * write).T @ (terms.K_in * erase)")),
    _back("dG adds both parts of the key", ("K * (K_row - K_col)", "K * (K_row + K_col)")),
    _back("dG with the ungated part", ("K * (K_row - K_col)", "K * (gated - K_col)")),
)

GROWTH = (step_polynomial, pair_polynomial)
_step = lambda name, *patches: Mutant(name, (variant(step_polynomial, *patches), pair_polynomial))
_pair = lambda name, *patches: Mutant(name, (step_polynomial, variant(pair_polynomial, *patches)))
GROWTH_MUTANTS = (
    _step("symmetric, as KDA's: never beyond 1", ("(2 - p * 2 + n)", "(1 + (1 - p) ** 2)")),
    _step("the gate once in both", ("b * b * c * c", "b * c * c")),
    _step("the determinant once", ("(1 - p) ** 2)", "(1 - p))")),
    _step("a stretch of 1 more", ("(len(k) - 2)", "(len(k) - 1)")),
    _pair("both gates erase: no growth", ("c2 * (3 - c2)", "c2 * (2 - c2)")),
    _pair("one decay of c^2 a pair", ("+ c2 * c2", "+ c2")),
    _pair("the pair turned round", ("x * x - x", "x * x + x")),
)

# mistakes of KDA can be made here too: the mutants stand beside the functions that they change, there and here
EQUATIONS = [
    polynomial(
        "gdn2-recurrence",
        "Gated DeltaNet-2: decay each channel, read with the gated key, write the gated value less what was read.",
        GDN2,
        shapes=SHAPES,
        claim=token_by_token(by_entries, "q", "k", "v", "alpha", "erase", "write"),
        subject=rule,
        ring=[{"C": 3, "K": 2, "V": 2}, {"C": 2, "K": 3, "V": 2}],
        field_sizes=[{"C": 24, "K": 5, "V": 3}],
        real=REAL,
        mutants=RULE_MUTANTS,
    ),
    polynomial(
        "gdn2-forms",
        "Four ways to write one step of Gated DeltaNet-2 are the same step; it is diagonal plus rank one.",
        GDN2,
        shapes="S:V,K k:K v:V alpha:K=decay erase:K=gate write:V=gate",
        claim=claim_forms,
        subject=forms,
        ring=[{"K": 3, "V": 2}],
        field_sizes=[{"K": 16, "V": 4}],
        real=[{"K": 4, "V": 3}],
        mutants=[
            wrong(
                forms,
                "the factors of T swapped",
                ("S @ D @ (affine.eye(k) - rules.outer(gated, k))", "S @ (affine.eye(k) - rules.outer(gated, k)) @ D"),
            ),
            wrong(forms, "the erase gate on the written key", ("rules.outer(gated, k))", "rules.outer(k, gated))")),
            wrong(
                forms,
                "the erase row decays, not the erase column",
                ("rules.outer(alpha * gated, k)", "rules.outer(gated, alpha * k)"),
            ),
            wrong(forms, "erases what the undecayed state returns", ("S @ (alpha * gated)", "S @ gated")),
            wrong(forms, "DPLR reads the decayed state", ("-(alpha * gated)", "-gated")),
            wrong(forms, "the erase gate left out", ("gated = k * erase", "gated = k")),
            wrong(forms, "the write gate left out", ("H = rules.outer(v * write, k)", "H = rules.outer(v, k)")),
        ],
    ),
    polynomial(
        "gdn2-kda",
        "With both gates equal to beta Gated DeltaNet-2 is KDA, and with one decay besides Gated DeltaNet.",
        GDN2,
        shapes="S:V,K q:C,K k:C,K v:C,V alpha:C,K=decay beta:C=gate",
        claim=claim_kda,
        subject=rule,
        ring=[{"C": 2, "K": 2, "V": 2}],
        real=REAL,
        mutants=[m for m in RULE_MUTANTS if m.name not in _NOT_IN_KDA],
    ),
    polynomial(
        "gdn2-chunk",
        "With A = tril(Gamma(b . K, K), -1), U = R (w . V) and W = R (b . K_in) the chunk form of KDA is the loop.",
        GDN2,
        shapes=SHAPES,
        claim=claim_chunk,
        subject=chunk_form,
        ring=[{"C": 3, "K": 2, "V": 2}, {"C": 4, "K": 2, "V": 1}],
        field_sizes=[{"C": 16, "K": 8, "V": 4}],
        real=[{"C": 7, "K": 3, "V": 3}, {"C": 7, "K": 4, "V": 3}, {"C": 33, "K": 5, "V": 3}],
        mutants=CHUNK_MUTANTS,
    ),
    polynomial(
        "gdn2-backward",
        "The adjoint of a chunk of Gated DeltaNet-2: the gated key has one gradient, which its gate and its key share.",
        GDN2 + "; the adjoint is derived here",
        shapes=SHAPES + " dO:C,V dS:V,K hS:V,K hK:C,K hV:C,V",
        claim=claim_backward,
        subject=adjoint,
        ring=[{"C": 3, "K": 2, "V": 1}],
        field_sizes=[{"C": 12, "K": 3, "V": 2}],
        real=[{"C": 5, "K": 4, "V": 3}, {"C": 4, "K": 4, "V": 4}],
        tolerance=1e-12,
        mutants=BACKWARD_MUTANTS,
    ),
    Equation(
        "gdn2-growth",
        "Unit keys, erase gates in 0..1, no decay: a step of Gated DeltaNet-2 stretches a state by up to 2/sqrt(3), "
        "and two in turn can grow it by 5/4 each time.",
        "derived here",
        "proved",
        Check("calculus", "K=2, 3", prove_growth),
        Check("float64", "K=2..5, 400 draws; 60 pairs of tokens", check_growth),
        GROWTH,
        GROWTH_MUTANTS,
    ),
]

"""How much a matrix can hold: interference of added values, what a delta rule keeps, and the floor below every state.

The expectations are proved as averages over finite sets of keys with E[k k^T] = I / K (the K axes), where they are
exact fractions, and checked on uniform unit keys. They use no more of the keys than that moment, so one stands for the
other.
Values are unrelated throughout: of mean zero and squared length one on average, independent of the keys and of each
other.
"""

import dataclasses
import itertools
from fractions import Fraction

import numpy as np
import sympy
import torch

from kda_lab import rules
from kda_lab.proof.equations.common import require
from kda_lab.proof.registry import Check, Equation, Mutant, polynomial, wrong
from kda_lab.study import capacity

FOLLOWS = "first and second moments of random keys"
SCHLAG = "Schlag et al. (2021), section 4.1, on capacity"
KACZMARZ = "Kaczmarz (1937)"
GAUSS = "least squares: the trace of a projection"


def axes(K):
    """The K unit keys along the axes, exact: their average k k^T is I / K.   returns [K, K]."""
    return np.array([[Fraction(int(r == c)) for c in range(K)] for r in range(K)], dtype=object)


def expect(values, wanted, what):
    """Raise unless the mean of independent draws lies within four of its standard errors, which one right claim in
    16,000 exceeds, and the standard error is below 1.5 % of the claim, so that a wrong one shows."""
    spread = values.std().item() / len(values) ** 0.5
    require(spread < 0.015 * float(wanted), f"{what}: too few draws, the standard error is {spread:.2g}")
    off = abs(values.mean().item() - float(wanted))
    require(off < 4 * spread, f"{what}: {values.mean().item():.4f}, expected {float(wanted):.4f}")


def claim_additive(x, error):
    """One pair with any key k, and all choices of n - 1 further keys among the axes and of their values among 1 and
    -1.
    """
    K = len(x.k)
    for n in (1, 2, 3):
        total, count = x.v * 0, 0
        others = [(c, sign) for c in range(K) for sign in (1, -1)]
        for chosen in itertools.product(others, repeat=n - 1):
            S, _ = rules.linear(x.S * 0, x.k, x.k, x.v)
            for c, sign in chosen:
                S, _ = rules.linear(S, x.k, unit(x.k, c), x.v * 0 + sign)
            off = S @ x.k - x.v * (x.k @ x.k)  # what the others add to the answer of k
            total, count = total + off * off, count + 1
        share = Fraction(error(n, K))
        yield total * share.denominator, (x.v * 0 + 1) * (x.k @ x.k) * (share.numerator * count)


def unit(like, c):
    """The key along axis c, in the number system of ``like``."""
    e = like * 0
    e[c] = e[c] + 1
    return e


def check_additive(error):
    """Uniform unit keys, linear attention: the mean error of all pairs."""
    generator = torch.Generator().manual_seed(0)
    for n, K in ((9, 8), (33, 16)):
        means = []
        for _ in range(600):
            keys, values = capacity.random_keys(n, K, generator), capacity.random_values(n, 16, generator)
            means.append(capacity.recall_errors(values.T @ keys, keys, values).mean())
        expect(torch.stack(means), error(n, K), f"n = {n}, K = {K}")


def prove_cone(overlap):
    """All choices of two and three keys of a cone whose edges lie above the axes: rational unit keys, exact
    averages.
    """
    for a, b, c in ((3, 4, 5), (5, 12, 13)):
        for K in (2, 3, 4):
            rho, fan = Fraction(a, c) ** 2, axes(K - 1)
            # both signs: then the average of z is zero
            z = np.concatenate([fan, -fan])
            keys = np.concatenate([np.full((len(z), 1), Fraction(a, c)), z * Fraction(b, c)], 1)
            dots = [k @ other for k in keys for other in keys]
            mean, square = overlap(rho, K)
            require(sum(dots) / Fraction(len(dots)) == mean, f"the mean at rho = {rho}, K = {K}")
            require(
                sum(d * d for d in dots) / Fraction(len(dots)) == square, f"the mean square at rho = {rho}, K = {K}"
            )
            # values 2 and 7 under two keys: the first reads 2 and the fraction rho of 7, on average
            reads = [
                rules.linear(rules.linear(axes(K)[:1] * 0, k, k, np.array([2]))[0], k, o, np.array([7]))[1][0]
                for k in keys
                for o in keys
            ]
            require(sum(reads) / Fraction(len(reads)) == 2 + 7 * mean, f"the answer at rho = {rho}, K = {K}")


def check_cone(overlap):
    generator = torch.Generator().manual_seed(1)
    for rho, K in ((0.2, 8), (0.5, 16)):
        pairs = capacity.cone_keys(20000, K, rho, generator).unflatten(0, (-1, 2))
        dots = (pairs[:, 0] * pairs[:, 1]).sum(-1)
        require((pairs.norm(dim=-1) - 1).abs().max() < 1e-12, "keys of a cone have length one")
        for values, wanted in zip((dots, dots.square()), overlap(rho, K)):
            expect(values, wanted, f"rho = {rho}, K = {K}")


def prove_retention(retained):
    """The product of transitions, averaged over all choices of later keys among the axes, is a multiple of I."""
    for K, later in ((2, 1), (2, 3), (3, 2), (4, 1), (3, 0)):
        for alpha, beta in ((1, 1), (1, Fraction(1, 2)), (Fraction(3, 4), 2), (Fraction(1, 3), 1)):
            total, nothing = axes(K) * 0, axes(K)[0] * 0
            for chosen in itertools.product(axes(K), repeat=later):
                S = axes(K)
                for k in chosen:
                    S, _ = rules.gated_delta(S, k, k, nothing, alpha, beta)
                total = total + S
            same = total == axes(K) * (retained(later, K, beta=beta, alpha=alpha) * K**later)
            require(same.all(), f"K = {K}, {later} later keys, alpha = {alpha}, beta = {beta}")


def check_retention(retained):
    """Uniform keys: the value 1 under k, and what k reads after further writes of zero."""
    generator = torch.Generator().manual_seed(2)
    for K, later, alpha, beta in ((8, 6, 1.0, 1.0), (16, 10, 0.9, 0.7)):
        keys = capacity.random_keys(8000 * (later + 1), K, generator).unflatten(0, (8000, later + 1))
        w = keys[:, 0]
        for t in range(1, later + 1):
            k = keys[:, t]
            w = alpha * (w - beta * k * (k * w).sum(-1, keepdim=True))
        expect(
            (w * keys[:, 0]).sum(-1),
            retained(later, K, beta=Fraction(beta), alpha=Fraction(alpha)),
            f"K = {K}, {later} later",
        )


def claim_energy(x, read_weights):
    S, _ = rules.scan(rules.delta, x.S, x.k, x.k, x.v, [1] * len(x.k))
    weights, rest = read_weights(x.k, x.q)
    yield S @ x.q, x.S @ rest + sum(v * c for v, c in zip(x.v, weights))
    # for unit keys: the squared weights and the squared rest add up to the squared query
    yield sum(c * c * (2 - k @ k) for k, c in zip(x.k, weights)), x.q @ x.q - rest @ rest


def one_pass_error(i, n, K):
    """Bounds of the expected error of pair i = 1..n after one pass of the delta rule, beta = 1, from the state zero.

    >>> one_pass_error(1, 1, 4), one_pass_error(1, 2, 4)
    ((Fraction(0, 1), Fraction(0, 1)), (Fraction(5, 16), Fraction(1, 2)))
    """
    kept = capacity.retained(n - i, K)
    high = 2 * (1 - kept)
    return high - capacity.retained(i - 1, K) * kept * (1 - kept), high


def check_one_pass(bounds):
    """Uniform keys: the error of every pair lies between the bounds, and for pairs behind many others on the upper
    one.
    """
    generator = torch.Generator().manual_seed(3)
    K, draws = 8, 2000
    for n in (10, 24):
        keys = capacity.random_keys(n * draws, K, generator).unflatten(0, (draws, n))
        values = capacity.random_values(n * draws, 8, generator).unflatten(0, (draws, n))
        S = torch.zeros(draws, 8, K, dtype=torch.float64)
        for t in range(n):
            k, v = keys[:, t], values[:, t]
            S = S + (v - (S @ k[..., None])[..., 0])[..., None] * k[:, None]
        errors = (keys @ S.mT - values).square().sum(-1)  # [draws, n]
        for i in range(1, n + 1):
            low, high = map(float, bounds(i, n, K))
            mean, spread = errors[:, i - 1].mean().item(), errors[:, i - 1].std().item() / draws**0.5
            require(
                low - 4 * spread <= mean + 1e-12 and mean <= high + 4 * spread + 1e-12,
                f"pair {i} of {n}: {mean:.3f}, bounds {low:.3f} and {high:.3f}",
            )
            if i > 2 * K:
                require(high - low < 0.05, f"pair {i}: the bounds {low:.3f} and {high:.3f} lie apart")


def residual(keys, values):
    """Sum of squares that least squares leaves, exact.   keys: [n, K] of rank K   values: [n]."""
    A, b = sympy.Matrix(keys), sympy.Matrix(values)
    left = b - A * (A.T * A).inv() * A.T * b
    return (left.T * left)[0]


def prove_floor(floor):
    """Integer keys of full rank, all choices of values 1 and -1: the average of what least squares leaves, in
    fractions.

    The floor is one of averages, and for unrelated values: a constant value under keys of a cone leaves nothing.
    """
    rng = np.random.default_rng(0)
    for n, K in ((2, 1), (3, 2), (4, 2), (5, 2), (2, 2), (4, 3)):
        keys = rng.integers(-3, 4, (n, K))
        while sympy.Matrix(keys).rank() < K:
            keys = rng.integers(-3, 4, (n, K))
        total = sum(residual(keys.tolist(), list(signs)) for signs in itertools.product((1, -1), repeat=n))
        require(Fraction(int(total.p), int(total.q)) == floor(n, K) * n * 2**n, f"n = {n}, K = {K}")
    require(floor(3, 5) == 0, "as many independent keys as there are dims leave no error")


def check_floor(floor):
    """Least squares meets the floor on average, and no rule's state lies below least squares on any draw."""
    generator = torch.Generator().manual_seed(4)
    for n, K in ((24, 8), (40, 16)):
        means = []
        for _ in range(60):
            keys, values = capacity.random_keys(n, K, generator), capacity.random_values(n, 16, generator)
            best = capacity.recall_errors(capacity.least_squares(keys, values), keys, values).mean()
            means.append(best)
            delta = (
                capacity.write(lambda S, k, v: rules.delta(S, k, k, v, 1.0)[0], keys, values)
                if len(means) < 10
                else None
            )
            for S in (values.T @ keys, delta):
                require(
                    S is None or capacity.recall_errors(S, keys, values).mean() >= best, "a state beat least squares"
                )
        expect(torch.stack(means), floor(n, K), f"n = {n}, K = {K}")


def claim_passes(x, after_pass):
    """X answers every key exactly with the values; a pass over them turns S - X into what the subject says."""
    values = [x.X @ k for k in x.k]
    S = x.S
    for k, v in zip(x.k, values):
        S, _ = rules.delta(S, k, k, v, x.beta)
    yield S - x.X, after_pass(x.S - x.X, x.k, x.beta)
    # a state that answers all keys stays as it is
    yield after_pass(x.X - x.X, x.k, x.beta), x.X - x.X


def check_passes(after_pass):
    """Independent unit keys, n <= K, beta = 1: each pass brings the state nearer, and the errors fall to rounding."""
    generator = torch.Generator().manual_seed(5)
    keys, values = capacity.random_keys(12, 16, generator), capacity.random_values(12, 4, generator)
    X = capacity.least_squares(keys, values)
    D, before = -X, X.norm()
    for _ in range(400):
        D = after_pass(D, keys, 1.0)
        require(D.norm() <= before * (1 + 1e-12), "a pass led away")
        before = D.norm()
    # the slowest direction of these twelve keys loses 8 % a pass
    require(capacity.recall_errors(X + D, keys, values).max() < 1e-20, "400 passes were expected to reach rounding")


def numeric(equation, sizes, check):
    """The equation with this check on uniform keys as its second leg."""
    return dataclasses.replace(equation, numeric=Check("float64", sizes, check))


EQUATIONS = [
    numeric(
        polynomial(
            "additive-interference",
            "Adding n unrelated values under independent unit keys with E[k k^T] = I / K gives each answer the "
            "expected error (n - 1) / K.",
            SCHLAG,
            shapes="k:K v:V S:V,K",
            claim=claim_additive,
            subject=capacity.additive_error,
            ring=[{"K": 2, "V": 1}, {"K": 3, "V": 1}],
            mutants=[
                Mutant("n / K", lambda n, K: Fraction(n, K)),
                Mutant("n - 1 over K - 1", lambda n, K: Fraction(n - 1, K - 1)),
                Mutant("a length, not a square", lambda n, K: Fraction(n - 1, K * K)),
            ],
        ),
        "n, K = 9, 8; 33, 16; 600 draws",
        check_additive,
    ),
    Equation(
        "cone-interference",
        "Keys of expected cosine rho read the fraction rho of every other value, and the square (1 - rho)^2 / (K - "
        "1) + rho^2 as noise.",
        FOLLOWS,
        "proved",
        Check("fractions", "K = 2, 3, 4; rho = 9/25, 25/169", prove_cone),
        Check("float64", "10,000 pairs", check_cone),
        capacity.cone_overlap,
        (
            Mutant("no bias", lambda rho, K: (rho * 0, rho**2 + (1 - rho) ** 2 / (K - 1))),
            wrong(capacity.cone_overlap, "K dims around the axis", ("(K - 1)", "K")),
            wrong(capacity.cone_overlap, "the square of the mean alone", (" + (1 - rho) ** 2 / (K - 1)", "")),
        ),
    ),
    Equation(
        "delta-retention",
        "After m more writes with fixed alpha, beta under independent keys with E[k k^T] = I / K, any key reads on "
        "average (alpha (1 - beta / K))^m of what it read.",
        FOLLOWS,
        "proved",
        Check("fractions", "K = 2, 3, 4; up to 3 later keys", prove_retention),
        Check("float64", "8,000 draws", check_retention),
        capacity.retained,
        (
            wrong(capacity.retained, "the gate forgotten", ("Fraction(1, K) * beta", "Fraction(1, K)")),
            wrong(
                capacity.retained,
                "decay once",
                ("(alpha * (1 - Fraction(1, K) * beta)) ** later", "alpha * (1 - Fraction(1, K) * beta) ** later"),
            ),
            wrong(capacity.retained, "K squared", ("Fraction(1, K)", "Fraction(1, K * K)")),
        ),
    ),
    polynomial(
        "delta-energy",
        "DeltaNet's answer is a weighted sum of the values; for unit keys the squared weights and the squared rest "
        "add up to the squared query.",
        FOLLOWS,
        shapes="k:C,K v:C,V S:V,K q:K",
        claim=claim_energy,
        subject=capacity.read_weights,
        ring=[{"C": 3, "K": 2, "V": 1}, {"C": 2, "K": 3, "V": 2}],
        field_sizes=[{"C": 8, "K": 4, "V": 3}],
        mutants=[
            wrong(capacity.read_weights, "from the first key", ("reversed(range(len(keys)))", "range(len(keys))")),
            wrong(capacity.read_weights, "linear attention's weights", ("w = w - keys[t] * c", "pass")),
            wrong(capacity.read_weights, "the sign", ("w - keys[t] * c", "w + keys[t] * c")),
            wrong(capacity.read_weights, "in the order of reading", ("weights.insert(0, c)", "weights.append(c)")),
        ],
    ),
    Equation(
        "delta-error",
        "One pass of the delta rule, beta = 1, over random unit keys and unrelated values: a pair with m later ones "
        "has an expected error of 2 - 2 (1 - 1/K)^m, or less if few came before it.",
        "follows from delta-energy and delta-retention",
        "checked",
        Check("float64", "K = 8, n = 10, 24; 2,000 draws", check_one_pass),
        None,
        one_pass_error,
        (
            Mutant("one, not two", lambda i, n, K: tuple(x / 2 for x in one_pass_error(i, n, K))),
            wrong(
                one_pass_error,
                "no credit for few before",
                ("high - capacity.retained(i - 1, K) * kept * (1 - kept)", "high"),
            ),
            wrong(one_pass_error, "pairs counted from the end", ("n - i", "i - 1")),
        ),
    ),
    Equation(
        "capacity-floor",
        "Over n pairs with values of mean zero and mean square one, unrelated to the keys and each other, the least "
        "mean error of a state is on average 1 - K / n.",
        GAUSS,
        "proved",
        Check("fractions", "n = 2 to 5, K = 1 to 3, all signs", prove_floor),
        Check("float64", "n, K = 24, 8; 40, 16; 60 draws", check_floor),
        capacity.floor,
        (
            wrong(capacity.floor, "one dim more", ("Fraction(K, n)", "Fraction(K + 1, n)")),
            wrong(capacity.floor, "squared", ("1 - Fraction(K, n)", "(1 - Fraction(K, n)) ** 2")),
            wrong(capacity.floor, "as additive", ("1 - Fraction(K, n)", "Fraction(n - 1, K)")),
        ),
    ),
    numeric(
        polynomial(
            "passes-error",
            "If some state answers every key, a pass of the delta rule multiplies the distance to it by the "
            "transitions; nothing else happens.",
            KACZMARZ,
            shapes="S:V,K X:V,K k:C,K beta=gate",
            claim=claim_passes,
            subject=capacity.after_pass,
            ring=[{"C": 2, "K": 2, "V": 1}, {"C": 2, "K": 3, "V": 1}],
            field_sizes=[{"C": 6, "K": 4, "V": 3}],
            mutants=[
                wrong(capacity.after_pass, "keys in reverse", ("for k in keys", "for k in list(keys)[::-1]")),
                Mutant("all from the start", lambda D, keys, beta: D - sum(rules.outer(D @ k, k) * beta for k in keys)),
                wrong(capacity.after_pass, "gate one", (" * beta", "")),
            ],
        ),
        "n = 12, K = 16, 400 passes",
        check_passes,
    ),
]

"""The delta rule over many tokens: how far the state can grow, and a product of transitions as one small matrix."""

import torch

from kda_lab import rules
from kda_lab.algebra import affine, chunk
from kda_lab.proof.engines import Ring, run_claim, stack
from kda_lab.proof.equations.common import agree, normal, require
from kda_lab.proof.equations.rules.delta import DELTA
from kda_lab.proof.registry import Check, Equation, Mutant, polynomial, variant
from kda_lab.proof.words import same_words, scalars, words


def write_across(S):
    """A key at right angles to what the state of one value row holds (K = 2).   S: [1, 2]   returns [2].

    >>> import numpy as np
    >>> write_across(np.array([[3, 4]])).astype(int).tolist()
    [-4, 3]
    """
    return stack([-S[0, 1], S[0, 0]])


def claim_pythagoras(x, choose):
    """One step with such a key, beta = 1: |s_t|^2 = |s|^2 + v^2 |k|^2, since nothing is erased."""
    k = choose(x.S)
    S, _ = rules.delta(x.S, k, k, x.v, 1)
    yield (S * S).sum(), (x.S * x.S).sum() + x.v[0] * x.v[0] * (k @ k)


def prove_growth(choose):
    run_claim(Ring(), "S:V,K v:V", {"V": 1, "K": 2}, claim_pythagoras, choose)


def check_growth(choose):
    """Unit keys, unit values, beta = 1, no decay: after t writes |s|^2 = t. Every transition is a contraction."""
    S = torch.tensor([[0.6, 0.8]], dtype=torch.float64)
    for t in range(2, 200):
        k = choose(S)
        k = k / k.norm()
        S, _ = rules.delta(S, k, k, torch.ones(1, dtype=torch.float64), 1.0)
        # 200 roundings
        agree(S.square().sum(), torch.tensor(float(t), dtype=torch.float64), f"after {t} writes", tolerance=1e-11)
        require(torch.linalg.matrix_norm(affine.transition(k, 1.0, 1.0), 2) <= 1 + 1e-12, "a transition expands")


def state_bound(S, k, v, alpha, beta):
    """|S_t| <= a^t |S_0| + max(beta |v| |k|) / (1 - a), with a the largest decay factor, below 1.   Implements
    state-bound.

    S: [V, K]   k, alpha: [T, K]   v: [T, V]   beta: [T]   returns a scalar.

    >>> one = torch.ones(2, 1)
    >>> state_bound(torch.ones(1, 1), one, one, one / 2, torch.ones(2)).item()     # 1/4 + 1 / (1 - 1/2)
    2.25
    """
    a, write = alpha.max(), (beta * v.norm(dim=-1) * k.norm(dim=-1)).max()
    return a ** len(k) * torch.linalg.matrix_norm(S, 2) + write / (1 - a)


def check_state_bound(bound):
    """Random tokens, and the worst ones: beta |k|^2 = 2 along the slowest channel, values that turn with the state."""
    T = 60
    slow = torch.tensor([0.95, 0.1, 0.1], dtype=torch.float64).expand(T, 3)
    fixed = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64).expand(T, 3)
    turning = torch.tensor([(-1.0) ** t for t in range(T)], dtype=torch.float64)[:, None]
    worst = fixed, turning, slow, torch.full((T,), 2.0, dtype=torch.float64)
    random = (
        normal(T, 3, seed=6),
        normal(T, 2, seed=7),
        0.9 * torch.sigmoid(normal(T, 3, seed=8)),
        normal(T, seed=9).abs(),
    )
    random = (*random[:3], random[3].clamp(max=2 / random[0].square().sum(-1)))
    for name, (k, v, alpha, beta), scale in (
        ("worst", worst, 0.0),
        ("random", random, 1.0),
        ("old state alone", worst, 1e3),
    ):
        S = normal(v.shape[1], 3, seed=10) * scale
        for n in (1, 5, T):
            last, _ = rules.scan(rules.kda, S, k[:n], k[:n], v[:n], alpha[:n], beta[:n])
            size, allowed = torch.linalg.matrix_norm(last, 2), bound(S, k[:n], v[:n], alpha[:n], beta[:n])
            require(size <= allowed * (1 + 1e-12), f"{name}: norm {size:.3g} above {allowed:.3g} after {n} tokens")
            if name == "worst" and n == T:
                require(size > 0.9 * allowed, f"the worst case reaches {size:.3g} of {allowed:.3g} only")


def wy_factor(K, beta):
    """W = (I + tril(B K K^T, -1))^-1 B K: the product of I - beta_t k_t k_t^T is I - W^T K.   Implements wy-form.

    K: [C, K]   beta: [C]   returns [C, K].

    >>> import numpy as np
    >>> wy_factor(np.array([[1, 0], [1, 1]]), np.array([1, 1]))
    array([[1, 0],
           [0, 1]])
    """
    empty = K[:1] * 0
    return chunk.delta(empty, K, K, K[:, :1] * 0, beta).W


def claim_wy(x, factor):
    product = affine.eye(x.k[0])
    for k, beta in zip(x.k, x.beta):
        product = product @ (affine.eye(k) - rules.outer(k, k) * beta)
    yield affine.eye(x.k[0]) - factor(x.k, x.beta).T @ x.k, product


def wy_step(sign):
    """(I - W^T K)(I - beta k k^T) = I - W^T K - w k^T with w = beta (k - W^T K k)."""
    Wt, K, k, kt = words("Wt K k kt")
    (beta,) = scalars("beta")
    old = 1 - Wt * K
    w = beta * (k + sign * Wt * K * k)
    same_words(old - beta * old * k * kt, 1 - Wt * K - w * kt)


EQUATIONS = [
    Equation(
        "unbounded-growth",
        "Contracting transitions do not bound the state: writes at right angles to it give |s_t|^2 = t.",
        "follows from delta-recurrence",
        "proved",
        Check("ring", "one step, V=1 K=2", prove_growth),
        Check("float64", "200 writes", check_growth),
        write_across,
        (
            Mutant("the key that the state holds", lambda S: S[0] * 1),
            Mutant("a fixed key", lambda S: stack([S[0, 0] * 0 + 1, S[0, 0] * 0])),
            Mutant("mirrored instead of turned", lambda S: stack([S[0, 1], S[0, 0]])),
        ),
    ),
    Equation(
        "state-bound",
        "With decay factors at most a < 1, |S_t| <= a^t |S_0| + max(beta |v| |k|)/(1 - a).",
        "follows from transition-norm",
        "checked",
        Check("float64", "60 tokens, random and worst case", check_state_bound),
        None,
        state_bound,
        (
            Mutant("the mean decay", lambda S, k, v, alpha, beta: state_bound(S, k, v, alpha.mean()[None], beta)),
            Mutant("forgets S_0", lambda S, k, v, alpha, beta: state_bound(S * 0, k, v, alpha, beta)),
            Mutant(
                "one write",
                lambda S, k, v, alpha, beta: (
                    state_bound(S, k, v, alpha, beta) - state_bound(S * 0, k, v, alpha, beta) * alpha.max()
                ),
            ),
            Mutant("beta left out", lambda S, k, v, alpha, beta: state_bound(S, k, v, alpha, beta.clamp(max=1.0))),
        ),
    ),
    polynomial(
        "wy-form",
        "A product of I - beta k k^T is I - W^T K: one thin correction for any number of tokens.",
        "Bischof and Van Loan (1987); Yang et al. (2024)",
        shapes="k:C,K beta:C=gate",
        claim=claim_wy,
        subject=wy_factor,
        ring=[{"C": 3, "K": 2}, {"C": 4, "K": 2}],
        field_sizes=[{"C": 32, "K": 6}],
        real=[{"C": 9, "K": 4}],
        mutants=[
            Mutant("not solved: W = B K", lambda K, beta: K * beta[:, None]),
            Mutant(
                "first order of the solve",
                lambda K, beta: K * beta[:, None] - chunk.tril(K @ K.T, -1) * beta[:, None] @ (K * beta[:, None]),
            ),
            Mutant(
                "the wrong sign in the solve",
                variant(
                    wy_factor,
                    ("chunk.delta(", "minus("),
                    minus=variant(chunk.delta, ("substitution(A)", "substitution(-A)")),
                ),
            ),
            Mutant(
                "descending order", lambda K, beta: stack([*wy_factor(stack([*K][::-1]), stack([*beta][::-1]))][::-1])
            ),
        ],
    ),
    Equation(
        "wy-form-step",
        "If I - W^T K is the product for C tokens, the same form holds for C + 1.",
        DELTA,
        "proved",
        Check("words", "one more token, all sizes", wy_step),
        None,
        -1,
        (Mutant("the sign of the correction", +1),),
    ),
]

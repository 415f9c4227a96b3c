"""The unit triangular inverse: four ways to it, and how large its entries can be."""

import torch

from kda_lab.algebra import affine, chunk, triangular
from kda_lab.proof.equations.common import lower_unit, require
from kda_lab.proof.registry import Check, Equation, Mutant, polynomial, variant

KIMI = "Kimi Linear (2025), section 3"
DELTA = "Yang et al. (2024), Parallelizing linear transformers with the delta rule"
SQUARE = "a:C,C"
SIZES = [{"C": 3}, {"C": 4}]


def claim_unit_inverse(x, inverse):
    A = chunk.tril(x.a, -1)
    R = inverse(A)
    identity = affine.eye(x.a[0])
    yield lower_unit(A) @ R, identity
    yield R @ lower_unit(A), identity


def claim_grows_by_row(x, inverse):
    A = chunk.tril(x.a, -1)
    R, shorter, n = inverse(A), inverse(A[:-1, :-1]), len(A) - 1
    yield R[:n, :n], shorter
    yield R[n, :n], -(A[n, :n] @ shorter)
    yield R[n, n], x.a[0, 0] * 0 + 1
    # what stands on the diagonal and above it is not read
    yield inverse(x.a), R


def claim_blocks(x, inverse):
    yield from claim_unit_inverse(x, inverse)
    # nor by blocks
    yield inverse(x.a), inverse(chunk.tril(x.a, -1))


def claim_merge(x, merge):
    A1, A2 = chunk.tril(x.a, -1), chunk.tril(x.c, -1)
    R1, R2 = triangular.substitution(A1), triangular.substitution(A2)
    # [[L1, 0], [B, L2]] times its inverse: the lower left block vanishes
    yield lower_unit(A2) @ merge(R1, x.b, R2), -(x.b @ R1)


def check_inverse_bound(bound):
    """Random, equal and opposite keys; gates at 1 and below; beta |k|^2 up to 2, where the bound is attained."""
    generator = torch.Generator().manual_seed(4)
    C, K = 32, 3
    for trial in range(60):
        k = torch.nn.functional.normalize(torch.randn(C, K, generator=generator, dtype=torch.float64), dim=-1)
        if trial % 3 == 0:
            k = k[:1] * torch.sign(torch.randn(C, 1, generator=generator, dtype=torch.float64))
        k = k * torch.rand(C, 1, generator=generator, dtype=torch.float64).add(0.3)
        beta = (
            2
            * torch.rand(C, generator=generator, dtype=torch.float64) ** (0.2 if trial % 2 else 2)
            / k.square().sum(-1)
        )
        alpha = torch.rand(C, K, generator=generator, dtype=torch.float64) ** (0 if trial % 4 == 0 else 0.1)
        R = chunk.kda(torch.zeros(1, K, dtype=torch.float64), k, k, k[:, :1], alpha, beta).R
        excess = (R.tril(-1).abs() - bound(beta, k)).max().item()
        require(excess <= 1e-9, f"trial {trial}: an entry of R exceeds the bound by {excess:.2g}")


def check_inverse_bound_is_about_the_inverse(bound):
    """Outside beta |k|^2 <= 2 the entries grow without it: the condition is needed. Inside, some entry comes close."""
    check_inverse_bound(bound)
    k = torch.ones(12, 1, dtype=torch.float64)
    one = torch.ones(12, 1, dtype=torch.float64)
    tight = chunk.kda(torch.zeros(1, 1, dtype=torch.float64), k, k, k, one, torch.full((12,), 2.0, dtype=torch.float64))
    require(
        (tight.R.tril(-1).abs() >= bound(torch.full((12,), 2.0, dtype=torch.float64), k).tril(-1) - 1e-12).all(),
        "the bound is not attained at beta |k|^2 = 2",
    )
    grown = chunk.kda(torch.zeros(1, 1, dtype=torch.float64), k, k, k, one, torch.full((12,), 9.0, dtype=torch.float64))
    require(grown.R.abs().max() > 1e6, "beta |k|^2 = 9 was expected to break the bound")


EQUATIONS = [
    polynomial(
        "chunk-inverse",
        "I + A is unit lower triangular, and so is its inverse R.",
        DELTA,
        shapes=SQUARE,
        claim=claim_unit_inverse,
        subject=triangular.substitution,
        ring=[*SIZES, {"C": 5}],
        field_sizes=[{"C": 24}],
        mutants=[
            Mutant("I - A", lambda A: triangular.substitution(-A)),
            Mutant("two terms of the series", lambda A: triangular.substitution(A * 0) - A),
            Mutant("three terms of the series", lambda A: triangular.substitution(A * 0) - A + A @ A),
            Mutant("transposed", lambda A: triangular.substitution(A).T),
            Mutant(
                "uses the entry A_ji", variant(triangular.substitution, ("A[..., i, j, None]", "A[..., j, i, None]"))
            ),
        ],
    ),
    polynomial(
        "inverse-doubling",
        "The product of (I + N^(2^k)) over ceil(log2 C) factors is the same inverse, in exact arithmetic.",
        KIMI,
        shapes=SQUARE,
        claim=claim_unit_inverse,
        subject=triangular.doubling,
        ring=SIZES,
        field_sizes=[{"C": 9}, {"C": 16}],
        mutants=[
            Mutant("one factor too few", variant(triangular.doubling, ("while n < C:", "while n * 2 < C:"))),
            Mutant("N = A", variant(triangular.doubling, ("    N = -A", "    N = A * 1"))),
            Mutant("adds the powers only", variant(triangular.doubling, ("R = R + N + R @ N", "R = R + N"))),
        ],
    ),
    polynomial(
        "chunk-inverse-rows",
        "One more token adds the row [-a R, 1] to R.",
        DELTA,
        shapes=SQUARE,
        claim=claim_grows_by_row,
        subject=triangular.substitution,
        ring=[*SIZES, {"C": 6}],
        mutants=[
            Mutant("I - A", lambda A: triangular.substitution(-A)),
            Mutant("transposed", lambda A: triangular.substitution(A).T),
        ],
    ),
    polynomial(
        "block-inverse-whole",
        "Substitution on blocks and merges between them give the whole inverse.",
        KIMI,
        shapes=SQUARE,
        claim=claim_blocks,
        subject=lambda A: triangular.blocked(A, block=2),
        ring=[{"C": 5}],
        field_sizes=[{"C": 11}],
        mutants=[
            Mutant(
                "the merge loses its sign",
                lambda A: variant(triangular.blocked, ("merge(top,", "-merge(top,"))(A, block=2),
            ),
            Mutant(
                "the merge is left out",
                lambda A: variant(triangular.blocked, ("merge(top,", "0 * merge(top,"))(A, block=2),
            ),
        ],
    ),
    polynomial(
        "block-inverse",
        "The lower left block of the inverse is -R2 A21 R1.",
        KIMI,
        shapes="a:m,m b:n,m c:n,n",
        claim=claim_merge,
        subject=triangular.merge,
        ring=[{"m": 3, "n": 3}, {"m": 2, "n": 4}],
        mutants=[
            Mutant("the sign", lambda R1, A21, R2: R2 @ (A21 @ R1)),
            Mutant("one inverse missing", lambda R1, A21, R2: -(R2 @ A21)),
            Mutant("only the upper inverse", lambda R1, A21, R2: -(A21 @ R1)),
        ],
    ),
    Equation(
        "inverse-bound",
        "If 0 <= beta |k|^2 <= 2 and alpha <= 1, then |R_ij| <= beta_i |k_i| |k_j|.",
        "follows from chunk-closed-forms and transition-norm",
        "checked",
        Check("float64", "C=32 K=3, 60 draws, equal and opposite keys", check_inverse_bound_is_about_the_inverse),
        None,
        triangular.inverse_bound,
        (
            Mutant("without beta_i", lambda beta, k: triangular.inverse_bound(beta * 0 + 0.5, k)),
            Mutant("halved", lambda beta, k: triangular.inverse_bound(beta, k) / 2),
            Mutant("beta_j instead of beta_i", lambda beta, k: triangular.inverse_bound(beta, k).T),
        ),
    ),
]

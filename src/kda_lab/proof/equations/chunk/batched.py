"""Leading axes: a batch of heads gives what each head gives alone."""

import torch

from kda_lab.algebra import triangular
from kda_lab.parts import decay
from kda_lab.proof.equations.common import agree, normal
from kda_lab.proof.registry import Check, Equation, Mutant

FOLLOWS = "the definition for one head"


def check_scores(scores):
    """A batch of two, three heads; the last of the blocks is short."""
    X, Y, g = normal(2, 3, 21, 4, seed=1), normal(2, 3, 21, 4, seed=2), -normal(2, 3, 21, 4, seed=3).abs()
    got = scores(X, Y, g, 8)
    for b in range(2):
        for h in range(3):
            agree(got[b, h], decay.pairwise_scores(X[b, h], Y[b, h], g[b, h]), f"batch {b}, head {h}")


def check_inverse(inverse):
    """Matrices of two batches and three heads, against torch's inverse of each."""
    A = normal(2, 3, 7, 7, seed=4).tril(-1)
    got = inverse(A)
    for b in range(2):
        for h in range(3):
            exact = torch.linalg.inv(torch.eye(7, dtype=torch.float64) + A[b, h])
            agree(got[b, h], exact, f"batch {b}, head {h}", tolerance=1e-10)  # entries of the inverse grow to about 100


def check_upper_not_read(inverse):
    """What stands on and above the diagonal is not read."""
    check_inverse(inverse)
    A = normal(5, 5, seed=5)
    agree(inverse(A), inverse(A.tril(-1)), "a full matrix")


def in_blocks(A):
    """Blocks of three, the last one short."""
    return triangular.blocked(A, block=3)


EQUATIONS = [
    Equation(
        "block-scores-heads",
        "Scores by blocks treat each batch and head on its own.",
        FOLLOWS,
        "checked",
        Check("float64", "2 x 3 heads, C=21, blocks of 8", check_scores),
        None,
        decay.blocked_scores,
        (
            Mutant(
                "the first head's gates for all",
                lambda X, Y, g, block: decay.blocked_scores(X, Y, g[:, :1].expand_as(g), block),
            ),
            Mutant(
                "the first batch's keys for all",
                lambda X, Y, g, block: decay.blocked_scores(X, Y[:1].expand_as(Y), g, block),
            ),
            Mutant(
                "summed over batches",
                lambda X, Y, g, block: decay.blocked_scores(X, Y, g, block).sum(0, keepdim=True).expand(2, 3, 21, 21),
            ),
        ),
    ),
    Equation(
        "inverse-heads",
        "Substitution treats each batch and head on its own, and reads below the diagonal only.",
        FOLLOWS,
        "checked",
        Check("float64", "2 x 3 heads, C=7", check_upper_not_read),
        None,
        triangular.substitution,
        (
            Mutant(
                "the first head for all",
                lambda A: triangular.substitution(A[:, :1]).expand_as(A) if A.dim() > 2 else triangular.substitution(A),
            ),
            Mutant(
                "the diagonal is read", lambda A: torch.linalg.inv(torch.eye(A.shape[-1], dtype=A.dtype) + A.tril())
            ),
            Mutant("the upper triangle instead", lambda A: triangular.substitution(A.mT)),
        ),
    ),
    Equation(
        "block-inverse-heads",
        "So does the inverse by blocks.",
        FOLLOWS,
        "checked",
        Check("float64", "2 x 3 heads, C=7, blocks of 3", check_inverse),
        None,
        in_blocks,
        (
            Mutant("I - A instead of I + A", lambda A: in_blocks(-A)),
            Mutant(
                "blocks not merged", lambda A: in_blocks(A) * (torch.arange(7)[:, None] // 3 == torch.arange(7) // 3)
            ),
        ),
    ),
    Equation(
        "inverse-doubling-heads",
        "So does the product of powers.",
        FOLLOWS,
        "checked",
        Check("float64", "2 x 3 heads, C=7", check_inverse),
        None,
        triangular.doubling,
        (
            Mutant("N = A", lambda A: triangular.doubling(-A)),
            Mutant("the first head for all", lambda A: triangular.doubling(A[:, :1]).expand_as(A)),
        ),
    ),
]

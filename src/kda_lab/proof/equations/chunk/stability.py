"""What rounding does to decays and to the triangular inverse: where digits go, and which forms keep them."""

import math

import numpy as np
import torch

from kda_lab.algebra import triangular
from kda_lab.parts import decay, inputs
from kda_lab.proof.equations.common import require
from kda_lab.proof.registry import Check, Equation, Mutant, variant

IEEE = "IEEE 754"
HIGHAM = "Higham (2002), Accuracy and stability of numerical algorithms, chapters 8 and 14"
FOLLOWS = "follows from inverse-bound"
DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def vanishing_exponent(dtype):
    """The exponent at and below which exp is stored as zero: the logarithm of half the smallest positive number.

    >>> round(vanishing_exponent(torch.float16), 2)
    -17.33
    """
    limits = torch.finfo(dtype)
    return math.log(limits.tiny) + math.log(limits.eps) - math.log(2)


def block_factors(g, block=16):
    """The factors e^(G_i - G_n) of each block, n its first token.   g: [T, K]   returns [T, K] in float64."""
    return torch.cat([(G - G[:1]).exp() for G in (decay.prefix_sums(x) for x in g.double().split(block))])


def strong_gates(T, K=64):
    """Log decays of about -3 a token.   returns [T, K]."""
    return inputs.log_decay((T, 1, K), "strong", torch.Generator().manual_seed(0))[:, 0]


def check_underflow(vanishing):
    """The limit itself; how many factors are lost at strong gates; and that a lost factor never matters beyond its own
    size.
    """
    for dtype in DTYPES:
        limit = vanishing(dtype)
        # 1e-5 apart: a conversion to fp16 may round to fp32 on its way
        factor = torch.tensor([limit * (1 + 1e-5), limit * (1 - 1e-5)], dtype=torch.float64).exp().to(dtype)
        require(factor[0] == 0 and factor[1] > 0, f"{dtype}: {limit:.2f} is not where factors vanish")
    factors = block_factors(strong_gates(64))
    lost = {dtype: (factors.to(dtype) == 0).double().mean().item() for dtype in DTYPES}
    require(
        0.5 < lost[torch.float16] < 0.7,
        f"fp16 was expected to lose three factors of five, it lost {lost[torch.float16]:.2f}",
    )
    require(lost[torch.bfloat16] == lost[torch.float32] == 0, "bf16 and fp32 were expected to lose none inside a block")
    # a decay is a product of factors that are at most 1, so it is no larger than the one that vanished
    left, right = factors[:, None], factors[None, :]
    for dtype in DTYPES:
        gone = (left.to(dtype) == 0) | (right.to(dtype) == 0)
        require(
            not gone.any() or (left * right)[gone].max() <= math.exp(vanishing(dtype)),
            f"{dtype}: a lost product was not small",
        )


def decay_error(G, dtype):
    """Relative error of e^(G_i - G_j) when both sums are rounded to a dtype: the absolute error of their difference,
    |G| eps.

    G: the largest sum, as a positive number.   Implements prefix-sum-error.

    >>> f"{decay_error(235, torch.float32):.1e}"
    '2.8e-05'
    """
    return G * torch.finfo(dtype).eps


def check_prefix_error(error):
    """Rounded sums: within the bound, and of its order; so sums are started anew for each chunk, and never kept in
    bf16.
    """
    g = strong_gates(4096)
    for T in (64, 4096):
        G = decay.prefix_sums(g[:T])
        for dtype in (torch.float32, torch.bfloat16):
            rounded = G.to(dtype).double()
            off = ((rounded[1:] - rounded[:-1]) - (G[1:] - G[:-1])).abs().max().item()
            bound = error(G.abs().max().item(), dtype)
            require(bound / 8 < off <= bound, f"T = {T}, {dtype}: the error is {off:.1e}, the bound {bound:.1e}")
    restarted = decay.prefix_sums(g.unflatten(0, (64, 64))).abs().max().item()
    require(
        error(restarted, torch.float32) < 1e-4 < error(decay.prefix_sums(g).abs().max().item(), torch.float32),
        "a fresh start for each chunk was expected to help",
    )
    require(error(restarted, torch.bfloat16) > 1, "bf16 sums of a chunk were expected to be useless")


def near_keys(cosine, C=64, K=128):
    """Unit keys with this mean cosine between each other.   returns [C, K]."""
    generator = torch.Generator().manual_seed(0)
    draw = lambda n: torch.nn.functional.normalize(torch.randn(n, K, generator=generator, dtype=torch.float64), dim=-1)
    common, own = draw(1), draw(C)
    return torch.nn.functional.normalize(common * cosine**0.5 + own * (1 - cosine) ** 0.5, dim=-1)


def inverse_error(inverse, cosine, dtype=torch.float32):
    """The largest error of an inverse in a dtype, on keys of this cosine with alpha = beta = 1."""
    k = near_keys(cosine)
    A = (k @ k.T).tril(-1)
    exact = torch.linalg.inv(torch.eye(len(A), dtype=A.dtype) + A)
    return (inverse(A.to(dtype)).double() - exact).abs().max().item()


def power_entry(distance, n):
    """Entry (i, j) of N^n, i - j = distance, when every entry of A is 1 (equal keys, alpha = beta = 1): a binomial
    coefficient.

    >>> power_entry(63, 32) == math.comb(62, 31)
    True
    """
    return (-1) ** n * math.comb(distance - 1, n - 1) if distance else 0


def prove_powers(entry):
    """In integers: all powers that doubling forms at C = 64; the largest entry is 4.7e17, while the inverse has 0, 1
    and -1.
    """
    N = np.tril(np.full((64, 64), -1, dtype=object), -1)
    power, n = N, 1
    for n in (1, 2, 4, 8, 16, 32):
        power = N if n == 1 else power @ power
        for d in range(64):
            require(power[63, 63 - d] == entry(d, n), f"N^{n} at distance {d}")
    require(abs(entry(63, 32)) == 465428353255261088, "the largest entry")
    require({*triangular.substitution(-N).flatten()} == {0, 1, -1}, "the inverse has small entries")


def doubling_on_blocks(A, block=16):
    """Doubling inside blocks of 16, merges between them.   A: [C, C]   returns [C, C]."""
    R = A * 0
    for n in range(0, len(A), block):
        e = min(n + block, len(A))
        R[n:e, n:e] = triangular.doubling(A[n:e, n:e])
        if n:
            R[n:e, :n] = triangular.merge(R[:n, :n], A[n:e, :n], R[n:e, n:e])
    return R


def check_doubling(inverse):
    """fp32, C = 64: equal keys, and mean cosines of 0.44 and 0.16."""
    for cosine, allowed in ((1.0, 1e-6), (0.44, 1e-5), (0.16, 1e-6)):
        error = inverse_error(inverse, cosine)
        require(error <= allowed, f"cosine {cosine}: off by {error:.1e}")


def check_substitution(inverse):
    """A few roundings of fp32 for every mix of keys; doubling of the whole chunk loses everything as keys come
    close.
    """
    for cosine in (1.0, 0.44, 0.16, 0.0):
        error = inverse_error(inverse, cosine)
        require(error <= 5e-7, f"cosine {cosine}: off by {error:.1e}")
    whole = [inverse_error(triangular.doubling, cosine) for cosine in (0.16, 0.44, 1.0)]
    require(
        1e-5 < whole[0] < 1e-3 < 1 < whole[1] < 1e3 and whole[2] > 1e6,
        f"doubling was expected to fail, it is off by {whole}",
    )


def growth(distance):
    """The largest that an entry of the inverse can be, i - j = distance, when all that is known is abs(A) <= 1:
    2^(distance - 1).

    >>> growth(63) == 2**62
    True
    """
    return 2 ** (distance - 1) if distance else 1


def prove_growth(bound):
    """Attained at C = 64 by A = -1 below the diagonal, in integers; never passed by random A of -1, 0 and 1."""
    A = np.tril(np.full((64, 64), -1, dtype=object), -1)
    R = triangular.substitution(A)
    require(all(R[63, 63 - d] == bound(d) for d in range(64)), "A = -1 was expected to attain the bound")
    generator = np.random.default_rng(0)
    for _ in range(20):
        A = np.tril(generator.integers(-1, 2, (20, 20)).astype(object), -1)
        R = triangular.substitution(A)
        require(
            all(abs(R[i, j]) <= bound(i - j) for i in range(20) for j in range(i + 1)),
            "random entries passed the bound",
        )
    # keys of length one rule this out: their A has no such inverse
    k = near_keys(1.0)
    require(
        triangular.substitution((k @ k.T).tril(-1)).abs().max() <= 1 + 1e-9,
        "unit keys were expected to keep the inverse small",
    )


def condition_bound(C, beta):
    """kappa_inf(I + A) <= (1 + (C - 1) beta)^2 for unit keys, beta <= 2 and alpha <= 1: C^2 at beta = 1.

    >>> condition_bound(64, 1.0)
    4096.0
    """
    return (1 + (C - 1) * beta) ** 2


def condition(k, alpha, beta):
    """The product of the largest absolute row sums of I + A and of its inverse.   k, alpha: [C, K]   beta: [C]."""
    L = torch.eye(len(k), dtype=k.dtype) + decay.pairwise_scores(k, k, alpha.log()).tril(-1) * beta[:, None]
    rows = lambda X: X.abs().sum(-1).max().item()
    return rows(L) * rows(torch.linalg.inv(L))


def check_condition(bound):
    """Close, opposite and independent keys; attained at beta = 2 by equal keys; at beta = 1 no draw comes near."""
    generator = torch.Generator().manual_seed(9)
    worst = 0.0
    for trial in range(12):
        k = torch.randn(32, 2 + trial % 3, generator=generator, dtype=torch.float64)
        k = torch.nn.functional.normalize(k + 2 * (trial % 2), dim=-1) * torch.sign(
            torch.randn(32, 1, generator=generator, dtype=torch.float64)
        )
        alpha = torch.rand(32, k.shape[-1], generator=generator, dtype=torch.float64) ** (0.05 * (trial % 3))
        beta = (1.0, 2.0, 0.5)[trial % 3]
        got = condition(k, alpha, torch.full((32,), beta, dtype=torch.float64))
        require(
            got <= bound(32, beta) * (1 + 1e-9), f"trial {trial}: a condition number of {got:.0f} is above the bound"
        )
        worst = max(worst, got if beta == 1.0 else 0.0)
    require(worst > 64, f"condition numbers of at least 2 C were expected, the largest was {worst:.0f}")
    one = torch.ones(32, 1, dtype=torch.float64)
    got = condition(one, one, torch.full((32,), 2.0, dtype=torch.float64))
    require(
        abs(got / bound(32, 2.0) - 1) < 1e-9,
        f"equal keys with beta = 2 were expected to attain the bound, got {got:.0f}",
    )
    # beta |k|^2 = 9 leaves the condition of inverse-bound
    require(condition(3 * one, one, one[:, 0]) > 1e20, "keys of length 3 were expected to break it")


EQUATIONS = [
    Equation(
        "factor-underflow",
        "A factor vanishes below half the smallest number: fp16 loses three of five at strong gates, bf16 and fp32 "
        "none; a lost product is no larger than the lost factor.",
        IEEE,
        "checked",
        Check("float64", "fp16, bf16, fp32; 64 tokens of about -3", check_underflow),
        None,
        vanishing_exponent,
        (
            Mutant("below the smallest number", lambda dtype: vanishing_exponent(dtype) + math.log(2)),
            Mutant("below the smallest normal number", lambda dtype: math.log(torch.finfo(dtype).tiny)),
            Mutant("fp32's limit for all", lambda dtype: vanishing_exponent(torch.float32)),
        ),
    ),
    Equation(
        "prefix-sum-error",
        "The relative error of a decay is the absolute error of a difference of sums, up to |G| eps: 3e-5 in a chunk "
        "of 64, 2e-3 over 4096 tokens, useless in bf16.",
        IEEE,
        "checked",
        Check("float64", "T=64 and 4096, fp32 and bf16", check_prefix_error),
        None,
        decay_error,
        (
            Mutant("the error of one number", lambda G, dtype: torch.finfo(dtype).eps),
            Mutant("grows with the square", lambda G, dtype: G * G * torch.finfo(dtype).eps),
            Mutant("fp32's eps for all", lambda G, dtype: decay_error(G, torch.float32)),
            Mutant("one rounding of the tail", lambda G, dtype: decay_error(G, dtype) / 4),
        ),
    ),
    Equation(
        "doubling-powers",
        "With equal keys the powers that doubling forms are binomial coefficients, up to C(62, 31) = 4.7e17 at C = "
        "64, while the inverse has entries 0, 1 and -1.",
        HIGHAM,
        "proved",
        Check("integers", "C=64, six powers", prove_powers),
        None,
        power_entry,
        (
            Mutant("one row further", lambda d, n: (-1) ** n * math.comb(d, n)),
            Mutant("all of one sign", lambda d, n: abs(power_entry(d, n))),
            Mutant("powers of two", lambda d, n: (-1) ** n * 2 ** (n - 1) if d >= n else 0),
        ),
    ),
    Equation(
        "doubling-on-blocks",
        "Doubling inside 16 by 16 blocks, with merges between them, is as good as substitution for near-equal keys.",
        HIGHAM,
        "checked",
        Check("float32", "C=64, mean cosine 1, 0.44, 0.16", check_doubling),
        None,
        doubling_on_blocks,
        (
            Mutant("doubling of the whole chunk", triangular.doubling),
            Mutant("blocks of 32", lambda A: doubling_on_blocks(A, 32)),
            Mutant("blocks not merged", variant(doubling_on_blocks, ("if n:", "if False:"))),
            Mutant(
                "one factor too few",
                variant(
                    doubling_on_blocks,
                    ("triangular.doubling(A[n:e, n:e])", "shorter(A[n:e, n:e])"),
                    shorter=variant(triangular.doubling, ("while n < C:", "while n * 2 < C:")),
                ),
            ),
        ),
    ),
    Equation(
        "substitution-stable",
        "Substitution keeps fp32's digits for every mix of keys; doubling of 64 rows is off by 1e-4, by tens and by "
        "billions as the mean cosine goes from 0.16 over 0.44 to 1.",
        HIGHAM,
        "checked",
        Check("float32", "C=64, mean cosine 1, 0.44, 0.16, 0", check_substitution),
        None,
        triangular.substitution,
        (
            Mutant("doubling", triangular.doubling),
            Mutant("four terms of the series", lambda A: triangular.substitution(A * 0) - A + A @ A - A @ A @ A),
            Mutant("in fp16", lambda A: triangular.substitution(A.half()).float()),
        ),
    ),
    Equation(
        "inverse-growth",
        "Knowing only abs(A) <= 1, entries of the inverse reach 2^(C-2): the norm of the keys is what keeps the "
        "solve well conditioned.",
        HIGHAM,
        "proved",
        Check("integers", "C=64, and 20 draws of C=20", prove_growth),
        None,
        growth,
        (
            Mutant("one more doubling", lambda d: 2**d),
            Mutant("grows with the distance", lambda d: max(1, d)),
            Mutant("one", lambda d: 1),
        ),
    ),
    Equation(
        "inverse-condition",
        "For unit keys and alpha <= 1 the condition number of I + A is at most (1 + (C - 1) beta)^2, that is C^2 at "
        "beta = 1.",
        FOLLOWS,
        "checked",
        Check("float64", "C=32, 12 draws, beta = 0.5, 1, 2", check_condition),
        None,
        condition_bound,
        (
            Mutant("C", lambda C, beta: C),
            Mutant("the bound of the inverse alone", lambda C, beta: 1 + (C - 1) * beta),
            Mutant("beta at most 1", lambda C, beta: C * C),
            Mutant("twice too large", lambda C, beta: 2 * condition_bound(C, beta)),
        ),
    ),
]

"""Decays: products of gates, their logarithms, and the scores that they weigh."""

import torch

from kda_lab import rules
from kda_lab.algebra import affine, chunk
from kda_lab.parts import decay
from kda_lab.proof.equations.chunk.mutants import (
    full_square,
    late_decay_to_end,
    previous_decay_from_start,
    scores_dropping_last_decay,
    scores_keeping_own_decay,
)
from kda_lab.proof.equations.common import require
from kda_lab.proof.registry import Check, Equation, Mutant, polynomial, variant

KIMI = "Kimi Linear (2025), section 3"
DELTA = "Yang et al. (2024), Parallelizing linear transformers with the delta rule"


def claim_scores(x, scores):
    for i in range(len(x.k)):
        for j in range(i + 1):
            product = x.q[i] * x.k[j]
            for t in range(j + 1, i + 1):
                product = product * x.alpha[t]
            yield scores(x.q, x.k, x.alpha)[i, j], product.sum()
        for j in range(i + 1, len(x.k)):
            yield scores(x.q, x.k, x.alpha)[i, j], x.q[0, 0] * 0


def claim_diagonals(x, product):
    """S Diag(a) k = S (a . k);  v k^T Diag(a) = v (a . k)^T;  diagonals commute."""
    a = affine.eye(x.k) * x.alpha1
    b = affine.eye(x.k) * x.alpha2
    yield x.S @ a @ x.k, x.S @ product(x.alpha1, x.k)
    yield rules.outer(x.v, x.k) @ a, rules.outer(x.v, product(x.alpha1, x.k))
    yield a @ b, affine.eye(x.k) * product(x.alpha1, x.alpha2)


def claim_decay_prefix(x, prefix):
    product = x.alpha[0] * 0 + 1
    for i in range(len(x.alpha)):
        product = product * x.alpha[i]
        yield prefix(x.alpha)[i], product


def claim_scalar_mask(x, between):
    D = between(x.alpha)
    ones = x.alpha[:, None] * 0 + 1
    yield D, chunk.decayed_scores(ones, ones, x.alpha[:, None])


def claim_decay_to_end(x, to_end):
    D = chunk.decay_between(x.alpha)
    yield to_end(x.alpha), D[-1]


def check_blocked_scores(scores):
    """Blocked scores equal pairwise differences, for weak, strong and clearing gates."""
    generator = torch.Generator().manual_seed(0)
    for low in (1e-4, 0.05, 5.0, 60.0):
        for C in (1, 15, 16, 17, 64):
            x = torch.randn(2, C, 6, generator=generator, dtype=torch.float64)
            g = -low * torch.rand(C, 6, generator=generator, dtype=torch.float64)
            exact = decay.pairwise_scores(x[0], x[1], g)
            got = scores(x[0], x[1], g)
            require(
                torch.allclose(got, exact, rtol=1e-12, atol=1e-13),
                f"C = {C}, gates down to -{low}: off by {(got - exact).abs().max():.1e}",
            )


def check_blocked_scores_fp32(scores):
    """In fp32, with g = -5 a token, nothing overflows and each score is as good as its pairwise difference."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, 64, 6, generator=generator, dtype=torch.float32)
    g = torch.full((64, 6), -5.0, dtype=torch.float32)
    exact = decay.pairwise_scores(x[0].double(), x[1].double(), g.double())
    got = scores(x[0], x[1], g).double()
    # 1e-5: rounding of exponents up to 75 in fp32 (75 * 2^-24 = 4e-6), and of a sum of 6 products
    require((got - exact).abs().max() <= 1e-5 * exact.abs().max(), f"off by {(got - exact).abs().max():.1e}")


def check_range(scores):
    check_blocked_scores(scores)
    check_blocked_scores_fp32(scores)


def unmasked_products(X, Y, g):
    """Mutant: e^G on the left and e^-G on the right, masked afterwards."""
    G = decay.prefix_sums(g)
    return ((X * G.exp()) @ (Y * (-G).exp()).mT).tril()


def check_prefix_products(prefix):
    generator = torch.Generator().manual_seed(2)
    g = -torch.rand(9, 4, generator=generator, dtype=torch.float64)
    error = (prefix(g).exp() - chunk.decay_from_start(g.exp())).abs().max().item()
    require(error <= 1e-14, f"exp of the prefix sums is off the products by {error:.1e}")


def check_pairwise(scores):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(2, 12, 5, generator=generator, dtype=torch.float64)
    g = -3 * torch.rand(12, 5, generator=generator, dtype=torch.float64)
    error = (scores(x[0], x[1], g) - chunk.decayed_scores(x[0], x[1], g.exp())).abs().max().item()
    require(error <= 1e-12, f"log-domain scores are off the products by {error:.1e}")


def check_diagonal_block(plan):
    """plan: (block, lower bound). A diagonal block whose reference is its first token stays finite in fp32."""
    block, lower_bound = plan
    factor = torch.exp(torch.tensor(decay.largest_exponent(lower_bound, block - 1)))
    require(
        torch.isfinite(factor), f"a factor of e^{decay.largest_exponent(lower_bound, block - 1):.0f} overflows fp32"
    )


def check_overflow(tokens):
    """exp(-G) computed in the dtype is finite for that many tokens, and infinite for one more."""
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        for g in (-5.0, -1.0, -0.3):
            n = tokens(g, dtype)
            factor = torch.exp(torch.tensor([-g * n, -g * (n + 1)], dtype=torch.float64)).to(dtype)
            require(
                bool(torch.isfinite(factor[0]) and torch.isinf(factor[1])),
                f"{dtype} at g = {g}: not the limit at {n} tokens",
            )
    # a product of factors that are zero and infinite is nan, and no mask afterwards repairs it
    G = decay.prefix_sums(torch.full((40, 1), -5.0, dtype=torch.float32))
    one = torch.ones(40, 1, dtype=torch.float32)
    product = unmasked_products(one, one, torch.full((40, 1), -5.0, dtype=torch.float32))
    require(
        torch.isnan(product).any() and torch.isinf((-G).exp()).any(),
        "split factors were expected to overflow at 40 tokens of -5",
    )


def check_cleared_channel(scores):
    """A gate of -inf clears its channel: nothing before it is read, and nothing becomes nan."""
    generator = torch.Generator().manual_seed(5)
    for token in (0, 3, 11):
        x = torch.randn(2, 12, 5, generator=generator, dtype=torch.float64)
        alpha = 0.2 + 0.8 * torch.rand(12, 5, generator=generator, dtype=torch.float64)
        alpha[token, 2] = 0
        error = (scores(x[0], x[1], alpha.log()) - chunk.decayed_scores(x[0], x[1], alpha)).abs().max().item()
        require(error <= 1e-12, f"cleared at token {token}: off by {error:.1e}")


def prefix_differences(X, Y, g):
    """Mutant: differences of prefix sums, which meet -inf minus -inf behind a cleared channel."""
    G = decay.prefix_sums(g)
    ratio = (G[:, None, :] - G[None, :, :]).masked_fill(
        ~torch.ones(len(G), len(G), dtype=torch.bool).tril()[..., None], -torch.inf
    )
    return torch.einsum("ic,jc,ijc->ij", X, Y, ratio.exp())


EQUATIONS = [
    polynomial(
        "decay-prefix",
        "The decay from the start of the chunk to token i is the product over tokens 1..i.",
        KIMI,
        shapes="alpha:C,K=decay",
        claim=claim_decay_prefix,
        subject=chunk.decay_from_start,
        ring=[{"C": 4, "K": 2}],
        field_sizes=[{"C": 64, "K": 3}],
        mutants=[
            Mutant("drops the decay of token i", previous_decay_from_start),
            Mutant("runs from the end", chunk.decay_to_end),
        ],
    ),
    Equation(
        "decay-prefix-log",
        "Prefix sums of the log decays give the same products.",
        KIMI,
        "checked",
        Check("float64", "C=9 K=4", check_prefix_products),
        None,
        decay.prefix_sums,
        (
            Mutant("sums over channels", lambda g: g.cumsum(-1)),
            Mutant("exclusive sums", lambda g: decay.prefix_sums(g) - g),
            Mutant("sums from the end", lambda g: decay.prefix_sums(g.flip(-2)).flip(-2)),
        ),
    ),
    polynomial(
        "decay-to-end",
        "The decay from token j to the end of the chunk runs over tokens j+1..C.",
        KIMI,
        shapes="alpha:C=decay",
        claim=claim_decay_to_end,
        subject=chunk.decay_to_end,
        ring=[{"C": 5}],
        mutants=[
            Mutant("starts at j + 2", late_decay_to_end),
            Mutant("includes token j", lambda a: chunk.decay_to_end(a) * a),
        ],
    ),
    polynomial(
        "scalar-decay-mask",
        "With one decay a head, all decays of a chunk are one lower triangular matrix.",
        DELTA,
        shapes="alpha:C=decay",
        claim=claim_scalar_mask,
        subject=chunk.decay_between,
        ring=[{"C": 5}],
        mutants=[
            Mutant("starts at j", variant(chunk.decay_between, ("product = alpha[j] * 0 + 1", "product = alpha[j]"))),
            Mutant("transposed", lambda a: chunk.decay_between(a).T),
        ],
    ),
    polynomial(
        "decayed-scores",
        "A score between tokens j and i is a sum over channels, each decayed over tokens j+1..i.",
        KIMI,
        shapes="q:C,K k:C,K alpha:C,K=decay",
        claim=claim_scores,
        subject=chunk.decayed_scores,
        ring=[{"C": 4, "K": 2}],
        mutants=[
            Mutant("starts at j", scores_keeping_own_decay),
            Mutant("drops token i", scores_dropping_last_decay),
            Mutant("no mask", full_square),
            Mutant("swaps q and k", lambda X, Y, alpha: chunk.decayed_scores(Y, X, alpha)),
        ],
    ),
    Equation(
        "decayed-scores-log",
        "Differences of prefix sums, masked before exp, give the same scores.",
        KIMI,
        "checked",
        Check("float64", "C=12 K=5", check_pairwise),
        None,
        decay.pairwise_scores,
        (
            Mutant("exclusive sums on the right", lambda X, Y, g: decay.pairwise_scores(X, Y * g.exp(), g)),
            Mutant("difference turned round", lambda X, Y, g: decay.pairwise_scores(X, Y, -g)),
        ),
    ),
    Equation(
        "block-scores",
        "Blocks refer their decays to their own first token: every exponent is at most zero.",
        "Yang et al. (2023), secondary chunking",
        "checked",
        Check("float64", "C in 1..64, gates to -60, float64 and float32", check_range),
        None,
        decay.blocked_scores,
        (
            Mutant("one reference for the whole chunk", unmasked_products),
            Mutant(
                "drops the far blocks",
                lambda X, Y, g: variant(decay.blocked_scores, ("left @ right.mT", "left @ right.mT * 0"))(X, Y, g),
            ),
            Mutant(
                "forgets the decay between blocks",
                variant(decay.blocked_scores, ("between = between + local[b][..., -1:, :]", "between = between")),
            ),
            Mutant(
                "reference token's own decay twice",
                variant(decay.blocked_scores, ("(local[a] - local[a][..., :1, :])", "local[a]")),
            ),
        ),
    ),
    Equation(
        "diagonal-block-range",
        "A 16-token block with lower bound -5 forms exponents up to 75, inside fp32.",
        KIMI,
        "checked",
        Check("float64", "block 16, bound -5", check_diagonal_block),
        None,
        (16, -5.0),
        (Mutant("a block of 32", (32, -5.0)), Mutant("a bound of -6", (16, -6.0)), Mutant("a block of 64", (64, -5.0))),
    ),
    polynomial(
        "diagonal-products",
        "A diagonal matrix next to a vector is an elementwise product; diagonals commute.",
        KIMI,
        shapes="S:V,K k:K v:V alpha1:K=decay alpha2:K=decay",
        claim=claim_diagonals,
        subject=lambda a, b: a * b,
        ring=[{"K": 3, "V": 2}],
        mutants=[
            Mutant("sum instead of product", lambda a, b: a + b),
            Mutant("reversed", lambda a, b: a[::1] * b[[*range(1, len(b)), 0]]),
        ],
    ),
    Equation(
        "factor-overflow",
        "Split as e^G_i times e^-G_j, the decay overflows: in fp32 behind 17 tokens of -5, in fp16 behind 2.",
        "IEEE 754",
        "checked",
        Check("float64", "fp16, bf16, fp32, fp64; g = -5, -1, -0.3", check_overflow),
        None,
        decay.tokens_before_overflow,
        (
            Mutant("one token more", lambda g, dtype: decay.tokens_before_overflow(g, dtype) + 1),
            Mutant("fp32's limit for all", lambda g, dtype: decay.tokens_before_overflow(g, torch.float32)),
            Mutant(
                "logarithm to base 2",
                lambda g, dtype: int(torch.tensor(torch.finfo(dtype).max, dtype=torch.float64).log2() / -g),
            ),
        ),
    ),
    Equation(
        "cleared-channel",
        "A decay of zero clears its channel: the sums over j+1..i stay exact where differences of prefix sums are nan.",
        KIMI,
        "checked",
        Check("float64", "C=12 K=5, one zero decay", check_cleared_channel),
        None,
        decay.pairwise_scores,
        (
            Mutant("differences of prefix sums", prefix_differences),
            Mutant(
                "the gate is ignored", lambda X, Y, g: decay.pairwise_scores(X, Y, g.masked_fill(g == -torch.inf, 0))
            ),
        ),
    ),
]

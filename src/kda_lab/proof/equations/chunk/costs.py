"""Costs: the formulas against operations counted in the code itself and bytes of the arrays themselves."""

from fractions import Fraction

import numpy as np
import torch

from kda_lab import rules
from kda_lab.algebra import affine, chunk, triangular
from kda_lab.proof.equations.common import require
from kda_lab.proof.registry import Check, Equation, Mutant, wrong
from kda_lab.study import costs

COUNTED = "counted in the definitions"
SIZES = [(1, 1), (4, 4), (5, 3), (3, 8)]


def draw(*shapes, seed=0):
    """Counted arrays of numbers without a zero among them."""
    generator = np.random.default_rng(seed)
    return costs.counted(*(generator.uniform(0.5, 1.0, shape) for shape in shapes))


def check_recurrent(flops):
    """Everything in one token of KDA, additions and multiplications alike."""
    for K, V in SIZES:
        S, q, k, v, alpha, beta = draw((V, K), K, K, V, K, 1)
        rules.kda(S, q, k, v, alpha, beta)
        require(flops(K, V) == sum(S.tally.values()), f"K = {K}, V = {V}: counted {sum(S.tally.values())}")
    require(flops(128, 128) == 114944, "K = V = 128")


def substitution_flops(C):
    """Multiplications by what is not zero in the triangular inverse, each with its subtraction."""
    (A,) = draw((C, C))
    triangular.substitution(A)
    return 2 * A.tally["multiply"]


def check_chunk(flops):
    """The matrix products of a chunk with scalar gates, which forms full squares, and its triangular inverse."""
    for C, K, V in [(1, 2, 3), (4, 4, 4), (6, 3, 5), (7, 5, 2), (16, 8, 4)]:
        S, Q, k, v, alpha, beta = draw((V, K), (C, K), (C, K), (C, V), C, C)
        chunk.gated_delta(S, Q, k, v, alpha, beta)
        exact = S.tally["matmul"] + substitution_flops(C)
        require(flops(C, K, V) == exact, f"C = {C}, K = {K}, V = {V}: counted {exact}")
        (A,) = draw((C, C))
        triangular.doubling(A)
        doubled = S.tally["matmul"] + A.tally["matmul"]
        require(flops(C, K, V, "doubling") == doubled, f"C = {C}, K = {K}, V = {V}, doubling: counted {doubled}")
    require(flops(64, 128, 128) == 64 * 181589, "C = 64, K = V = 128")


def check_doubling(products):
    """The products that the inverse by doubling forms, by size."""
    for C in range(1, 70):
        (A,) = draw((C, C))
        triangular.doubling(A * 1e-3)
        require(
            2 * C**3 * products(C) == A.tally["matmul"], f"C = {C}: counted {A.tally['matmul'] / 2 / C**3} products"
        )


def check_softmax(formulas):
    """The two products of one query; their mean over a causal sequence, in exact fractions."""
    one, mean = formulas
    for n in (1, 2, 9):
        for K, V in SIZES:
            q, k, v = draw(K, (n, K), (n, V))
            (k @ q) @ v
            require(one(n, K, V) == q.tally["matmul"], f"n = {n}, K = {K}, V = {V}: counted {q.tally['matmul']}")
            exact = Fraction(sum(one(i, K, V) for i in range(1, n + 1)), n)
            require(mean(n, K, V) == exact, f"N = {n}, K = {K}, V = {V}: the mean is {exact}")


def check_crossover(crossover):
    """The first length at which the exact mean passes the chunk form; one token earlier it does not."""
    for C, K, V in [(64, 128, 128), (16, 128, 128), (64, 64, 128), (32, 16, 24)]:
        N = crossover(C, K, V)
        per_token = Fraction(costs.chunk_flops(C, K, V), C)
        softmax = lambda n: costs.causal_softmax_flops(n, K, V)
        require(softmax(N - 1) <= per_token < softmax(N), f"C = {C}, K = {K}, V = {V}: not at {N} tokens")
    require(crossover(64, 128, 128) == 709, "C = 64, K = V = 128")


def check_parity(parity):
    """Bytes of real tensors on both sides; traffic counts the state twice, since it is read and written."""
    for K, V, state, cache in [
        (128, 128, torch.float32, torch.bfloat16),
        (64, 128, torch.float32, torch.float16),
        (8, 24, torch.bfloat16, torch.float32),
    ]:
        S, token = torch.empty(V, K, dtype=state), torch.empty(K + V, dtype=cache)
        sizes = {"state": S.element_size(), "cache": token.element_size()}
        require(parity(K, V, **sizes) * token.nbytes == S.nbytes, f"K = {K}, V = {V}: capacity")
        require(parity(K, V, **sizes, traffic=True) * token.nbytes == 2 * S.nbytes, f"K = {K}, V = {V}: traffic")
    require((parity(128, 128), parity(128, 128, traffic=True)) == (128, 256), "K = V = 128, fp32 state and bf16 cache")


def check_latent(parity):
    """Bytes of real tensors: fp32 states, three bf16 rows of q, k and v for the convolutions; a latent of 512 bf16
    numbers.
    """
    for heads, K, V, latent in [(8, 128, 128, 512), (4, 64, 128, 288)]:
        kept = [
            torch.empty(heads, V, K, dtype=torch.float32),
            *(torch.empty(3, heads, n, dtype=torch.bfloat16) for n in (K, K, V)),
        ]
        token = torch.empty(latent, dtype=torch.bfloat16)
        require(
            parity(heads, K, V, token.nbytes) * token.nbytes == sum(x.nbytes for x in kept),
            f"{heads} heads, K = {K}, V = {V}",
        )
    require(parity(8, 128, 128) == 530, "8 heads of 128")


def check_intensity(formulas):
    """Counted operations over bytes of the tensors that move; a fused chunk keeps everything else on the chip."""
    recurrent, softmax, fused = formulas
    for K, V in [(8, 4), (128, 128)]:
        moved = 2 * torch.empty(V, K, dtype=torch.float32).nbytes
        require(moved == 2 * costs.state_bytes(K, V), f"state, K = {K}, V = {V}")
        require(recurrent(K, V) * moved == costs.recurrent_flops(K, V), f"recurrent, K = {K}, V = {V}")
        cache = torch.empty(10, K + V, dtype=torch.bfloat16).nbytes
        require(cache == costs.cache_bytes(10, K, V), f"cache, K = {K}, V = {V}")
        require(softmax(K, V) * cache == costs.softmax_flops(10, K, V), f"softmax, K = {K}, V = {V}")
        require(softmax(K, V, group=8) == 8 * softmax(K, V), "a group of query heads shares its cache")
        for C in (16, 64):
            rows = [torch.empty(C, n, dtype=torch.bfloat16) for n in (K, K, V, V)] + [
                torch.empty(C, K, dtype=torch.float32)
            ]
            moved = sum(x.nbytes for x in rows) + 2 * torch.empty(V, K, dtype=torch.float32).nbytes
            require(fused(C, K, V) * moved == costs.chunk_flops(C, K, V), f"fused chunk, C = {C}, K = {K}, V = {V}")
    require([round(fused(C, 128, 128)) for C in (16, 32, 64, 128)] == [12, 25, 51, 105], "K = V = 128")


def check_scan(formulas):
    """One composition, one dense step, one step by W and K_g, each run on counted arrays."""
    combine, dense, low_rank = formulas
    for K, V in SIZES:
        T1, H1, T2, H2, S = draw((K, K), (V, K), (K, K), (V, K), (V, K))
        affine.compose((T1, H1), (T2, H2))
        require(combine(K, V) == T1.tally["matmul"], f"compose, K = {K}, V = {V}")
        (S, T) = draw((V, K), (K, K))
        S @ T
        require(dense(K, V) == S.tally["matmul"], f"dense, K = {K}, V = {V}")
        for C in (1, 4):
            S, W, K_g = draw((V, K), (C, K), (C, K))
            (W @ S.T).T @ K_g
            require(low_rank(C, K, V) == S.tally["matmul"], f"low rank, C = {C}, K = {K}, V = {V}")
        if K % 2 == 0:
            require(low_rank(K // 2, K, V) == dense(K, V), "the two are equal at C = K / 2")


def check_checkpoint(saving):
    """Numbers of a state over numbers of one token's residual, key and log decay."""
    for K, V in [*SIZES, (128, 128)]:
        S, token = (
            torch.empty(V, K, dtype=torch.float32),
            [
                torch.empty(V, dtype=torch.float32),
                torch.empty(K, dtype=torch.float32),
                torch.empty(K, dtype=torch.float32),
            ],
        )
        require(saving(K, V) * sum(x.numel() for x in token) == S.numel(), f"K = {K}, V = {V}")


def cost(slug, sentence, sizes, check, subject, *mutants):
    """An entry of this module: exact integers and fractions."""
    return Equation(slug, sentence, COUNTED, "checked", Check("integers", sizes, check), None, subject, mutants)


_SOFTMAX = costs.softmax_flops, costs.causal_softmax_flops
_INTENSITY = costs.recurrent_intensity, costs.softmax_intensity, costs.chunk_intensity
_SCAN = costs.combine_flops, costs.dense_apply_flops, costs.low_rank_apply_flops
_CHUNK = "6 * C * C * K + 4 * C * C * V + 6 * C * K * V + solve"
EQUATIONS = [
    cost(
        "recurrent-flops",
        "One token of KDA costs 7 K V + 2 V operations.",
        "four sizes, counted",
        check_recurrent,
        costs.recurrent_flops,
        wrong(costs.recurrent_flops, "without the decay", ("7 * K * V", "6 * K * V")),
        wrong(costs.recurrent_flops, "K and V swapped", ("2 * V", "2 * K")),
        wrong(costs.recurrent_flops, "products alone", ("7 * K * V + 2 * V", "4 * K * V")),
    ),
    cost(
        "chunk-flops",
        "A chunk costs 6 C^2 K + 4 C^2 V + 6 C K V operations in products and C (C^2 - 1) / 3 in its solve.",
        "five sizes, counted",
        check_chunk,
        costs.chunk_flops,
        wrong(costs.chunk_flops, "C^3 / 3 for the solve", ("C * (C * C - 1) // 3", "Fraction(C**3, 3)")),
        wrong(costs.chunk_flops, "a full product for the solve", ("C * (C * C - 1) // 3", "2 * C**3")),
        wrong(costs.chunk_flops, "one score matrix", (_CHUNK, _CHUNK.replace("6 * C * C * K", "4 * C * C * K"))),
        wrong(
            costs.chunk_flops,
            "K and V swapped",
            (_CHUNK, _CHUNK.replace("6 * C * C * K + 4 * C * C * V", "6 * C * C * V + 4 * C * C * K")),
        ),
        wrong(
            costs.chunk_flops, "two products with the state", (_CHUNK, _CHUNK.replace("6 * C * K * V", "4 * C * K * V"))
        ),
        wrong(
            costs.chunk_flops, "one product less in doubling", ("doubling_products(C)", "(doubling_products(C) - 1)")
        ),
    ),
    cost(
        "doubling-products",
        "Doubling forms 2 ceil(log2 C) - 2 full products: 10 at C = 64, 6 at C = 16.",
        "C=1..69, counted",
        check_doubling,
        costs.doubling_products,
        Mutant("log2 C products", lambda C: (C - 1).bit_length()),
        Mutant("2 log2 C products", lambda C: 2 * (C - 1).bit_length()),
        Mutant("floor for ceiling", lambda C: max(0, 2 * (C.bit_length() - 1) - 2)),
    ),
    cost(
        "softmax-flops",
        "A query over n tokens costs 2 n (K + V) operations; a causal token (N + 1)(K + V) on average.",
        "n=1, 2, 9, counted",
        check_softmax,
        _SOFTMAX,
        Mutant("one product", (lambda n, K, V: 2 * n * K, costs.causal_softmax_flops)),
        Mutant("multiplications alone", (lambda n, K, V: n * (K + V), costs.causal_softmax_flops)),
        Mutant("the mean without the token itself", (costs.softmax_flops, lambda N, K, V: (N - 1) * (K + V))),
        Mutant("the last token for the mean", (costs.softmax_flops, costs.softmax_flops)),
    ),
    cost(
        "crossover-softmax",
        "From 709 tokens on, a causal softmax head of 128 needs more operations than KDA in chunks of 64.",
        "four sizes, exact",
        check_crossover,
        costs.crossover,
        wrong(costs.crossover, "the last token for the mean", ("(C * (K + V))", "(2 * C * (K + V))")),
        wrong(costs.crossover, "one token later", ("(C * (K + V))", "(C * (K + V)) + 1")),
        Mutant("against the recurrent form", lambda C, K, V: costs.recurrent_flops(K, V) // (K + V)),
    ),
    cost(
        "decode-parity",
        "At 128 channels a fp32 state holds as many bytes as the bf16 cache of 128 tokens, and moves as many as "
        "that of 256.",
        "three sizes, tensors",
        check_parity,
        costs.parity,
        wrong(costs.parity, "traffic counts the state once", ("(2 if traffic else 1)", "1")),
        wrong(costs.parity, "keys alone", ("cache_bytes(1, K, V, cache)", "K * cache")),
        wrong(costs.parity, "one size for both", ("cache_bytes(1, K, V, cache)", "cache_bytes(1, K, V, state)")),
    ),
    cost(
        "latent-parity",
        "What a layer of 8 heads of 128 keeps weighs as much as 530 tokens of a 1024-byte latent.",
        "two sizes, tensors",
        check_latent,
        costs.latent_parity,
        Mutant(
            "without the convolutions",
            lambda heads, K, V, latent=1024: Fraction(heads * costs.state_bytes(K, V), latent),
        ),
        Mutant(
            "one convolution for three",
            lambda heads, K, V, latent=1024: Fraction(heads * (costs.state_bytes(K, V) + 3 * K * 2), latent),
        ),
        Mutant(
            "four rows of convolution",
            lambda heads, K, V, latent=1024: Fraction(costs.layer_bytes(heads, K, V, width=5), latent),
        ),
    ),
    cost(
        "intensity",
        "Operations a byte: 0.88 for decoding with a fp32 state, 1 for decoding over a bf16 cache, 51 for a fused "
        "chunk of 64.",
        "K=V=128 and K=8 V=4, tensors",
        check_intensity,
        _INTENSITY,
        Mutant("the state is read only", (lambda K, V: 2 * costs.recurrent_intensity(K, V), *_INTENSITY[1:])),
        Mutant("a shared state", (_INTENSITY[0], lambda K, V, group=1: costs.softmax_intensity(K, V), _INTENSITY[2])),
        Mutant(
            "the chunk's gates are free", (*_INTENSITY[:2], lambda C, K, V: costs.chunk_intensity(C, K, V, gates=0))
        ),
        Mutant(
            "the chunk's state stays on the chip",
            (*_INTENSITY[:2], lambda C, K, V: costs.chunk_intensity(C, K, V, state=0)),
        ),
        Mutant("the products alone for a token", (lambda K, V: Fraction(7 * K * V, 8 * K * V), *_INTENSITY[1:])),
    ),
    cost(
        "scan-flops",
        "A composition costs 2 K^3 + 2 V K^2 operations, a dense step 2 V K^2, a step by W and K_g 4 C K V: equal at "
        "C = K / 2.",
        "four sizes, counted",
        check_scan,
        _SCAN,
        Mutant("transitions alone", (lambda K, V: 2 * K**3, *_SCAN[1:])),
        Mutant("rows as many as columns", (_SCAN[0], lambda K, V: 2 * V * V * K, _SCAN[2])),
        Mutant("one product by rank", (*_SCAN[:2], lambda C, K, V: 2 * C * K * V)),
    ),
    cost(
        "checkpoint-size",
        "A token's residual, key and log decay are 42.7 times smaller than a state of 128 by 128.",
        "five sizes, tensors",
        check_checkpoint,
        costs.checkpoint_saving,
        wrong(costs.checkpoint_saving, "one decay a head", ("2 * K + V", "K + 1 + V")),
        wrong(costs.checkpoint_saving, "K and V swapped", ("2 * K + V", "K + 2 * V")),
        wrong(costs.checkpoint_saving, "the key forgotten", ("2 * K + V", "K + V")),
    ),
]

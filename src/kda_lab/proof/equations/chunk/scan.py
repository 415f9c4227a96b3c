"""The scan over chunks: the same states as one after the other, in fewer rounds and with more work."""

import numpy as np

from kda_lab import rules
from kda_lab.algebra import affine, chunk, parallel_scan
from kda_lab.proof.equations.common import require
from kda_lab.proof.registry import Check, Equation, Mutant, polynomial, wrong
from kda_lab.proof.words import same_words, words

SCAN = "Blelloch (1990), Prefix sums and their applications"
KIMI = "Kimi Linear (2025), section 3"
SHAPES = "S:V,K k:T,K v:T,V alpha:T,K=decay beta:T=gate"


def prove_prefixes(scan):
    """Up to 20 steps that share no algebra but associativity: words of letters. Then of symbols, with the affine
    composition.
    """
    for n in range(21):
        letters = [chr(ord("a") + i) for i in range(n)]
        wanted = ["".join(letters[: i + 1]) for i in range(n)]
        require(scan(letters, lambda first, second: first + second) == wanted, f"{n} steps")
    symbols = words(" ".join(f"T{i} H{i}" for i in range(5)))
    S, cell = words("S")[0], lambda w: np.array([[w]], dtype=object)
    steps = [(cell(T), cell(H)) for T, H in zip(symbols[::2], symbols[1::2])]
    state = S
    for (T, H), (P, Q) in zip(steps, scan(steps, affine.compose)):
        state = state * T[0, 0] + H[0, 0]
        same_words(S * P[0, 0] + Q[0, 0], state)


def claim_steps(x, chunk_steps):
    """Chunks of 3 (the last one short) and of 1 are the folded steps of their tokens."""
    for C in (3, 1):
        for n, (T, H) in enumerate(chunk_steps(C, x.k, x.v, x.alpha, x.beta)):
            part = slice(n * C, n * C + C)
            exact = affine.fold(x.k[part], x.v[part], x.alpha[part], x.beta[part])
            yield T, exact[0]
            yield H, exact[1]


def claim_scan(x, scan_chunks):
    """The states behind all chunks, for one chunk, for a power of two and for odd numbers of them."""
    for C in (2, 3, 1, len(x.k)):
        _, terms = chunk.split(chunk.kda, x.S, C, x.k, x.k, x.v, x.alpha, x.beta)
        states = scan_chunks(x.S, parallel_scan.chunk_steps(C, x.k, x.v, x.alpha, x.beta))
        for got, wanted in zip(states, terms, strict=True):
            yield got, wanted.S
    last, _ = rules.scan(rules.kda, x.S, x.k, x.k, x.v, x.alpha, x.beta)
    yield states[-1], last


def compositions(n):
    """How many compositions the scan of n = 2^m steps forms: 2 n - log2(n) - 2.

    >>> compositions(8)
    11
    """
    return 2 * n - (n.bit_length() - 1) - 2


def rounds(n):
    """How many of them stand behind one another: 2 log2(n) - 2 for n = 2^m, and 1 for n = 2.

    >>> rounds(64)
    10
    """
    return max(2 * (n.bit_length() - 1) - 2, n // 2 if n < 3 else 0)


def counted(n):
    """Compositions of a scan of n steps, and the longest chain of them."""
    calls = []

    def compose(first, second):
        calls.append(1)
        return max(first, second) + 1

    return (max(parallel_scan.prefix_scan([0] * n, compose), default=0), len(calls))


def check_work(formulas):
    """The scan itself, run on steps that count how deep they lie."""
    work, depth = formulas
    for m in range(11):
        n = 2**m
        require(counted(n) == (depth(n), work(n)), f"n = {n}: depth and compositions are {counted(n)}")


_STEP = "affine.eye(k[0]) * terms.D - terms.W.T @ terms.K_g"
_REST = "compose(odd[i // 2 - 1], steps[i])"

EQUATIONS = [
    Equation(
        "prefix-scan",
        "Composing neighbours, scanning the pairs and filling the gaps gives every prefix, for any associative "
        "operation.",
        SCAN,
        "proved",
        Check("words", "n = 0..20", prove_prefixes),
        None,
        parallel_scan.prefix_scan,
        (
            wrong(
                parallel_scan.prefix_scan,
                "descending order",
                ("compose(steps[i], steps[i + 1])", "compose(steps[i + 1], steps[i])"),
            ),
            wrong(
                parallel_scan.prefix_scan,
                "gaps filled from the wrong side",
                (_REST, "compose(steps[i], odd[i // 2 - 1])"),
            ),
            wrong(parallel_scan.prefix_scan, "gaps not filled", (_REST, "odd[i // 2 - 1]")),
            wrong(parallel_scan.prefix_scan, "pairs not scanned", ("odd = prefix_scan(pairs, compose)", "odd = pairs")),
        ),
    ),
    polynomial(
        "chunk-step",
        "A chunk is one affine step, made from its own tokens alone: (D_C - W^T K_g, U^T K_g).",
        KIMI,
        shapes=SHAPES,
        claim=claim_steps,
        subject=parallel_scan.chunk_steps,
        ring=[{"T": 4, "K": 2, "V": 1}],
        field_sizes=[{"T": 10, "K": 3, "V": 2}],
        mutants=[
            wrong(parallel_scan.chunk_steps, "plus W^T K_g", (_STEP, _STEP.replace("- terms", "+ terms"))),
            wrong(parallel_scan.chunk_steps, "the diagonal alone", (_STEP, "affine.eye(k[0]) * terms.D")),
            wrong(parallel_scan.chunk_steps, "no decay", (_STEP, _STEP.replace(" * terms.D", ""))),
            wrong(parallel_scan.chunk_steps, "K_in for K_g", (_STEP, _STEP.replace("K_g", "K_in"))),
        ],
    ),
    polynomial(
        "scan-over-chunks",
        "One scan over the chunks' steps gives the states that the chunks give one after the other.",
        SCAN,
        shapes=SHAPES,
        claim=claim_scan,
        subject=parallel_scan.scan_chunks,
        ring=[{"T": 4, "K": 2, "V": 1}],
        field_sizes=[{"T": 10, "K": 3, "V": 2}],
        mutants=[
            wrong(parallel_scan.scan_chunks, "the first state passes no transition", ("S @ T + H", "S + H")),
            wrong(parallel_scan.scan_chunks, "the first state is forgotten", ("S @ T + H", "H")),
            wrong(parallel_scan.scan_chunks, "steps not scanned", ("prefix_scan(steps)", "steps")),
            wrong(
                parallel_scan.scan_chunks,
                "descending order",
                ("prefix_scan(steps)", "prefix_scan(steps, lambda a, b: affine.compose(b, a))"),
            ),
        ],
    ),
    Equation(
        "scan-work",
        "A scan of n = 2^m steps forms 2 n - log2(n) - 2 compositions, 2 log2(n) - 2 of them behind one another.",
        SCAN,
        "checked",
        Check("integers", "n = 1..1024, counted", check_work),
        None,
        (compositions, rounds),
        (
            Mutant("n - 1 compositions", (lambda n: n - 1, rounds)),
            Mutant("depth log2(n)", (compositions, lambda n: n.bit_length() - 1)),
            Mutant("n log2(n) compositions", (lambda n: n * (n.bit_length() - 1), rounds)),
        ),
    ),
]

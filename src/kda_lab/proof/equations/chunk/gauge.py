"""A change of units that takes the gates away: divide the state by its own decay, and KDA is a delta rule with two
keys.
"""

import torch

from kda_lab import rules
from kda_lab.algebra import chunk
from kda_lab.parts import decay
from kda_lab.proof.engines import stack
from kda_lab.proof.equations.common import KDA_TOKENS, require
from kda_lab.proof.registry import Check, Equation, Mutant, polynomial, wrong

DERIVED = "derived here; Yang et al. (2023) use the same division for gated linear attention"
FIELD = [{"C": 9, "K": 3, "V": 2}, {"C": 24, "K": 4, "V": 2}]
REAL = [{"C": 4, "K": 4, "V": 3}]


def gauge(q, k, alpha):
    """The inputs in the new units: queries and read keys times e^(G_i), write keys divided by it.

    q, k, alpha: [C, K]   returns Q_in, K_in, K_out [C, K] and e^(G_C) [K].   Implements gauge.
    """
    expG = chunk.decay_from_start(alpha)
    return q * expG, k * expG, k / expG, expG[-1]


def two_key_delta(S, q, read, write, v, beta):
    """A delta rule that reads with one key and writes with another.   S: [V, K]   q, read, write: [K]   v: [V]   beta:
    scalar.
    """
    r = (v - S @ read) * beta
    S = S + rules.outer(r, write)
    return S, S @ q


def claim_gauge(x, gauge):
    """Token by token: the same outputs and residuals, and the state in other units."""
    Q_in, K_in, K_out, _ = gauge(x.q, x.k, x.alpha)
    expG = chunk.decay_from_start(x.alpha)
    plain = free = x.S
    for t in range(len(x.k)):
        plain, o = rules.kda(plain, x.q[t], x.k[t], x.v[t], x.alpha[t], x.beta[t])
        free, got = two_key_delta(free, Q_in[t], K_in[t], K_out[t], x.v[t], x.beta[t])
        yield got, o
        yield free, plain / expG[t]


def gauge_chunk(S, Q, K, V, alpha, beta):
    """Every term of the chunk form in one line each, from the two-key delta rule: no interval of decays is left to get
    wrong.

    S: [V, K]   Q, K, alpha: [C, K]   V: [C, V]   beta: [C]   returns A, M [C, C], K_g [C, K], S [V, K], O [C, V].
    Implements gauge-chunk. In floats 1 / e^(G_i) overflows: this is for proofs, and for understanding.
    """
    Q_in, K_in, K_out, D = gauge(Q, K, alpha)
    A = chunk.tril(K_in @ K_out.T, -1) * beta[:, None]
    M = chunk.tril(Q_in @ K_out.T)
    E = solve(A, (V - K_in @ S.T) * beta[:, None])
    return A, M, K_out * D, (S + E.T @ K_out) * D, Q_in @ S.T + M @ E


def solve(A, X):
    """(I + A)^-1 X by forward substitution.   A: [C, C] strictly lower   X: [C, V]."""
    rows = []
    for i in range(len(A)):
        row = X[i]
        for j in range(i):
            row = row - rows[j] * A[i, j]
        rows.append(row)
    return stack(rows)


def claim_chunk(x, gauge_chunk):
    terms = chunk.kda(x.S, x.q, x.k, x.v, x.alpha, x.beta)
    A, M, K_g, S, O = gauge_chunk(x.S, x.q, x.k, x.v, x.alpha, x.beta)
    yield A, terms.A
    yield M, terms.M
    yield K_g, terms.K_g
    last, rows = rules.scan(rules.kda, x.S, x.q, x.k, x.v, x.alpha, x.beta)
    yield S, last
    yield O, stack(rows)


def check_range(tokens):
    """The write key itself, computed in the dtype."""
    for dtype in (torch.float16, torch.float32, torch.float64):
        for g in (-5.0, -0.7):
            n = tokens(g, dtype)
            alpha = torch.full((n + 1, 1), g, dtype=torch.float64).exp()
            one = torch.ones_like(alpha)
            write = gauge(one, one, alpha)[2]
            limit = torch.finfo(dtype).max
            require(write[n - 1] <= limit < write[n], f"{dtype} at g = {g}: not the limit at {n} tokens")


_RETURN = "return q * expG, k * expG, k / expG, expG[-1]"
_A = "chunk.tril(K_in @ K_out.T, -1)"
_S = "(S + E.T @ K_out) * D"

EQUATIONS = [
    polynomial(
        "gauge",
        "In units that decay with the state, S e^-G, KDA has no gates: it reads with k e^G and writes with k e^-G.",
        DERIVED,
        shapes=KDA_TOKENS,
        claim=claim_gauge,
        subject=gauge,
        field_sizes=FIELD,
        real=REAL,
        mutants=[
            wrong(gauge, "reads with the key itself", (_RETURN, "return q * expG, k, k / expG, expG[-1]")),
            wrong(gauge, "writes with the key itself", (_RETURN, "return q * expG, k * expG, k, expG[-1]")),
            wrong(gauge, "read and write swapped", (_RETURN, "return q * expG, k / expG, k * expG, expG[-1]")),
            wrong(gauge, "queries divided", (_RETURN, "return q / expG, k * expG, k / expG, expG[-1]")),
            wrong(
                gauge,
                "the decay of token i left out",
                ("chunk.decay_from_start(alpha)", "chunk.decay_from_start(alpha) / alpha"),
            ),
        ],
    ),
    polynomial(
        "gauge-chunk",
        "The chunk form in one line a term: A = tril(B K_in K_out^T, -1), M = tril(Q_in K_out^T), K_g = K_out D_C.",
        DERIVED,
        shapes=KDA_TOKENS,
        claim=claim_chunk,
        subject=gauge_chunk,
        field_sizes=FIELD,
        real=REAL,
        mutants=[
            wrong(gauge_chunk, "A with the diagonal", (_A, "chunk.tril(K_in @ K_out.T)")),
            wrong(gauge_chunk, "A from K_in alone", (_A, "chunk.tril(K_in @ K_in.T, -1)")),
            wrong(gauge_chunk, "A transposed", (_A, "chunk.tril(K_out @ K_in.T, -1)")),
            wrong(gauge_chunk, "M is strictly lower", ("chunk.tril(Q_in @ K_out.T)", "chunk.tril(Q_in @ K_out.T, -1)")),
            wrong(gauge_chunk, "K_g without the last decay", ("K_out * D, ", "K_out, ")),
            wrong(gauge_chunk, "the state left in the new units", (_S, "S + E.T @ K_out")),
            wrong(gauge_chunk, "the old state alone in old units", (_S, "S * D + E.T @ K_out")),
            wrong(gauge_chunk, "the residuals read the undecayed keys", ("(V - K_in @ S.T)", "(V - K @ S.T)")),
        ],
    ),
    Equation(
        "gauge-range",
        "The price is range: a write key leaves fp32 behind 17 tokens of -5, and fp64 behind 141.",
        "IEEE 754",
        "checked",
        Check("float64", "fp16, fp32, fp64; g = -5, -0.7", check_range),
        None,
        decay.tokens_before_overflow,
        (
            Mutant("one token more", lambda g, dtype: decay.tokens_before_overflow(g, dtype) + 1),
            Mutant(
                "logarithm to base 2",
                lambda g, dtype: int(torch.tensor(torch.finfo(dtype).max, dtype=torch.float64).log2() / -g),
            ),
            Mutant("fp32's range for all", lambda g, dtype: decay.tokens_before_overflow(g, torch.float32)),
        ),
    ),
]

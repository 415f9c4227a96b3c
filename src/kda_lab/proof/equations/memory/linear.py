"""Linear attention: the same sums, regrouped into a state of fixed size; and what such a state cannot do."""

import torch

from kda_lab import rules
from kda_lab.algebra import chunk
from kda_lab.parts import features
from kda_lab.proof.engines import Disagreement, stack
from kda_lab.proof.equations.common import TOKENS, affine_step, agree, normal, read, require, token_by_token
from kda_lab.proof.registry import Check, Equation, Mutant, polynomial, variant

KATHAROPOULOS = "Katharopoulos et al. (2020), Transformers are RNNs"
QIN = "Qin et al. (2022), The devil in linear transformer"
SMALL = [{"C": 3, "K": 2, "V": 2}, {"C": 4, "K": 3, "V": 2}]
KERNEL = [{"C": 64, "K": 8, "V": 4}]


def linear_by_entries(S, q, k, v):
    """S + v k^T, read with q after the write."""
    S = affine_step(S, lambda e, c: int(e == c), lambda r, c: v[r] * k[c])
    return S, read(S, q)


def claim_sums(x, rule):
    """The state is S_0 plus all writes; each output is a sum over the past of (k_j . q_i) v_j."""
    S, rows = rules.scan(rule, x.S, x.q, x.k, x.v)
    yield S, x.S + x.v.T @ x.k
    for i in range(len(x.q)):
        o = read(x.S, x.q[i])
        for j in range(i + 1):
            o = o + x.v[j] * (x.k[j] @ x.q[i])
        yield rows[i], o


def claim_reassociation(x, rule):
    """From an empty state, numerator and denominator are the sums over scores that attention forms."""
    (S, Z), rows = rules.scan(rule, (x.v.T @ x.k * 0, x.k[0] * 0), x.q, x.k, x.v)
    yield S, sum(rules.outer(x.v[j], x.k[j]) for j in range(len(x.k)))
    yield Z, sum(x.k)
    for i, (numerator, denominator) in enumerate(rows):
        scores = [x.k[j] @ x.q[i] for j in range(i + 1)]
        yield numerator, sum(x.v[j] * s for j, s in enumerate(scores))
        yield denominator, sum(scores)
    yield rows[0][0], x.v[0] * rows[0][1]  # the first token reads its own value


def claim_normaliser(x, rule):
    """One step from any state, entry by entry."""
    S, Z = x.S, x.Z
    for q, k, v in zip(x.q, x.k, x.v):
        (S2, Z2), (numerator, denominator) = rule((S, Z), q, k, v)
        S = affine_step(S, lambda e, c: int(e == c), lambda r, c: v[r] * k[c])
        Z = stack([Z[c] + k[c] for c in range(len(k))])
        yield S2, S
        yield Z2, Z
        yield numerator, read(S, q)
        yield denominator, sum(Z[c] * q[c] for c in range(len(q)))


def scores_first(Q, K, V):
    """(tril(Q K^T)) V: the quadratic form of linear attention, without a state.   Q, K: [C, K]   V: [C, V].

    Implements linear-parallel.

    >>> import numpy as np
    >>> one = np.ones((3, 1), int)
    >>> scores_first(one, one, one).T
    array([[1, 2, 3]])
    """
    return chunk.tril(Q @ K.T) @ V


def claim_parallel(x, parallel):
    _, rows = rules.scan(rules.linear, x.S * 0, x.q, x.k, x.v)
    yield parallel(x.q, x.k, x.v), stack(rows)


def claim_interference(x, rule):
    """Two values under one key come back as their sum, times |k|^2."""
    S, _ = rule(x.S * 0, x.q[0], x.k[0], x.v[0])
    S, o = rule(S, x.k[0], x.k[0], x.v[1])
    yield o, (x.v[0] + x.v[1]) * (x.k[0] @ x.k[0])


def claim_loop(x, scan):
    """The loop carries the state from token to token and keeps every output, in order."""
    S, rows = x.S, []
    for t in range(len(x.q)):
        S, o = rules.linear(S, x.q[t], x.k[t], x.v[t])
        rows.append(o)
    last, got = scan(rules.linear, x.S, x.q, x.k, x.v)
    yield last, S
    yield stack(got), stack(rows)
    for length in (len(x.q) - 1, 1):
        try:
            scan(rules.linear, x.S, x.q, x.k[:length], x.v)
        except ValueError:
            continue
        raise Disagreement("sequences of different lengths were accepted")


def state_size(K, V, tokens):
    """Numbers that normalised linear attention keeps: V K for S and K for Z, whatever the number of tokens.

    Implements linear-state-size.

    >>> state_size(128, 128, tokens=1_000_000)
    16512
    """
    return V * K + K


def check_state_size(size):
    for K, V in ((4, 3), (8, 8)):
        state = (torch.zeros(V, K, dtype=torch.float32), torch.zeros(K, dtype=torch.float32))
        for tokens in (1, 7, 50):
            q, k, v = (
                normal(tokens, K, dtype=torch.float32),
                normal(tokens, K, dtype=torch.float32),
                normal(tokens, V, dtype=torch.float32),
            )
            (S, Z), _ = rules.scan(rules.normalised_linear, state, q, k, v)
            require(S.numel() + Z.numel() == size(K, V, tokens), f"K = {K}, V = {V}, {tokens} tokens")


def weights(Q, K):
    """The weight of token j in output i of linear attention without a denominator.   Q, K: [C, K]   returns [C, C].

    Implements linear-weights.

    >>> import numpy as np
    >>> weights(np.array([[1], [1]]), np.array([[1], [-3]]))
    array([[ 1,  0],
           [ 1, -3]])
    """
    return chunk.tril(Q @ K.T)


def check_weights(weights):
    """They reproduce the outputs; with Q = (1, 0), K = ((1, 0), (-3, 0)) they are 1 and -3: negative, and the sum is
    -2.
    """
    Q, K, V = normal(6, 4, seed=1), normal(6, 4, seed=2), normal(6, 3, seed=3)
    _, rows = rules.scan(rules.linear, torch.zeros(3, 4, dtype=torch.float64), Q, K, V)
    agree(weights(Q, K) @ V, torch.stack(rows), "weights times values")
    by_hand = weights(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([[1.0, 0.0], [-3.0, 0.0]]))
    agree(by_hand, torch.tensor([[1.0, 0.0], [1.0, -3.0]]), "the example by hand")


def check_convex(phi):
    """With a positive feature map every output lies between the smallest and the largest value seen so far."""
    for seed in range(5):
        x, V = normal(2, 8, 4, seed=seed) * 3, normal(8, 3, seed=seed + 50)
        x[1, 1] = -x[1, 0]  # a key and its opposite: without a feature map their weights cancel
        state = (torch.zeros(3, 4, dtype=torch.float64), torch.zeros(4, dtype=torch.float64))
        _, rows = rules.scan(rules.normalised_linear, state, phi(x[0]), phi(x[1]), V)
        for i, (numerator, denominator) in enumerate(rows):
            o, seen = numerator / denominator, V[: i + 1]
            inside = (o >= seen.min(0).values - 1e-9) & (o <= seen.max(0).values + 1e-9)
            require(inside.all(), f"seed {seed}: output {i} leaves the hull of the values")


_ADD = ("S = S + outer(v, k)", "S = outer(v, k)")
_LINEAR_MUTANTS = (
    Mutant("overwrites the state", variant(rules.linear, _ADD)),
    Mutant("subtracts", variant(rules.linear, ("S + outer(v, k)", "S - outer(v, k)"))),
    Mutant(
        "reads before the write",
        variant(
            rules.linear,
            ("    S = S + outer(v, k)  # [V, K]\n    return S, S @ q", "    return S + outer(v, k), S @ q"),
        ),
    ),
    Mutant("replaces what the key holds", lambda S, q, k, v: rules.delta(S, q, k, v, 1)),
)

EQUATIONS = [
    polynomial(
        "linear-recurrence",
        "Linear attention adds v k^T to its state and reads the state with q.",
        KATHAROPOULOS,
        shapes=TOKENS,
        claim=token_by_token(linear_by_entries, "q", "k", "v"),
        subject=rules.linear,
        ring=SMALL,
        # K = V first: there the transposed state type-checks
        real=[{"C": 7, "K": 3, "V": 3}, {"C": 7, "K": 4, "V": 3}],
        mutants=[
            *_LINEAR_MUTANTS,
            Mutant("stores the transpose of the state", variant(rules.linear, ("outer(v, k)", "outer(k, v)"))),
        ],
    ),
    polynomial(
        "linear-sums",
        "Unrolled: S_t = S_0 + sum v_j k_j^T, and o_i = S_0 q_i + sum over j <= i of (k_j . q_i) v_j.",
        KATHAROPOULOS,
        shapes=TOKENS,
        claim=claim_sums,
        subject=rules.linear,
        ring=SMALL,
        field_sizes=KERNEL,
        mutants=_LINEAR_MUTANTS,
    ),
    polynomial(
        "linear-parallel",
        "From an empty state, all outputs at once are (tril(Q K^T)) V.",
        KATHAROPOULOS,
        shapes=TOKENS,
        claim=claim_parallel,
        subject=scores_first,
        ring=SMALL,
        field_sizes=KERNEL,
        mutants=[
            Mutant("no mask", lambda Q, K, V: Q @ K.T @ V),
            Mutant("strictly causal", lambda Q, K, V: chunk.tril(Q @ K.T, -1) @ V),
            Mutant("K Q^T", lambda Q, K, V: chunk.tril(K @ Q.T) @ V),
        ],
    ),
    polynomial(
        "linear-reassociation",
        "Numerator and denominator of attention with a feature map are reads of two running sums.",
        KATHAROPOULOS,
        shapes=TOKENS,
        claim=claim_reassociation,
        subject=rules.normalised_linear,
        ring=[{"C": 3, "K": 2, "V": 2}],
        field_sizes=[{"C": 32, "K": 4, "V": 4}],
        mutants=[
            # type-checks because K = V here
            Mutant("reads the transposed state", variant(rules.normalised_linear, ("S @ q", "S.T @ q"))),
            Mutant(
                "the denominator misses the current token", variant(rules.normalised_linear, ("Z @ q", "(Z - k) @ q"))
            ),
            Mutant("the denominator is a plain sum", variant(rules.normalised_linear, ("Z @ q", "sum(Z)"))),
        ],
    ),
    polynomial(
        "linear-normaliser",
        "The state (S, Z) grows by v k^T and k; the readout is S q over Z . q.",
        KATHAROPOULOS,
        shapes=TOKENS + " Z:K",
        claim=claim_normaliser,
        subject=rules.normalised_linear,
        ring=SMALL,
        real=[{"C": 9, "K": 4, "V": 3}],
        mutants=[
            Mutant("Z is overwritten", variant(rules.normalised_linear, ("Z = Z + k", "Z = k"))),
            Mutant("Z shrinks", variant(rules.normalised_linear, ("Z + k", "Z - k"))),
            Mutant("S is overwritten", variant(rules.normalised_linear, ("S + outer(v, k)", "outer(v, k)"))),
            Mutant("the denominator is read with k", variant(rules.normalised_linear, ("Z @ q", "Z @ k"))),
        ],
    ),
    Equation(
        "linear-state-size",
        "The memory is V K + K numbers, whatever the length.",
        KATHAROPOULOS,
        "checked",
        Check("float64", "1, 7 and 50 tokens", check_state_size),
        None,
        state_size,
        (
            Mutant("a cache of keys and values", lambda K, V, tokens: tokens * (K + V)),
            Mutant("Z has V numbers", lambda K, V, tokens: V * K + V),
            Mutant("no normaliser", lambda K, V, tokens: V * K),
        ),
    ),
    Equation(
        "linear-weights",
        "Without the denominator the weights k_j . q_i may be negative and need not sum to one.",
        QIN,
        "checked",
        Check("float64", "C=6, and an example by hand", check_weights),
        None,
        weights,
        (
            Mutant("normalised", lambda Q, K: weights(Q, K) / weights(Q, K).sum(-1, keepdim=True)),
            Mutant("absolute values", lambda Q, K: weights(Q, K).abs()),
            Mutant("no mask", lambda Q, K: Q @ K.T),
        ),
    ),
    Equation(
        "convex-outputs",
        "Positive features make every normalised output an average of the values.",
        KATHAROPOULOS,
        "checked",
        Check("float64", "C=8 K=4 V=3, 5 seeds", check_convex),
        None,
        features.elu_plus_one,
        (
            Mutant("no feature map", lambda x: x),  # k and -k: the denominator is zero or negative
            Mutant("elu without the one", torch.nn.functional.elu),
            Mutant("tanh", torch.tanh),
        ),
    ),
    polynomial(
        "linear-interference",
        "Two values under one key come back as |k|^2 (v_1 + v_2): nothing is replaced.",
        "Schlag et al. (2021), Linear transformers are secretly fast weight programmers",
        shapes=TOKENS,
        claim=claim_interference,
        subject=rules.linear,
        ring=SMALL,
        mutants=[
            Mutant("replaces", lambda S, q, k, v: rules.delta(S, q, k, v, 1)),
            Mutant("averages", lambda S, q, k, v: tuple(y * 2 for y in rules.linear(S, q, k, v))),
            Mutant("forgets the first", variant(rules.linear, _ADD)),
        ],
    ),
    polynomial(
        "token-loop",
        "Running a rule over tokens carries its state from one to the next and keeps each output.",
        KATHAROPOULOS,
        shapes=TOKENS,
        claim=claim_loop,
        subject=rules.scan,
        ring=[{"C": 3, "K": 2, "V": 2}],
        mutants=[
            Mutant(
                "each token starts from the first state",
                variant(rules.scan, ("S, o = rule(S, *token)", "S2, o = rule(S, *token)")),
            ),
            Mutant(
                "the last token is left out",
                variant(rules.scan, ("in zip(*sequences)", "in list(zip(*sequences))[:-1]")),
            ),
            Mutant("lengths are not compared", variant(rules.scan, ("> 1", "> 10"))),
        ],
    ),
]

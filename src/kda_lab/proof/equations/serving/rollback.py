"""Rollback: the inverse of a step, where it does not exist, what it does to rounding errors, and what works instead."""

import torch

from kda_lab import rules
from kda_lab.algebra import affine, chunk, rollback, triangular
from kda_lab.proof.equations.common import KDA_TOKENS, normal, require, residuals
from kda_lab.proof.registry import Check, Equation, Mutant, polynomial, wrong

DERIVED = "derived here"
REPLAY = "derived here; serving systems call it replay"
FIELD = [{"C": 5, "K": 3, "V": 2}, {"C": 3, "K": 6, "V": 2}]
REAL = [{"C": 3, "K": 4, "V": 3}]
SMALL = [{"C": 3, "K": 2, "V": 2}, {"C": 5, "K": 2, "V": 1}]


def claim_inverse(x, inverse):
    """T T^-1 = T^-1 T = I, and a whole run goes backwards: S_(t-1) = (S_t - H_t) T_t^-1."""
    # in floats away from the singularity: beta |k|^2 = 1/2
    beta = [b * 0 + 1 / (k @ k * 2) if isinstance(b, torch.Tensor) else b for b, k in zip(x.beta, x.k)]
    states = [x.S]
    for t, b in enumerate(beta):
        states.append(rules.kda(states[-1], x.q[t], x.k[t], x.v[t], x.alpha[t], b)[0])
    for t, b in enumerate(beta):
        T, back = affine.transition(x.k[t], x.alpha[t], b), inverse(x.k[t], x.alpha[t], b)
        yield T @ back, affine.eye(x.k[t])
        yield back @ T, affine.eye(x.k[t])
        yield (states[t + 1] - affine.increment(x.k[t], x.v[t], b)) @ back, states[t]


def claim_singular(x, lost):
    """At beta |k|^2 = 1, states that differ along the lost direction become one: no function of S_t brings them
    back.
    """
    for k, v, alpha, q in zip(x.k, x.v, x.alpha, x.q):
        beta = 1 / (k @ k)
        z = lost(k, alpha)
        kept, _ = rules.kda(x.S, q, k, v, alpha, beta)
        other, _ = rules.kda(x.S + rules.outer(v, z), q, k, v, alpha, beta)
        yield other, kept
        yield z @ affine.transition(k, alpha, beta) + k, k
    # a direction of zeros would lose nothing
    yield z * alpha, k


def claim_undo(x, undo):
    """With the residuals kept, the run goes back token by token; also through a full overwrite."""
    for beta in (x.beta, [1 / (k @ k) for k in x.k]):
        states, rows = residuals(x.S, x.k, x.v, x.alpha, beta)
        S = states[-1]
        for t in range(len(x.k) - 1, -1, -1):
            S = undo(S, rows[t], x.k[t], x.alpha[t])
            yield S, states[t]


def rollback_error(g, tokens, eps=2.0**-24):
    """About how far off the state is after that many tokens of log decay g were taken back: each divides the error by
    its decay.

    >>> f"{rollback_error(-5.0, 6):.0e}"
    '6e+05'
    """
    return eps * torch.tensor(-g * tokens, dtype=torch.float64).exp().item()


def taken_back(g, tokens, K=16, V=8):
    """The error in fp32 of undoing tokens with stored residuals, in units of the first state's size."""
    k = torch.nn.functional.normalize(normal(tokens, K, seed=1, dtype=torch.float32), dim=-1)
    v, start = normal(tokens, V, seed=2, dtype=torch.float32), normal(V, K, seed=3, dtype=torch.float32)
    alpha = torch.full((tokens, K), g, dtype=torch.float32).exp()
    states, rows = residuals(start, k, v, alpha, [0.5] * tokens)
    S = states[-1]
    for t in range(tokens - 1, -1, -1):
        S = rollback.undo(S, rows[t], k[t], alpha[t])
    return ((S - start).abs().max() / start.abs().max()).item()


def check_error(error):
    """fp32 against the formula, within a factor of 100; useless behind six tokens of -5, while a snapshot costs no
    digit.
    """
    for g, tokens in [(-5.0, 1), (-5.0, 2), (-5.0, 4), (-5.0, 6), (-2.0, 8), (-0.1, 20)]:
        got, expected = taken_back(g, tokens), error(g, tokens)
        require(
            expected / 100 < got < expected * 3,
            f"g = {g}, {tokens} tokens: the error is {got:.1e}, about {expected:.1e} was expected",
        )
    require(taken_back(-5.0, 6) > 1e3, "six tokens of -5 were expected to leave nothing")


def claim_states(x, states):
    """Every prefix: the state of the loop, from the residuals of the whole chunk."""
    terms = chunk.kda(x.S, x.q, x.k, x.v, x.alpha, x.beta)
    got = states(x.S, terms.E, x.k, x.alpha, range(len(x.k) + 1))
    S = x.S
    yield got[0], S
    for n, token in enumerate(zip(x.q, x.k, x.v, x.alpha, x.beta), 1):
        S, _ = rules.kda(S, *token)
        yield got[n], S


def claim_causal(x, kda_chunk):
    """The first rows of a chunk's terms are the terms of its first tokens: R, E, O, and the scores."""
    terms = kda_chunk(x.S, x.q, x.k, x.v, x.alpha, x.beta)
    for n in range(1, len(x.k)):
        shorter = kda_chunk(x.S, *(X[:n] for X in (x.q, x.k, x.v, x.alpha, x.beta)))
        for name in ("A", "R", "M"):
            yield getattr(terms, name)[:n, :n], getattr(shorter, name)
        for name in ("U", "W", "E", "O"):
            yield getattr(terms, name)[:n], getattr(shorter, name)
        yield terms.R[:n, :n], triangular.substitution(terms.A[:n, :n])


def unmasked(X, Y, alpha):
    """Mutant: scores of the later tokens are kept, undecayed."""
    scores, plain = chunk.decayed_scores(X, Y, alpha), X @ Y.T
    for i in range(len(X)):
        scores[i, i + 1 :] = plain[i, i + 1 :]
    return scores


_ERASED = "outer(k, k) * (beta / (1 - k @ k * beta))"
_COMMIT = "S * D + E[:n].T @ K_g"
EQUATIONS = [
    polynomial(
        "inverse-transition",
        "T^-1 = (I + beta / (1 - beta |k|^2) k k^T) Diag(1 / alpha), where beta |k|^2 is not 1 and no decay is 0.",
        DERIVED,
        shapes=KDA_TOKENS,
        claim=claim_inverse,
        subject=rollback.inverse_transition,
        field_sizes=FIELD,
        real=REAL,
        mutants=[
            wrong(
                rollback.inverse_transition,
                "the sign of the erase",
                ("affine.eye(k) + erased", "affine.eye(k) - erased"),
            ),
            wrong(rollback.inverse_transition, "beta itself", (_ERASED, "outer(k, k) * beta")),
            wrong(rollback.inverse_transition, "for unit keys", (_ERASED, "outer(k, k) * (beta / (1 - beta))")),
            wrong(rollback.inverse_transition, "the factors swapped", ("alpha[None, :]", "alpha[:, None]")),
            wrong(rollback.inverse_transition, "times the decay", (") / alpha[None, :]", ") * alpha[None, :]")),
        ],
    ),
    polynomial(
        "rollback-singular",
        "At beta |k|^2 = 1 a step erases what the state holds along k / alpha: different states become one, and no "
        "inverse exists.",
        DERIVED,
        shapes=KDA_TOKENS,
        claim=claim_singular,
        subject=rollback.lost_direction,
        field_sizes=FIELD,
        real=REAL,
        mutants=[
            wrong(rollback.lost_direction, "the key", ("return k / alpha", "return k")),
            wrong(rollback.lost_direction, "the decayed key", ("return k / alpha", "return k * alpha")),
            wrong(rollback.lost_direction, "nothing", ("return k / alpha", "return k * 0")),
            wrong(rollback.lost_direction, "the other way", ("return k / alpha", "return alpha / k")),
        ],
    ),
    polynomial(
        "rollback-residual",
        "With the residual kept, S_(t-1) = (S_t - r k^T) Diag(1 / alpha), through full overwrites too.",
        DERIVED,
        shapes=KDA_TOKENS,
        claim=claim_undo,
        subject=rollback.undo,
        field_sizes=FIELD,
        real=REAL,
        mutants=[
            wrong(rollback.undo, "the decay undone first", ("(S - outer(r, k)) / alpha", "S / alpha - outer(r, k)")),
            wrong(rollback.undo, "the write added again", ("S - outer", "S + outer")),
            wrong(rollback.undo, "the write kept", ("(S - outer(r, k)) / alpha", "S / alpha")),
            wrong(rollback.undo, "decayed again", (") / alpha", ") * alpha")),
        ],
    ),
    Equation(
        "rollback-error",
        "Each token taken back divides the rounding error by its decay: in fp32, six tokens of -5 leave nothing of "
        "the state.",
        "IEEE 754",
        "checked",
        Check("float32", "six runs, g = -5, -2, -0.1", check_error),
        None,
        rollback_error,
        (
            Mutant("the error does not grow", lambda g, tokens: 2.0**-24),
            Mutant("grows with the number of tokens", lambda g, tokens: tokens * 2.0**-24),
            Mutant("one decay for all tokens", lambda g, tokens: rollback_error(g, 1)),
            Mutant("fp64's digits", lambda g, tokens: rollback_error(g, tokens, 2.0**-53)),
        ),
    ),
    polynomial(
        "prefix-commit",
        "Any state inside a chunk comes from its residuals, keys and decays: S_n = S_0 e^G_n + sum over i <= n of "
        "r_i (k_i e^(G_n - G_i))^T.",
        REPLAY,
        shapes=KDA_TOKENS,
        claim=claim_states,
        subject=rollback.states,
        ring=SMALL,
        field_sizes=[{"C": 16, "K": 4, "V": 3}],
        real=[{"C": 7, "K": 4, "V": 3}],
        mutants=[
            wrong(
                rollback.states,
                "decays to the end of the chunk",
                ("chunk.decay_to_end(alpha[:n])", "chunk.decay_to_end(alpha)[:n]"),
            ),
            wrong(
                rollback.states,
                "the old state decays over the whole chunk",
                ("chunk.decay_from_start(alpha[:n])[-1]", "chunk.decay_from_start(alpha)[-1]"),
            ),
            wrong(
                rollback.states,
                "one token too many",
                (_COMMIT, "S * D + E[: n + 1].T @ (K[: n + 1] * chunk.decay_to_end(alpha[: n + 1]))"),
            ),
            wrong(rollback.states, "the last token left out", (_COMMIT, "S * D + E[: n - 1].T @ K_g[: n - 1]")),
            wrong(rollback.states, "the old state does not decay", (_COMMIT, "S + E[:n].T @ K_g")),
            wrong(rollback.states, "writes do not decay", ("K[:n] * chunk.decay_to_end(alpha[:n])", "K[:n]")),
        ],
    ),
    polynomial(
        "chunk-causal",
        "The leading n by n part of R is the inverse of n tokens; so are the first n rows of U, W, E and O theirs.",
        REPLAY,
        shapes=KDA_TOKENS,
        claim=claim_causal,
        subject=chunk.kda,
        ring=[{"C": 4, "K": 2, "V": 1}],
        field_sizes=[{"C": 9, "K": 3, "V": 2}],
        mutants=[
            wrong(
                chunk.kda,
                "M is not masked",
                ("M = decayed_scores(Q, K, alpha)", "M = unmasked(Q, K, alpha)"),
                unmasked=unmasked,
            ),
            wrong(chunk.kda, "R is transposed", ("R = triangular.substitution(A)", "R = triangular.substitution(A).T")),
            wrong(chunk.kda, "Q_in with the decay to the end", ("Q_in = Q * expG", "Q_in = Q * decay_to_end(alpha)")),
            wrong(chunk.kda, "K_in with the decay to the end", ("K_in = K * expG", "K_in = K * decay_to_end(alpha)")),
            wrong(
                chunk.kda,
                "values are centred over the chunk",
                ("U = R @ (V * beta[:, None])", "U = R @ ((V * len(V) - sum(V)) * beta[:, None])"),
            ),
        ],
    ),
]

"""Replay: a state that is a checkpoint and the records behind it is read, continued and moved without forming it at
each token.
"""

from kda_lab import rules
from kda_lab.algebra import replay
from kda_lab.proof.equations.common import KDA_TOKENS, residuals
from kda_lab.proof.registry import polynomial, wrong

DERIVED = "derived here; ReplaySSM (Dao AI Lab 2026) is the idea"
RING = [{"C": 3, "K": 2, "V": 1}]
FIELD = [{"C": 9, "K": 4, "V": 3}, {"C": 4, "K": 3, "V": 5}]
REAL = [{"C": 7, "K": 4, "V": 3}]


def recorded(x):
    """States and outputs of the token loop, and what each token wrote; the first from ``rules``."""
    _, rows = residuals(x.S, x.k, x.v, x.alpha, x.beta)
    states, outputs = [x.S], []
    for token in zip(x.q, x.k, x.v, x.alpha, x.beta):
        S, o = rules.kda(states[-1], *token)
        states.append(S)
        outputs.append(o)
    U = x.v * 1  # [C, V]
    for i, u in enumerate(rows):
        U[i] = u
    return states, outputs, U


def claim_read(x, read):
    """Every prefix, with a vector that belongs to none of its tokens."""
    states, _, U = recorded(x)
    for n in range(len(x.k)):
        yield read(x.S, U[:n], x.k[:n], x.alpha[:n], x.q[n]), states[n] @ x.q[n]


def claim_step(x, step):
    """Token after token, from records alone: what the loop writes and answers."""
    _, outputs, U = recorded(x)
    for n in range(len(x.k)):
        u, o = step(x.S, U[:n], x.k[:n], x.alpha[:n], x.q[n], x.k[n], x.v[n], x.alpha[n], x.beta[n])
        yield u, U[n]
        yield o, outputs[n]


def claim_anchor(x, advance):
    """Wherever the checkpoint stands, the records behind it give the same answers."""
    states, _, U = recorded(x)
    C = len(x.k)
    for n in range(1, C):
        for m in range(n + 1):
            S, *rest = advance(x.S, U[:n], x.k[:n], x.alpha[:n], m)
            yield S, states[m]
            yield replay.read(S, *rest, x.q[n]), states[n] @ x.q[n]


_READ = "S @ (x * D) + U.T @ ((K * later) @ x)"
_STATE = "rollback.states(S, U, K, alpha, [m])"
EQUATIONS = [
    polynomial(
        "replay-read",
        "A checkpoint and n records answer as the state behind them: S_n x = S_0 (e^G_n x) + sum over j of u_j <k_j "
        "e^(G_n - G_j), x>.",
        DERIVED,
        shapes=KDA_TOKENS,
        claim=claim_read,
        subject=replay.read,
        ring=RING,
        field_sizes=FIELD,
        real=REAL,
        mutants=[
            wrong(replay.read, "the checkpoint does not decay", (_READ, "S @ x + U.T @ ((K * later) @ x)")),
            wrong(replay.read, "records do not decay", (_READ, "S @ (x * D) + U.T @ (K @ x)")),
            wrong(
                replay.read,
                "records decay from the start",
                ("chunk.decay_to_end(alpha)", "chunk.decay_from_start(alpha)"),
            ),
            wrong(
                replay.read, "the last record is left out", (_READ, "S @ (x * D) + U[:-1].T @ ((K * later)[:-1] @ x)")
            ),
            wrong(replay.read, "records alone", (_READ, "U.T @ ((K * later) @ x)")),
        ],
    ),
    polynomial(
        "replay-step",
        "The next token needs two reads: u = beta (v - S_n (a k)), o = S_n (a q) + u <k, q>.",
        DERIVED,
        shapes=KDA_TOKENS,
        claim=claim_step,
        subject=replay.step,
        ring=RING,
        field_sizes=FIELD,
        real=REAL,
        mutants=[
            wrong(replay.step, "the key reads the state before its decay", ("K, alpha, k * a)", "K, alpha, k)")),
            wrong(replay.step, "the query reads the state before its decay", ("K, alpha, q * a)", "K, alpha, q)")),
            wrong(replay.step, "the token does not read its own write", (" + u * (k @ q)", "")),
            wrong(replay.step, "its own write decays", ("u * (k @ q)", "u * ((k * a) @ q)")),
            wrong(
                replay.step, "the value is stored uncorrected", ("(v - read(S, U, K, alpha, k * a)) * beta", "v * beta")
            ),
            wrong(replay.step, "the gate is left out", (") * beta  # [V]", ")  # [V]")),
        ],
    ),
    polynomial(
        "replay-anchor",
        "Records do not know their checkpoint: moved over the first m of them, it gives with the rest the same state.",
        DERIVED,
        shapes=KDA_TOKENS,
        claim=claim_anchor,
        subject=replay.advance,
        ring=RING,
        field_sizes=FIELD,
        real=REAL,
        mutants=[
            wrong(
                replay.advance,
                "one record too few is dropped",
                ("U[m:], K[m:], alpha[m:]\n", "U[max(m - 1, 0) :], K[max(m - 1, 0) :], alpha[max(m - 1, 0) :]\n"),
            ),
            wrong(
                replay.advance,
                "the checkpoint takes all records",
                (_STATE, "rollback.states(S, U, K, alpha, [len(U)])"),
            ),
            wrong(replay.advance, "the checkpoint stays", (_STATE, "[S * 1]")),
            wrong(
                replay.advance,
                "decays of dropped records are kept",
                ("K[m:], alpha[m:]\n", "K[m:], alpha[: len(alpha) - m]\n"),
            ),
        ],
    ),
]

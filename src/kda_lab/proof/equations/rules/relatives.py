"""Linear attention with a decay: RetNet, Mamba-2, GLA and RWKV-6, each token by token and as one masked product."""

from kda_lab import rules
from kda_lab.algebra import chunk, chunk_dplr
from kda_lab.proof.engines import stack
from kda_lab.proof.equations.common import TOKENS, affine_step, matrix, read
from kda_lab.proof.equations.rules.tokens import SMALL, names_of, recurrence
from kda_lab.proof.registry import Mutant, polynomial, variant, wrong

RETNET = "Sun et al. (2023), Retentive Network"
MAMBA2 = "Dao and Gu (2024), Transformers are SSMs"
GLA = "Yang et al. (2023), Gated linear attention transformers"
RWKV6 = "Peng et al. (2024), Eagle and Finch"
KERNEL = [{"C": 32, "K": 5, "V": 3}]


def decayed_sum(decay, write=lambda v, k, r, c, *gates: v[r] * k[c]):
    """A formula written out: column e of the state times decay(e, *gates), plus a write; read after it."""

    def formula(S, q, k, v, *gates):
        S = affine_step(S, lambda e, c: decay(e, *gates) * int(e == c), lambda r, c: write(v, k, r, c, *gates))
        return S, read(S, q)

    return formula


def rwkv6_by_entries(S, q, k, v, w, u):
    bonus = affine_step(S, lambda e, c: int(e == c), lambda r, c: v[r] * k[c] * u[c])
    return affine_step(S, lambda e, c: w[e] * int(e == c), lambda r, c: v[r] * k[c]), read(bonus, q)


def scalar_masked(S, Q, K, V, a):
    """RetNet and Mamba-2 at once: (Q K^T . D) V + (decayed Q) S^T, with D_ij the decays of tokens j+1..i.

    S: [V, K]   Q, K: [C, K]   V: [C, V] (times the step size for Mamba-2)   a: [C]   returns [C, V].
    Implements retnet-parallel, mamba2-parallel.

    >>> import numpy as np
    >>> one = np.ones((3, 1), int)
    >>> scalar_masked(np.array([[0]]), one, one, one, np.array([2, 3, 5])).T
    array([[ 1,  4, 21]])
    """
    return (Q @ K.T * chunk.decay_between(a)) @ V + (Q * chunk.decay_from_start(a)[:, None]) @ S.T


def gla_masked(S, Q, K, V, alpha):
    """GLA at once: Gamma(Q, K) V + (decayed Q) S^T, one decay a channel inside each score.

    S: [V, K]   Q, K, alpha: [C, K]   V: [C, V]   returns [C, V].   Implements gla-parallel.

    >>> import numpy as np
    >>> one = np.ones((3, 1), int)
    >>> gla_masked(np.array([[0]]), one, one, one, np.array([[2], [3], [5]])).T
    array([[ 1,  4, 21]])
    """
    return chunk.decayed_scores(Q, K, alpha) @ V + (Q * chunk.decay_from_start(alpha)) @ S.T


def rwkv6_masked(S, Q, K, V, w, u):
    """RWKV-6 at once: the decays of tokens j+1..i-1 below the diagonal, the bonus q . (u . k) on it.

    S: [V, K]   Q, K, w, u: [C, K]   V: [C, V]   returns [C, V].   Implements rwkv6-parallel.

    >>> import numpy as np
    >>> one = np.ones((3, 1), int)
    >>> rwkv6_masked(np.array([[0]]), one, one, one, np.array([[2], [3], [5]]), one * 7).T
    array([[ 7,  8, 11]])
    """
    own = (Q * K * u).sum(-1)  # [C]
    return chunk_dplr.scores_before(Q, K, w) @ V + V * own[:, None] + (Q * chunk_dplr.decay_before(w)) @ S.T


def mamba2_masked(S, Q, K, V, a, dt):
    """Mamba-2 at once: the masked form of RetNet, with the step sizes in the values.

    >>> import numpy as np
    >>> one = np.ones((2, 1), int)
    >>> mamba2_masked(np.array([[0]]), one, one, one, np.array([2, 3]), np.array([1, 10])).T
    array([[ 1, 13]])
    """
    return scalar_masked(S, Q, K, V * dt[:, None], a)


def claim_scores_before(x, scores):
    """Entry by entry: the interval j+1..i-1 for j < i, zero elsewhere."""
    got, C, K = scores(x.q, x.k, x.w), len(x.q), x.q.shape[1]

    def entry(i, j):
        total = x.q[0, 0] * 0
        for c in range(K if j < i else 0):
            product = x.q[i, c] * x.k[j, c]
            for t in range(j + 1, i):
                product = product * x.w[t, c]
            total = total + product
        return total

    yield got, matrix(C, C, entry)


def claim_decay_before(x, before):
    product = x.w[0] * 0 + 1
    rows = before(x.w)
    for i in range(len(x.w)):
        yield rows[i], product
        product = product * x.w[i]


def conjugate(alpha, X):
    """Gamma X Gamma^-1, where Gamma_i is the product of the decays of tokens 1..i: entry ij times the decays of j+1..i.

    alpha: [C], not zero   X: [C, C]   returns [C, C].   Implements scalar-gate-conjugation.

    >>> import numpy as np
    >>> conjugate(np.array([2.0, 3.0]), np.ones((2, 2)))[1]
    array([3., 1.])
    """
    G = chunk.decay_from_start(alpha)
    return X * G[:, None] / G[None, :]


def claim_conjugation(x, conjugate):
    """Scores and inverse of Gated DeltaNet are those of DeltaNet between two diagonals: one plain inverse would do."""
    gated = chunk.gated_delta(x.S, x.q, x.k, x.v, x.alpha, x.beta)
    plain = chunk.delta(x.S, x.q, x.k, x.v, x.beta)
    yield gated.A, conjugate(x.alpha, plain.A)
    yield gated.R, conjugate(x.alpha, plain.R)
    yield gated.M, conjugate(x.alpha, plain.M)


def claim_ratios_multiply(x, gated_scores):
    """If A = Gamma A' Gamma^-1 for some diagonal, the ratios A_ij / A'_ij multiply along j, m, i."""
    A, plain = gated_scores(x), chunk.delta(x.S, x.q, x.k, x.v, x.beta).A
    for i, m, j in ((2, 1, 0), (3, 2, 0), (3, 1, 0)):
        yield A[i, j] * plain[i, m] * plain[m, j], A[i, m] * A[m, j] * plain[i, j]


def gated_scores(x):
    """The scores A of Gated DeltaNet: one decay a token.   Implements scalar-gate-ratios."""
    return chunk.gated_delta(x.S, x.q, x.k, x.v, x.alpha, x.beta).A


def channel_scores(x):
    """Mutant: decays that differ between channels."""
    return chunk.kda(x.S, x.q, x.k, x.v, x.channels, x.beta).A


def at_once(slug, sentence, source, gates, rule, parallel, mutants):
    """All outputs of a stretch at once, against those of the rule token by token."""

    def claim(x, parallel):
        given = [x.S, *(getattr(x, name) for name in ("q", "k", "v", *names_of(gates)))]
        yield parallel(*given), stack(rules.scan(rule, *given)[1])

    return polynomial(
        slug,
        sentence,
        source,
        shapes=f"{TOKENS} {gates}",
        claim=claim,
        subject=parallel,
        ring=SMALL,
        field_sizes=KERNEL,
        mutants=mutants,
    )


def unread(rule, update):
    """A mutant that reads the state before the token's update."""
    return wrong(
        rule, "reads before the update", (f"    S = {update}\n    return S, S @ q", f"    return {update}, S @ q")
    )


_D, _G, _L = "chunk.decay_between(a)", "chunk.decay_from_start(a)[:, None]", "chunk.decay_from_start(alpha)"
_KEPT = "(Q * {}) @ S.T"

EQUATIONS = [
    recurrence(
        "retnet-recurrence",
        "RetNet decays the state by one fixed factor a head, then adds.",
        RETNET,
        "gamma:C=decay",
        decayed_sum(lambda e, gamma: gamma),
        rules.retnet,
        [
            wrong(rules.retnet, "the write decays too", ("S * gamma + outer(v, k)", "(S + outer(v, k)) * gamma")),
            wrong(rules.retnet, "no decay", ("S * gamma", "S")),
            wrong(rules.retnet, "transposed write", ("outer(v, k)", "outer(k, v)")),
            unread(rules.retnet, "S * gamma + outer(v, k)"),
        ],
    ),
    recurrence(
        "mamba2-recurrence",
        "Mamba-2 decays by a factor of the token; the step size multiplies the write.",
        MAMBA2,
        "a:C=decay dt:C",
        decayed_sum(lambda e, a, dt: a, lambda v, k, r, c, a, dt: v[r] * k[c] * dt),
        rules.mamba2,
        [
            wrong(rules.mamba2, "no step size", ("v * dt", "v")),
            wrong(rules.mamba2, "the step size decays the state", ("S * a ", "S * a * dt ")),
            wrong(
                rules.mamba2, "decay and step size swapped", ("S * a + outer(v * dt, k)", "S * dt + outer(v * a, k)")
            ),
            unread(rules.mamba2, "S * a + outer(v * dt, k)"),
        ],
    ),
    recurrence(
        "gla-recurrence",
        "Gated linear attention decays each key channel by a factor of its own, then adds.",
        GLA,
        "alpha:C,K=decay",
        decayed_sum(lambda e, alpha: alpha[e]),
        rules.gla,
        [
            wrong(rules.gla, "decays rows, not columns", ("S * alpha", "S * alpha[:, None]")),
            wrong(rules.gla, "the write decays too", ("S * alpha + outer(v, k)", "(S + outer(v, k)) * alpha")),
            wrong(rules.gla, "one decay for all channels", ("S * alpha", "S * alpha[0]")),
            unread(rules.gla, "S * alpha + outer(v, k)"),
        ],
    ),
    recurrence(
        "rwkv6-recurrence",
        "RWKV-6 reads before the decay, with a bonus u for the current token; then it decays and adds.",
        RWKV6,
        "w:C,K=decay u:C,K",
        rwkv6_by_entries,
        rules.rwkv6,
        [
            Mutant("reads after the update, as GLA does", lambda S, q, k, v, w, u: rules.gla(S, q, k, v, w)),
            wrong(rules.rwkv6, "no bonus", ("k * u", "k")),
            wrong(rules.rwkv6, "reads the decayed state", ("(S + outer", "(S * w + outer")),
            wrong(rules.rwkv6, "the bonus is stored", ("S * w + outer(v, k)", "S * w + outer(v, k * u)")),
        ],
    ),
    at_once(
        "retnet-parallel",
        "RetNet at once: every score is multiplied by the decays of tokens j+1..i, a scalar.",
        RETNET,
        "gamma:C=decay",
        rules.retnet,
        scalar_masked,
        [
            wrong(scalar_masked, "no decay", (" * " + _D, " * (chunk.decay_between(a * 0 + 1))")),
            wrong(scalar_masked, "no mask", (" * " + _D, "")),
            wrong(scalar_masked, "the interval j..i", (_D, _D + " * a[None, :]")),
            wrong(scalar_masked, "the old state is forgotten", (" + " + _KEPT.format(_G), "")),
            wrong(scalar_masked, "the old state does not decay", (_KEPT.format(_G), "Q @ S.T")),
        ],
    ),
    at_once(
        "mamba2-parallel",
        "Mamba-2 at once: the same masked product, step sizes in the values.",
        MAMBA2,
        "a:C=decay dt:C",
        rules.mamba2,
        mamba2_masked,
        [
            wrong(
                mamba2_masked,
                "step size of the reader",
                ("scalar_masked(S, Q, K, V * dt[:, None], a)", "scalar_masked(S, Q * dt[:, None], K, V, a)"),
            ),
            wrong(mamba2_masked, "no step size", ("V * dt[:, None]", "V")),
            Mutant("transposed decays", variant(mamba2_masked, scalar_masked=variant(scalar_masked, (_D, _D + ".T")))),
        ],
    ),
    at_once(
        "gla-parallel",
        "GLA at once: the decays sit inside each score, one a channel.",
        GLA,
        "alpha:C,K=decay",
        rules.gla,
        gla_masked,
        [
            Mutant(
                "the interval j+1..i-1, as in RWKV-6",
                lambda S, Q, K, V, alpha: rwkv6_masked(S, Q, K, V, alpha, alpha * 0 + 1),
            ),
            wrong(
                gla_masked,
                "the first channel's decay for all",
                ("chunk.decayed_scores(Q, K, alpha)", "(Q @ K.T * chunk.decay_between(alpha[:, 0]))"),
            ),
            wrong(gla_masked, "the old state is forgotten", (" + " + _KEPT.format(_L), "")),
        ],
    ),
    at_once(
        "rwkv6-parallel",
        "RWKV-6 at once: the decays of j+1..i-1, and the bonus on the diagonal.",
        RWKV6,
        "w:C,K=decay u:C,K",
        rules.rwkv6,
        rwkv6_masked,
        [
            Mutant(
                "the interval j+1..i, as in GLA",
                variant(
                    rwkv6_masked, ("chunk_dplr.scores_before(Q, K, w)", "chunk.tril(chunk.decayed_scores(Q, K, w), -1)")
                ),
            ),
            wrong(rwkv6_masked, "no bonus", ("Q * K * u", "Q * K")),
            wrong(rwkv6_masked, "no diagonal", (" + V * own[:, None]", "")),
            wrong(
                rwkv6_masked,
                "the old state decays once too often",
                ("chunk_dplr.decay_before(w)", "chunk.decay_from_start(w)"),
            ),
        ],
    ),
    polynomial(
        "scores-before-decay",
        "Scores for a read before the token's own decay: the interval j+1..i-1, strictly below the diagonal.",
        RWKV6,
        shapes="q:C,K k:C,K w:C,K=decay",
        claim=claim_scores_before,
        subject=chunk_dplr.scores_before,
        ring=[{"C": 4, "K": 2}],
        mutants=[
            Mutant("the interval j+1..i", lambda X, Y, w: chunk.tril(chunk.decayed_scores(X, Y, w), -1)),
            wrong(chunk_dplr.scores_before, "the interval j..i-1", ("+ [Y[i]]", "+ [Y[i] * w[i]]")),
            Mutant(
                "with its diagonal",
                lambda X, Y, w: chunk_dplr.scores_before(X, Y, w) + chunk.tril(X @ Y.T) - chunk.tril(X @ Y.T, -1),
            ),
        ],
    ),
    polynomial(
        "decay-before",
        "The decay that a read before token i's own decay sees: the product over tokens 1..i-1.",
        RWKV6,
        shapes="w:C,K=decay",
        claim=claim_decay_before,
        subject=chunk_dplr.decay_before,
        ring=[{"C": 4, "K": 2}],
        mutants=[
            Mutant("tokens 1..i", chunk.decay_from_start),
            Mutant("tokens 2..i", lambda w: chunk.decay_from_start(stack([w[0] * 0 + 1, *w[1:]]))),
        ],
    ),
    polynomial(
        "scalar-gate-conjugation",
        "With one decay a token, A = Gamma A' Gamma^-1 and R = Gamma R' Gamma^-1 for DeltaNet's A' and R'.",
        "Yang et al. (2024), Gated Delta Networks",
        shapes=TOKENS + " alpha:C=decay beta:C=gate",
        claim=claim_conjugation,
        subject=conjugate,
        field_sizes=[{"C": 4, "K": 2, "V": 1}, {"C": 24, "K": 4, "V": 2}],
        real=[{"C": 9, "K": 4, "V": 2}],
        mutants=[
            wrong(conjugate, "from one side", (" / G[None, :]", "")),
            wrong(conjugate, "the inverse conjugation", ("G[:, None] / G[None, :]", "G[None, :] / G[:, None]")),
            wrong(conjugate, "decays of single tokens", ("chunk.decay_from_start(alpha)", "alpha")),
        ],
    ),
    polynomial(
        "scalar-gate-ratios",
        "No diagonal does this for decays that differ between channels: the ratios A_ij / A'_ij do not multiply.",
        "follows from scalar-gate-conjugation",
        shapes=TOKENS + " alpha:C=decay channels:C,K beta:C=gate",
        claim=claim_ratios_multiply,
        subject=gated_scores,
        ring=[{"C": 4, "K": 2, "V": 1}],
        real=[{"C": 5, "K": 3, "V": 2}],
        mutants=[
            Mutant("a decay for each channel", channel_scores),
            Mutant(
                "the interval j..i, which counts the middle token twice", lambda x: gated_scores(x) * x.alpha[None, :]
            ),
        ],
    ),
]

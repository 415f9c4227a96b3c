"""Transitions that are diagonal plus rank one: RWKV-7 and KDA as cases of one rule, and its chunk form."""

from kda_lab import rules
from kda_lab.algebra import chunk, chunk_dplr
from kda_lab.proof.engines import stack
from kda_lab.proof.equations.common import KDA_TOKENS, TOKENS, affine_step, read
from kda_lab.proof.equations.rules.tokens import SMALL, recurrence
from kda_lab.proof.registry import Check, Equation, Mutant, polynomial, wrong
from kda_lab.proof.words import same_words, words

RWKV7 = "Peng et al. (2025), RWKV-7"
FLA = "Yang et al. (2024), flash-linear-attention, generalized delta rule"
KIMI = "Kimi Linear (2025), section 3"


def dplr_by_entries(S, q, k, v, w, a, b):
    """S (Diag(w) + a b^T) + v k^T, read with q after the write."""
    S = affine_step(S, lambda e, c: w[e] * int(e == c) + a[e] * b[c], lambda r, c: v[r] * k[c])
    return S, read(S, q)


def rwkv7_by_entries(S, q, k, v, w, kappa, eta):
    """S (Diag(w) - kappa (eta . kappa)^T) + v k^T, read with q after the write."""
    S = affine_step(S, lambda e, c: w[e] * int(e == c) - kappa[e] * eta[c] * kappa[c], lambda r, c: v[r] * k[c])
    return S, read(S, q)


def kda_as_dplr(k, v, alpha, beta):
    """KDA's token as one of the diagonal plus rank one rule: a = -beta (alpha . k), b = k, and the value times beta.

    k, alpha: [K]   v: [V]   beta: scalar   returns (k, v, w, a, b).   Implements kda-as-dplr.

    >>> import numpy as np
    >>> kda_as_dplr(np.array([1, 2]), np.array([5]), np.array([3, 4]), 2)[3]
    array([ -6, -16])
    """
    return k, v * beta, alpha, -(alpha * k) * beta, k


def claim_kda_as_dplr(x, translate):
    S = x.S
    for q, k, v, alpha, beta in zip(x.q, x.k, x.v, x.alpha, x.beta):
        yield from zip(rules.dplr(S, q, *translate(k, v, alpha, beta)), rules.kda(S, q, k, v, alpha, beta))
        S, _ = rules.kda(S, q, k, v, alpha, beta)
    columns = [translate(*token) for token in zip(x.k, x.v, x.alpha, x.beta)]
    K, V, w, a, b = (stack(c) for c in zip(*columns))
    terms, general = chunk.kda(x.S, x.q, x.k, x.v, x.alpha, x.beta), chunk_dplr.dplr(x.S, x.q, K, V, w, a, b)
    yield general.S, terms.S
    yield general.O, terms.O
    # keys shared: one score matrix where the general rule needs two
    yield general.M_qb, general.M_qk
    yield general.M_qb, terms.M


def rwkv7_as_dplr(k, v, w, kappa, eta):
    """RWKV-7's token as one of the diagonal plus rank one rule: a = -kappa, b = eta . kappa.

    k, w, kappa, eta: [K]   v: [V]   returns (k, v, w, a, b).   Implements rwkv7-as-dplr.

    >>> import numpy as np
    >>> rwkv7_as_dplr(np.array([1]), np.array([5]), np.array([3]), np.array([1]), np.array([7]))[3:]
    (array([-1]), array([7]))
    """
    return k, v, w, -kappa, eta * kappa


def claim_rwkv7_as_dplr(x, translate):
    S, rows = rules.scan(rules.rwkv7, x.S, x.q, x.k, x.v, x.w, x.kappa, x.eta)
    columns = [translate(*token) for token in zip(x.k, x.v, x.w, x.kappa, x.eta)]
    terms = chunk_dplr.dplr(x.S, x.q, *(stack(c) for c in zip(*columns)))
    yield terms.S, S
    yield terms.O, stack(rows)


def claim_chunk(x, dplr_chunk):
    """State, outputs and the reads Z of a chunk are those of the token loop."""
    S, outputs, reads = x.S, [], []
    for q, k, v, w, a, b in zip(x.q, x.k, x.v, x.w, x.a, x.b):
        reads.append(S @ a)
        S, o = rules.dplr(S, q, k, v, w, a, b)
        outputs.append(o)
    terms = dplr_chunk(x.S, x.q, x.k, x.v, x.w, x.a, x.b)
    yield terms.S, S
    yield terms.O, stack(outputs)
    yield terms.Z, stack(reads)
    # the terms by name: their own definitions
    yield terms.Z - terms.A_ab @ terms.Z, terms.A_in @ x.S.T + terms.A_ak @ x.v
    yield terms.M_qb, chunk.decayed_scores(x.q, x.b, x.w)
    yield terms.M_qk, chunk.decayed_scores(x.q, x.k, x.w)
    yield terms.A_ak, chunk_dplr.scores_before(x.a, x.k, x.w)
    yield terms.R @ (terms.A_in @ x.S.T + terms.A_ak @ x.v), terms.Z
    G = chunk.decay_from_start(x.w)
    yield terms.Q_in, x.q * G
    yield x.S * G[-1] + terms.Z.T @ terms.B_g + x.v.T @ terms.K_g, S


def prove_step(sign):
    """If S = S_0 D + Z^T B_g + V^T K_g after C tokens, then one more token appends z, v, b, k and decays the rest."""
    S0, D, Zt, Bg, Vt, Kg, W, a, bt, v, kt = words("S0 D Zt Bg Vt Kg W a bt v kt")
    S = S0 * D + Zt * Bg + Vt * Kg
    z = S0 * D * a + sign * Zt * Bg * a + Vt * Kg * a  # the read S a, term by term
    same_words(S * (W + a * bt) + v * kt, S0 * D * W + Zt * Bg * W + Vt * Kg * W + z * bt + v * kt)


_AB = "A_ab, A_ak = scores_before(a, b, w), scores_before(a, K, w)"
_Z = "Z = R @ (A_in @ S.T + A_ak @ V)"
_O = "O = Q_in @ S.T + M_qb @ Z + M_qk @ V"
_S = "S = S * G[-1] + Z.T @ B_g + V.T @ K_g"
_LATER = "chunk.tril(chunk.decayed_scores(a, {}, w), -1)"
CHUNK_MUTANTS = (
    wrong(
        chunk_dplr.dplr,
        "A_ab decays over j+1..i, as KDA's A",
        (_AB, f"A_ab, A_ak = {_LATER.format('b')}, scores_before(a, K, w)"),
    ),
    wrong(
        chunk_dplr.dplr, "A_ak decays over j+1..i", (_AB, f"A_ab, A_ak = scores_before(a, b, w), {_LATER.format('K')}")
    ),
    wrong(
        chunk_dplr.dplr,
        "a and b swapped in A_ab",
        (_AB, _AB.replace("scores_before(a, b, w)", "scores_before(b, a, w)")),
    ),
    wrong(chunk_dplr.dplr, "A_in carries its own token's decay", ("a * decay_before(w)", "a * G")),
    wrong(chunk_dplr.dplr, "I + A_ab", ("substitution(-A_ab)", "substitution(A_ab)")),
    wrong(chunk_dplr.dplr, "not solved", (_Z, _Z.replace("R @ ", ""))),
    wrong(chunk_dplr.dplr, "Z ignores the old state", (_Z, "Z = R @ (A_ak @ V)")),
    wrong(chunk_dplr.dplr, "Z ignores the chunk's own writes", (_Z, "Z = R @ (A_in @ S.T)")),
    wrong(chunk_dplr.dplr, "O leaves out the erase", (_O, "O = Q_in @ S.T + M_qk @ V")),
    wrong(chunk_dplr.dplr, "the old state does not decay", (_S, _S.replace("S * G[-1]", "S"))),
    wrong(chunk_dplr.dplr, "B_g and K_g swapped", (_S, "S = S * G[-1] + Z.T @ K_g + V.T @ B_g")),
    wrong(
        chunk_dplr.dplr,
        "B_g carries its own token's decay",
        ("B_g, K_g = b * late, K * late", "B_g, K_g = b * late * w, K * late"),
    ),
)
_RULE = "S * w + outer(S @ a, b) + outer(v, k)"

EQUATIONS = [
    recurrence(
        "dplr-recurrence",
        "Diagonal plus low rank: S (Diag(w) + a b^T) + v k^T; the part S a is read before the decay.",
        FLA,
        "w:C,K=decay a:C,K b:C,K",
        dplr_by_entries,
        rules.dplr,
        [
            wrong(rules.dplr, "erases from the decayed state", ("outer(S @ a, b)", "outer((S * w) @ a, b)")),
            wrong(rules.dplr, "a and b swapped", ("outer(S @ a, b)", "outer(S @ b, a)")),
            wrong(rules.dplr, "the sign", ("S * w + outer(S", "S * w - outer(S")),
            wrong(
                rules.dplr, "the write is erased too", (_RULE, "S * w + outer(S @ a + v * (k @ a), b) + outer(v, k)")
            ),
            wrong(
                rules.dplr,
                "reads before the update",
                (f"    S = {_RULE}\n    return S, S @ q", f"    return {_RULE}, S @ q"),
            ),
        ],
    ),
    recurrence(
        "rwkv7-recurrence",
        "RWKV-7 erases along kappa from the undecayed state, eta per channel, and writes along k.",
        RWKV7,
        "w:C,K=decay kappa:C,K eta:C,K",
        rwkv7_by_entries,
        rules.rwkv7,
        [
            wrong(rules.rwkv7, "the sign of the erase", ("-kappa", "kappa")),
            wrong(rules.rwkv7, "eta on the read, not on the write", ("-kappa, kappa * eta", "-kappa * eta, kappa")),
            wrong(rules.rwkv7, "erases along the write key", ("-kappa, kappa * eta", "-k, k * eta")),
            # the order of KDA
            wrong(rules.rwkv7, "erases from the decayed state", ("-kappa, kappa", "-kappa * w, kappa")),
        ],
    ),
    polynomial(
        "dplr-chunk",
        "Diagonal plus rank one over a chunk: one solve, (I - A_ab) Z = A_in S_0^T + A_ak V, for all erase reads.",
        FLA,
        shapes=TOKENS + " w:C,K=decay a:C,K b:C,K",
        claim=claim_chunk,
        subject=chunk_dplr.dplr,
        ring=SMALL,
        field_sizes=[{"C": 16, "K": 4, "V": 3}],
        real=[{"C": 7, "K": 4, "V": 3}],
        mutants=CHUNK_MUTANTS,
    ),
    Equation(
        "dplr-chunk-step",
        "If S = S_0 D + Z^T B_g + V^T K_g holds for C tokens, it holds for C + 1.",
        FLA,
        "proved",
        Check("words", "one more token, all sizes", prove_step),
        None,
        +1,
        (Mutant("the sign of the erase reads", -1),),
    ),
    polynomial(
        "kda-as-dplr",
        "KDA is diagonal plus rank one with a = -beta (alpha . k), b = k: erase and write share a key.",
        KIMI,
        shapes=KDA_TOKENS,
        claim=claim_kda_as_dplr,
        subject=kda_as_dplr,
        ring=SMALL,
        field_sizes=[{"C": 12, "K": 4, "V": 2}],
        real=[{"C": 7, "K": 4, "V": 3}],
        mutants=[
            wrong(kda_as_dplr, "the undecayed key", ("-(alpha * k) * beta", "-k * beta")),
            wrong(kda_as_dplr, "the value without beta", ("v * beta", "v")),
            wrong(kda_as_dplr, "the sign", ("-(alpha", "(alpha")),
            wrong(kda_as_dplr, "the decay on b", ("-(alpha * k) * beta, k", "-k * beta, alpha * k")),
        ],
    ),
    polynomial(
        "rwkv7-as-dplr",
        "RWKV-7 is diagonal plus rank one with a = -kappa, b = eta . kappa: two keys, twice the scores.",
        RWKV7,
        shapes=TOKENS + " w:C,K=decay kappa:C,K eta:C,K",
        claim=claim_rwkv7_as_dplr,
        subject=rwkv7_as_dplr,
        ring=[{"C": 3, "K": 2, "V": 1}],
        field_sizes=[{"C": 12, "K": 4, "V": 2}],
        real=[{"C": 7, "K": 4, "V": 3}],
        mutants=[
            wrong(rwkv7_as_dplr, "eta on a", ("w, -kappa, eta * kappa", "w, -kappa * eta, kappa")),
            wrong(rwkv7_as_dplr, "the sign", ("w, -kappa", "w, kappa")),
            wrong(rwkv7_as_dplr, "erases from the decayed state", ("w, -kappa", "w, -kappa * w")),
            wrong(rwkv7_as_dplr, "one key for both", ("return k, v, w", "return kappa, v, w")),
        ],
    ),
]

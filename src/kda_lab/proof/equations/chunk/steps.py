"""Chunks as steps: composition, one more token, chunk after chunk; and the chunk forms of the simpler rules."""

import torch

from kda_lab import rules
from kda_lab.algebra import affine, chunk
from kda_lab.parts import inputs
from kda_lab.proof.engines import stack
from kda_lab.proof.equations.chunk.mutants import CHUNK_MUTANTS
from kda_lab.proof.equations.chunk.terms import DELTA, KIMI, REAL, terms_of
from kda_lab.proof.equations.common import KDA_TOKENS, require
from kda_lab.proof.registry import Check, Equation, Mutant, polynomial, variant
from kda_lab.proof.words import same_words, scalars, words


def claim_affine_chunk(x, fold):
    T, H = fold(x.k, x.v, x.alpha, x.beta)
    S, _ = rules.scan(rules.kda, x.S, x.q, x.k, x.v, x.alpha, x.beta)
    yield x.S @ T + H, S


def claim_affine_sum(x, fold):
    """H of a chunk is the sum of each write, carried by the transitions behind it, in ascending order."""
    _, H = fold(x.k, x.v, x.alpha, x.beta)
    total = x.S * 0
    for i in range(len(x.k)):
        term = affine.increment(x.k[i], x.v[i], x.beta[i])
        for t in range(i + 1, len(x.k)):
            term = term @ affine.transition(x.k[t], x.alpha[t], x.beta[t])
        total = total + term
    yield H, total


def write_passing_its_transition(K, V, alpha, beta):
    """Mutant: the transitions i..C behind write i instead of i+1..C."""
    T, _ = affine.fold(K, V, alpha, beta)
    H = rules.outer(V[0], K[0]) * 0
    for k, v, a, b in zip(K, V, alpha, beta):
        H = (H + affine.increment(k, v, b)) @ affine.transition(k, a, b)
    return T, H


def claim_split(x, split):
    """Any chunk size gives the states and outputs of the token loop."""
    S, rows = rules.scan(rules.kda, x.S, x.q, x.k, x.v, x.alpha, x.beta)
    for C in (1, 2, 3, len(x.k)):
        last, terms = split(chunk.kda, x.S, C, x.q, x.k, x.v, x.alpha, x.beta)
        yield last, S
        yield stack([o for t in terms for o in t.O]), stack(rows)


def claim_padding(x, pad):
    """Rows with k = v = q = 0, beta = 0 and alpha = 1 (g = 0) behind the chunk change nothing."""
    padded = pad(x, 3)
    terms, longer = terms_of(x), chunk.kda(x.S, *padded)
    yield longer.S, terms.S
    yield longer.O[: len(x.k)], terms.O


def pad(x, n, gate=1, write=0):
    """The chunk's inputs with n neutral rows behind them."""

    def behind(X, value):
        return stack([*X, *[X[0] * 0 + value for _ in range(n)]])

    return behind(x.q, 0), behind(x.k, 0), behind(x.v, write), behind(x.alpha, gate), behind(x.beta, write)


def pad_with_decay(x, n):
    return pad(x, n, gate=x.alpha[0])


def pad_with_writes(x, n):
    q, _, v, alpha, beta = pad(x, n, write=1)
    return q, stack([*x.k, *[x.k[0]] * n]), v, alpha, beta


def claim_linear(x, linear_chunk):
    S, rows = rules.scan(rules.linear, x.S, x.q, x.k, x.v)
    terms = linear_chunk(x.S, x.q, x.k, x.v)
    yield terms.S, S
    yield terms.O, stack(rows)
    yield terms.M, chunk.tril(x.q @ x.k.T)


def claim_special(rule, gates, channels):
    """A claim: the chunk form of a rule is its token loop, and term by term that of KDA with these gates.

    gates: names of what comes after q, k and v   channels: (x) -> KDA's decays, [C, K].
    """

    def claim(x, form):
        given = [x.S, x.q, x.k, x.v, *(getattr(x, name) for name in gates)]
        S, rows = rules.scan(rule, *given)
        terms = form(*given)
        yield terms.S, S
        yield terms.O, stack(rows)
        general = chunk.kda(x.S, x.q, x.k, x.v, channels(x), x.beta)
        for name in ("A", "R", "M", "K_in", "Q_in", "K_g", "U", "W", "E"):
            yield getattr(terms, name), getattr(general, name)
        yield x.k[0] * 0 + terms.D, general.D

    return claim


def transition_step(sign):
    """(D - W^T K_g) D' (I - beta k k^T) = D D' - [W^T, w'] [K_g D'; k^T], with w' = beta (D D' k - W^T K_g D' k)."""
    D, D2, Wt, Kg, k, kt = words("D D2 Wt Kg k kt")
    (beta,) = scalars("beta")
    old = D - Wt * Kg
    w = beta * (D * D2 * k + sign * Wt * Kg * D2 * k)
    same_words(old * D2 - beta * old * D2 * k * kt, D * D2 - Wt * Kg * D2 - w * kt)


def increment_step(sign):
    """U^T K_g D' + u' k^T with u' = beta (v - U^T K_g D' k) is the increment after one more token."""
    Ut, Kg, D2, k, kt, v = words("Ut Kg D2 k kt v")
    (beta,) = scalars("beta")
    H = Ut * Kg
    u = beta * (v + sign * H * D2 * k)
    same_words(H * D2 - beta * H * D2 * k * kt + beta * v * kt, Ut * Kg * D2 + u * kt)


def state_step(sign):
    """The residual of token C + 1, read from the chunk form, is u' - S w'."""
    S, D, D2, Wt, Kg, Ut, k, v = words("S D D2 Wt Kg Ut k v")
    (beta,) = scalars("beta")
    state = S * D - S * Wt * Kg + Ut * Kg
    r = beta * (v - state * D2 * k)
    u = beta * (v - Ut * Kg * D2 * k)
    w = beta * (D * D2 * k - Wt * Kg * D2 * k)
    same_words(r, u + sign * S * w)


def step_equation(slug, sentence, step):
    words_check = Check("words", "one more token, all sizes", step)
    return Equation(slug, sentence, KIMI, "proved", words_check, None, -1, (Mutant("the sign of the correction", +1),))


def loop_difference(kda_chunk, q, k, v, alpha, beta, S, C):
    """The largest difference between chunks of C tokens and the token loop, in state and outputs."""
    last, rows = rules.scan(rules.kda, S, q, k, v, alpha, beta)
    got, terms = chunk.split(kda_chunk, S, C, q, k, v, alpha, beta)
    return max(
        (got - last).abs().max().item(), (torch.cat([t.O for t in terms]) - torch.stack(rows)).abs().max().item()
    )


def check_sizes(kda_chunk):
    """Many lengths and chunk sizes, write gates below 2, strong and weak decays."""
    generator = torch.Generator().manual_seed(6)
    for T, C in [(1, 1), (5, 2), (17, 3), (17, 16), (64, 64), (100, 16), (130, 64)]:
        for gates in ("strong", "long", "weak"):
            x = inputs.head(T, 6, 4, generator, gates=gates)
            error = loop_difference(kda_chunk, x.q, x.k, x.v, x.g.exp(), x.beta * 2, x.S, C)
            # 1e-12: some thousand roundings of numbers of order one
            require(error <= 1e-12, f"T = {T}, C = {C}, {gates} gates: off by {error:.1e}")


def check_edges(kda_chunk):
    """Inputs at the edge: closed and open gates, no decay, full decay, zero keys, equal keys, an empty state."""
    generator = torch.Generator().manual_seed(7)
    x = inputs.head(20, 5, 3, generator, gates="long")
    alpha, ones = x.g.exp(), torch.ones_like(x.g)
    same = x.k[:1].expand_as(x.k)
    cases = {
        "beta = 0": (x.k, alpha, x.beta * 0, x.S),
        "beta = 1": (x.k, alpha, x.beta * 0 + 1, x.S),
        "alpha = 1": (x.k, ones, x.beta, x.S),
        "alpha = 0": (x.k, ones * 0, x.beta, x.S),
        "zero keys": (x.k * 0, alpha, x.beta, x.S),
        "short keys": (x.k * 0.4, alpha, x.beta, x.S),
        "equal keys": (same, ones, x.beta * 0 + 1, x.S),
        "equal keys, weak decay": (same, alpha, x.beta, x.S),
        "empty state": (x.k, alpha, x.beta, x.S * 0),
    }
    for name, (k, a, beta, S) in cases.items():
        error = loop_difference(kda_chunk, x.q, k, x.v, a, beta, S, 7)
        require(error <= 1e-12, f"{name}: off by {error:.1e}")


EQUATIONS = [
    polynomial(
        "affine-chunk",
        "A chunk is one affine step: S_C = S_0 T + H, products ascending in time.",
        KIMI,
        shapes=KDA_TOKENS,
        claim=claim_affine_chunk,
        subject=affine.fold,
        ring=[{"C": 3, "K": 2, "V": 2}],
        field_sizes=[{"C": 12, "K": 4, "V": 2}],
        mutants=[
            Mutant(
                "descending order",
                lambda K, V, a, b: affine.fold(K[::-1] if not isinstance(K, torch.Tensor) else K.flip(0), V, a, b),
            ),
            Mutant("factors of T swapped", variant(affine.fold, ("compose(total, step)", "compose(step, total)"))),
            Mutant(
                "the write does not decay",
                variant(affine.fold, ("compose(total, step)", "(total[0] @ step[0], total[1] + step[1])")),
            ),
        ],
    ),
    polynomial(
        "affine-sum",
        "Each write is carried to the end by the transitions behind it, i+1..C.",
        KIMI,
        shapes=KDA_TOKENS,
        claim=claim_affine_sum,
        subject=affine.fold,
        ring=[{"C": 3, "K": 2, "V": 2}],
        mutants=[
            Mutant("the write passes its own transition", write_passing_its_transition),
            Mutant("factors of T swapped", variant(affine.fold, ("compose(total, step)", "compose(step, total)"))),
        ],
    ),
    step_equation(
        "chunk-transition-step",
        "If D - W^T K_g is the transition of C tokens, the same form holds for C + 1.",
        transition_step,
    ),
    step_equation(
        "chunk-increment-step",
        "If U^T K_g is the increment of C tokens, the same form holds for C + 1.",
        increment_step,
    ),
    step_equation("chunk-residual-step", "The residual of token C + 1 is u - S_0 w.", state_step),
    polynomial(
        "chunk-by-chunk",
        "Chunks of any size, the last one short, give what the loop gives.",
        KIMI,
        shapes=KDA_TOKENS,
        claim=claim_split,
        subject=chunk.split,
        ring=[{"C": 4, "K": 2, "V": 1}],
        field_sizes=[{"C": 17, "K": 3, "V": 2}],
        mutants=[
            Mutant("each chunk starts from the first state", variant(chunk.split, ("S = out.S", "pass"))),
            Mutant(
                "one token skipped between chunks",
                variant(chunk.split, ("x[start : start + C]", "x[start : start + max(1, C - 1)]")),
            ),
        ],
    ),
    polynomial(
        "chunk-padding",
        "Padded rows have k = v = q = 0, beta = 0 and g = 0; anything else touches the state.",
        KIMI,
        shapes=KDA_TOKENS,
        claim=claim_padding,
        subject=pad,
        ring=[{"C": 3, "K": 2, "V": 1}],
        real=REAL[:1],
        mutants=[
            Mutant("the gate of a padded row is not 1", pad_with_decay),
            Mutant("padded rows write", pad_with_writes),
        ],
    ),
    polynomial(
        "linear-chunk",
        "Linear attention over a chunk: one masked score matrix, one update.",
        "Hua et al. (2022); Yang et al. (2023)",
        shapes="S:V,K q:C,K k:C,K v:C,V",
        claim=claim_linear,
        subject=chunk.linear,
        ring=[{"C": 5, "K": 2, "V": 2}],
        field_sizes=[{"C": 64, "K": 8, "V": 4}],
        mutants=[
            Mutant("strictly causal", variant(chunk.linear, ("tril(Q @ K.T)", "tril(Q @ K.T, -1)"))),
            Mutant("no mask", variant(chunk.linear, ("tril(Q @ K.T)", "Q @ K.T"))),
            Mutant("forgets the old state", variant(chunk.linear, ("Q @ S.T + M @ V", "M @ V"))),
            Mutant("the old state is overwritten", variant(chunk.linear, ("S = S + V.T @ K", "S = V.T @ K"))),
        ],
    ),
    polynomial(
        "delta-chunk",
        "DeltaNet over a chunk: the WY form, and KDA's with every decay at 1.",
        DELTA,
        shapes="S:V,K q:C,K k:C,K v:C,V beta:C=gate",
        claim=claim_special(rules.delta, ("beta",), lambda x: x.k * 0 + 1),
        subject=chunk.delta,
        ring=[{"C": 4, "K": 2, "V": 2}],
        field_sizes=[{"C": 64, "K": 6, "V": 3}],
        mutants=[
            Mutant(
                "A keeps beta_j",
                variant(chunk.delta, ("tril(K @ K.T, -1) * beta[:, None]", "tril(K @ K.T, -1) * beta[None, :]")),
            ),
            Mutant("the residual is U", variant(chunk.delta, ("E = U - W @ S.T", "E = U"))),
            Mutant(
                "the sign of the inverse",
                variant(chunk.delta, ("triangular.substitution(A)", "triangular.substitution(-A)")),
            ),
            Mutant("M is strictly lower", variant(chunk.delta, ("M = tril(Q @ K.T)", "M = tril(Q @ K.T, -1)"))),
        ],
    ),
    polynomial(
        "gdn-chunk",
        "Gated DeltaNet over a chunk: one scalar decay multiplies each score, so K K^T is formed once.",
        "Yang et al. (2024), Gated Delta Networks",
        shapes="S:V,K q:C,K k:C,K v:C,V alpha:C=decay beta:C=gate",
        claim=claim_special(rules.gated_delta, ("alpha", "beta"), lambda x: (x.k * 0 + 1) * x.alpha[:, None]),
        subject=chunk.gated_delta,
        ring=[{"C": 4, "K": 2, "V": 2}],
        field_sizes=[{"C": 64, "K": 6, "V": 3}],
        mutants=[
            Mutant("A without decay", variant(chunk.gated_delta, ("tril(K @ K.T * decay, -1)", "tril(K @ K.T, -1)"))),
            Mutant(
                "the old state does not decay",
                variant(chunk.gated_delta, ("S = S * expG[-1] + E.T @ K_g", "S = S + E.T @ K_g")),
            ),
            Mutant("Q_in without decay", variant(chunk.gated_delta, ("Q_in = Q * expG[:, None]", "Q_in = Q * 1"))),
            Mutant(
                "K_g without decay",
                variant(chunk.gated_delta, ("K_g = K * decay_to_end(alpha)[:, None]", "K_g = K * 1")),
            ),
        ],
    ),
    Equation(
        "chunk-sizes",
        "Every length and chunk size gives the loop's state and outputs, to rounding.",
        KIMI,
        "checked",
        Check("float64", "T=1..130, C=1..64, three gate families, beta below 2", check_sizes),
        None,
        chunk.kda,
        CHUNK_MUTANTS,
    ),
    Equation(
        "chunk-edges",
        "So do closed and open gates, no decay and full decay, zero, short and equal keys, and an empty state.",
        KIMI,
        "checked",
        Check("float64", "T=20, C=7, nine edges", check_edges),
        None,
        chunk.kda,
        CHUNK_MUTANTS,
    ),
]

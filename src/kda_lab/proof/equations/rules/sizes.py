"""Why exact checks at small sizes are affordable, and what they say about large ones."""

from kda_lab import rules
from kda_lab.proof.engines import Ring, stack
from kda_lab.proof.equations.common import KDA_TOKENS, require
from kda_lab.proof.registry import Check, Equation, Mutant, polynomial, variant

FOLLOWS = "follows from kda-recurrence"


def claim_rows(x, rule):
    """Row r of the state and output r need row r of S_0 and coordinate r of the values, nothing else."""
    S, rows = rules.scan(rule, x.S, x.q, x.k, x.v, x.alpha, x.beta)
    for r in range(len(x.S)):
        alone, outputs = rules.scan(rule, x.S[r : r + 1], x.q, x.k, x.v[:, r : r + 1], x.alpha, x.beta)
        yield S[r : r + 1], alone
        yield stack([o[r] for o in rows]), stack([o[0] for o in outputs])


def polynomials(C, K):
    """One entry of the state and one output after C tokens of KDA, as polynomials in all inputs, S_0 included."""
    x = Ring().inputs(KDA_TOKENS, {"C": C, "K": K, "V": 1})
    S, rows = rules.scan(rules.kda, x.S, x.q, x.k, x.v, x.alpha, x.beta)
    return S[0, 0], rows[-1][0]


def monomials(C, K):
    """How many monomials one output has after C tokens: (K + 1)^(C + 1) - 1.   Implements kda-monomials.

    >>> monomials(3, 2)
    80
    """
    return (K + 1) ** (C + 1) - 1


def count_monomials(count):
    """The outputs multiplied out; the state has a K-th of them, and every coefficient is 1 or -1."""
    for C, K in ((1, 1), (1, 3), (2, 2), (3, 2), (4, 2), (2, 4)):
        state, output = polynomials(C, K)
        require(len(output) == count(C, K), f"C = {C}, K = {K}: {len(output)} monomials, expected {count(C, K)}")
        require(len(state) * K == count(C, K), f"C = {C}, K = {K}: {len(state)} monomials in the state")
        require({abs(int(c)) for c in output.values()} == {1}, f"C = {C}, K = {K}: a coefficient other than 1 and -1")


def degree(C):
    """The degree of the state after C tokens: 4 C + 1, since each token multiplies by alpha, beta and two entries of k.

    Over 2^61 - 1 elements two such polynomials agree at a random point with probability below (4 C + 1) / 2^61.
    Implements kda-degree.

    >>> degree(64)
    257
    """
    return 4 * C + 1


def check_degree(degree):
    for C, K in ((1, 2), (2, 2), (3, 2), (4, 1)):
        state, output = polynomials(C, K)
        require(max(sum(powers) for powers in state) == degree(C), f"C = {C}, K = {K}: the state")
        require(max(sum(powers) for powers in output) == degree(C) + 1, f"C = {C}, K = {K}: the output, read with q")


EQUATIONS = [
    polynomial(
        "value-rows",
        "Value rows never meet: a check with V = 1 loses nothing but transposes.",
        FOLLOWS,
        shapes=KDA_TOKENS,
        claim=claim_rows,
        subject=rules.kda,
        ring=[{"C": 3, "K": 2, "V": 2}],
        real=[{"C": 5, "K": 3, "V": 3}, {"C": 5, "K": 4, "V": 3}],
        mutants=[
            Mutant("rows share one residual", variant(rules.kda, ("outer(r, k)", "outer(r * 0 + sum(r), k)"))),
            Mutant(
                "reads the sum of all rows", variant(rules.kda, ("return S, S @ q", "return S, (S * 0 + sum(S)) @ q"))
            ),
            Mutant("rows are centred", variant(rules.kda, ("S = S * alpha", "S = S * alpha * len(S) - sum(S)"))),
        ],
    ),
    Equation(
        "kda-monomials",
        "Multiplied out, one output after C tokens has (K + 1)^(C + 1) - 1 monomials.",
        FOLLOWS,
        "proved",
        Check("ring", "C=1..4 K=1..4", count_monomials),
        None,
        monomials,
        (
            Mutant("one token fewer", lambda C, K: (K + 1) ** C - 1),
            Mutant("the empty one counted", lambda C, K: (K + 1) ** (C + 1)),
            Mutant("without the old state", lambda C, K: (K + 1) ** (C + 1) - 1 - K * (K + 1) ** C),
        ),
    ),
    Equation(
        "kda-degree",
        "The state after C tokens is a polynomial of degree 4 C + 1 in the inputs.",
        FOLLOWS,
        "proved",
        Check("ring", "C=1..4 K=1, 2", check_degree),
        None,
        degree,
        (
            Mutant("no old state", lambda C: 4 * C),
            Mutant("one entry of the key", lambda C: 3 * C + 1),
            Mutant("gates left out", lambda C: 2 * C + 1),
        ),
    ),
]

"""A rule token by token, against its formula: what the modules of the rules share."""

from kda_lab.proof.equations.common import TOKENS, token_by_token
from kda_lab.proof.registry import polynomial

SMALL = [{"C": 3, "K": 2, "V": 2}]
# K = V first: there a transposed state type-checks
REAL = [{"C": 7, "K": 3, "V": 3}, {"C": 9, "K": 4, "V": 3}]


def names_of(gates):
    """The names that a declaration declares.

    >>> names_of("a:C=decay dt:C")
    ['a', 'dt']
    """
    return [item.partition("=")[0].partition(":")[0] for item in gates.split()]


def recurrence(slug, sentence, source, gates, formula, rule, mutants, ring=SMALL, field_sizes=()):
    """The equation of a rule (S, q, k, v, *gates) and its formula.   gates: declaration of what comes after q, k, v.

    >>> from kda_lab import rules
    >>> recurrence("toy", "One.", "school", "gamma:C=decay", rules.retnet, rules.retnet, ()).level
    'proved'
    """
    return polynomial(
        slug,
        sentence,
        source,
        shapes=f"{TOKENS} {gates}",
        claim=token_by_token(formula, "q", "k", "v", *names_of(gates)),
        subject=rule,
        ring=ring,
        field_sizes=field_sizes,
        real=REAL,
        mutants=mutants,
    )

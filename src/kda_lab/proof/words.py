"""Words in non-commuting symbols: block identities and induction steps, proved for every size at once.

A matrix, a column or a row is one non-commuting symbol; a scalar is a commuting one. The transpose of X is the
symbol Xt. Expanding both sides and comparing the words proves the identity for all shapes that fit.
"""

import sympy

from kda_lab.proof.engines import Disagreement


def words(names):
    """Non-commuting symbols, one for each name.

    >>> A, B = words("A B")
    >>> A * B == B * A
    False
    """
    return sympy.symbols(names, commutative=False, seq=True)


def scalars(names):
    """Commuting symbols, one for each name.

    >>> (beta,) = scalars("beta")
    >>> (A,) = words("A")
    >>> beta * A == A * beta
    True
    """
    return sympy.symbols(names, seq=True)


def same_words(left, right):
    """Raise Disagreement unless both sides expand to the same sum of words.

    >>> A, B = words("A B")
    >>> same_words((A + B) * A, A**2 + B * A)
    """
    rest = sympy.expand(left - right)
    if rest != 0:
        raise Disagreement(f"the words {rest} are left over")

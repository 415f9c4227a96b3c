"""What the widget of the chapter on reading out shows: a chunk of four tokens, its matrices, the steps that make them,
and one entry of each step worked out.
"""

from fractions import Fraction
from typing import NamedTuple

import numpy as np

from kda_lab.algebra import chunk

# four tokens, two channels, two value rows; every number that follows is an integer or has a denominator of at most 8
GIVEN = {
    "S": [[4, 0], [2, 4]],
    "Q": [[1, 0], [1, 1], [2, 1], [1, 2]],
    "K": [[1, 0], [1, 1], [0, 1], [1, 1]],
    "V": [[1, 2], [7, 0], [6, 2], [1, 6]],
    "alpha": [["1/2", 1], [1, 1], [1, 1], [1, "1/2"]],
    "beta": [1, "1/2", 1, "1/2"],
}


def example() -> dict[str, np.ndarray]:
    """S [2, 2]; Q, K, V, alpha [4, 2]; beta [4] of the four tokens, as exact fractions.

    >>> example()["beta"].tolist()
    [Fraction(1, 1), Fraction(1, 2), Fraction(1, 1), Fraction(1, 2)]
    """
    exact = np.vectorize(Fraction, otypes=[object])
    return {name: exact(np.array(rows, dtype=object)) for name, rows in GIVEN.items()}


def matrices() -> dict[str, np.ndarray]:
    """Everything that the picture shows, by its label: the inputs, the terms of `chunk.kda`, and what lies between.

    >>> matrices()["E"].tolist() == [[-1, 1], [3, -3], [3, 1], [-3, 3]]
    True
    """
    x = example()
    t = chunk.kda(*x.values())
    expG = chunk.decay_from_start(x["alpha"])
    halvings = -np.vectorize(lambda a: Fraction(a.denominator.bit_length() - 1), otypes=[object])(expG)
    return {
        "K": x["K"],
        "Q": x["Q"],
        "V": x["V"],
        "α": x["alpha"],
        "β": x["beta"][:, None],
        "S_0": x["S"],
        "S_0^⊤": x["S"].T,
        "G": halvings,
        "e^G": expG,
        "e^{G_C}": t.D[None, :],
        "e^{G_C−G}": chunk.decay_to_end(x["alpha"]),
        "K_in": t.K_in,
        "Q_in": t.Q_in,
        "K_g": t.K_g,
        "A": t.A,
        "M": t.M,
        "R": t.R,
        "U": t.U,
        "W": t.W,
        "E": t.E,
        "E^⊤": t.E.T,
        "O": t.O,
        "S_C": t.S,
    }


class Worked(NamedTuple):
    """One entry, written out: `head` plus or minus the sum of products. Cells are (label, row, column), counted from
    1.
    """

    cell: tuple[str, int, int]
    sum: list[list[tuple[str, int, int]]]
    head: tuple[str, int, int] | None = None
    sign: int = 1


class Step(NamedTuple):
    """A step of the chunk: what is new, the formula, the matrices in a row (labels, and signs between them), and the
    reason.
    """

    title: str
    new: list[str]
    formula: str
    row: list[str]
    words: str
    worked: Worked | None = None


STEPS = [
    Step(
        "what is given",
        ["K", "Q", "V", "α", "β", "S_0"],
        "a token a row; S_0 is the state before the chunk",
        ["K", "Q", "V", "α", "β", "S_0"],
        "Channel 1 halves at token 1, channel 2 at token 4. Each β is 1 / |k|², so every write is a full overwrite. "
        "Tokens 2 and 4 have the same key.",
    ),
    Step(
        "add up the log decays",
        ["G", "e^G"],
        "G_i = g_1 + … + g_i",
        ["α", "→", "G", "→", "e^G"],
        "G is a running sum down each column, here in units of ln 2. Row i of e^G is what is left at token i of what "
        "stood in S_0; "
        "token i counts, since a token decays before it reads.",
        Worked(("e^G", 4, 2), [[("α", t, 2) for t in (1, 2, 3, 4)]]),
    ),
    Step(
        "give keys and queries their decays",
        ["K_in", "Q_in", "K_g"],
        "K_in = K ⊙ e^G, Q_in = Q ⊙ e^G, K_g = K ⊙ e^{G_C−G}",
        ["K", "Q", "e^G", "e^{G_C−G}", "→", "K_in", "Q_in", "K_g"],
        "K_in and Q_in look back at S_0, over tokens 1..i. K_g looks ahead to the end, over tokens i+1..C: a token's "
        "own decay is over when it writes, "
        "so the last key keeps all.",
        Worked(("K_g", 2, 2), [[("K", 2, 2), ("e^{G_C−G}", 2, 2)]]),
    ),
    Step(
        "A: how earlier writes disturb later reads",
        ["A"],
        "A_{ij} = β_i Σ_c k_{ic} k_{jc} e^{G_{ic}−G_{jc}} for j < i",
        ["K", "α", "β", "→", "A"],
        "What token j writes has decayed over j+1..i, the product of those α, when token i reads it with its key. "
        "Nothing stands on the diagonal: a token reads before it writes.",
        Worked(("A", 4, 2), [[("β", 4, 1), ("K", 4, c), ("K", 2, c), ("α", 3, c), ("α", 4, c)] for c in (1, 2)]),
    ),
    Step(
        "M: how queries read the writes",
        ["M"],
        "M_{ij} = Σ_c q_{ic} k_{jc} e^{G_{ic}−G_{jc}} for j ≤ i",
        ["Q", "K", "α", "→", "M"],
        "The same sum with a query in place of the reading key, and no β: it is in the residual already. The "
        "diagonal stays: a token writes before it reads out.",
        Worked(("M", 4, 2), [[("Q", 4, c), ("K", 2, c), ("α", 3, c), ("α", 4, c)] for c in (1, 2)]),
    ),
    Step(
        "R: settle who corrected whom",
        ["R"],
        "R = (I + A)^{−1}, row by row: R_i = e_i − Σ_{j<i} A_{ij} R_j",
        ["A", "→", "R"],
        "Token 4 meets corrections that met earlier corrections. Substitution follows every such path; apart from "
        "the running sum G, only here do tokens wait for each other.",
        Worked(("R", 4, 1), [[("A", 4, j), ("R", j, 1)] for j in (1, 2, 3)], sign=-1),
    ),
    Step(
        "U: the residuals without S₀",
        ["U"],
        "U = R B V",
        ["R", "·", "β", "⊙", "V", "=", "U"],
        "B multiplies row i by β_i. U is what the tokens would write into an empty state.",
        Worked(("U", 3, 1), [[("R", 3, j), ("β", j, 1), ("V", j, 1)] for j in (1, 2, 3)]),
    ),
    Step(
        "W: what S₀ changes in them",
        ["W"],
        "W = R B K_in",
        ["R", "·", "β", "⊙", "K_in", "=", "W"],
        "The same R, another right side. Up to here nobody has looked at S_0: all chunks of a sequence come this far "
        "at once.",
        Worked(("W", 4, 2), [[("R", 4, j), ("β", j, 1), ("K_in", j, 2)] for j in (1, 2, 3, 4)]),
    ),
    Step(
        "E: what each token writes",
        ["E"],
        "E = U − W S_0^⊤",
        ["U", "−", "W", "·", "S_0^⊤", "=", "E"],
        "S_0 arrives, undecayed: its decay is in W. Row i is the residual that the token loop finds at token i.",
        Worked(("E", 2, 2), [[("W", 2, c), ("S_0^⊤", c, 2)] for c in (1, 2)], ("U", 2, 2), -1),
    ),
    Step(
        "O: read out",
        ["O"],
        "O = Q_in S_0^⊤ + M E",
        ["Q_in", "·", "S_0^⊤", "+", "M", "·", "E", "=", "O"],
        "What is left of S_0 at token i, and what was written up to and including token i. Queries 1 and 2 are "
        "the keys, "
        "and every write overwrites: they read their own values.",
        Worked(
            ("O", 2, 1),
            [[("Q_in", 2, c), ("S_0^⊤", c, 1)] for c in (1, 2)] + [[("M", 2, j), ("E", j, 1)] for j in (1, 2)],
        ),
    ),
    Step(
        "the state for the next chunk",
        ["S_C"],
        "S_C = S_0 Diag(e^{G_C}) + E^⊤ K_g",
        ["S_0", "⊙", "e^{G_C}", "+", "E^⊤", "·", "K_g", "=", "S_C"],
        "Old columns decay over the whole chunk; each residual is added under its key, decayed from its token to the "
        "end. No state between the two was ever formed.",
        Worked(
            ("S_C", 2, 2), [[("S_0", 2, 2), ("e^{G_C}", 1, 2)]] + [[("E^⊤", 2, j), ("K_g", j, 2)] for j in (1, 2, 3, 4)]
        ),
    ),
]


def written(x: Fraction) -> str:
    """A fraction as text, with a true minus sign.

    >>> written(Fraction(-3, 4))
    '−3/4'
    """
    return str(x).replace("-", "−")


def work_out(worked: Worked, m: dict[str, np.ndarray]) -> tuple[str, Fraction]:
    """The sum of a `Worked` entry as text, and its value: a calculation of its own, to be held against the matrix.

    >>> work_out(STEPS[5].worked, matrices())
    ('−(1/2·1 + 3/4·(−1/2) + 1/4·1/2)', Fraction(-1, 4))
    """
    at = lambda cell: m[cell[0]][cell[1] - 1, cell[2] - 1]
    total, terms = Fraction(0), []
    for product in worked.sum:
        value = Fraction(1)
        for cell in product:
            value *= at(cell)
        total += value
        terms.append(
            "·".join(written(at(c)) if n == 0 or at(c) >= 0 else f"({written(at(c))})" for n, c in enumerate(product))
        )
    text = " + ".join(terms)
    if worked.sign < 0:
        text = f"−({text})"
    if worked.head:
        text = f"{written(at(worked.head))} {text[0]} {text[1:]}"
        return text, at(worked.head) + worked.sign * total
    return text, worked.sign * total

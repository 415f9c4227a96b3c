"""A chunk in units of its own: exponents relative to the middle, or one reference at each edge."""

import torch

from kda_lab.algebra import chunk, chunk_fused
from kda_lab.algebra.chunk_fused import edge_units, gate_sums, half_scores, middle_units
from kda_lab.proof.engines import Ring, run_claim
from kda_lab.proof.equations.chunk.fused.common import DERIVED, FIELD, REAL, UNITS, mutants
from kda_lab.proof.equations.common import require
from kda_lab.proof.registry import Check, Equation, Mutant, polynomial, variant


def claim_units(x, units):
    """Scores out of the units' factors, and what leads back to the terms of the plain chunk form."""
    m = units(x.q, x.k, x.alpha)
    expG = chunk.decay_from_start(x.alpha)
    yield m.A, chunk.decayed_scores(x.k, x.k, x.alpha)
    yield m.M, chunk.decayed_scores(x.q, x.k, x.alpha)
    # what the keys' norms are taken from
    for i in range(len(x.k)):
        yield m.A[i, i], (x.k[i] * x.k[i]).sum()
    yield m.read * m.to_read, x.k * expG
    yield m.Q * m.to_read, x.q * expG
    yield m.write * m.exit, x.k * chunk.decay_to_end(x.alpha)
    yield m.to_read * m.to_write * m.exit, expG[-1]


def claim_middle(x, units):
    yield from claim_units(x, units)
    # the reference lies in the middle: there read and write keys are the key
    m, middle = units(x.q, x.k, x.alpha), (len(x.k) - 1) // 2
    yield m.read[middle], x.k[middle]
    yield m.write[middle], x.k[middle]


def claim_edges(x, units):
    """Also with gates that clear a channel, once in each half and at both ends."""
    yield from claim_units(x, units)
    for token in {0, len(x.k) // 3, len(x.k) - 1}:
        x.alpha[token, 0] = x.alpha[token, 0] * 0
        yield from claim_units(x, units)


def claim_sums(x, gate_sums):
    """Gate by gate: between a token and the middle, without the earlier of the two."""
    d, entry = gate_sums(x.g, x.h)
    g = x.g + x.h
    middle = (len(g) - 1) // 2
    none = g[0] * 0
    yield entry, sum(g[: middle + 1], none)
    for i in range(len(g)):
        yield d[i], sum(g[middle + 1 : i + 1], none) - sum(g[i + 1 : middle + 1], none)


def prove_sums(subject):
    for C in (1, 2, 5, 16):
        run_claim(Ring(), "g:C,K h:C,K", {"C": C, "K": 1}, claim_sums, subject[1])


def check_sums(subject):
    """All that two pieces can lose; then sums of them, next to gates a hundred thousand times stronger."""
    pieces, gate_sums = subject
    # what is lost stands in the last 16 digits, and weighs most behind the smallest leading ones
    digits = torch.arange(1 << 16, dtype=torch.int32)
    for leading in (127 << 7, 127 << 7 | 1, 133 << 7 | 127, 90 << 7):
        g = -(digits + (leading << 16)).view(torch.float32)
        kept = [p.double() for p in pieces(g)]
        require(
            all((p.float().view(torch.int32) & 65535 == 0).all() for p in kept),
            "a piece has more digits than bf16 keeps",
        )
        require(
            ((sum(kept) - g).abs() <= 2.0**-16 * g.abs()).all(), f"pieces lose more than 2^-16 of gates near {g[0]:g}"
        )
    generator = torch.Generator().manual_seed(0)
    for strong in (None, 0, 7, 8, 15):
        g = -0.001 * torch.rand((16, 5), generator=generator, dtype=torch.float32)
        if strong is not None:
            g[strong] = -100.0
        for got, exact in zip(gate_sums(*pieces(g)), gate_sums(g.double())):
            # 2^-16 of the pieces and 8 roundings of 2^-24 in a sum of one sign
            require(
                ((got - exact).abs() <= 1.01 * 2.0**-16 * exact.abs()).all(),
                f"token {strong} strong: off by {(got - exact).abs().max():.1e}",
            )
        one = torch.ones_like(g, dtype=torch.float64)
        units = chunk_fused.middle_units(one, one, g.double().exp())
        require(
            torch.allclose(gate_sums(g.double())[0].exp(), units.read, rtol=1e-12),
            "not the exponents of the middle's units",
        )


def prefix_differences(*pieces):
    """Mutant: one prefix sum for all, and differences."""
    G = torch.cumsum(sum(pieces), 0)
    return G - G[(len(G) - 1) // 2], G[(len(G) - 1) // 2]


def sums(name, *patches):
    return Mutant(name, (chunk_fused.two_pieces, variant(gate_sums, *patches)))


def pieces(name, *patches):
    return Mutant(name, (variant(chunk_fused.two_pieces, *patches, torch=torch), gate_sums))


def halves(name, old, new):
    """A mutant of edge_units by way of its scores."""
    return Mutant(name, variant(edge_units, half_scores=variant(half_scores, (old, new))))


_KEYS = "Q * d, K * d, K / d"
_EXIT = "middle, middle * 0 + 1, expG[-1] / middle)"
_LATE = "X[late] * chunk.decay_from_start(alpha[late])"
_EARLY = "Y[early] * chunk.decay_to_end(alpha[early])"

EQUATIONS = [
    Equation(
        "gate-sums",
        "Exponents relative to the middle are one product of the gates with -1, 0 and 1; gates in two pieces of 8 "
        "bits lose at most 2^-16.",
        DERIVED,
        "proved",
        Check("ring", "C=1 C=2 C=5 C=16", prove_sums),
        Check("float32", "all last digits; gates 10^5 apart", check_sums),
        (chunk_fused.two_pieces, gate_sums),
        (
            sums("back over the token itself", ("signs[i, i + 1 : middle + 1] = -1", "signs[i, i : middle + 1] = -1")),
            sums("back without the middle", ("signs[i, i + 1 : middle + 1] = -1", "signs[i, i + 1 : middle] = -1")),
            sums(
                "back with the sign of later tokens",
                ("signs[i, i + 1 : middle + 1] = -1", "signs[i, i + 1 : middle + 1] = 1"),
            ),
            sums("forth from the middle itself", ("signs[i, middle + 1 : i + 1]", "signs[i, middle : i + 1]")),
            sums("forth without the token", ("signs[i, middle + 1 : i + 1]", "signs[i, middle + 1 : i]")),
            sums("entry without the middle", ("signs[middle, : middle + 1]", "signs[middle, :middle]")),
            sums("the middle keeps its row", ("d[middle] = entry * 0", "d[middle] = entry")),
            sums("the first piece alone", ("for piece in pieces)", "for piece in pieces[:1])")),
            Mutant("one piece", (lambda g: chunk_fused.two_pieces(g)[:1], gate_sums)),
            Mutant("fp32 as it is", (lambda g: (g,), gate_sums)),
            pieces("more digits than bf16 keeps", ("x.bfloat16().float()", "x.half().float()")),
            pieces(
                "cut off, not rounded", ("x.bfloat16().float()", "(x.view(torch.int32) & -65536).view(torch.float32)")
            ),
            pieces("the second piece is the first again", ("kept(g - top)", "kept(g)")),
            Mutant("differences of prefix sums", (chunk_fused.two_pieces, prefix_differences)),
        ),
    ),
    polynomial(
        "middle-units",
        "Relative to the middle of a chunk one array of write keys serves scores and update, and exponents reach "
        "over half a chunk; the keys' scores with themselves are |k|^2.",
        DERIVED,
        shapes=UNITS,
        claim=claim_middle,
        subject=middle_units,
        field_sizes=FIELD,
        real=REAL,
        mutants=mutants(
            middle_units,
            ("read and write keys swapped", _KEYS, "Q * d, K / d, K * d"),
            ("write keys not divided", _KEYS, "Q * d, K * d, K"),
            ("queries raw", _KEYS, "Q, K * d, K / d"),
            ("entry and exit swapped", _EXIT, "expG[-1] / middle, middle * 0 + 1, middle)"),
            ("exit is the whole decay", _EXIT, "middle, middle * 0 + 1, expG[-1])"),
            ("the state decays once more before it is written", _EXIT, "middle, middle, expG[-1] / middle)"),
            ("the reference one token late", "// 2 - 1]", "// 2 % len(alpha)]"),
            ("the reference is the chunk's end", "expG[(len(alpha) + 1) // 2 - 1]", "expG[-1]"),
            ("scores of the queries for the keys", "chunk.tril(read @ write.T)", "chunk.tril(Q @ write.T) * 1"),
            ("scores with read keys", "chunk.tril(Q @ write.T)", "chunk.tril(Q @ read.T)"),
        ),
    ),
    polynomial(
        "edge-units",
        "Read in the units of its start and written in those of its end, a chunk has no factor above 1; scores need "
        "two blocks by pairs, and one product.",
        DERIVED,
        shapes=UNITS,
        claim=claim_edges,
        subject=edge_units,
        ring=[{"C": 4, "K": 2}],
        field_sizes=FIELD,
        real=REAL,
        mutants=[
            *mutants(
                edge_units,
                ("queries raw", "Q * expG", "Q"),
                ("read keys from the next token", "K * expG", "K * chunk.decay_to_end(alpha)"),
                ("write keys in the units of the start", "K * chunk.decay_to_end(alpha)", "K"),
                (
                    "write keys decay by their own gate",
                    "K * chunk.decay_to_end(alpha)",
                    "K * chunk.decay_to_end(alpha) * alpha",
                ),
                ("the state read at the end", "one, expG[-1], one)", "expG[-1], one, one)"),
                ("the state decays behind the writes", "one, expG[-1], one)", "one, one, expG[-1])"),
                ("scores out of read and write keys", "half_scores(K, K, alpha)", "chunk.tril((K * expG) @ write.T)"),
                ("scores of the keys for the queries", "half_scores(Q, K, alpha)", "half_scores(K, K, alpha) * 1"),
            ),
            halves(
                "the late half without its own gate",
                _LATE,
                "X[late] * chunk.decay_from_start(alpha[late]) / alpha[late]",
            ),
            halves("the late half undecayed", _LATE, "X[late]"),
            halves("the early half undecayed", _EARLY, "Y[early]"),
            halves(
                "the early half decayed once more", _EARLY, "Y[early] * chunk.decay_to_end(alpha[early]) * alpha[early]"
            ),
            halves("no scores between the halves", "scores[late, early] = x @ y.T", "pass"),
            halves("no scores in the late half", "for part in (early, late)", "for part in (early,)"),
        ],
    ),
]

"""The adjoints of chunk after chunk, of linear attention, and of Gated DeltaNet."""

from kda_lab import rules
from kda_lab.algebra import chunk, chunk_backward
from kda_lab.proof.engines import stack
from kda_lab.proof.equations.chunk.backward.common import claim_stretch, entry, inputs_of
from kda_lab.proof.equations.chunk.backward.mutants import LINEAR_MUTANTS, SPLIT_MUTANTS
from kda_lab.proof.equations.duals import gradient_pairs
from kda_lab.proof.registry import Mutant, variant


def claim_split(x, split):
    """Chunks of 2 (the last one short), of 1, and one chunk for all."""
    for C in (2, 1, len(x.q)):
        yield from claim_stretch(x, lambda S, *rest, C=C: split(S, C, *rest))


def claim_linear(x, backward):
    def loss(constants, q=0, k=0, v=0, S=0):
        S0, Q, K, V, dO, dS = constants
        S1, rows = rules.scan(rules.linear, S0 + S, Q + q, K + k, V + v)
        return (dO * stack(rows)).sum() + (dS * S1).sum()

    constants = x.S, x.q, x.k, x.v, x.dO, x.dS
    dQ, dK, dV, dS = backward(*constants)
    yield from gradient_pairs(loss, constants, {"q": (dQ, x.hK), "k": (dK, x.hK), "v": (dV, x.hV), "S": (dS, x.hS)})


def scalar_gates(S, Q, K, V, a, beta, dO, dS):
    """Gated DeltaNet is KDA with one decay for all channels, so its gate collects what the channels' gates get.   a:
    [C].

    Implements gdn-backward.
    """
    alpha = (K * 0 + 1) * a[:, None]
    d = chunk_backward.kda(S, Q, K, V, alpha, beta, chunk.kda(S, Q, K, V, alpha, beta), dO, dS)
    return chunk_backward.Gradients(d.dQ, d.dK, d.dV, sum(d.dg.T), d.dbeta, d.dS)


def claim_gdn(x, backward):
    def loss(constants, q=0, k=0, v=0, g=0, beta=0, S=0):
        S0, Q, K, V, a, B, dO, dS = constants
        S1, rows = rules.scan(rules.gated_delta, S0 + S, Q + q, K + k, V + v, a + a * g, B + beta)
        return (dO * stack(rows)).sum() + (dS * S1).sum()

    constants = x.S, x.q, x.k, x.v, x.alpha[:, 0], x.beta, x.dO, x.dS
    d = backward(*constants)
    yield from gradient_pairs(loss, constants, {**inputs_of(x, d), "g": (d.dg, x.hB)})


EQUATIONS = [
    entry(
        "backward-by-chunk",
        "Chunk after chunk from the end, with nothing kept but the state before each.",
        claim_split,
        chunk_backward.split,
        SPLIT_MUTANTS,
        field_sizes=[{"C": 7, "K": 3, "V": 2}],
    ),
    entry(
        "linear-chunk-backward",
        "Linear attention backwards: two masked products, and no solve.",
        claim_linear,
        chunk_backward.linear,
        LINEAR_MUTANTS,
        source="Katharopoulos et al. (2020), section 3.3",
    ),
    entry(
        "gdn-backward",
        "With one decay a head, its gradient is the sum of what the channels get.",
        claim_gdn,
        scalar_gates,
        [
            Mutant("the first channel's alone", variant(scalar_gates, ("sum(d.dg.T)", "d.dg[:, 0]"))),
            Mutant("the gradient of alpha, not of ln alpha", variant(scalar_gates, ("sum(d.dg.T)", "sum(d.dg.T) * a"))),
            Mutant("the write gate's left out", variant(scalar_gates, ("d.dbeta", "d.dbeta * 0"))),
        ],
    ),
]

"""What the adjoints of a token, of a chunk and of a sequence are tried with."""

from kda_lab import rules
from kda_lab.proof.engines import stack
from kda_lab.proof.equations.common import KDA_TOKENS
from kda_lab.proof.equations.duals import gradient_pairs
from kda_lab.proof.registry import polynomial

KIMI = "Kimi Linear (2025); the adjoint is derived here"
SHAPES = KDA_TOKENS + " dO:C,V dS:V,K hS:V,K hK:C,K hV:C,V hB:C hC:C,C"
SMALL = [{"C": 3, "K": 2, "V": 1}]
LARGE = [{"C": 12, "K": 3, "V": 2}]
# with C = 5 and V = 3 a transpose has another shape, with C = K = V = 4 it has the same
REAL = [{"C": 5, "K": 4, "V": 3}, {"C": 4, "K": 4, "V": 4}]


def loop_loss(constants, q=0, k=0, v=0, g=0, beta=0, S=0):
    """<dO, O> + <dS, S_C> of the token loop. A change of g multiplies the decay by 1 + g: that is the slope in ln
    alpha.
    """
    S0, Q, K, V, alpha, B, dO, dS = constants
    S1, rows = rules.scan(rules.kda, S0 + S, Q + q, K + k, V + v, alpha + alpha * g, B + beta)
    return (dO * stack(rows)).sum() + (dS * S1).sum()


def constants_of(x):
    return x.S, x.q, x.k, x.v, x.alpha, x.beta, x.dO, x.dS


def inputs_of(x, d):
    """Every input's gradient with its direction; d: gradients with the fields of ``chunk_backward.Gradients``."""
    return {
        "q": (d.dQ, x.hK),
        "k": (d.dK, x.hK),
        "v": (d.dV, x.hV),
        "g": (d.dg, x.hK),
        "beta": (d.dbeta, x.hB),
        "S": (d.dS, x.hS),
    }


def claim_stretch(x, backward):
    """All gradients of a stretch of tokens."""
    yield from gradient_pairs(loop_loss, constants_of(x), inputs_of(x, backward(*constants_of(x))))


def entry(slug, sentence, claim, subject, mutants, ring=SMALL, field_sizes=LARGE, source=KIMI):
    """A polynomial identity of this module; 1e-12 leaves four digits to a few hundred roundings."""
    return polynomial(
        slug,
        sentence,
        source,
        shapes=SHAPES,
        claim=claim,
        subject=subject,
        mutants=mutants,
        ring=ring,
        field_sizes=field_sizes,
        real=REAL,
        tolerance=1e-12,
    )

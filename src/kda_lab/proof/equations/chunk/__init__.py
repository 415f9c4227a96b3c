"""The chunk form: forward, backward, its costs and its rounding."""

from kda_lab.proof.equations.chunk import (
    affine,
    backward,
    batched,
    costs,
    decays,
    fused,
    gauge,
    inverse,
    scan,
    stability,
    steps,
    terms,
)

PARTS = (affine, decays, inverse, batched, stability, terms, steps, scan, gauge, fused, backward, costs)

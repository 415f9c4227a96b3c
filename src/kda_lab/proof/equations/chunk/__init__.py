"""The chunk form: forward, backward, its costs and its rounding."""

from kda_lab.proof.registry import parts

# in the order of the book; a module that is not named here comes behind the others
ORDER = "affine decays inverse batched stability terms steps scan gauge fused backward costs"
PARTS = parts(__name__, __file__, ORDER.split())

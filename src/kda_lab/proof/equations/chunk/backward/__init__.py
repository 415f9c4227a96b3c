"""The adjoints of a token and of a chunk: every one against the derivative of what the forward pass computes."""

from kda_lab.proof.equations.chunk.backward import sequences, steps, terms

PARTS = (steps, terms, sequences)
EQUATIONS = [equation for part in PARTS for equation in part.EQUATIONS]

"""The chunk form of the Hopper kernel, from the units of a chunk to the whole sequence."""

from kda_lab.proof.equations.chunk.fused import factors, step, units

PARTS = (units, factors, step)
EQUATIONS = [equation for part in PARTS for equation in part.EQUATIONS]

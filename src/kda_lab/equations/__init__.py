"""The registry: every equation of the book, a module for each part.

>>> len({e.slug for e in EQUATIONS}) == len(EQUATIONS)
True
"""

from kda_lab.equations import chunk, chunk_steps, decays, inverse

EQUATIONS = [*decays.EQUATIONS, *inverse.EQUATIONS, *chunk.EQUATIONS, *chunk_steps.EQUATIONS]

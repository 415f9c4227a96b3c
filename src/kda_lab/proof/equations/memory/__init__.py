"""Linear attention and what surrounds it."""

from kda_lab.proof.equations.memory import capacity, features, linear, position, softmax

PARTS = (softmax, linear, features, position, capacity)

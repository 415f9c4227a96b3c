"""Linear attention and what surrounds it."""

from kda_lab.proof.equations.memory import capacity, features, layer, linear, order, recurrent, rotation, softmax

PARTS = (softmax, linear, features, layer, recurrent, order, rotation, capacity)

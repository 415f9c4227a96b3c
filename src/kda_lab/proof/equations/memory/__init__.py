"""Linear attention and what surrounds it."""

from kda_lab.proof.registry import parts

# in the order of the book; a module that is not named here comes behind the others
ORDER = "softmax linear features layer recurrent order rotation capacity"
PARTS = parts(__name__, __file__, ORDER.split())

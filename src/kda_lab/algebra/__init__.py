"""The algebra of chunks: the same functions run on polynomials, a finite field, tensors, and are what kernels are held
against.
"""

from kda_lab.data.lazy import modules, names

__getattr__, __dir__ = names(__name__, modules(__file__))

"""The algebra of chunks: the same functions run on polynomials, a finite field, tensors, and are what kernels are held
against.
"""

"""Gradients in any number system: numbers a + b eps with eps^2 = 0 carry a derivative through any code.

Exact engines differentiate with them: run the forward pass on dual numbers, and b is the derivative in a direction. The
direction is made of free symbols (or random elements of the field), so one equal number is an equal gradient. float64
is differentiated by torch.
"""

import numpy as np
import torch


class Dual:
    """a + b eps with eps^2 = 0, over any number system.

    >>> x = Dual(3, 1)
    >>> (x * x).b
    6
    """

    def __init__(self, a, b=0):
        self.a, self.b = a, b

    def __add__(self, other):
        other = other if isinstance(other, Dual) else Dual(other)
        return Dual(self.a + other.a, self.b + other.b)

    def __mul__(self, other):
        other = other if isinstance(other, Dual) else Dual(other)
        return Dual(self.a * other.a, self.a * other.b + self.b * other.a)

    def __neg__(self):
        return Dual(-self.a, -self.b)

    def __sub__(self, other):
        return self + -other

    def __rsub__(self, other):
        return -self + other

    __radd__, __rmul__ = __add__, __mul__


def lift(a, b=None):
    """Object array of dual numbers; without b they are constants.

    >>> int(lift(np.array([1, 2]), np.array([3, 4]))[1].b)
    4
    """
    out = np.empty(a.shape, dtype=object)
    for index in np.ndindex(*a.shape):
        out[index] = Dual(a[index], 0 if b is None else b[index])
    return out


def gradient_pairs(loss, constants, named):
    """Pairs that agree if each given array is the gradient of the loss in one of its arguments.

    loss: (constants, **changes) -> scalar, where changes are added to what they are named after
    named: {name: (gradient, direction)}, arrays of one shape.
    """
    if isinstance(constants[0], torch.Tensor):
        zeros = {name: torch.zeros_like(got, requires_grad=True) for name, (got, _) in named.items()}
        exact = torch.autograd.grad(loss(constants, **zeros), list(zeros.values()))
        yield from ((got, wanted) for (got, _), wanted in zip(named.values(), exact))
        return
    constants = [lift(X) for X in constants]
    for name, (got, direction) in named.items():
        yield (got * direction).sum(), loss(constants, **{name: lift(direction * 0, direction)}).b

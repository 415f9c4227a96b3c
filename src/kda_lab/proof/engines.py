"""Three number systems in which one claim is tried: polynomials, a finite field, floating point.

A claim is a function ``claim(x, subject)`` that yields pairs (left, right). ``x`` holds the inputs as arrays, made by
an engine from a declaration such as ``"q:C,K k:C,K v:C,V alpha:C,K=decay beta:C=gate S:V,K"``; ``subject`` is the
implementation on trial. The engine decides when two sides are equal: exactly, except in floating point.

A declaration names each input, its dimensions and, behind "=", its kind; ``gamma=decay`` is one number. KINDS says what
kinds there are. They count in floating point alone: a proof covers all numbers.
"""

import difflib
import itertools
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np

PRIME = 2**61 - 1


class Disagreement(AssertionError):
    """The two sides of an identity differ."""


KINDS = {
    "normal": "normal numbers of variance 1 over the last dimension; without a kind an input is one of these",
    "decay": "in (0.2, 1), or in (0.9, 1) where decays are weak",
    "gate": "in (0.1, 1.9): write gates, rates and penalties",
}


def parse_inputs(declaration, sizes):
    """Shape and kind by name, from a declaration and the sizes of its dimensions.

    Raises ValueError for a dimension without a size, and for an unknown kind.

    >>> parse_inputs("k:C,K beta:C=gate gamma=decay", {"C": 4, "K": 2})
    {'k': ((4, 2), 'normal'), 'beta': ((4,), 'gate'), 'gamma': ((), 'decay')}
    """
    inputs = {}
    for item in declaration.split():
        item, _, kind = item.partition("=")
        name, _, dims = item.partition(":")
        names = [d for d in dims.split(",") if d]
        missing = [d for d in names if d not in sizes]
        if missing:
            raise ValueError(f"{name} has dimension {missing[0]}, which no size is given for; add it to {sizes}")
        kind = kind or "normal"
        if kind not in KINDS:
            near = difflib.get_close_matches(kind, KINDS) or KINDS
            raise ValueError(f"{name} is of the kind {kind!r}, which there is not; take {' or '.join(near)}")
        inputs[name] = tuple(sizes[d] for d in names), kind
    return inputs


def _fill(shape, make):
    if shape == ():
        return make()
    out = np.empty(shape, dtype=object)
    for index in np.ndindex(*shape):
        out[index] = make()
    return out


def _unequal_entry(left, right):
    """Index of the first entry in which two object arrays differ, or None."""
    left, right = np.asarray(left, dtype=object), np.asarray(right, dtype=object)
    if left.shape != right.shape:
        raise Disagreement(f"shapes differ: {left.shape} and {right.shape}")
    for index in np.ndindex(*left.shape):
        if left[index] - right[index] != 0:
            return index
    return None


@dataclass(frozen=True)
class Ring:
    """Polynomials with integer coefficients: equality is a proof for these sizes.

    >>> x = Ring().inputs("a:n b:n", {"n": 2})
    >>> Ring().compare((x.a + x.b) @ (x.a - x.b), x.a @ x.a - x.b @ x.b)
    """

    name: str = "ring"
    exact: bool = True

    def inputs(self, declaration, sizes):
        from sympy import ZZ
        from sympy.polys.rings import ring

        declared = parse_inputs(declaration, sizes)
        count = sum(int(np.prod(s, dtype=int)) for s, _ in declared.values())
        generators = iter(ring([f"x{i}" for i in range(count)], ZZ)[1:])
        return SimpleNamespace(**{n: _fill(s, lambda: next(generators)) for n, (s, _) in declared.items()})

    def compare(self, left, right):
        if (index := _unequal_entry(left, right)) is not None:
            raise Disagreement(f"the polynomials in entry {index} differ")


@dataclass(frozen=True)
class Field:
    """Random points of GF(2^61 - 1): two different polynomials of degree d agree with probability below d / 2^61.

    >>> x = Field().inputs("a:n", {"n": 3})
    >>> Field().compare((x.a + x.a) @ x.a, x.a @ x.a * 2)
    """

    seed: int = 0
    name: str = "field"
    exact: bool = True

    def inputs(self, declaration, sizes):
        from sympy import GF

        field = GF(PRIME, symmetric=False)
        rng = np.random.default_rng(self.seed)
        make = lambda: field(int(rng.integers(1, PRIME)))
        return SimpleNamespace(**{n: _fill(s, make) for n, (s, _) in parse_inputs(declaration, sizes).items()})

    def compare(self, left, right):
        if (index := _unequal_entry(left, right)) is not None:
            raise Disagreement(f"entry {index} differs modulo 2^61 - 1")


@dataclass(frozen=True)
class Real:
    """torch float64, each input drawn by its kind.

    weak: decays in (0.9, 1), so that far tokens count; else in (0.2, 1).   tolerance: relative to the larger side;
    1e-10 leaves five digits for the growth of rounding errors over a few hundred operations (a wrong term costs 1e-2).

    >>> x = Real().inputs("alpha:n=decay k:n", {"n": 3})
    >>> Real().compare(x.alpha * x.k, x.k * x.alpha)
    """

    weak: bool = False
    seed: int = 0
    tolerance: float = 1e-10
    name: str = "float64"
    exact: bool = False

    def inputs(self, declaration, sizes):
        import torch

        generator = torch.Generator().manual_seed(self.seed)
        normal = lambda shape: torch.randn(shape, generator=generator, dtype=torch.float64)
        uniform = lambda shape: torch.rand(shape, generator=generator, dtype=torch.float64)
        low = 0.9 if self.weak else 0.2
        draw = {
            "normal": lambda shape: normal(shape) / max((1, *shape[-1:])) ** 0.5,
            "decay": lambda shape: low + (1 - low) * uniform(shape),
            "gate": lambda shape: 0.1 + 1.8 * uniform(shape),
        }
        out = {name: draw[kind](shape) for name, (shape, kind) in parse_inputs(declaration, sizes).items()}
        return SimpleNamespace(**out)

    def compare(self, left, right):
        import torch

        left, right = torch.as_tensor(left, dtype=torch.float64), torch.as_tensor(right, dtype=torch.float64)
        if left.shape != right.shape:
            raise Disagreement(f"shapes differ: {tuple(left.shape)} and {tuple(right.shape)}")
        if left.numel() == 0:
            return
        scale = max(left.abs().max().item(), right.abs().max().item(), 1e-300)
        error = (left - right).abs().max().item() / scale
        if not error <= self.tolerance:  # also catches nan
            raise Disagreement(f"relative difference {error:.1e}")


def stack(rows):
    """Stack rows of either library into one array with a leading axis.

    >>> stack([np.array([1, 2]), np.array([3, 4])]).shape
    (2, 2)
    """
    if isinstance(rows[0], np.ndarray) or not hasattr(rows[0], "new_tensor"):
        return np.stack([np.asarray(r, dtype=object) for r in rows])
    import torch

    return torch.stack(list(rows))


def run_claim(engine, declaration, sizes, claim, subject):
    """Try a claim in one number system at one size. Raises Disagreement with the number of the pair that differs.

    >>> run_claim(Ring(), "a:n", {"n": 2}, lambda x, f: [(f(x.a), x.a * 2)], lambda a: a + a)
    """
    x = engine.inputs(declaration, sizes)
    pairs = 0
    for pairs, (left, right) in zip(itertools.count(1), claim(x, subject)):
        try:
            engine.compare(left, right)
        except Disagreement as error:
            raise Disagreement(f"pair {pairs}, {engine.name} at {sizes}: {error}") from None
    if pairs == 0:
        raise ValueError("the claim yielded nothing to compare; a check that cannot fail is a defect")

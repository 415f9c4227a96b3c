"""What a planted fault and a correct variant are, and the lists that they join."""

import re
from typing import NamedTuple

import torch

from kda_lab.rules import RULES

FAULTS, VARIANTS = [], []


class Planted(NamedTuple):
    """make() is a fresh implementation of op; dtype: of its inputs; likely: the cases that should see a fault first."""

    name: str
    kind: str
    make: type
    op: str
    dtype: torch.dtype
    likely: tuple


def slug(name):
    """The words of a class name: "TokenLoop" becomes "token-loop"."""
    return re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower()


def fault(kind, *likely, op="kda", dtype=torch.float32):
    """Enter a class as a faulty implementation of op."""
    return _enter(FAULTS, kind, likely, op, dtype)


def variant(kind, op="kda", dtype=torch.float32):
    """Enter a class as a correct implementation of op, once more for each dtype."""
    return _enter(VARIANTS, kind, (), op, dtype)


def _enter(where, kind, likely, op, dtype):
    def enter(cls):
        cls.rule = RULES[op]
        name = slug(cls.__name__) + ("" if dtype == torch.float32 else "-" + str(dtype).removeprefix("torch."))
        where.append(Planted(name, kind, cls, op, dtype, likely))
        return cls

    return enter

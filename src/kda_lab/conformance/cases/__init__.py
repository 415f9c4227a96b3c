"""The cases, a module for each kind; importing this package fills CASES."""

from kda_lab.conformance.case import CASES
from kda_lab.conformance.cases import device, gates, gradients, keys, memory, numbers, ragged, shapes, state  # noqa: F401

__all__ = ["CASES"]

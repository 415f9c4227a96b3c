"""Implementations of the contract with one fault each, and correct ones that differ in what the contract leaves open.

By them the conformance suite is judged: every member of ``FAULTS`` must fail it, every member of ``VARIANTS`` must
pass.
"""

from tests.conformance.faults import calls, chunks, gradients, memory, pairs, rules, states, variants  # noqa: F401
from tests.conformance.faults.registry import FAULTS, VARIANTS

__all__ = ["FAULTS", "VARIANTS"]

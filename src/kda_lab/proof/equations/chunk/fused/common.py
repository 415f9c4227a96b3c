"""What the factors of the fused chunk are tried with."""

from kda_lab.proof.registry import wrong

DERIVED = "derived here, from the gauge"
KIMI = "Kimi Linear (2025), section 3; regrouped here"
UNITS = "q:C,K k:C,K alpha:C,K=decay"
FIELD = [{"C": 1, "K": 2, "V": 1}, {"C": 7, "K": 3, "V": 2}, {"C": 16, "K": 4, "V": 2}]
REAL = [{"C": 5, "K": 4, "V": 3}, {"C": 16, "K": 8, "V": 4}]


def mutants(function, *patches):
    """A mutant for each (name, old, new)."""
    return [wrong(function, name, (old, new)) for name, old, new in patches]

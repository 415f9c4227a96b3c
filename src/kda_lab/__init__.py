"""kda_lab: delta-rule attention, from its definition to proofs, numbers and kernels.

The modules, in the order in which they may import each other, are listed in CONTRIBUTING.md.
"""

__version__ = "0.1.0"

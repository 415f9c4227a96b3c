"""Does a kernel compute the delta rules? Cases, tolerances with reasons, adapters and reports for anyone's
implementation.

``examine`` runs the cases on a function with the arguments of ``kda_lab.ops``; ``python -m kda_lab.conformance`` and
``kda-lab conformance`` do so from the command line. The README of this folder says how.

>>> from kda_lab import ops
>>> [r.outcome for r in __getattr__("examine")(ops.chunk_kda, only=["plain-inputs", "a-given-scale"])]
['pass', 'pass']
"""

import importlib

_HOMES = {
    "adapters": ("Implementation", "load", "wrap"),
    "capabilities": ("FEATURES", "Capabilities", "parse"),
    "cases": ("CASES",),
    "case": ("OUTCOMES", "Case", "Result", "Wrong"),
    "run": ("all_ok", "chosen", "examine", "ok", "results"),
}
__all__ = sorted(name for names in _HOMES.values() for name in names)


def __getattr__(name):
    # pytest loads the plugin of this package in every session: torch must not come with it
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"kda_lab.conformance.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

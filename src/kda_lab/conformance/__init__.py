"""Does a kernel compute the delta rules? Cases, tolerances with reasons, adapters and reports for anyone's
implementation.

``examine`` runs the cases on a function with the arguments of ``kda_lab.ops``; ``python -m kda_lab.conformance`` and
``kda-lab conformance`` do so from the command line. The README of this folder says how.

>>> from kda_lab import ops
>>> [r.outcome for r in __getattr__("examine")(ops.chunk_kda, only=["plain-inputs", "a-given-scale"])]
['pass', 'pass']
"""

from kda_lab.data.lazy import names

# pytest loads the plugin of this package in every session: torch must not come with it
_HOMES = {
    "adapters": ("", "Implementation", "load", "wrap"),
    "capabilities": ("", "FEATURES", "Capabilities", "parse"),
    "case": ("", "OUTCOMES", "Case", "Result", "Wrong"),
    "cases": ("", "CASES"),
    "judge.generate": ("", "arguments", "generator"),
    "judge.oracle": ("",),
    "judge.tolerance": ("",),
    "run": ("all_ok", "chosen", "examine", "ok", "results"),
    "study": ("",),
}
__getattr__, __dir__ = names(__name__, _HOMES)
__all__ = __dir__()

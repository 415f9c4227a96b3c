"""kda_lab: delta-rule attention, from its definition to proofs, numbers, kernels and serving.

>>> import kda_lab as kl
>>> import torch
>>> x = torch.ones(1, 2, 1, 1)
>>> o, S = kl.chunk_delta_rule(x, x, 3 * x, x[..., 0], output_final_state=True)
>>> o.flatten().tolist(), S.flatten().tolist()
([3.0, 3.0], [3.0])

Everything here is imported when it is first used. The functions:

* ``chunk_X``, ``recurrent_X``, ``naive_X`` for X in kda, gated_delta_rule, gdn2, delta_rule, linear_attention: a rule
  over a batch of sequences, chunk by chunk, token by token, and as the oracle in float64; ``trusted_values``
* ``KimiDeltaAttention``, ``GatedDeltaNet``, ``DeltaNet``: the layers; ``load_checkpoint``
* ``prove``: judge equations of the book, with their mutants
* ``examine``: does a function compute a delta rule?
* ``plan``: the KV cache of a published config; ``replay``: a recorded trace of a real scheduler against the simulator

And the modules that pages read: ``rules`` (the specification), those of ``algebra``, ``parts`` and ``study``, and the
floors above them.
"""

from typing import TYPE_CHECKING

from kda_lab.data.lazy import names
from kda_lab.rules import RULES

__version__ = "0.2.0"

_HOMES = {
    "ops": ("", "trusted_values", *(f"{form}_{rule}" for form in ("chunk", "recurrent", "naive") for rule in RULES)),
    "layer": ("", "DeltaNet", "GatedDeltaNet", "KimiDeltaAttention", "load_checkpoint"),
    "proof": ("",),
    "proof.equations": ("", "EQUATIONS", "prove"),
    "conformance": ("", "examine"),
    "serving": ("",),
    "serving.plan.plan": ("plan",),
    "serving.trials.replay": ("replay",),
    "rules": ("",),
    **{
        f"algebra.{name}": ("",)
        for name in (
            "affine",
            "chunk",
            "chunk_backward",
            "chunk_dplr",
            "chunk_fused",
            "parallel_scan",
            "rollback",
            "triangular",
        )
    },
    **{f"parts.{name}": ("",) for name in ("decay", "features", "inputs", "position", "softmax")},
    **{f"study.{name}": ("",) for name in ("capacity", "costs", "intensity", "learning", "recall")},
    **{f"pages.{name}": ("",) for name in ("figures", "gpucell", "notation", "widgets")},
    **dict.fromkeys(("algebra", "bench", "cuda", "exercises", "pages", "parts", "study"), ("",)),
}
if TYPE_CHECKING:
    # the same names for checkers of types and for editors, which cannot follow the table
    from kda_lab import algebra as algebra
    from kda_lab import bench as bench
    from kda_lab import conformance as conformance
    from kda_lab import cuda as cuda
    from kda_lab import exercises as exercises
    from kda_lab import layer as layer
    from kda_lab import ops as ops
    from kda_lab import pages as pages
    from kda_lab import parts as parts
    from kda_lab import proof as proof
    from kda_lab import rules as rules
    from kda_lab import serving as serving
    from kda_lab import study as study
    from kda_lab.algebra import affine as affine
    from kda_lab.algebra import chunk as chunk
    from kda_lab.algebra import chunk_backward as chunk_backward
    from kda_lab.algebra import chunk_dplr as chunk_dplr
    from kda_lab.algebra import chunk_fused as chunk_fused
    from kda_lab.algebra import parallel_scan as parallel_scan
    from kda_lab.algebra import rollback as rollback
    from kda_lab.algebra import triangular as triangular
    from kda_lab.conformance.run import examine as examine
    from kda_lab.layer import DeltaNet as DeltaNet
    from kda_lab.layer import GatedDeltaNet as GatedDeltaNet
    from kda_lab.layer import KimiDeltaAttention as KimiDeltaAttention
    from kda_lab.layer import load_checkpoint as load_checkpoint
    from kda_lab.ops import *  # noqa: F403
    from kda_lab.pages import figures as figures
    from kda_lab.pages import gpucell as gpucell
    from kda_lab.pages import notation as notation
    from kda_lab.pages import widgets as widgets
    from kda_lab.parts import decay as decay
    from kda_lab.parts import features as features
    from kda_lab.parts import inputs as inputs
    from kda_lab.parts import position as position
    from kda_lab.parts import softmax as softmax
    from kda_lab.proof import equations as equations
    from kda_lab.proof.equations import EQUATIONS as EQUATIONS
    from kda_lab.proof.equations import prove as prove
    from kda_lab.serving.plan.plan import plan as plan
    from kda_lab.serving.trials.replay import replay as replay
    from kda_lab.study import capacity as capacity
    from kda_lab.study import costs as costs
    from kda_lab.study import intensity as intensity
    from kda_lab.study import learning as learning
    from kda_lab.study import recall as recall
else:
    __getattr__, __dir__ = names(__name__, _HOMES)
    __all__ = __dir__()

"""kda_lab: delta-rule attention, from its definition to proofs, numbers, kernels and serving.

>>> import kda_lab as kl
>>> import torch
>>> x = torch.ones(1, 2, 1, 1)
>>> o, S = kl.chunk_delta_rule(x, x, 3 * x, x[..., 0], output_final_state=True)
>>> o.flatten().tolist(), S.flatten().tolist()
([3.0, 3.0], [3.0])

Everything here is imported when it is first used. The functions:

* ``chunk_X``, ``recurrent_X``, ``naive_X`` for X in kda, gated_delta_rule, gated_delta_rule_2, delta_rule,
  linear_attention: a rule over a batch of sequences, chunk by chunk, token by token, and as the oracle in float64;
  ``trusted_values``
* ``KimiDeltaAttention``, ``GatedDeltaNet``, ``DeltaNet``: the layers; ``load_checkpoint``
* ``prove``: judge equations of the book, with their mutants
* ``examine``: does a function compute a delta rule?
* ``plan``: the KV cache of a published config; ``replay``: a recorded trace of a real scheduler against the simulator

And the modules that pages read: ``rules`` (the specification), those of ``algebra``, ``parts`` and ``study``, and the
floors above them.
"""

from kda_lab.data.lazy import names

__version__ = "0.2.0"

_OPS = [
    f"{form}_{rule}"
    for form in ("chunk", "recurrent", "naive")
    for rule in ("kda", "gated_delta_rule", "delta_rule", "linear_attention")
]
_HOMES = {
    "ops": ("", *_OPS, "trusted_values"),
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
__getattr__, __dir__ = names(__name__, _HOMES)
__all__ = __dir__()

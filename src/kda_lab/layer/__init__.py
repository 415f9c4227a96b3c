"""The layer as a model has it, from hidden states to hidden states, with a cache for serving.

x -> projections (one product) -> q | k | v through the short convolution and SiLU, q and k to unit length -> decay and
write gate -> the rule of ``kda_lab.ops`` -> norm of each head, times the output gate -> output projection.

``prefill`` and ``decode`` are two plans of that one formula: many tokens chunk by chunk, or one step over pools of
states. The phase is named by the caller and never guessed from a shape.
"""

from kda_lab.layer.base import DeltaRuleLayer, ragged_convolution
from kda_lab.layer.cache import Bytes, Cache, Snapshot, cache_bytes
from kda_lab.layer.checkpoint import load_checkpoint
from kda_lab.layer.layers import DeltaNet, GatedDeltaNet, KimiDeltaAttention
from kda_lab.layer.step import convolve

__all__ = [
    "Bytes",
    "Cache",
    "DeltaNet",
    "DeltaRuleLayer",
    "GatedDeltaNet",
    "KimiDeltaAttention",
    "Snapshot",
    "cache_bytes",
    "convolve",
    "load_checkpoint",
    "ragged_convolution",
]

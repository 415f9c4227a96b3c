"""The tensors of a call to ops by name, plain or as leaves that want gradients."""

import torch

from kda_lab import inputs

RULES = ("kda", "gated_delta_rule", "delta_rule", "linear_attention")


def tensors(rule, T, B=1, H=1, HV=2, K=4, V=3, dtype=torch.float64, seed=0, **options):
    """The tensors that one call of this rule takes, by name."""
    x = inputs.batch(B, T, H, K, V, torch.Generator().manual_seed(seed), HV=HV, dtype=dtype, **options)
    named = {"q": x.q, "k": x.k, "v": x.v, "g": x.g, "beta": x.beta, "initial_state": x.S}
    if rule == "gated_delta_rule":
        named["g"] = x.g[..., 0]
    if rule in ("delta_rule", "linear_attention"):
        del named["g"]
    if rule == "linear_attention":
        del named["beta"]
    return named


def leaves(rule, T, **options):
    """The same, each a leaf that wants a gradient."""
    return {name: y.detach().clone().requires_grad_() for name, y in tensors(rule, T, **options).items()}

"""The tensors of a call to ops: by name, plain or as leaves that want gradients, or out of a batch."""

import torch

from kda_lab import inputs, rules

RULES = tuple(rules.RULES)
# gates with channels, out of beta: other numbers for the key's channels than for the value's
SLOPES = {"K": (0.3, 1.0), "V": (1.0, 0.5)}


def tensors(rule, T, B=1, H=1, HV=2, K=4, V=3, dtype=torch.float64, seed=0, **options):
    """The tensors that one call of this rule takes, by name."""
    generator = torch.Generator().manual_seed(seed)
    return inputs.arguments(rules.RULES[rule], B, T, H, K, V, generator, HV=HV, dtype=dtype, **options)


def leaves(rule, T, **options):
    """The same, each a leaf that wants a gradient."""
    return {name: y.detach().clone().requires_grad_() for name, y in tensors(rule, T, **options).items()}


def of_batch(rule, x):
    """What a rule takes of an ``inputs.Batch``, in order; a gate with channels is beta times a slope over them."""
    rule = rules.RULES[rule]
    decay = {"channel": [x.g], "head": [x.g[..., 0]], None: []}[rule.decay]
    gates = []
    for name in rule.gates:
        channels = rules.gate_shape(name, x.k.shape[-1], x.v.shape[-1])
        slope = torch.linspace(*SLOPES[rules.GATES[name]], *channels, dtype=x.beta.dtype) if channels else 1
        gates.append(x.beta[..., None] * slope if channels else x.beta)
    return [x.q, x.k, x.v, *decay, *gates]

"""Seeded inputs, kind ones and ugly ones, for tests, pages, benchmarks and conformance.

Every function takes a ``torch.Generator``; nothing here has a global seed. Log decays come in three families, as in
the kernels chapter: "strong" (about e^-3 a token), "long" (log-uniform in [1e-4, 1]), "weak" (in [1e-4, 1e-2]).
"""

import math
from typing import NamedTuple

import torch

from kda_lab.parts.decay import bounded_gate
from kda_lab.parts.features import l2_normalise
from kda_lab.rules import gate_shape

GATES = ("strong", "long", "weak")


class Head(NamedTuple):
    """One head: q, k, g [T, K]; v [T, V]; beta [T]; S [V, K]. q is scaled, q and k have unit length.

    >>> Head._fields
    ('q', 'k', 'v', 'g', 'beta', 'S')
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    g: torch.Tensor
    beta: torch.Tensor
    S: torch.Tensor


# the same names with two axes more: a head is an input of rules, a batch one of ops
class Batch(NamedTuple):
    """Arguments of ``ops``: q, k [B, T, H, K]; v [B, T, HV, V]; g [B, T, HV, K]; beta [B, T, HV]; S [B, HV, V, K].

    >>> Batch._fields
    ('q', 'k', 'v', 'g', 'beta', 'S')
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    g: torch.Tensor
    beta: torch.Tensor
    S: torch.Tensor


def log_decay(shape, gates, generator, dtype=torch.float64):
    """Log decays [..., T, H, K] of one family.

    Raises ValueError for an unknown family.

    >>> g = log_decay((4, 2, 3), "weak", torch.Generator().manual_seed(0))
    >>> g.shape, bool((g < 0).all())
    (torch.Size([4, 2, 3]), True)
    """
    *_, H, K = shape
    device = generator.device
    options = {"generator": generator, "dtype": dtype, "device": device}
    if gates == "strong":
        x = torch.randn(*shape, **options)
        return bounded_gate(x, torch.rand(H, **options), torch.rand(H, K, **options))
    if gates not in GATES:
        raise ValueError(f"gates must be one of {', '.join(GATES)}, got {gates!r}")
    return jittered(rates(gates, torch.rand(H, K, **options)), torch.randn(*shape, **options))


def rates(gates, uniform):
    """How fast a channel forgets, log-uniform: 1e-4 to 1 a token ("long") or to 1e-2 (others).   uniform: in [0, 1).

    >>> [round(x, 6) for x in rates("long", torch.tensor([0.0, 0.5, 1.0])).tolist()]
    [0.0001, 0.01, 1.0]
    """
    low, high = 1e-4, 1.0 if gates == "long" else 1e-2
    return torch.exp(math.log(low) + math.log(high / low) * uniform)


def jittered(rate, normal):
    """Log decays around these rates, each token's a fifth off in its logarithm.   normal: [..., shape of rate].

    >>> jittered(torch.ones(2), torch.zeros(3, 2)).unique().tolist()
    [-1.0]
    """
    return -rate * torch.exp(0.2 * normal)


def cleared(g, uniform):
    """The same log decays, of which 3 % are -60, 2 % -1e4 and 1 % -inf.   g, uniform: one shape; g is written.

    >>> cleared(torch.zeros(4), torch.tensor([0.025, 0.015, 0.005, 0.5])).tolist()
    [-60.0, -10000.0, -inf, 0.0]
    """
    for share, value in ((0.03, -60.0), (0.02, -1e4), (0.01, -math.inf)):
        g[uniform < share] = value
    return g


def batch(B, T, H, K, V, generator, gates="long", HV=None, dtype=torch.float64, keys="random"):
    """Inputs of a whole batch, unit-length q and k, beta in (0, 1), a random initial state.

    keys: "random", or "collinear" for one direction with 5 % jitter and beta close to 1.

    >>> x = batch(1, 5, 2, 4, 3, torch.Generator().manual_seed(0), HV=4)
    >>> x.v.shape, x.S.shape
    (torch.Size([1, 5, 4, 3]), torch.Size([1, 4, 3, 4]))
    """
    HV = H if HV is None else HV
    options = {"generator": generator, "dtype": torch.float64, "device": generator.device}
    q = l2_normalise(torch.randn(B, T, H, K, **options))
    k = torch.randn(B, T, H, K, **options)
    beta = torch.sigmoid(torch.randn(B, T, HV, **options))
    if keys == "collinear":
        k = torch.randn(1, 1, H, K, **options) + 0.05 * k
        beta = torch.sigmoid(6 + 0.1 * torch.randn(B, T, HV, **options))
    v = torch.randn(B, T, HV, V, **options)
    g = log_decay((B, T, HV, K), gates, generator)
    S = torch.randn(B, HV, V, K, **options)
    cast = [x.to(dtype) for x in (q, l2_normalise(k), v, g, beta)]
    return Batch(*cast, S.to(torch.float64 if dtype == torch.float64 else torch.float32))


def arguments(rule, B, T, H, K, V, generator, HV=None, dtype=torch.float64, keys="random", gates="long"):
    """The tensors that a rule takes, by their names in ``ops``, and an initial state: ``batch``, as far as it goes.

    rule: a ``rules.Rule``. Gates with channels are in (0, 1), and close to 1 for collinear keys, as beta is.

    >>> from kda_lab.rules import RULES
    >>> x = arguments(RULES["gdn2"], 1, 5, 2, 4, 3, torch.Generator().manual_seed(0), HV=4)
    >>> list(x), x["b"].shape, x["w"].shape
    (['q', 'k', 'v', 'g', 'b', 'w', 'initial_state'], torch.Size([1, 5, 4, 4]), torch.Size([1, 5, 4, 3]))
    """
    x = batch(B, T, H, K, V, generator, gates=gates, HV=HV, dtype=dtype, keys=keys)
    named = {"q": x.q, "k": x.k, "v": x.v}
    if rule.decay:
        named["g"] = x.g if rule.decay == "channel" else x.g[..., 0].contiguous()
    for name in rule.gates:
        named[name] = x.beta
        if channels := gate_shape(name, K, V):
            noise = torch.randn(
                *x.beta.shape, *channels, generator=generator, dtype=torch.float64, device=generator.device
            )
            named[name] = torch.sigmoid(6 + 0.1 * noise if keys == "collinear" else noise).to(dtype)
    return named | {"initial_state": x.S}


def head(T, K, V, generator, gates="long", keys="random"):
    """Inputs of one head, for ``rules`` and ``chunk``: q is already scaled by K^-1/2.

    >>> head(5, 4, 3, torch.Generator().manual_seed(0)).v.shape
    torch.Size([5, 3])
    """
    x = batch(1, T, 1, K, V, generator, gates=gates, keys=keys)
    return Head(x.q[0, :, 0] * K**-0.5, x.k[0, :, 0], x.v[0, :, 0], x.g[0, :, 0], x.beta[0, :, 0], x.S[0, 0])

"""Inputs of the cases: the arguments of one call, from a generator that a printed seed and the case's name
determine.
"""

import hashlib

import torch

from kda_lab.parts import inputs
from kda_lab.rules import GATES, RULES

# what has a row for each token
STREAMS = ("q", "k", "v", "g", *GATES)


def generator(seed, *names):
    """A generator that depends on the seed and on names, and on nothing else.

    >>> torch.rand(1, generator=generator(7, "a")).item() == torch.rand(1, generator=generator(7, "a")).item()
    True
    """
    digest = hashlib.sha256(repr((int(seed), *names)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def arguments(
    rule, T, generator, B=1, H=2, HV=None, K=16, V=24, gates="long", keys="random", dtype=torch.float32, cu_seqlens=None
):
    """Arguments of one call by name: unit-length q and k, gates in (0, 1), an initial state of size 1, for any rule.

    q, k, v and the gates have ``dtype``, g and the states are float32 (float64 for float64).   cu_seqlens: a list, or
    None.

    >>> sorted(arguments("delta_rule", 5, generator(0)))
    ['beta', 'initial_state', 'k', 'q', 'v']
    """
    named = inputs.arguments(RULES[rule], B, T, H, K, V, generator, HV=HV, keys=keys, gates=gates)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    named = {name: x.to(wide if name in ("g", "initial_state") else dtype) for name, x in named.items()}
    if cu_seqlens is not None:
        N, state = len(cu_seqlens) - 1, named["initial_state"]
        named["initial_state"] = torch.randn(N, *state.shape[1:], generator=generator, dtype=torch.float64).to(wide)
        named["cu_seqlens"] = torch.tensor(cu_seqlens)
    return named


def raw_gates(rule, named, generator, lower_bound=-5.0, size=1.0):
    """The same arguments with a raw gate that the implementation turns into a log decay: A_log, dt_bias, lower_bound.

    >>> x = raw_gates("kda", arguments("kda", 3, generator(0)), generator(1))
    >>> x["A_log"].shape, x["dt_bias"].shape
    (torch.Size([2]), torch.Size([2, 16]))
    """
    g, dtype = named["g"], named["q"].dtype
    wide = g.dtype
    HV = g.shape[2]

    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    # around -2: most decays lie near 1, some are strong, so that the state matters and the gate does too
    x = (size * normal(*g.shape) - 2).to(dtype)
    bias = (0.5 * normal(*g.shape[2:])).to(wide)
    return named | {
        "g": x,
        "use_gate_in_kernel": True,
        "A_log": (0.4 * normal(HV)).to(wide),
        "dt_bias": bias,
        "lower_bound": lower_bound,
    }


def part(named, start, end, state=None):
    """The same call on tokens start to end - 1, from another state.

    >>> part(arguments("kda", 9, generator(0)), 2, 5)["v"].shape
    torch.Size([1, 3, 2, 24])
    """
    cut = {name: x[:, start:end] if name in STREAMS else x for name, x in named.items()}
    return cut if state is None else cut | {"initial_state": state}


def digest(named):
    """A hash of all arguments of a call, values and shapes, by which the oracle's answers are kept.

    >>> a = arguments("kda", 3, generator(0))
    >>> digest(a) == digest({name: x.clone() for name, x in a.items()})
    True
    """
    h = hashlib.sha256()
    for name in sorted(named):
        x = named[name]
        if isinstance(x, torch.Tensor):
            flat = x.detach().to("cpu").contiguous()
            h.update(f"{name} {flat.dtype} {tuple(flat.shape)} ".encode())
            h.update(flat.flatten().view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
        else:
            h.update(f"{name} {x!r} ".encode())
    return h.hexdigest()

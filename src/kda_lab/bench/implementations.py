"""What can be timed: chunk kernels for KDA, ours in every version and others', all behind the arguments of
`workloads.inputs`.
"""

import functools
import importlib
import importlib.util
from collections.abc import Callable
from typing import Any, NamedTuple

from kda_lab.cuda.kernels import KERNELS

# the command's parser lists what is here: torch and the kernels are imported where they are used


class Implementation(NamedTuple):
    """One kernel.

    prepare: arguments -> a call without arguments; what it does is not timed
    finish: what the call returns -> (o [1, T, H, D], final state [N, H, V, K])
    package: what has to be importable   install: what to do if it is not   rows: the shapes in which it is timed unless
    it is asked for by name, None for all.
    """

    prepare: Callable[[dict], Callable[[], Any]]
    finish: Callable[[Any], tuple] = tuple
    package: str = ""
    install: str = ""
    rows: tuple | None = None


def function(where):
    """The function that "module:name" names; its module is imported here, and not before.

    >>> function("kda_lab.cuda.chunk:kda_chunk_forward").__name__
    'kda_chunk_forward'
    """
    module, _, name = where.partition(":")
    return getattr(importlib.import_module(module), name)


def ours(kernel, rows=None, **options):
    """An entry of `kda_lab.cuda.kernels`, which takes the arguments as they are, and options of its own."""
    return Implementation(
        lambda arguments: functools.partial(kernel, **arguments, **options),
        package="cuda.core",
        install="pip install 'kda_lab[cuda]'",
        rows=rows,
    )


def keys_first(arguments):
    """flash-linear-attention: states [N, H, K, V]; a lower bound is one only with safe_gate, which the adapter sets."""
    from kda_lab.ops.words import in_public_words

    named = in_public_words(arguments)
    named["initial_state"] = named["initial_state"].mT.contiguous()
    return functools.partial(function("kda_lab.conformance.adapters.fla:chunk_kda"), **named)


def values_first(result):
    """(o, S [N, H, V, K]) from (o, S [N, H, K, V]), without a copy."""
    return result[0], result[1].mT


def always_packed(arguments):
    """The cuDNN frontend: one sequence has bounds, too, and they are made before the call."""
    import torch

    from kda_lab.ops.words import in_public_words

    named = in_public_words(arguments)
    if named["cu_seqlens"] is None:
        named["cu_seqlens"] = torch.tensor([0, named["q"].shape[1]], device=named["q"].device)
    return functools.partial(function("kda_lab.conformance.adapters.cudnn:chunk_kda"), **named)


LADDER = ("T=8192 H=96", "T=8192 H=64")
READABLE = "chunk"  # all others are compared with it, head by head
IMPLEMENTATIONS = {
    READABLE: ours(KERNELS[READABLE]),
    **{kernel.name: ours(kernel) for kernel in KERNELS.values() if kernel.form == "chunk" and kernel.name != READABLE},
    # steps on the way there
    **{step: ours(kernel, LADDER, **way) for kernel in KERNELS.values() for step, way in kernel.steps.items()},
    # tunes itself for 90 to 225 s in each shape
    "fla": Implementation(
        keys_first,
        values_first,
        package="fla",
        install="pip install fla-core==0.6.0 flash-linear-attention==0.6.0",
        rows=("T=8192 H=96",),
    ),
    "cudnn": Implementation(always_packed, package="cudnn", install="pip install nvidia-cudnn-frontend==1.32.0"),
}


def absent(implementation):
    """Why an implementation cannot be called, in words, or None.

    >>> absent(Implementation(list, package="no_such_package.part", install="pip install it"))
    'not installed; pip install it'
    """
    try:
        there = not implementation.package or importlib.util.find_spec(implementation.package)
    except ModuleNotFoundError:
        there = False
    return None if there else f"not installed; {implementation.install}"

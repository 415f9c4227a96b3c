"""The kernels of this package, listed once: who launches each, and which calls of `kda_lab.ops` it may answer.

`ops` asks the kernels of a form in this order, `python -m kda_lab.cuda` compiles them all, `kda-lab bench` times them,
and the conformance suite's adapters name them. A module that launches has ``SOURCE``, ``NAMES`` of its kernels,
``EXAMPLES`` of its ``Constants``, and, if it answers chunk calls, ``unsupported(call)``: a sentence, or None.
"""

import importlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class Kernel(NamedTuple):
    """One entry.   form: "chunk" for calls of many tokens, "token" for one, "" if other kernels call it

    steps: earlier versions that still run, {name: options of the function}.
    """

    name: str
    function: str
    form: str = ""
    steps: Mapping[str, dict] = MappingProxyType({})

    @property
    def module(self):
        """The module that launches it, imported when it is asked for, so that no record depends on what did not run.

        >>> KERNELS["chunk"].module.SOURCE
        'kda_chunk.cu'
        """
        return importlib.import_module(f"kda_lab.cuda.{self.name}")

    def __call__(self, *args, **options):
        return getattr(self.module, self.function)(*args, **options)


LADDER = {"hopper-8": dict(team=1), "hopper-4": dict(team=1, warps=4), "hopper-4-1": dict(team=1, warps=4, abreast=1)}
KERNELS = {
    kernel.name: kernel
    for kernel in (
        Kernel("hopper", "kda_hopper_forward", "chunk", LADDER),
        Kernel("chunk", "kda_chunk_forward", "chunk"),
        Kernel("decode", "decode_core", "token"),
        Kernel("segments", "entries"),
    )
}


def answering(call, form="chunk"):
    """The first kernel of a form that can answer a call, or None.   call: a `operands.ChunkCall`.

    >>> import torch
    >>> from kda_lab.cuda.operands import ChunkCall
    >>> x = torch.zeros(1, 4, 2, 32)
    >>> answering(ChunkCall(x, x, x)).name, answering(ChunkCall(*[torch.zeros(1, 4, 2, 192)] * 3))
    ('chunk', None)
    """
    return next((k for k in KERNELS.values() if k.form == form and k.module.unsupported(call) is None), None)

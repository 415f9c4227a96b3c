"""What is right, and how far a correct computation may be from it: computed once for each call, and kept."""

from collections import OrderedDict

import torch

from kda_lab.conformance.judge import reading, tolerance
from kda_lab.conformance.judge.generate import digest, generator

KEPT = 2048  # answers
LARGE = 2**25  # numbers: an answer of more is made again rather than kept
_memory = OrderedDict()


def kept(key, make):
    """The value of make(), made once for a key."""
    if key not in _memory:
        value = make()
        parts = value.values() if isinstance(value, dict) else value
        if sum(x.numel() for x in parts if isinstance(x, torch.Tensor)) > LARGE:
            return value
        _memory[key] = value
        while len(_memory) > KEPT:
            _memory.popitem(last=False)
    _memory.move_to_end(key)
    return _memory[key]


def wanted(rule, named):
    """(o, final state) of the float64 token loop on these arguments.

    >>> from kda_lab.conformance.judge.generate import arguments
    >>> wanted("kda", arguments("kda", 4, generator(0)))[0].dtype
    torch.float64
    """
    return kept((rule, digest(named)), lambda: reading.token_loop(rule, named))


def costs(rule, named, bits, share=tolerance.SHARE):
    """The largest errors (of o, of the state) of emulated computations with operands of this many bits.

    >>> from kda_lab.conformance.judge.generate import arguments
    >>> a = arguments("kda", 40, generator(0))
    >>> fine, coarse = costs("kda", a, 24), costs("kda", a, 8)
    >>> 1e-8 < fine[0] < 1e-5 < 1e-3 < coarse[0] < 0.05
    True
    """

    def measure():
        right = wanted(rule, named)
        found = [emulated(rule, named, bits, run, share, right) for run in range(2)]
        return tuple(max(pair) for pair in zip(*found))

    return kept((rule, digest(named), bits, share), measure)


def emulated(rule, named, bits, run, share, right):
    """Errors of one emulation; which chunk size and which noise depends on ``run``."""
    with torch.no_grad():
        plain = {name: x for name, x in named.items() if name not in ("output_final_state", "chunk_size")}
        o, S = tolerance.emulate(rule, plain, bits, (64, 16)[run], generator(run, "rounding", bits))
    return tolerance.row_errors(o, right[0], share).size, tolerance.channel_errors(S, right[1], share).size

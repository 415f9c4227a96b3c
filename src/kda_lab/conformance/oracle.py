"""What is right, and how far a correct computation may be from it: computed once for each call, and kept."""

import warnings
from collections import OrderedDict

import torch

from kda_lab import ops
from kda_lab.conformance import tolerance
from kda_lab.conformance.generate import digest, generator

NAIVE = {
    "kda": ops.naive_kda,
    "gated_delta_rule": ops.naive_gated_delta_rule,
    "delta_rule": ops.naive_delta_rule,
}
KEPT = 2048  # answers; small tensors
_memory = OrderedDict()


def kept(key, make):
    """The value of make(), made once for a key."""
    if key not in _memory:
        _memory[key] = make()
        while len(_memory) > KEPT:
            _memory.popitem(last=False)
    _memory.move_to_end(key)
    return _memory[key]


def wanted(rule, named):
    """(o, final state) of the float64 token loop, ``ops.naive_X``, on these arguments.

    >>> from kda_lab.conformance.generate import arguments
    >>> wanted("kda", arguments("kda", 4, generator(0)))[0].dtype
    torch.float64
    """
    return kept((rule, digest(named)), lambda: loop(rule, named))


def loop(rule, named):
    """The float64 token loop, its warning about keys that expand the state left to the cases.

    >>> from kda_lab.conformance.generate import arguments
    >>> loop("delta_rule", arguments("delta_rule", 4, generator(0)))[1].shape
    torch.Size([1, 2, 24, 16])
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return NAIVE[rule](**named | {"output_final_state": True})


def costs(rule, named, bits, share=tolerance.SHARE):
    """The largest errors (of o, of the state) of emulated computations with operands of this many bits.

    >>> from kda_lab.conformance.generate import arguments
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
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore", RuntimeWarning)
        plain = {name: x for name, x in named.items() if name not in ("output_final_state", "chunk_size")}
        o, S = tolerance.emulate(rule, plain, bits, (64, 16)[run], generator(run, "rounding", bits))
    return tolerance.row_errors(o, right[0], share).size, tolerance.channel_errors(S, right[1], share).size

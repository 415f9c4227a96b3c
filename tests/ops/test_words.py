"""Public words and kernel words are one mapping, read in both directions."""

import pytest
import torch

from kda_lab import rules
from kda_lab.cuda.accept import chunk as accept
from kda_lab.cuda.operands import chunk_call
from kda_lab.ops.contract import call_of
from kda_lab.ops.words import in_kernel_words, in_public_words


@pytest.mark.parametrize("gates", ["strong", "softplus", "long"])
def test_there_and_back_is_the_same_call(gates):
    given = chunk_call(accept.make("", gates, 8, H=1, K=5, V=3, cu_seqlens=[0, 3, 8], scale=0.5).arguments)
    public = in_public_words({name: x for name, x in given._asdict().items() if name != "exact"})
    back = in_kernel_words(rules.RULES["kda"], call_of(rules.RULES["kda"], public))
    for name, x, y in zip(given._fields, given, back):
        assert x is y if isinstance(x, torch.Tensor) else x == y, name


@pytest.mark.parametrize("wrong", [dict(gate="none"), dict(erase=False), dict(exact=True), dict(gate="raw")])
def test_what_the_public_function_does_not_do_is_refused(wrong):
    with pytest.raises(ValueError, match="chunk_kda has a gate, erases"):
        in_public_words({"q": 1} | wrong)

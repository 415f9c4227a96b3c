"""No public entry swallows a keyword: a misspelt one is a TypeError that names the near ones."""

import inspect

import pytest
import torch

import kda_lab as kl
from kda_lab import layer
from kda_lab.cuda import chunk, decode, hopper, segments
from kda_lab.serving.blocks.scheduler import hybrid

PUBLIC = {name: x for name in kl.__all__ if callable(x := getattr(kl, name))}
METHODS = {
    f"{c.__name__}.{n}": getattr(c, n) for c in (layer.DeltaRuleLayer,) for n in ("forward", "prefill", "decode")
}
INNER = {f.__name__: f for f in (chunk.kda_chunk_forward, hopper.kda_hopper_forward, decode.kda_decode)}
INNER |= {f.__name__: f for f in (decode.decode_core, segments.entries, hybrid)}
# a block of a `with`, and a function of positions alone: Python itself says so
WITHOUT = {"trusted_values", "prove"}
ENTRIES = {name: x for name, x in (PUBLIC | METHODS | INNER).items() if name not in WITHOUT}


@pytest.mark.parametrize("name", ENTRIES)
def test_a_misspelt_keyword_names_the_near_ones(name):
    function = ENTRIES[name]
    parameters = [p for p in inspect.signature(function).parameters.values() if p.name != "self"]
    assert not any(p.kind is p.VAR_KEYWORD for p in parameters), f"{name} takes any keyword"
    right = max((p.name for p in parameters), key=len)
    wrong = right[:-2] + right[-1] + right[-2] + "x"
    with pytest.raises(TypeError, match=rf"has no argument '{wrong}'; close: .*{right}"):
        function(**{wrong: None})


@pytest.mark.parametrize("name", sorted(WITHOUT))
def test_the_others_refuse_too(name):
    with pytest.raises(TypeError, match="unexpected keyword"):
        getattr(kl, name)(no_such_name=1)


def test_a_wrong_type_is_still_its_own_error():
    with pytest.raises(TypeError, match="q must be a tensor|tensor"):
        kl.chunk_kda(*[1] * 5)
    with pytest.raises(TypeError, match="missing"):
        kl.chunk_kda(torch.zeros(1, 1, 1, 1))

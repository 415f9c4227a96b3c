"""What an easy input hides: how many mutants of the chunk form agree with the loop on it."""

import pytest
import torch

from kda_lab import inputs, rules
from kda_lab.proof.equations.chunk.mutants import CHUNK_MUTANTS


def hidden(C=6, **changes):
    """The mutants that an input does not tell from the loop; changes: a function for some of its arguments."""
    x = inputs.head(C, 4, 3, torch.Generator().manual_seed(0), gates="long")
    given = {"S": x.S, "q": x.q, "k": x.k, "v": x.v, "alpha": x.g.exp(), "beta": x.beta * 1.8}
    given = {name: changes.get(name, lambda y: y)(y) for name, y in given.items()}
    S, rows = rules.scan(rules.kda, *given.values())
    O = torch.stack(rows)
    terms = {m.name: m.subject(*given.values()) for m in CHUNK_MUTANTS}
    return [
        name for name, t in terms.items() if torch.allclose(t.S, S, atol=1e-10) and torch.allclose(t.O, O, atol=1e-10)
    ]


def test_generic_inputs_hide_nothing():
    assert hidden() == []


@pytest.mark.parametrize(
    ("count", "input"),
    [
        (8, {"S": lambda S: S * 0}),
        (10, {"alpha": lambda a: a * 0 + 1}),
        (13, {"C": 1}),
        (1, {"C": 2}),
        (2, {"beta": lambda b: b * 0 + 0.7}),
        (5, {"beta": lambda b: b * 0 + 1}),
    ],
    ids=["empty state", "no decay", "one token", "two tokens", "equal gates", "open gates"],
)
def test_an_easy_input_hides_mutants(count, input):
    assert len(hidden(**input)) == count

"""Shapes: heads, batch rows, head sizes, and that each of them is computed alone."""

import math

import torch

from kda_lab.conformance import clauses
from kda_lab.conformance.case import Wrong, case
from kda_lab.conformance.judge.generate import STREAMS, part


def head_of(named, h):
    """The call on one head."""
    cut = {name: x[:, :, h : h + 1] if name in STREAMS else x for name, x in named.items()}
    if "initial_state" in named:
        cut["initial_state"] = named["initial_state"][:, h : h + 1]
    return cut


def row_of(named, b):
    """The call on one batch row."""
    return {name: x[b : b + 1] if isinstance(x, torch.Tensor) else x for name, x in named.items()}


@case("shapes", input="H=3, each head alone and together", clause=clauses.QK)
def each_head_is_computed_alone(bench):
    """Heads that share a gate, a write gate, a state or a tile, or that are indexed wrongly."""
    named = bench.make(40, H=3)
    bench.right(named)
    together = bench.call(named)
    for h in range(3):
        alone = head_of(named, h)
        bench.right(alone, what=f"head {h} alone, ", like=named)
        cut = together[0][:, :, h : h + 1], None if together[1] is None else together[1][:, h : h + 1]
        bench.right(alone, cut, f"head {h} of three, ", like=named)


@case("shapes", input="v of head 1 is nan: the other heads must not see it", clause=clauses.QK)
def a_nan_in_one_head_stays_there(bench):
    """Values of a neighbouring head that are read and multiplied by zero."""
    clean = bench.make(40, H=3)
    named = clean | {"v": clean["v"].clone()}
    named["v"][:, :, 1] = math.nan
    o, S = bench.call(named)
    for h in (0, 2):
        cut = o[:, :, h : h + 1], None if S is None else S[:, h : h + 1]
        bench.right(head_of(named, h), cut, f"head {h} beside a head with nan, ", like=clean)


@case("shapes", input="B=3, each row alone and together", clause=clauses.QK)
def each_batch_row_is_computed_alone(bench):
    """Batch rows that share a state, or whose state is that of another row."""
    named = bench.make(40, B=3)
    o, S = bench.right(named)
    for b in range(3):
        alone = row_of(named, b)
        bench.right(alone, what=f"row {b} alone, ", like=named)
        bench.right(alone, (o[b : b + 1], None if S is None else S[b : b + 1]), f"row {b} of three, ", like=named)
    clean, named = named, named | {"v": named["v"].clone()}
    named["v"][1] = math.nan
    o, S = bench.call(named)
    for b in (0, 2):
        bench.right(
            row_of(named, b),
            (o[b : b + 1], None if S is None else S[b : b + 1]),
            f"row {b} beside a row with nan, ",
            like=clean,
        )


@case(
    "shapes",
    input="H=2, HV=6: value heads 0 to 2 read key head 0, 3 to 5 key head 1; H=1, HV=2",
    clause=clauses.QK,
    report="fla-org/flash-linear-attention#624",
    needs="grouped-heads",
    refusal="may",
)
def value_heads_share_keys_in_groups(bench):
    """Key heads tiled (0, 1, 0, 1, ...) where they must be repeated (0, 0, ..., 1, 1, ...), or only the first group
    computed.
    """
    bench.right(bench.make(70, H=2, HV=6), what="H=2, HV=6: ")
    bench.right(bench.make(20, H=1, HV=2), what="H=1, HV=2: ")


@case(
    "shapes",
    input="K and V of 1, 3, 5, 7, 33",
    clause=clauses.SIZES,
    report="fla-org/flash-linear-attention#1241",
    refusal="may",
)
def odd_head_sizes(bench):
    """Channels beyond the last full tile that are dropped, or read from the neighbour."""
    for K, V in ((1, 1), (3, 5), (7, 33), (33, 7)):
        bench.right(bench.make(20, K, V), what=f"K={K}, V={V}: ")


@case("shapes", input="K=129, T=1", clause=clauses.SIZES, report="fla-org/flash-linear-attention#1241", refusal="may")
def a_head_size_beyond_the_tiles(bench):
    """Sizes just above a power of two that run and give wrong numbers where an error up front would do."""
    bench.right(bench.make(1, 129, 16), what="K=129: ")
    bench.right(bench.make(3, 16, 129), what="V=129: ")


@case(
    "shapes",
    input="B=2049, H=32, T=1: 65,568 states",
    clause=clauses.QK,
    report="fla-org/flash-linear-attention#1077",
    alone=True,
)
def more_than_65535_sequences_times_heads(bench):
    """A grid whose second or third axis counts sequences times heads: it ends at 65,535."""
    K, V = (4, 4) if bench.can.sizes is None else bench.sizes()
    named = bench.make(1, K, V, B=2049, H=32, state=False)
    # no readout of 65,568 vanishes by chance
    named["q"] = named["k"]
    # all are alike: the budget of some holds for every one
    bench.right(named, like={name: x[:8] for name, x in named.items()})


@case("shapes", input="every channel of v, every head and every token takes part", clause=clauses.RULE)
def no_output_is_left_unwritten(bench):
    """Rows or columns that no thread owns: they keep what the memory held before."""
    named = bench.make(2 * bench.chunk + 5, H=3, B=2)
    o, S = bench.right(named, share=1e-3)
    for what, x in (("o", o), ("final state", S)):
        if x is not None and (x == 0).all(-1).any():
            raise Wrong(f"{what} has rows of exact zeros on generic inputs")


@case(
    "shapes",
    input="v with one token less than q; beta for one head of two; HV=3 with H=2; a transposed state",
    clause=clauses.MISMATCH,
    needs="shape-checks",
)
def mismatched_shapes_are_refused(bench):
    """Shapes that do not fit and are computed all the same, by broadcasting or by reading past the end."""
    named = bench.make(8, H=2)
    bench.refused(named | {"v": named["v"][:, :7].contiguous()}, "v with 7 tokens beside q with 8")
    for name, gate in bench.gates(named).items():
        bench.refused(named | {name: gate[:, :, :1].contiguous()}, f"{name} for one head beside v with two")
    if bench.can.can("grouped-heads"):
        bench.refused(bench.make(8, H=2, HV=3), "three value heads on two key heads")
    if "initial_state" in named and named["q"].shape[-1] != named["v"].shape[-1]:
        bench.refused(
            named | {"initial_state": named["initial_state"].mT.contiguous()}, "a state whose last two axes are swapped"
        )


@case("shapes", input="o of the first tokens does not change when later tokens do", clause=clauses.RULE)
def the_future_is_not_read(bench):
    """A mask that lets a token see the next ones: scores above the diagonal, a state of the chunk's end."""
    named = bench.make(50)
    first = part(named, 0, 29)
    later = {name: x.clone() if isinstance(x, torch.Tensor) else x for name, x in named.items()}
    later["v"][:, 29:] *= -3
    later["k"][:, 29:] = later["k"][:, 29:].flip(-1)
    o, _ = bench.call(later)
    bench.right(first, (o[:, :29], None), "before the changed tokens, ")

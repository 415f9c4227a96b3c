"""Packed sequences: several of any lengths in one row."""

import math

import torch

from kda_lab.conformance import clauses
from kda_lab.conformance.case import Wrong, case
from kda_lab.conformance.judge.generate import STREAMS, part


def sequence_of(named, n):
    """The call on one of the packed sequences, without cu_seqlens."""
    a, b = named["cu_seqlens"][n : n + 2].tolist()
    cut = part({name: x for name, x in named.items() if name != "cu_seqlens"}, a, b)
    if "initial_state" in named:
        cut["initial_state"] = named["initial_state"][n : n + 1]
    return cut


@case(
    "ragged",
    input="lengths 0, 1, C-1, C, C+1, 0, 17, 2, 0",
    clause=clauses.PACKED,
    report=("MoonshotAI/FlashKDA#24", "MoonshotAI/FlashKDA#32"),
    needs="varlen",
)
def packed_sequences_of_every_length(bench):
    """Chunks that straddle two sequences, boundaries taken off by one, states that reach the next sequence."""
    C = bench.chunk
    cu = torch.tensor([0, 0, 1, C - 1, C, C + 1, 0, 17, 2, 0]).cumsum(0).tolist()
    named = bench.make(cu[-1], cu_seqlens=cu)
    bench.right(named)
    bench.right({name: x for name, x in named.items() if name != "initial_state"}, what="without states, ")


@case(
    "ragged",
    input="cu_seqlens=[0, 0, 5] and [0, 5, 5]",
    clause=clauses.PACKED,
    report=("MoonshotAI/FlashKDA#24", "MoonshotAI/FlashKDA#25"),
    needs="varlen",
)
def an_empty_sequence_keeps_its_state(bench):
    """A final state that nobody writes for a sequence without tokens, or one that is written as zero."""
    for cu, empty in (([0, 0, 5], 0), ([0, 5, 5], 1)):
        named = bench.make(5, cu_seqlens=cu)
        _, S = bench.right(named, what=f"{cu}: ")
        if S is not None and "initial_state" in named:
            bench.same(
                S[empty], named["initial_state"][empty].to(S.dtype), "an empty sequence must return its own state"
            )
        _, S = bench.call({name: x for name, x in named.items() if name != "initial_state"})
        if S is not None:
            bench.same(S[empty], torch.zeros_like(S[empty]), "an empty sequence without a state must return zeros")


@case(
    "ragged",
    input="cu_seqlens=[0, 0, 0], no tokens",
    clause=clauses.PACKED,
    report="MoonshotAI/FlashKDA#32",
    needs="varlen",
)
def only_empty_sequences(bench):
    """No tokens at all: a launch of zero blocks, and final states that are left as they were."""
    named = part(bench.make(4, cu_seqlens=[0, 2, 4]), 0, 0)
    named["cu_seqlens"] = torch.zeros_like(named["cu_seqlens"])
    _, S = bench.call(named)
    if S is not None:
        wanted = named["initial_state"].to(S.dtype) if "initial_state" in named else torch.zeros_like(S)
        bench.same(S, wanted, "without tokens the final states must be the initial ones")


@case(
    "ragged",
    input="v of the middle sequence is nan",
    clause=clauses.PACKED,
    report="vllm-project/vllm#51508",
    needs="varlen",
)
def each_sequence_is_computed_alone(bench):
    """Rows of the next sequence that are read and multiplied by zero, or a state from the wrong slot."""
    named = bench.make(60, cu_seqlens=[0, 19, 41, 60])
    o, S = bench.right(named)
    for n in range(3):
        alone = sequence_of(named, n)
        a, b = named["cu_seqlens"][n : n + 2].tolist()
        bench.right(alone, (o[:, a:b], None if S is None else S[n : n + 1]), f"sequence {n} of three, ", like=named)
    clean, named = named, named | {"v": named["v"].clone()}
    named["v"][:, 19:41] = math.nan
    o, S = bench.call(named)
    for n in (0, 2):
        a, b = named["cu_seqlens"][n : n + 2].tolist()
        bench.right(
            sequence_of(named, n),
            (o[:, a:b], None if S is None else S[n : n + 1]),
            f"sequence {n} beside nan, ",
            like=clean,
        )


@case("ragged", input="T=30, cu_seqlens=[0, 9, 20]; rows 20 to 29 are nan", clause=clauses.AFTER, needs="varlen")
def rows_after_the_last_sequence(bench):
    """Rows that belong to nobody: read, added to the last state, or left unwritten in the output."""
    named = bench.make(30, cu_seqlens=[0, 9, 20])
    for name in STREAMS:
        if name in named:
            named[name][:, 20:] = math.nan
    o, S = bench.call(named)
    cut = part(named, 0, 20)
    bench.right(cut, (o[:, :20], S), "before the rows of nobody, ")
    if not (o[:, 20:] == 0).all():
        raise Wrong("output rows after cu_seqlens[-1] must be zero")


@case("ragged", input="40 sequences of 0 to 4 tokens", clause=clauses.PACKED, needs="varlen")
def many_short_sequences(bench):
    """More sequences than chunks: a table of chunks that is too short, or a search that ends early."""
    lengths = torch.randint(0, 5, (40,), generator=bench.generator)
    cu = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)]).tolist()
    bench.right(bench.make(cu[-1], cu_seqlens=cu))


@case("ragged", input="a long sequence after short ones, and before them", clause=clauses.PACKED, needs="varlen")
def long_beside_short(bench):
    """Sequences that are reordered by length for balance and not put back, or a state that goes to another sequence."""
    C = bench.chunk
    for lengths in ((3, 2 * C + 5, 1, 30), (2 * C + 5, 30, 3, 1), (1, 3, 30, 2 * C + 5)):
        cu = [0, *torch.tensor(lengths).cumsum(0).tolist()]
        bench.right(bench.make(cu[-1], cu_seqlens=cu, H=1), what=f"lengths {lengths}: ")


@case(
    "ragged",
    input="2,049 sequences of one token, H=32",
    clause=clauses.PACKED,
    report="fla-org/flash-linear-attention#1077",
    needs="varlen cuda",
    alone=True,
)
def more_than_65535_packed_sequences_times_heads(bench):
    """A grid whose second or third axis counts sequences times heads."""
    K, V = (16, 16) if bench.can.sizes is None else bench.sizes()
    named = bench.make(2049, K, V, H=32, cu_seqlens=list(range(2050)), state=False)
    # no readout vanishes by chance
    named["q"] = named["k"]
    o, S = bench.call(named)
    # many sequences of one token are a batch, which the oracle computes at once
    as_batch = {name: x.transpose(0, 1) for name, x in named.items() if name != "cu_seqlens"}
    # all are alike: the budget of some holds for every one
    bench.right(as_batch, (o.transpose(0, 1), S), like={name: x[:8] for name, x in as_batch.items()})


@case(
    "ragged",
    input="cu_seqlens that falls, starts at 1, or ends after T",
    clause=clauses.PACKED,
    needs="varlen value-checks",
)
def impossible_boundaries_are_refused(bench):
    """Boundaries that make a kernel read before, between or behind its rows."""
    named = bench.make(6, cu_seqlens=[0, 3, 6])
    for cu in ([0, 4, 3], [1, 3, 6], [0, 3, 9]):
        bench.refused(named | {"cu_seqlens": bench.place({"cu": torch.tensor(cu)})["cu"]}, f"cu_seqlens={cu} with T=6")

"""The state: where it comes from, how it is read, handed over and returned."""

import torch

from kda_lab.conformance import clauses
from kda_lab.conformance.case import Wrong, case
from kda_lab.conformance.judge.generate import part


@case(
    "state",
    input="T=C+1, K=V=16, a state that is not symmetric, T=1 with beta=0: o = S (alpha q)",
    clause=clauses.STATE,
    report=("vllm-project/vllm#41292", "vllm-project/vllm#40956"),
    needs="initial-state",
)
def a_square_state_is_not_transposed(bench):
    """A state read as S^T q, written transposed, or both: with K = V no shape complains."""
    size = (16, 16) if bench.can.sizes is None else next((s for s in bench.can.sizes if s[0] == s[1]), (16, 16))
    named = bench.make(bench.chunk + 1, *size)
    bench.right(named)
    one = part(named, 0, 1)
    bench.right(bench.gated(one, torch.zeros_like), what="one token that only reads, ")


@case(
    "state",
    input="K=8, V=20 and K=20, V=8",
    clause=clauses.STATE,
    report="vllm-project/vllm#40956",
    needs="initial-state",
)
def key_and_value_sizes_may_differ(bench):
    """K used for V, or the reverse, in a shape, a stride, or the default scale."""
    bench.right(bench.make(bench.chunk + 3, 8, 20), what="K=8, V=20, ")
    bench.right(bench.make(bench.chunk + 3, 20, 8), what="K=20, V=8, ")


@case(
    "state",
    input="T = 1, 2, 15, 16, 17, 31, 32, 33 and C-1, C, C+1, 2C-1, 2C, 2C+1",
    clause=clauses.FINAL,
    report="huggingface/transformers#46190",
)
def every_length_around_a_chunk(bench):
    """A last chunk that is padded: padding that decays, writes, or is cut off wrongly changes the final state."""
    C = bench.chunk
    lengths = sorted({1, 2, 15, 16, 17, 31, 32, 33, C - 1, C, C + 1, 2 * C - 1, 2 * C, 2 * C + 1} - {0})
    named = bench.make(lengths[-1])
    for T in lengths:
        bench.right(part(named, 0, T), what=f"T={T}: ", like=named)


@case(
    "state",
    input="T=0 with a state, and without",
    clause=clauses.EMPTY,
    report=("MoonshotAI/FlashKDA#24", "MoonshotAI/FlashKDA#25"),
)
def no_tokens_at_all(bench):
    """A launch with an empty grid, a division by zero, or a final state that nobody wrote."""
    named = part(bench.make(3, B=2), 0, 0)
    _, S = bench.call(named)
    right_S = named.get("initial_state")
    if S is not None:
        bench.same(
            S,
            torch.zeros_like(S) if right_S is None else right_S.to(S.dtype),
            "after no tokens the final state must be the initial state",
        )
    _, S = bench.call({name: x for name, x in named.items() if name != "initial_state"})
    if S is not None:
        bench.same(S, torch.zeros_like(S), "after no tokens and from no state, the final state must be zero")


@case("state", input="one token after another, T=1, B=3", clause=clauses.STATE, needs="initial-state final-state")
def decoding_is_the_same_recurrence(bench):
    """A decode step that differs from the prefill: order, scale, gate or state layout."""
    named = bench.make(12, B=3)
    S, rows = named["initial_state"], []
    for t in range(12):
        o, S = bench.call(part(named, t, t + 1, S))
        rows.append(o)
    bench.right(named, (torch.cat(rows, 1), S), "token by token, ")


@case("state", input="T=70 without a state, and with a state of zeros", clause=clauses.STATE)
def no_state_is_a_zero_state(bench):
    """Memory that is not cleared when no state is given, or a state of ones."""
    bench.right(bench.make(70, state=False), what="without a state, ")
    named = bench.make(70)
    if "initial_state" in named:
        bench.right(named | {"initial_state": torch.zeros_like(named["initial_state"])}, what="from zeros, ")


@case(
    "state",
    input="T=36 split at every point, and a longer sequence split around its chunks",
    clause=clauses.STATE,
    report=("vllm-project/vllm#49918", "vllm-project/vllm#53051"),
    needs="initial-state final-state",
)
def split_anywhere_and_handed_over(bench):
    """prefill(T) then decode must be prefill(T+1), for every T: a state that is short of its last token, or has one too
    many.
    """
    C = bench.chunk
    short, long = bench.make(20), bench.make(2 * C + 2, H=1)
    for named, points in ((short, range(1, 20)), (long, (C - 1, C, C + 1, 2 * C, 2 * C + 1))):
        T = named["q"].shape[1]
        for t in points:
            first, S = bench.call(part(named, 0, t))
            second, S = bench.call(part(named, t, T, S))
            bench.right(named, (torch.cat([first, second], 1), S), f"split at {t}, ")


@case(
    "state",
    input="three pieces of 5, 64 and 21 tokens; again with K=V=16",
    clause=clauses.STATE,
    needs="initial-state final-state",
)
def three_pieces_of_uneven_lengths(bench):
    """A hand-over that works once: a state that is decayed again, or turned over, when it comes back."""
    sizes = {bench.sizes(), (16, 16)} if bench.can.sizes is None else {bench.sizes()}
    for K, V in sorted(sizes):
        named = bench.make(90, K, V, gates="weak")
        S, rows = named["initial_state"], []
        for a, b in ((0, 5), (5, 69), (69, 90)):
            o, S = bench.call(part(named, a, b, S))
            rows.append(o)
        bench.right(named, (torch.cat(rows, 1), S), f"in three pieces, K={K}, V={V}, ")


@case("state", input="T=20 with output_final_state and without", clause=clauses.FINAL, needs="final-state")
def asking_for_the_state_changes_nothing(bench):
    """Two code paths, one with a final state and one without, that give different outputs."""
    named = bench.make(70)
    bench.right(named, (bench.call(named, final=False)[0], None), "without asking for the state, ")
    bench.right(named)


@case("state", input="T=3, every token writes, o of token t must hold what token t wrote", clause=clauses.RULE)
def a_token_reads_its_own_write(bench):
    """Reading out before the write, or masking the diagonal of the scores."""
    named = bench.make(3)
    named["q"] = named["k"].clone()
    o, _ = bench.right(bench.gated(named, torch.ones_like))
    if not o.abs().max() > 0:
        raise Wrong("o is zero where the query is the key that was just written")

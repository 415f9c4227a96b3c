"""Plain values: o and the final state on generic inputs, near and far, kind and large."""

import math

import torch

from kda_lab.conformance import clauses
from kda_lab.conformance.capabilities import Unsupported
from kda_lab.conformance.case import GATED, Wrong, case
from kda_lab.conformance.judge.generate import STREAMS


@case("numbers", input="T=80, H=2, K=16, V=24, S0 random, decays from slow to fast", clause=clauses.RULE)
def plain_inputs(bench):
    """Any mistake in the recurrence that ordinary inputs show: order, interval, factor, mask, sign."""
    bench.right(bench.make(80))


@case("numbers", input="T=150, log decays of about -3", clause=clauses.GATE, ops=GATED, needs="given-gate")
def strong_gates(bench):
    """Decays over the wrong interval, or a state that outlives its gates."""
    bench.right(bench.make(150, gates="strong"))


@case("numbers", input="T=150, decays between 0.99 and 1", clause=clauses.GATE)
def weak_gates(bench):
    """Terms far from the diagonal, which strong gates hide: dropped blocks, a history that is cut off."""
    bench.right(bench.make(150, gates="weak"))


@case("numbers", input="T=64, one write in block 1, read in block 4, decays near 1", clause=clauses.RULE)
def far_blocks_are_seen(bench):
    """Blocks off the diagonal of a chunk that are dropped: what block 1 writes must be read in blocks 2 to 4."""
    named = bench.make(64, gates="weak")
    # writes in the first 16 tokens only; later tokens read
    for gate in bench.gates(named).values():
        gate[:, 16:] = 0
    named.pop("initial_state", None)
    bench.right(named, share=1e-3)


@case(
    "numbers",
    input="T=2, g=-1: e^-1 is left, not 2^-1",
    clause=clauses.GATE,
    report="sgl-project/sglang#31904",
    ops=GATED,
)
def the_base_of_the_decay_is_e(bench):
    """A decay to the base 2 where e is meant, in the prefill, the decode, or in one of two places."""
    named = bench.make(2)
    named["g"].fill_(-1.0)
    bench.right(named)


@case("numbers", input="T=48, scale=0.37", clause=clauses.SCALE, needs="scale")
def a_given_scale(bench):
    """A scale that is ignored, applied twice, or applied to k as well."""
    bench.right(bench.make(48) | {"scale": 0.37})


@case("numbers", input="T=20, scale=0.0: o is zero, the state is not", clause=clauses.SCALE, needs="scale")
def scale_zero_is_a_scale(bench):
    """`scale or K**-0.5`: zero taken for "not given"."""
    o, _ = bench.right(bench.make(20) | {"scale": 0.0})
    if o.abs().max() > 0:
        raise Wrong(f"scale=0.0 must give o = 0, got values up to {o.abs().max().item():.2g}")


@case("numbers", input="T=1100, decays of 1e-4 to 1e-2 a token", clause=clauses.GATE, ops=GATED)
def a_long_sequence_of_slow_gates(bench):
    """Running sums of gates that are never started anew lose their digits: differences of large sums."""
    bench.right(bench.make(1100, gates="weak", H=1))


@case(
    "numbers",
    input="T=4096, beta=0, one channel g=-1e-4: the state must be S0 e^-0.4096",
    clause=clauses.BETWEEN,
    report="sgl-project/sglang#34299",
    ops=GATED,
    needs="initial-state",
)
def the_state_between_tokens_is_float32(bench):
    """A state that is kept in bf16 between chunks or tokens: slow channels stop moving."""
    named = bench.make(4096, H=1, gates="weak")
    named = bench.gated(named, torch.zeros_like)
    if named["g"].ndim == 4:
        named["g"][..., 1] = -1e-4
    bench.right(named, exact_state=True, share=0.0)


def old_state(bench, named):
    """Compare every block by its own norm: small is not wrong. float16 does not hold outputs of all these sizes."""
    o, S = bench.call(named)
    bench.right(named, (None if bench.dtype == torch.float16 else o, S), share=0.0)


@case(
    "numbers",
    input="T=400, beta=0, decays of 0.95: S0 fades to e^-20 of itself, and o with it",
    clause=clauses.GATE,
    ops=GATED,
    needs="initial-state",
)
def the_old_state_fades_by_its_gates_alone(bench):
    """History that is cut off once the gates have forgotten most of it."""
    named = bench.make(400, H=1)
    named = bench.gated(named, torch.zeros_like)
    jitter = bench.normal(*named["g"].shape).clamp(-3, 3)
    named |= bench.place({"g": (0.01 * jitter - 0.05).to(named["g"].dtype)})
    old_state(bench, named)


@case(
    "numbers",
    input="S0 of 2^30, a decay of e^-20 over one chunk: what is left has the size of the writes; and over three chunks",
    clause=clauses.GATE,
    ops=GATED,
    needs="initial-state",
)
def a_large_old_state_is_not_cut_off(bench):
    """A chunk or segment that starts from a zero state because the decay bound fell below a threshold such as 2^-20."""
    for T, decay, size in ((3 * bench.chunk + 8, 0.07, 2.0**20), (bench.chunk + 7, 20 / bench.chunk, 2.0**30)):
        named = bench.make(T, H=1)
        named["g"] = torch.full_like(named["g"], -decay)
        named["initial_state"] = named["initial_state"] * size
        # a state that is hardly erased
        old_state(bench, bench.gated(named, lambda gate: gate * 0.05))


@case(
    "numbers",
    input="one head, T=3.5C, g=-20/C, values that shrink by e^g a token; and T=600 with g=-7/60",
    clause=clauses.GATE,
    ops=GATED,
    needs="initial-state",
)
def old_values_weigh_as_much_as_new_ones(bench):
    """A long sequence that is cut, and whose parts begin from a zero state once a bound on the decays is below 2^-20.

    The contract is exact, and errors are relative to what is there. A cut drops 2^-20 of the state at its beginning:
    too little to be seen beside values of equal size, and no less than a third of the answer where values shrink as
    fast as they are forgotten.
    """
    if bench.dtype == torch.float16:
        raise Unsupported("a dtype that holds values from 2^-80 to 2^40")
    for T, g in ((3 * bench.chunk + bench.chunk // 2, -20 / bench.chunk), (600, -70 / 600)):
        named = bench.make(T, H=1)
        named["g"] = torch.full_like(named["g"], g)
        fading = torch.exp(g * torch.arange(1.0, T + 1, dtype=torch.float64)) * 2.0**40
        named |= bench.place({"v": (named["v"].cpu() * fading[:, None, None]).to(bench.dtype)})
        named["initial_state"] = named["initial_state"] * 2.0**40
        # what is old is hardly erased
        old_state(bench, bench.gated(named, lambda gate: gate * 0.05))


@case(
    "numbers",
    input="T=8, S0 of 1e30, g=-60: nothing of it may be left after three tokens",
    clause=clauses.GATE,
    report="sgl-project/sglang#39971",
    ops=GATED,
    needs="initial-state",
)
def forgotten_stays_forgotten(bench):
    """An exponent that is clamped from below, so that a decay has a floor."""
    named = bench.make(8)
    named["initial_state"] = named["initial_state"] * 1e30
    named["g"].fill_(-60.0)
    o, S = bench.call(named)
    for what, got in (("o", o), ("final state", S)):
        if got is not None:
            largest = (got[:, 4:] if what == "o" else got).double().abs().max().item()
            if not largest < 10:
                raise Wrong(f"{what} still holds {largest:.2g} of a state that decayed by e^-60 a token, eight times")
    tail = {name: x[:, 3:] if name in STREAMS else x for name, x in named.items()}
    tail["initial_state"] = torch.zeros_like(named["initial_state"])
    bench.compare(o[:, 3:], bench.wanted(tail)[0], tail, 0, "o after the state is forgotten")


@case(
    "numbers",
    input="v and S0 times 512: the results are 512 times as large",
    clause=clauses.RULE,
    needs="initial-state",
)
def results_scale_with_their_values(bench):
    """An answer that is remembered, saturates, or depends on the size of values: the recurrence is linear in (v,
    S0).
    """
    named = bench.make(70)
    large = named | {"v": named["v"] * 512, "initial_state": named["initial_state"] * 512}
    bench.right(large)
    small = named | {"v": named["v"] / 512, "initial_state": named["initial_state"] / 512}
    bench.right(small)


@case("numbers", input="T=20, output_final_state given and not", clause=clauses.FINAL, needs="final-state")
def results_have_the_promised_types(bench):
    """o in another dtype than v, a state in another than float32, or a state that nobody asked for."""
    named = bench.make(20)
    o, S = bench.call(named)
    if o.dtype != named["v"].dtype:
        raise Wrong(f"o must be in v's dtype {named['v'].dtype}, got {o.dtype}")
    allowed = (torch.float32, torch.float64) if bench.dtype == torch.float64 else (torch.float32,)
    if S.dtype not in allowed:
        raise Wrong(f"the final state must be {allowed[0]}, got {S.dtype}")
    without, nothing = bench.call(named, final=False, check=False)
    if nothing is not None:
        raise Wrong("without output_final_state the second result must be None, got a value")
    bench.right(named, (without, None), "without a final state, ")
    if not math.isfinite(float(without.double().sum())):
        raise Wrong("o is not finite")

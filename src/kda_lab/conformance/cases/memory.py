"""Memory: what may be read, what must not be written, and that nothing is remembered from one call to the next."""

import math
from contextlib import contextmanager

import torch

from kda_lab.conformance import clauses
from kda_lab.conformance.case import case

PAD = 512


def tensors(named):
    """The tensors of a call by name."""
    return {name: x for name, x in named.items() if isinstance(x, torch.Tensor)}


def copies(named):
    """The same call on fresh copies of its tensors."""
    return {name: x.clone() if isinstance(x, torch.Tensor) else x for name, x in named.items()}


def guarded(x):
    """The same values inside of a larger allocation whose other entries are nan."""
    room = torch.full((x.numel() + 2 * PAD,), math.nan, dtype=x.dtype, device=x.device)
    inside = room[PAD : PAD + x.numel()].view(x.shape)
    inside.copy_(x)
    return inside


@contextmanager
def fresh_memory_is_nan():
    """Inside, torch.empty hands out nan."""
    was = torch.get_deterministic_debug_mode()
    filled = torch.utils.deterministic.fill_uninitialized_memory
    # not use_deterministic_algorithms, which imports the compiler
    torch.set_deterministic_debug_mode("warn")
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(was)
        torch.utils.deterministic.fill_uninitialized_memory = filled


@case("memory", input="T=70, every tensor compared after the call", clause=clauses.UNTOUCHED)
def inputs_are_never_written(bench):
    """Inputs that are normalised, decayed, or scaled in place; a state that is updated where it lies."""
    named = bench.make(70)
    calls = {"values given": named}
    if {"bounded-gate", "l2norm", "beta-logits"}.isdisjoint(bench.can.missing):
        raw = bench.raw(named) if "g" in named else named
        calls["computed inside"] = raw | {"use_qk_l2norm_in_kernel": True, "use_beta_sigmoid_in_kernel": True}
    for what, call in calls.items():
        before = copies(call)
        bench.call(call)
        for name, x in tensors(before).items():
            bench.same(call[name], x, f"{name} was written ({what})")


@case(
    "memory",
    input="T=0, 1 and 70: the state that came in, after the call",
    clause=clauses.UNTOUCHED,
    needs="initial-state final-state",
)
def the_initial_state_is_a_value(bench):
    """The final state written over the initial one, or returned as the same memory."""
    for T in (0, 1, 70):
        named = bench.make(T)
        before = named["initial_state"].clone()
        _, S = bench.call(named)
        bench.same(named["initial_state"], before, f"T={T}: initial_state was written")
        S.fill_(7.0)
        bench.same(named["initial_state"], before, f"T={T}: the final state is the memory of initial_state")


@case("memory", input="two calls; the results of the first, after the second", clause=clauses.FUNCTION)
def results_belong_to_the_caller(bench):
    """Results in a buffer that the next call writes, or that share memory with an input."""
    first, second = bench.make(40), bench.make(40)
    got = bench.call(first)
    kept = [x.clone() if x is not None else None for x in got]
    bench.call(second)
    for name, x, y in zip(("o", "the final state"), got, kept):
        bench.same(x, y, f"{name} changed when the function was called again")
    before = copies(first)
    got[0].fill_(7.0)
    for name, x in tensors(before).items():
        bench.same(first[name], x, f"o is the memory of {name}")


@case(
    "memory",
    input="heads before tokens in memory; every second channel of a wider tensor",
    clause=clauses.STRIDES,
    needs="strides",
)
def inputs_of_any_strides(bench):
    """Strides that are taken for those of a contiguous tensor."""
    named = bench.make(70, B=2, H=3)
    swapped = {
        name: x.transpose(1, 2).contiguous().transpose(1, 2) if x.ndim > 2 and name != "initial_state" else x
        for name, x in tensors(named).items()
    }
    bench.right(named | swapped, what="heads before tokens: ")
    wider = {name: torch.stack((x, torch.full_like(x, math.nan)), -1)[..., 0] for name, x in tensors(named).items()}
    bench.right(named | wider, what="every second entry of a wider tensor: ")
    if "initial_state" in named:
        S = named["initial_state"].mT.contiguous().mT
        bench.right(named | {"initial_state": S}, what="a state stored transposed: ")


@case("memory", input="q, k, v as slices of one fused projection", clause=clauses.STRIDES, needs="strides")
def slices_of_a_fused_projection(bench):
    """An offset into the storage that is dropped, or a token stride that is taken for H K."""
    named = bench.make(70, B=2)
    parts = [named[name].flatten(2) for name in ("q", "k", "v")]
    fused = torch.cat([*parts, torch.full_like(parts[0], math.nan)], -1)
    cuts, at = {}, 0
    for name, x in zip(("q", "k", "v"), parts):
        cuts[name] = fused[..., at : at + x.shape[-1]].unflatten(-1, named[name].shape[2:])
        at += x.shape[-1]
    bench.right(named | cuts)


@case(
    "memory",
    input="k, beta and g expanded along batch, heads and channels (stride 0)",
    clause=clauses.STRIDES,
    needs="strides",
)
def expanded_inputs(bench):
    """Expanded tensors, whose stride is 0, read as if every entry had its own place."""
    named = bench.make(40, B=2, H=2)
    for name in ("k", *bench.gates(named), "g"):
        if name in named:
            named[name] = named[name][:1, :, :1].expand(named[name].shape)
    bench.right(named, what="one head and row for all: ")
    if "g" in named and named["g"].ndim == 4:
        g = named["g"][..., :1].expand(named["g"].shape)
        bench.right(named | {"g": g}, what="one decay for all channels: ")


@case("memory", input="every input inside of a larger allocation that is nan", clause=clauses.STRIDES)
def nothing_outside_is_read(bench):
    """Reads before or behind an input, multiplied by zero or masked afterwards: nan shows them."""
    for T in (1, bench.chunk - 3, bench.chunk + 7):
        named = bench.make(T, H=1)
        bench.right(named | {name: guarded(x) for name, x in tensors(named).items()}, what=f"T={T}: ")


@case("memory", input="fresh memory filled with nan", clause=clauses.FUNCTION)
def fresh_memory_is_not_taken_for_zero(bench):
    """torch.empty where zeros are needed: it works until memory is used again."""
    named = bench.make(bench.chunk + 7)
    without = {name: x for name, x in named.items() if name != "initial_state"}
    with fresh_memory_is_nan():
        got, from_nothing = bench.call(named), bench.call(without)
    bench.right(named, got)
    bench.right(without, from_nothing, "without a state, ")


@case("memory", input="the same call five times", clause=clauses.FUNCTION, needs="deterministic")
def repeated_calls_give_the_same_bits(bench):
    """A race, atomics in changing order, or a state that survives the call."""
    named = bench.make(2 * bench.chunk + 3)
    first = bench.right(named)
    for i in range(4):
        again = bench.call(named)
        for what, x, y in zip(("o", "the final state"), again, first):
            bench.same(x, y, f"{what} of call {i + 2} differs from the first")


@case("memory", input="v written in place between two calls; two tokens swapped in place", clause=clauses.FUNCTION)
def the_same_storage_with_other_values(bench):
    """An answer or a preprocessing that is remembered by address, by shape, or by a sum of the entries."""
    named = bench.make(70)
    bench.right(named, what="first call, ")
    for name in ("v", "k", "q", *bench.gates(named), "g", "initial_state"):
        if name in named:
            x = named[name]
            at = (0, 35) if name != "initial_state" else (0, 0)
            x[at] = x[at].flip(-1) if x[at].ndim and x[at].shape[-1] > 1 else x[at] * 0.5
            bench.right(named, what=f"after {name} changed in place, ")
    v = named["v"]
    v[:, [20, 50]] = v[:, [50, 20]].clone()
    bench.right(named, what="after two tokens of v were swapped, ")


@case("memory", input="the same values in fresh memory; other values of the same shapes", clause=clauses.FUNCTION)
def the_answer_depends_on_values_alone(bench):
    """An implementation that recognises an input it has seen, or the shapes of the usual tests."""
    first, second = bench.make(70), bench.make(70)
    bench.right(first)
    bench.right(second, what="other values of the same shapes, ")
    bench.right(copies(first), what="the first values in fresh memory, ")


@case("memory", input="calls of T=130, 5, 130, 33 in turn", clause=clauses.FUNCTION)
def workspaces_of_other_sizes(bench):
    """A workspace that is kept from a longer call and read beyond the shorter one, or that is too small for the
    next.
    """
    for T in (130, 5, 131, 33):
        bench.right(bench.make(T), what=f"T={T} among other lengths, ")

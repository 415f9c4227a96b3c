"""kda_chunk.cu itself: its markers, and what it computes when a C++ compiler runs it thread by thread."""

import ctypes
import re

import pytest
import torch

from kda_lab.cuda import chunk, on_cpu, operands
from kda_lab.cuda.accept import chunk as acceptance
from kda_lab.cuda.compile import HERE
from tests.compilers import needs_compiler

SLUGS = [
    "gate-bounded",
    "gate-softplus",
    "l2-norm",
    "decay-prefix",
    "chunk-scores",
    "chunk-readout-scores",
    "chunk-inverse",
    "block-inverse",
    "chunk-u",
    "chunk-w",
    "chunk-inputs",
    "chunk-kg",
    "chunk-residual",
    "chunk-state",
    "chunk-output",
]


def test_each_step_is_bracketed_once_and_brackets_nest():
    open_, seen = [], []
    for line in (HERE / chunk.SOURCE).read_text().splitlines():
        if found := re.match(r"\s*// \[(/?)([a-z0-9-]+)\]", line):
            if found[1]:
                assert open_.pop() == found[2]
            else:
                open_.append(found[2])
                seen.append(found[2])
    assert not open_ and sorted(seen) == sorted(SLUGS)


def test_the_source_is_read_in_one_sitting():
    assert len((HERE / chunk.SOURCE).read_text().splitlines()) < 450


@needs_compiler
@pytest.mark.parametrize("case", list(acceptance.cases("cpu", small=True)), ids=lambda case: case.name)
def test_the_source_computes_the_rule(case):
    row = acceptance.run(case)
    assert row["ok"], row


@needs_compiler
def test_a_vanished_softplus_times_a_huge_rate_is_no_gate():
    """e^100 overflows fp32 and softplus(-200) vanishes in it: their product is e^-100, not inf * 0."""
    arguments = acceptance.make("", "softplus", 20, H=2, K=32, V=16).arguments
    arguments["A_log"] = torch.full_like(arguments["A_log"], 100.0)
    arguments["dt_bias"] = None
    arguments["g"] = torch.full_like(arguments["g"], -200.0)
    o, S = chunk.kda_chunk_forward(**arguments)
    plain = arguments | {"gate": "given", "g": torch.zeros_like(arguments["g"]), "A_log": None}
    o_plain, S_plain = chunk.kda_chunk_forward(**plain)
    assert o.isfinite().all() and torch.equal(o, o_plain) and torch.equal(S, S_plain)


def arguments_of_two_chunks():
    # and of more than one tile of keys and of values, so that several warps have work everywhere
    return acceptance.make("", "long", 80, H=1, K=48, V=32).arguments


def answers(kernels, seed, arguments, monkeypatch):
    """What these kernels compute with the threads in the order of this seed, on memory that starts as nan."""
    for kernel in kernels.values():
        kernel.seed = seed
    monkeypatch.setattr(chunk, "kernels", lambda constants, device: kernels)
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        return chunk.kda_chunk_forward(**arguments)
    finally:
        torch.use_deterministic_algorithms(False)


def equal(x, y):
    return all(torch.equal(a, b) for a, b in zip(x, y))


@needs_compiler
def test_every_barrier_is_needed_and_no_further_one(tmp_path, monkeypatch):
    """Without any one of its barriers the source depends on the order of its threads; with all of them it does not."""
    arguments = arguments_of_two_chunks()
    # the last __syncwarp only repeats to the memory model what the product before it has waited for
    barriers = [
        b for b in re.findall(r"__sync\w+\(\);[^\n]*", (HERE / chunk.SOURCE).read_text()) if "now replaces" not in b
    ]
    source = (HERE / chunk.SOURCE).read_text()
    for n, barrier in enumerate(barriers):
        assert source.count(barrier) == 1
        source = source.replace(barrier, f"if (omitted != {n}) {barrier}")
    switchable = tmp_path / "switchable.cu"
    switchable.write_text('extern "C" { int omitted = -1; }\n' + source)
    constants, names = chunk.constants_of(operands.chunk_call(arguments)).defines(), tuple(chunk.THREADS)
    kernels = {name: on_cpu.Kernel(str(switchable), constants, names, name) for name in names}
    omitted = ctypes.c_int.in_dll(kernels["kda_state"].library, "omitted")
    expected = answers(kernels, 0, arguments, monkeypatch)
    seeds = (12345, 99991, 4242)
    assert all(equal(expected, answers(kernels, seed, arguments, monkeypatch)) for seed in seeds)
    for n, barrier in enumerate(barriers):
        omitted.value = n
        assert any(not equal(expected, answers(kernels, seed, arguments, monkeypatch)) for seed in (0, *seeds)), barrier

"""kda_decode.cu: its markers, its resources, and what it computes when a C++ compiler runs it thread by thread."""

import ctypes
import re

import pytest
import torch

from kda_lab import decay, features, ops, rules
from kda_lab.cuda import compile as cuda_compile
from kda_lab.cuda import decode, on_cpu
from kda_lab.cuda.accept import decode as decode_acceptance
from kda_lab.cuda.compile import HERE
from kda_lab.cuda.measure import relative_error
from kda_lab.layer.step import step
from tests.compilers import needs_compiler

SLUGS = ["gate-bounded", "gate-softplus", "kda-recurrence", "l2-norm", "norm-attention", "short-convolution"]
SOURCE = (HERE / decode.SOURCE).read_text()
CASES = {case.name: case for case in decode_acceptance.cases("cpu", small=True)}
DRAFTS = "0 to 4 accepted, padding, an unkept state"


def test_each_step_is_bracketed_once_and_brackets_nest():
    open_, seen = [], []
    for line in SOURCE.splitlines():
        if found := re.match(r"(\s*)// \[(/?)([a-z0-9-]+)\]", line):
            if found[2]:
                assert open_.pop()[1] == found[3]
            else:
                open_.append((len(found[1]), found[3]))
                seen.append(found[3])
        # a page has 78 columns
        assert not open_ or len(line) - open_[0][0] <= 78, line
    assert not open_ and sorted(seen) == SLUGS


def test_the_source_is_read_in_one_sitting():
    assert len(SOURCE.splitlines()) <= 400


@pytest.mark.parametrize("name", decode.EXAMPLES)
def test_every_variant_compiles_without_spills_and_its_blocks_fit(name):
    pytest.importorskip("cuda.core", reason="the CUDA pip packages are not installed")
    variant = decode.EXAMPLES[name]
    r = cuda_compile.resources(cuda_compile.build(decode.SOURCE, variant.defines(), "sm_90a"))["kda_decode"]
    assert r.spill_stores == r.spill_loads == r.stack == 0, r
    # a multiprocessor has 65,536 registers and 228 KB, 1 KB of each block the system's
    assert variant.blocks * variant.threads * r.registers <= 65536, r
    assert variant.blocks * (variant.shared_bytes[decode.NAME] + 1024) <= 228 * 1024


@needs_compiler
@pytest.mark.parametrize("name", CASES)
def test_the_source_computes_the_step(name):
    row = decode_acceptance.run(CASES[name])
    assert row["ok"], row


@needs_compiler
def test_it_is_the_layers_step():
    a = decode_acceptance.make(
        "", R=6, T=4, K=32, V=24, accepted=[1, 0, 4, 2, 3, 1], padding=[3], dtype=torch.float32
    ).arguments
    exact = {name: x.double() if name in ("state", "conv_state") else x for name, x in a.items()}
    exact |= {name: exact[name].clone() for name in ("state", "conv_state")}
    y, expected = decode.kda_decode(**a), step(**exact)
    assert relative_error(y, expected) < 2e-5
    for name in ("state", "conv_state"):
        there = ~exact[name].isnan()
        assert torch.equal(there, ~a[name].isnan())
        assert relative_error(a[name][there], exact[name][there]) < 2e-5


@needs_compiler
def test_drafts_verified_together_are_tokens_taken_one_by_one():
    together = dict(CASES[DRAFTS].arguments)
    together.update(state=together["state"].clone(), conv_state=together["conv_state"].clone())
    single = dict(together, state=together["state"].clone(), conv_state=together["conv_state"].clone())
    y = decode.kda_decode(**together)
    first, slots = single.pop("num_accepted") - 1, single.pop("state_slots")
    # one by one, a request has one slot, in which it begins, and its window begins at row 0
    own = slots.gather(1, first.clamp(min=0)[:, None].long()).where(first[:, None] >= 0, torch.tensor(-1)).int()
    for r in ((first > 0) & (single["conv_slots"] >= 0)).nonzero()[:, 0].tolist():
        rows = single["conv_state"][single["conv_slots"][r]]
        rows[:3] = rows[first[r] : first[r] + 3].clone()
    tokens = ("qkv", "gate", "beta", "output_gate")
    for t in range(4):
        now = {name: x[:, t : t + 1] if name in tokens else x for name, x in single.items()}
        assert relative_error(decode.kda_decode(**now, state_slots=own.contiguous())[:, 0], y[:, t]) < 1e-5
        for r in range(6):
            if own[r] >= 0 and slots[r, t] >= 0:
                assert relative_error(together["state"][slots[r, t]], single["state"][own[r, 0]]) < 1e-5


@needs_compiler
def test_steps_after_any_prefill_are_a_longer_prefill():
    T, H, HV, K, V, w = 40, 1, 2, 32, 24, 4
    generator = torch.Generator().manual_seed(3)
    D, kind = 2 * H * K + HV * V, dict(generator=generator, dtype=torch.float64)
    qkv, taps, window = torch.randn(1, T, D, **kind), torch.randn(D, w, **kind), torch.randn(1, w - 1, D, **kind)
    gate, beta, z = torch.randn(1, T, HV, K, **kind), torch.randn(1, T, HV, **kind), torch.randn(1, T, HV, V, **kind)
    # gates near 1, so that the first state is felt to the end
    A_log, bias, weight = torch.rand(HV, **kind), -6 + torch.rand(HV, K, **kind), torch.randn(V, **kind)
    S = torch.randn(1, HV, V, K, **kind)

    def prefill(n):
        x, last = features.short_convolution(qkv[:, :n], taps, window)
        q, k, v = x.split((H * K, H * K, HV * V), -1)
        q, k, v = q.unflatten(-1, (H, K)), k.unflatten(-1, (H, K)), v.unflatten(-1, (HV, V))
        o, state = ops.chunk_kda(
            q,
            k,
            v,
            decay.bounded_gate(gate[:, :n], A_log, bias),
            torch.sigmoid(beta[:, :n]),
            initial_state=S.float(),
            output_final_state=True,
            use_qk_l2norm_in_kernel=True,
            chunk_size=16,
        )
        return features.rms_norm(o, 1e-5) * weight * torch.sigmoid(z[:, :n]), state, last

    y, expected, last = prefill(T)
    parameters = taps.float(), A_log, bias, weight.float()
    slots = torch.ones(1, 1, dtype=torch.int32)
    # four tokens are as many as a step with three drafts has: a prefill all the same
    for start, end in ((0, T), (1, 3), (3, 5), (4, 6), (5, 7), (17, 19)):
        _, state, window_now = prefill(start) if start else (None, S, window)
        conv, pool = window_now.float().repeat(2, 1, 1), state.float().repeat(2, 1, 1, 1)
        for t in range(start, end):
            now = [p[:, t : t + 1].float() for p in (qkv, gate, beta, z)]
            row = decode.kda_decode(*now, *parameters, conv, pool, slots[0], slots, lower_bound=-5.0)
            assert relative_error(row, y[:, t : t + 1]) < 2e-5, (start, t)
        if end == T:
            assert relative_error(pool[1:], expected) < 2e-5 and torch.equal(conv[1:], last.float())


@needs_compiler
def test_a_channel_that_hardly_decays_is_kept_over_many_steps():
    K, V, steps = 4, 4, 200
    generator = torch.Generator().manual_seed(5)
    q, k, v = (torch.randn(1, steps, 1, d, generator=generator) for d in (K, K, V))
    g, beta = torch.full((1, steps, 1, K), -2.0), torch.full((1, steps, 1), 0.02)
    g[..., 0] = -1e-4
    state, slot = torch.ones(1, 1, V, K), torch.zeros(1, 1, dtype=torch.int32)
    S = state[0, 0].double()
    for t in range(steps):
        now = [x[:, t : t + 1] for x in (q, k, v, g, beta)]
        decode.decode_core(*now, state, slot, l2norm=True)
        kn = features.l2_normalise(k[0, t, 0].double())
        S, _ = rules.kda(
            S, q[0, t, 0].double(), kn, v[0, t, 0].double(), g[0, t, 0].double().exp(), beta[0, t, 0].double()
        )
    assert relative_error(state[0, 0, :, 0], S[:, 0]) < 1e-5


FAULTS = {
    "the window holds what it held": (DRAFTS, ("= input(t + 1)", "= input(t)")),
    "the window is read from its first row": (DRAFTS, (" + r.first * a.channels", "")),
    "the first slot is where every request begins": (DRAFTS, ("a.slot_columns + first]", "a.slot_columns]")),
    "zero accepted is one accepted": (DRAFTS, ("a.accepted[r] - 1", "(a.accepted[r] ? a.accepted[r] - 1 : 0)")),
    "a negative slot is slot 0": (
        DRAFTS,
        ("window >= 0 && state >= 0", "true"),
        ("window_slots[r] :", "window_slots[r] & 7 :"),
    ),
    "an unkept state is kept": (
        DRAFTS,
        ("if (there && slot >= 0", "if (there"),
        ("states + slot *", "states + abs(slot) *"),
    ),
    "a key that is not normalised when it is written": (DRAFTS, ("w = u * s.k_norm[t]", "w = u")),
    "eps forgotten": ("zero keys", ("rsqrtf(kk + 1e-6f)", "rsqrtf(kk)")),
    "inf times 0": ("softplus, K17, fp16", ("fminf(A_log, 80)", "A_log"), ("x < -40 ?", "x < -1e9f ?")),
    "every value head moves the keys' window": ("HV=3H, drafts", ("if (!keys && i < 2 * K) return;", "")),
    "a value head is its own key head": ("HV=3H, drafts", ("head : head / GROUP", "head : head")),
    "the gate of the first channel": (
        "a gate a head, swish, beta up to 2",
        ("h * x.head + d * x.channel", "h * x.head + d"),
    ),
}


def kernel_of(text, folder, monkeypatch):
    """Let the module run this source on the CPU."""
    path = folder / "changed.cu"
    path.write_text(text)

    def kernels(constants, device):
        return {decode.NAME: on_cpu.Kernel(str(path), constants.defines(), decode.NAMES, decode.NAME)}

    monkeypatch.setattr(decode, "kernels", kernels)
    return path


@needs_compiler
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_caught(fault, tmp_path, monkeypatch):
    name, *edits = FAULTS[fault]
    text = SOURCE
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    kernel_of(text, tmp_path, monkeypatch)
    assert not decode_acceptance.run(CASES[name])["ok"]


@needs_compiler
def test_every_barrier_is_needed_and_no_further_one(tmp_path, monkeypatch):
    """Without any one of its barriers the source depends on the order of its threads; with all of them it does not."""
    case = CASES["HV=3H, drafts"]
    text = SOURCE
    barriers = re.findall(r"__syncthreads\(\);[^\n]*", text)
    for n, barrier in enumerate(barriers):
        assert text.count(barrier) == 1
        text = text.replace(barrier, f"if (omitted != {n}) {barrier}")
    path = kernel_of('extern "C" { int omitted = -1; }\n' + text, tmp_path, monkeypatch)
    launch = on_cpu.Kernel.launch

    def answers(n, seed):
        def seeded(self, *arguments):
            self.seed = seed
            ctypes.c_int.in_dll(self.library, "omitted").value = n
            launch(self, *arguments)

        monkeypatch.setattr(on_cpu.Kernel, "launch", seeded)
        pools = {name: case.arguments[name].clone() for name in ("conv_state", "state")}
        return [decode_acceptance.call(case, **pools), *pools.values()]

    def same(x, y):
        return all(decode_acceptance.same_bits(a, b) for a, b in zip(x, y))

    expected, seeds = answers(-1, 0), (12345, 99991, 4242)
    assert path.exists() and all(same(expected, answers(-1, seed)) for seed in seeds)
    for n, barrier in enumerate(barriers):
        assert any(not same(expected, answers(n, seed)) for seed in (0, *seeds)), barrier


def test_what_the_kernel_cannot_do_is_refused():
    def call(K=32, V=24, T=2, changed=()):
        a = decode_acceptance.make("", K=K, V=V, T=T).arguments
        before = a["state"].clone()
        try:
            decode.kda_decode(**(a | dict(changed)))
        finally:
            assert decode_acceptance.same_bits(a["state"], before)

    a = decode_acceptance.make("", K=32, V=24, T=2).arguments
    for message, options in {
        "K from 4 to 128 in steps of 4.*got K=30": dict(K=30),
        "got K=32, V=200 and 2 tokens": dict(V=200),
        "1 to 16 tokens": dict(T=17),
        "q.* must be 2 H K": dict(changed={"qkv": a["qkv"][..., :-1]}),
        "4 or more": dict(changed={"conv_state": a["conv_state"][:, :3]}),
        "contiguous int32": dict(changed={"state_slots": a["state_slots"].long()}),
        "state must be float32": dict(changed={"state": a["state"].double()}),
        "state_slots must be .3, 2., got .3, 1.": dict(changed={"state_slots": a["state_slots"][:, :1].contiguous()}),
        "beta must be .3, 2, 1., got .3, 1, 1.": dict(changed={"beta": a["beta"][:, :1]}),
        "norm_weight must be .24,.": dict(changed={"norm_weight": a["norm_weight"][1:]}),
        "dt_bias must be .1, 32. or .32,.": dict(changed={"dt_bias": a["dt_bias"][:, 1:]}),
        'with activation "sigmoid" or "swish", got torch.bfloat16 with .tanh': dict(changed={"activation": "tanh"}),
        "must share float32": dict(changed={x: a[x].double() for x in ("qkv", "conv_state", "output_gate")}),
    }.items():
        with pytest.raises(ValueError, match=message):
            call(**options)

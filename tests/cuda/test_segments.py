"""kda_segments.cu: what it computes, that each of its barriers and steps counts, its resources; and where segments
begin.
"""

import ctypes
import re

import pytest
import torch

from kda_lab import EQUATIONS
from kda_lab.cuda import compile as cuda_compile
from kda_lab.cuda import hopper, on_cpu, segments
from kda_lab.cuda.accept.trial import poisoned_memory, same_bits
from kda_lab.cuda.measure import relative_error
from tests.compilers import needs_compiler

SOURCE = (cuda_compile.HERE / segments.SOURCE).read_text()
# a sum of K products in fp32 is off by a few 2^-24 of its size, and up to 7 such sums follow each other
BOUND = 2e-6
DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


def make(n, H, K, V, device="cpu", initial=True):
    """Ends of n segments and an initial state; transitions forget little, and what lies behind them is nan."""
    generator = torch.Generator().manual_seed(n)
    ends = torch.randn(2 * n - 3, H, V, K, generator=generator)
    transitions = ends[n - 1 :]
    transitions[:, :, :K] = 0.9 * torch.eye(K) + 0.4 * K**-0.5 * transitions[:, :, :K]
    transitions[:, :, K:] = float("nan")
    S = torch.randn(H, V, K, generator=generator) if initial else None
    return ends.to(device), S if S is None else S.to(device), n


def fold(ends, initial, n):
    """The same in float64, step by step."""
    ends, K = ends.double(), ends.shape[-1]
    entries = [torch.zeros_like(ends[0]) if initial is None else initial.double(), ends[0]]
    for i in range(n - 2):
        entries.append(ends[i + 1] + entries[-1] @ ends[n - 1 + i, :, :K])
    return torch.stack(entries)


def error(found, case):
    """The worst of all segments, or nan: a late one must not hide behind an early one."""
    return torch.tensor([relative_error(x, y) for x, y in zip(found, fold(*case))]).max().item()


@needs_compiler
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("n", [3, 5, 8])
@pytest.mark.parametrize("K, V, rows", [(64, 64, 8), (128, 128, 8), (64, 128, 8), (128, 128, 16)])
def test_entries_are_the_fold_of_the_segments(K, V, rows, n, device):
    for initial in (True, False):
        case = make(n, 2, K, V, device, initial)
        with poisoned_memory():
            found = segments.entries(*case, rows=rows)
        assert found.shape == (n, 2, V, K) and found.dtype == torch.float32
        assert error(found, case) < BOUND
        assert torch.equal(found[0], torch.zeros_like(found[0]) if case[1] is None else case[1])
        assert torch.equal(found[1], case[0][0])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="a CUDA graph needs a GPU")
def test_a_call_is_captured_in_a_graph():
    ends, initial, n = make(8, 8, 128, 128, "cuda")
    expected = segments.entries(ends, initial, n)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = segments.entries(ends, initial, n)
    found.fill_(float("nan"))
    graph.replay()
    assert same_bits(found, expected)


FAULTS = {
    "rows of a transition in another order": ("next + j * KEY", "next + (j ^ 1) * KEY"),
    "rows of S begin elsewhere": ("&s.S[0][part * SHARE]", "&s.S[0][0]"),
    "the first transition for all": ("i < a.segments", "false"),
    "one segment less": ("i <= a.segments", "i < a.segments"),
    "transitions lie close together": ("transition += state", "transition += a.heads * KEY * KEY"),
    "each head by the first one's transitions": ("(a.segments - 1) * state + head", "(a.segments - 1) * state"),
    "increments are late": ("increment += state, entry += state", "entry += state"),
    "no increment": ("H[n] = four(increment + at)", "H[n] = float4{}"),
    "the initial state goes on": (
        "four(&s.S[part][d] + at) = four(increment + at)",
        "four(&s.S[part][d] + at) = four(entry - state + at)",
    ),
    "a part of the sum is missing": ("p < PARTS", "p < PARTS - 1"),
}


@pytest.fixture(scope="module")
def switchable(tmp_path_factory):
    """The source with a switch for each fault, and behind them for each barrier -> its path, and how many switches."""
    source, count = SOURCE, len(FAULTS)
    for i, (old, new) in enumerate(FAULTS.values()):
        assert SOURCE.count(old) == 1, old
        source = source.replace(old, f"(changed == {i} ? ({new}) : ({old}))")
    # __syncwarp only keeps the order of the compiler's instructions
    first, *others = source.split("__syncthreads();")
    for other in others:
        first, count = f"{first}if (changed != {count}) __syncthreads();{other}", count + 1
    path = tmp_path_factory.mktemp("segments") / "switchable.cu"
    path.write_text('extern "C" { int changed = -1; }\n' + first)
    return str(path), count


def answer(case, path, changed=-1, seed=0):
    """The entries by a switchable source, its threads in the order of a seed."""
    variant = segments.Constants(*reversed(case[0].shape[2:]))
    kernel = on_cpu.Kernel(path, variant.defines(), (segments.NAME,), segments.NAME, seed)
    ctypes.c_int.in_dll(kernel.library, "changed").value = changed
    with pytest.MonkeyPatch.context() as patch, poisoned_memory():
        patch.setattr(segments, "kernels", lambda constants, device: {segments.NAME: kernel})
        return segments.entries(*case)


@needs_compiler
def test_every_barrier_is_needed_and_no_further_one(switchable):
    path, count = switchable
    case, seeds = make(4, 1, 64, 128), (12345, 99991, 4242)
    expected = answer(case, path)
    assert error(expected, case) < BOUND and count == len(FAULTS) + 2
    assert all(same_bits(expected, answer(case, path, seed=seed)) for seed in seeds)
    for n in range(len(FAULTS), count):
        assert any(not same_bits(expected, answer(case, path, n, seed)) for seed in (0, *seeds)), n


@needs_compiler
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_shows(name, switchable):
    case = make(5, 2, 64, 128)
    # nan, where something was not written or should not have been read, is no small error either
    assert not error(answer(case, switchable[0], list(FAULTS).index(name)), case) < 100 * BOUND


def test_transposed_or_disordered_transitions_would_show():
    ends, initial, n = case = make(5, 2, 64, 64)
    transitions = ends[n - 1 :]
    for wrong in (transitions.mT, transitions.flip(0), transitions.flip(1)):
        assert error(fold(torch.cat([ends[: n - 1], wrong]), initial, n), case) > 100 * BOUND


@pytest.mark.parametrize("name", segments.EXAMPLES)
def test_every_variant_compiles_without_spills_and_its_block_fits(name):
    pytest.importorskip("cuda.core", reason="the CUDA pip packages are not installed")
    variant = segments.EXAMPLES[name]
    r = cuda_compile.resources(cuda_compile.build(segments.SOURCE, variant.defines(), "sm_90a"))[segments.NAME]
    assert r.spill_stores == r.spill_loads == r.stack == 0, r
    assert variant.threads * r.registers <= 65536 and variant.shared_bytes[segments.NAME] <= 227 * 1024, r


@pytest.mark.parametrize(
    "size, sentence", [("ARGS_BYTES", "another argument block"), ("SHARED_BYTES", "another amount of")]
)
def test_a_wrong_size_does_not_compile(size, sentence):
    pytest.importorskip("cuda.core", reason="the CUDA pip packages are not installed")
    constants = dict(segments.Constants().defines())
    with pytest.raises(Exception, match=sentence):
        cuda_compile.build(segments.SOURCE, constants | {size: constants[size] - 8}, "sm_90a")


def test_each_step_is_bracketed_once_and_is_an_equation():
    assert re.findall(r"// \[(/?[a-z0-9-]+)\]", SOURCE) == ["affine-fold", "/affine-fold"]
    step = re.search(r"( *)// \[affine-fold\].*// \[/affine-fold\]", SOURCE, re.DOTALL)
    # a page has 78 columns
    assert max(map(len, step[0].splitlines())) - len(step[1]) <= 78
    assert "affine-fold" in {e.slug for e in EQUATIONS}


def test_what_it_cannot_do_is_said_in_a_sentence():
    ends, initial, _ = make(3, 2, 64, 64)
    for wrong in (dict(segments=4), dict(segments=2, ends=ends[:1]), dict(ends=ends[..., :32].contiguous())):
        with pytest.raises(ValueError, match="for 3 segments or more"):
            segments.entries(**(dict(ends=ends, initial=initial, segments=3) | wrong))
    with pytest.raises(ValueError, match=r"initial must be \[2, 64, 64\], got \[1, 2, 64, 64\]"):
        segments.entries(ends, initial[None], 3)
    for changed in (ends.double(), ends.mT):
        with pytest.raises(ValueError, match="ends must be contiguous float32"):
            segments.entries(changed, initial, 3)
    with pytest.raises(ValueError, match="initial must be contiguous float32"):
        segments.entries(ends, torch.zeros(2 * 64 * 64 + 1)[1:].view(2, 64, 64), 3)


@pytest.mark.parametrize("start, end", [(0, 0), (0, 1), (0, 100), (3, 100), (0, 4096), (7, 4104)])
@pytest.mark.parametrize("n", [3, 8])
@pytest.mark.parametrize("device", DEVICES)
def test_segments_are_whole_blocks_and_share_the_sequence(start, end, n, device):
    bounds = segments.cut(torch.tensor([start, end], device=device), n)
    if not start:
        kept = [segments.cut_whole(end, n, bounds.device) for _ in range(2)]
        assert kept[0] is kept[1] and same_bits(kept[0], bounds)
    bounds, sizes = bounds.cpu(), bounds.diff().cpu()
    assert bounds[0] == start and bounds[-1] == end and len(sizes) == n and (sizes >= 0).all()
    assert not (sizes[bounds[1:] < end] % segments.TOKENS).any()
    # no smaller unit would do
    assert n * (sizes.max() - segments.TOKENS) < end - start or end == start


def test_segments_end_where_blocks_of_the_kernel_end():
    assert segments.TOKENS % hopper.C == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="a CUDA graph needs a GPU")
def test_a_new_length_in_a_graph_is_cut_there_and_not_kept():
    device = torch.device("cuda", torch.cuda.current_device())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = segments.cut_whole(12345, 3, device)
    kept = segments.cut_whole(12345, 3, device)
    found.fill_(-1)
    graph.replay()
    assert found is not kept and found.tolist() == kept.tolist() == [0, 4128, 8256, 12345]
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        assert segments.cut_whole(12345, 3, device) is kept

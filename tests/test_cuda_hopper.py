"""The Hopper kernel: it compiles without spills for every variant, and its source computes the rules on a CPU, where copies land
late and one warpgroup after the other is slow."""

import concurrent.futures
import ctypes
import re
import shutil

import pytest
import torch

from kda_lab.cuda import acceptance, hopper, on_cpu
from kda_lab.cuda import compile as cuda_compile
from kda_lab.cuda.measure import relative_error
from kda_lab.equations import EQUATIONS, fused_chunk


needs_compiler = pytest.mark.skipif(
    not (shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler on this machine"
)


def call(arguments, way, jitter=0, source=None, omitted=None):
    """The kernel through the host's compiler.

    way: options of `kda_hopper_forward`   jitter: which warp is slow, and the seed of the times at which copies land
    source: another one   omitted: the number of a barrier that it shall leave out.
    """

    def kernel(kind, device):
        found = on_cpu.Kernel(source or kind.source(), kind.constants(), (kind.name(),), kind.name())
        ctypes.c_int.in_dll(found.library, "jitter").value = jitter
        if omitted is not None:
            ctypes.c_int.in_dll(found.library, "omitted").value = omitted
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hopper, "kernel", kernel)
        return hopper.kda_hopper_forward(**arguments, **way)


def errors(case, way):
    return [relative_error(x, y) for x, y in zip(call(case.arguments, way), acceptance.oracle(**case.arguments))]


def equal(x, y):
    return all(torch.equal(a, b) for a, b in zip(x, y))


# a bf16 output alone costs 1.7e-3, bf16 products of 16 or 32 tokens about the double
BOUND = 6e-3
ONE, TWO, PAIRS = dict(ctas=1), dict(ctas=2), dict(ctas=2, pairs=True)
# twelve pairs of blocks: every ring of the kernels goes round
LONG = acceptance.make("strong", "strong", 370, H=1, seed=1)


@needs_compiler
@pytest.mark.parametrize("way", [ONE, TWO, PAIRS], ids=str)
def test_no_order_of_events_changes_a_bit(way):
    first = call(LONG.arguments, way)
    assert max(relative_error(x, y) for x, y in zip(first, acceptance.oracle(**LONG.arguments))) < BOUND
    # a warp of the state, one that prepares
    assert all(equal(first, call(LONG.arguments, way, jitter=slow)) for slow in (48, 57))


@needs_compiler
def test_every_barrier_of_a_thread_block_is_needed(tmp_path):
    """Without any one of them some slow warp changes the answer."""
    text = (cuda_compile.HERE / "kda_chunk_hopper.cu").read_text()
    start, end = text.index("ON_DEVICE void state_role"), text.index("#if CTAS == 2\n#define CLUSTER")
    pieces, names = [text[:start]], []
    for piece in re.split(r"(?<=[ (])((?:barrier|wait)\([^;]*\);[^\n]*)", text[start:end]):
        if piece.startswith(("barrier(", "wait(")):
            piece = f"if (omitted != {len(names)}) {piece}"
            names.append(piece)
        pieces.append(piece)
    switchable = tmp_path / "switchable.cu"
    switchable.write_text('extern "C" { int omitted = -1; }\n' + "".join(pieces) + text[end:])
    case = acceptance.make("strong", "strong", 200, H=1, seed=1)
    expected = call(case.arguments, ONE)
    slow = (0, 104, 105, 106)  # as it comes; the first warps of the first prepare group

    def caught(n):
        for jitter in slow:
            try:
                if not equal(expected, call(case.arguments, ONE, jitter, str(switchable), n)):
                    return True
            except RuntimeError:
                return True
        return False

    missed = [name for n, name in enumerate(names) if not caught(n)]
    # the gates of this case are never too strong
    assert len(names) > 8 and len(missed) == 1 and "sums are complete" in missed[0], missed


@needs_compiler
@pytest.mark.parametrize("way", [TWO, PAIRS, dict(segments=3)], ids=str)
def test_short_sequences_grouped_heads_and_rows_of_nobody(way):
    case = acceptance.make("", "strong", 90, H=1, HV=2, cu_seqlens=[0, 0, 3, 36, 36, 68, 85])
    for name in ("q", "k", "v", "g", "beta"):
        case.arguments[name][:, 85:] = float("nan")
    assert max(errors(case, way)) < BOUND


@needs_compiler
@pytest.mark.parametrize("way", [ONE, dict(ctas=1, pairs=True)], ids=str)
def test_gates_that_no_reference_can_carry(way):
    # some -60, -1e4 and -inf: what has decayed away is exactly gone
    assert max(errors(acceptance.make("", "clears", 70, H=1), way)) < BOUND


@needs_compiler
def test_segments_give_what_the_whole_sequence_gives():
    case = acceptance.make("", "weak", 150, H=1, seed=3)
    whole, cut = call(case.arguments, {}), call(case.arguments, dict(segments=4))
    # weak gates: the first state is still there at the end, through three transitions in bf16 products
    assert max(relative_error(x, y) for x, y in zip(cut, whole)) < BOUND
    assert max(errors(case, dict(segments=4))) < BOUND
    with pytest.raises(ValueError, match="segments need one batch row"):
        call(acceptance.make("", "weak", 20, B=2, H=1).arguments, dict(segments=2))


def test_each_step_is_bracketed_and_is_an_equation():
    slugs = {e.slug for e in (*EQUATIONS, *fused_chunk.EQUATIONS)}
    seen = set()
    for path in sorted((*cuda_compile.HERE.glob("*hopper*.cu*"), *(cuda_compile.HERE / "hopper_pairs").glob("*.cuh"))):
        open_ = []
        for line in path.read_text().splitlines():
            if found := re.match(r"\s*// \[(/?)([a-z0-9-]+)\]", line):
                if found[1]:
                    assert open_.pop() == found[2], path
                else:
                    open_.append(found[2])
                    seen.add(found[2])
        assert not open_, path
    assert seen <= slugs, seen - slugs
    assert {e.slug for e in fused_chunk.EQUATIONS} - seen == {"fused-chunk"}    # the whole of it


def test_what_the_kernel_leaves_to_others_is_said_in_a_sentence():
    a = acceptance.make("", "strong", 4, H=1).arguments
    plain = dict(gate="bounded")
    assert hopper.unsupported(a["q"], a["k"], a["v"], a["g"], a["beta"], **plain) is None
    assert "got K=96" in hopper.unsupported(*(x[..., :96] for x in (a["q"], a["k"], a["v"], a["g"])), a["beta"], **plain)
    assert "bfloat16" in hopper.unsupported(*(a[x].float() for x in "qkv"), a["g"], a["beta"], **plain)
    assert "a gate for each channel" in hopper.unsupported(a["q"], a["k"], a["v"], a["g"][..., 0], a["beta"], **plain)
    strided = torch.stack((a["k"], a["k"]), -1)[..., 0]
    assert "those of k have stride 2" in hopper.unsupported(a["q"], strided, a["v"], a["g"], a["beta"], **plain)
    shifted = torch.zeros(1, 4, 1, 136, dtype=torch.bfloat16)[..., 4:132]
    assert "multiples of 16 bytes" in hopper.unsupported(a["q"], shifted, a["v"], a["g"], a["beta"], **plain)
    with pytest.raises(ValueError, match="use kda_chunk_forward"):
        hopper.kda_hopper_forward(a["q"], strided, a["v"], a["g"], a["beta"], **plain)


def test_no_tokens_leave_the_state_as_it_was():
    a = acceptance.make("", "long", 0, H=2).arguments
    o, S = hopper.kda_hopper_forward(**a)
    assert o.shape[1] == 0 and torch.equal(S, a["initial_state"])


def test_two_thread_blocks_a_head_while_every_one_has_a_multiprocessor():
    a = acceptance.make("", "strong", 4, H=1).arguments
    assert [hopper.variant(**a, heads=n).ctas for n in (8, 66, 67, 96)] == [2, 2, 1, 1]
    # -5 a token over half a block fits the units of the middle; -6 does not
    assert not hopper.variant(**a).unbounded and hopper.variant(**(a | dict(lower_bound=-6.0))).unbounded


@pytest.fixture(scope="module")
def built():
    pytest.importorskip("cuda.core", reason="the CUDA pip packages are not installed")
    with concurrent.futures.ThreadPoolExecutor() as pool:
        build = lambda v: cuda_compile.build(v.source(), v.constants(), "sm_90a")  # noqa: E731
        return dict(zip(hopper.VARIANTS, pool.map(build, hopper.VARIANTS.values())))


@pytest.mark.parametrize("name", hopper.VARIANTS)
def test_every_variant_compiles_without_spills_and_without_waits_between_products(name, built):
    (r,) = cuda_compile.resources(built[name]).values()
    assert r.spill_stores == r.spill_loads == r.stack == 0, r
    # the assembler's word for products that wait for each other
    assert "serialized" not in built[name].report
    kind = hopper.VARIANTS[name]
    assert kind.threads() * r.registers <= 65536 and kind.shared_bytes() <= hopper.SHARED_LIMIT


def test_a_wrong_size_does_not_compile():
    pytest.importorskip("cuda.core", reason="the CUDA pip packages are not installed")
    constants = dict(hopper.Variant().constants()) | {"ARGS_BYTES": ctypes.sizeof(hopper.Args) - 64}
    with pytest.raises(Exception, match="another argument block"):
        cuda_compile.build(hopper.Variant().source(), constants, "sm_90a")

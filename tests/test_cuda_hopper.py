"""The Hopper kernel's source computes the rules on a CPU, where copies land late and one warp after the other is slow.

And each of its waits is there for a reason.
"""

import ctypes
import re
import shutil

import pytest
import torch

from kda_lab.cuda import acceptance, hopper, hopper_acceptance, on_cpu
from kda_lab.cuda import compile as cuda_compile
from kda_lab.cuda.measure import relative_error
from kda_lab.cuda.trial import poisoned_memory, same_bits
from kda_lab.equations import EQUATIONS, fused_chunk

needs_compiler = pytest.mark.skipif(
    not (shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler on this machine"
)
# a bf16 output alone costs 1.7e-3, bf16 products of a block about the double
BOUND = hopper_acceptance.BOUND
# slots by thread blocks of a head; in a cluster one more for blocks of its own than for those of the partner
FEWEST = {1: 3, 2: 9}
ENDS = [0, 0, 3, 55, 55, 75]
# lengths of whole blocks and others, so that the rows of a last block go out by either way, and by both before the other
MIXED = [0, 48, 48, 49, 97, 183]


def call(arguments, count=None, source=hopper.SOURCE, small=False, way=None, **numbers):
    """The kernel through the host's compiler, on memory that is nan.

    count: of multiprocessors   source: another one   small: as few warps that prepare, and as few slots, as the source allows,
    so that all rings go round in short sequences   way: options of `kda_hopper_forward`   numbers: of the library: jitter, which
    warp is slow, and the seed of the times at which copies land; omitted, the number of a wait that is left out.
    """

    def kernel(kind, device):
        constants = dict(kind.constants())
        if small:
            slots, (slot, rest) = FEWEST[kind.ctas()], kind.sizes(2)
            constants |= {"PREPARE_WARPS": 2, "SLOTS": slots, "SHARED_BYTES": slots * slot + rest}
        found = on_cpu.Kernel(source, tuple(constants.items()), (hopper.NAME,), hopper.NAME)
        for name, value in {"jitter": 0, **numbers}.items():
            ctypes.c_int.in_dll(found.library, name).value = value
        return found

    with pytest.MonkeyPatch.context() as patch, hopper_acceptance.multiprocessors(count), poisoned_memory():
        patch.setattr(hopper, "kernel", kernel)
        return hopper.kda_hopper_forward(**arguments, **(way or {}))


def equal(x, y):
    return all(map(same_bits, x, y))


def errors(case, *args, **options):
    return [relative_error(x, y) for x, y in zip(call(case.arguments, *args, **options), acceptance.oracle(**case.arguments))]


@needs_compiler
@pytest.mark.parametrize("gates, V", [("strong", 128), ("clears", 64)])
def test_no_order_of_events_changes_a_bit(gates, V):
    """One cluster for two heads of five sequences: it goes from one to the next, and every ring goes round."""
    case = acceptance.make("", gates, 183, H=2, K=64, V=V, cu_seqlens=MIXED)
    options = dict(count=V // 64, small=True)
    first = call(case.arguments, **options)
    assert max(relative_error(x, y) for x, y in zip(first, acceptance.oracle(**case.arguments))) < BOUND
    for slow in range(1, 1 + V // 64 * hopper.THREADS // 32):
        assert equal(first, call(case.arguments, **options, jitter=slow)), slow


# a statement that waits, and one that asks whether it still has to
BALANCED = r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
WAITS = re.compile(
    r"__syncthreads\(\);[^\n]*\n\s*if \(CTAS == 2\) cluster_barrier\(\);"
    rf"|(?<![\w.])(?:wait|barrier|wait_for|wait_for_stores<\d>|__sync\w+|cluster_barrier){BALANCED};"
    rf"|(?<![\w.])has_ended{BALANCED}"
)
# what a thread does that finds an error: it waits for ever, and so does the launch
HANG = """extern "C" { int omitted = -1; }
static void hang() { for (;;) if (!_setjmp(thread[threadIdx.x])) _longjmp(scheduler, 1); }
namespace std { using ::hang; }
#define abort hang
"""
# what a CPU cannot show to be needed, by the beginning of the wait and what follows it
UNSEEN = {
    "wait_for(a.passed": "thread blocks run one after the other: the one before has ended",
    "barrier(1, 128); if (p.warp == 0 && p.lane == 0) raise": "likewise",
    "wait(here.exits()": "the copy that ends the phase of `full` brings EXIT along",
    "cluster_barrier(); // nobody leaves": "the memory of a thread block stays after its end",
    "__syncwarp(); if (CTAS == 2) cluster_barrier": "lanes come together again for the speed of it",
    "__syncwarp(); if (lane % 4 == 0)": "given gates are not shifted",
    "__syncwarp(); } __device__ float of": "likewise",
    # lanes run in order from one product, load or store of tiles to the next, where each waits for all
    "__syncwarp(); } // [/row-solve]": "the first loads of `fold` wait for all lanes",
    "__syncwarp(); } // [/folded-decays]": "likewise",
    "__syncwarp(); if (lane == 0) arrive(here.out": "the stores of O wait for all lanes",
    "__syncwarp(); if (lane == 0) load_tokens": "the stores before it wait for all lanes",
    "__syncwarp(); if (lane == 0) { arrive(p.full": "likewise",
}


def switchable(folder):
    """The source with a number for each wait between warps: `omitted` leaves out one -> its path, and what each is."""
    names = []

    def switch(found):
        names.append(" ".join(found.string[found.start() : found.end() + 200].split()))
        if found[0].startswith("has_ended"):
            return f"(omitted == {len(names) - 1} || {found[0]})"
        return f"if (omitted != {len(names) - 1}) {{ {found[0]} }}"

    for path in sorted((*cuda_compile.HERE.glob("hopper_*.cuh"), cuda_compile.HERE / hopper.SOURCE)):
        text = re.sub(r"#include <(hopper_\w+\.cuh)>", lambda found: f'#include "{folder / found[1]}"', path.read_text())
        text = WAITS.sub(switch, text)
        (folder / path.name).write_text(HANG + text if path.name == hopper.SOURCE else text)
    return str(folder / hopper.SOURCE), names


@needs_compiler
def test_every_wait_is_needed(tmp_path):
    """Without any one of them some slow warp changes the answer, or somebody waits for ever."""
    source, names = switchable(tmp_path)
    case = acceptance.make("", "clears", 183, H=2, K=64, cu_seqlens=MIXED)

    def answer(jitter, omitted):
        return call(case.arguments, 2, source, small=True, jitter=jitter, omitted=omitted)

    expected = answer(0, -1)
    assert max(relative_error(x, y) for x, y in zip(expected, acceptance.oracle(**case.arguments))) < BOUND

    def caught(n):
        # 0: none, but copies land late
        for slow in (0, 1, 2, 5, 9, 11):
            try:
                if not equal(expected, answer(slow, n)):
                    return True
            except RuntimeError:
                return True
        return False

    def unseen(name):
        return [key for key in UNSEEN if name.startswith(key)]

    needed = [n for n, name in enumerate(names) if not unseen(name)]
    assert len(needed) > 12
    assert not (stale := set(UNSEEN) - {key for name in names for key in unseen(name)}), stale
    assert not (missed := [names[n] for n in needed if not caught(n)]), missed


@needs_compiler
@pytest.mark.parametrize("way", [{}, dict(segments=3)], ids=str)
@pytest.mark.parametrize("count", [None, *hopper_acceptance.FEW])
def test_short_sequences_grouped_heads_cuts_and_rows_of_nobody(way, count):
    case = acceptance.make("", "strong", 80, H=1, HV=2, cu_seqlens=ENDS)
    for name in ("q", "k", "v", "g", "beta"):
        case.arguments[name][:, ENDS[-1] :] = float("nan")
    assert max(errors(case, count, way=way)) < BOUND
    o, _ = call(case.arguments, count, way=way)
    assert not o[:, ENDS[-1] :].any()


@needs_compiler
@pytest.mark.parametrize("count", hopper_acceptance.FEW)
def test_a_head_that_a_cut_goes_through_is_whole(count):
    """Weak gates: what passes from one cluster to the next is there to the end."""
    case = acceptance.make("", "weak", 50, H=5)
    case.arguments["initial_state"] *= 10
    assert max(errors(case, count)) < BOUND


@pytest.mark.parametrize("lengths, heads", [(torch.tensor(ENDS).diff().tolist(), 2), ([50], 5)], ids=str)
@pytest.mark.parametrize("count", hopper_acceptance.FEW)
def test_the_cases_of_cuts_have_some(lengths, heads, count):
    """Ranges of equal length, no shorter than the longest head, do not all begin where heads do."""
    blocks = [max(1, -(-n // hopper.C)) for n in lengths for _ in range(heads)]
    begins = {sum(blocks[:n]) for n in range(len(blocks))}
    share = max(-(-sum(blocks) // (count // 2)), max(blocks))
    assert set(range(share, sum(blocks), share)) - begins


@needs_compiler
def test_gates_that_no_reference_can_carry():
    # some -60, -1e4 and -inf: what has decayed away is exactly gone
    assert max(errors(acceptance.make("", "clears", 70, H=1))) < BOUND


@needs_compiler
@pytest.mark.parametrize("K, V, gates", [(64, 64, "strong"), (128, 64, "softplus")])
def test_other_sizes_and_gates(K, V, gates):
    assert max(errors(acceptance.make("", gates, 66, H=1, K=K, V=V, scale=0.5))) < BOUND


@needs_compiler
def test_segments_give_what_the_whole_sequence_gives():
    case = acceptance.make("", "weak", 150, H=1, seed=3)
    whole, cut = call(case.arguments), call(case.arguments, way=dict(segments=4))
    # weak gates: the first state is still there at the end, through three transitions in bf16 products
    assert max(relative_error(x, y) for x, y in zip(cut, whole)) < BOUND
    assert max(errors(case, 4, way=dict(segments=4))) < BOUND
    with pytest.raises(ValueError, match="segments need one batch row"):
        call(acceptance.make("", "weak", 20, B=2, H=1).arguments, way=dict(segments=2))


def test_each_step_is_bracketed_and_is_an_equation():
    slugs = {e.slug for e in (*EQUATIONS, *fused_chunk.EQUATIONS)}
    seen = set()
    for path in sorted(cuda_compile.HERE.glob("*hopper*.cu*")):
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
    # the whole of it
    assert {e.slug for e in fused_chunk.EQUATIONS} - seen == {"fused-chunk"}


def test_what_the_kernel_leaves_to_others_is_said_in_a_sentence():
    a = acceptance.make("", "strong", 4, H=1).arguments
    plain = dict(gate="bounded")
    assert hopper.unsupported(a["q"], a["k"], a["v"], a["g"], a["beta"], **plain) is None
    assert "got K=96" in hopper.unsupported(*(x[..., :96] for x in (a["q"], a["k"], a["v"], a["g"])), a["beta"], **plain)
    assert "bfloat16" in hopper.unsupported(*(a[x].float() for x in "qkv"), a["g"], a["beta"], **plain)
    assert "multiplies in bfloat16" in hopper.unsupported(a["q"], a["k"], a["v"], a["g"], a["beta"], exact=True, **plain)
    assert "a gate for each channel" in hopper.unsupported(a["q"], a["k"], a["v"], a["g"][..., 0], a["beta"], **plain)
    assert "the delta rule with beta" in hopper.unsupported(a["q"], a["k"], a["v"], a["g"], None, **plain)
    biased = hopper.unsupported(a["q"], a["k"], a["v"], a["g"], a["beta"], dt_bias=torch.zeros(1), **plain)
    assert biased.endswith("a dt_bias for each head and channel, got (1,)")
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


def test_which_gates_may_leave_the_units_of_the_middle():
    a = acceptance.make("", "strong", 4, H=1).arguments
    # -5 a token over half a block fits the units of the middle; -6 does not
    assert not hopper.variant(**a).unbounded and hopper.variant(**(a | dict(lower_bound=-6.0))).unbounded
    assert all(hopper.variant(**acceptance.make("", gates, 4, H=1).arguments).unbounded for gates in ("long", "softplus"))

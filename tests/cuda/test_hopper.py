"""The Hopper kernel's source computes the rules on a CPU, where copies land late and one warp after the other is slow.

And each of its waits is there for a reason.
"""

import ctypes
import itertools
import re

import pytest
import torch

from kda_lab import EQUATIONS, ops
from kda_lab.cuda import chunk, hopper, on_cpu
from kda_lab.cuda import compile as cuda_compile
from kda_lab.cuda.accept import chunk as acceptance
from kda_lab.cuda.accept import hopper as hopper_acceptance
from kda_lab.cuda.accept.trial import poisoned_memory, same_bits
from kda_lab.cuda.kernels import KERNELS
from kda_lab.cuda.measure import relative_error
from kda_lab.cuda.operands import ChunkCall, chunk_call
from kda_lab.ops import run
from kda_lab.proof.equations.chunk import fused as fused_chunk
from tests.compilers import needs_compiler

# a bf16 output alone costs 1.7e-3, bf16 products of a block about the double
BOUND = hopper_acceptance.BOUND
# slots by thread blocks of a head: as few as two warps that prepare can do with
FEWEST = {1: 2, 2: 8}
# own blocks stay twice as long as those of the partner, so that no ring waits for the other by chance
UNEQUAL = {2: 12}
HOPPER_STEPS = KERNELS["hopper"].steps
ENDS = [0, 0, 3, 55, 55, 75]
# lengths of whole blocks and others, so that the rows of a last block go out by either way, and by both before the
# other
MIXED = [0, 48, 48, 49, 97, 183]


def call(arguments, count=None, source=hopper.SOURCE, slots=None, way=None, **numbers):
    """The kernel through the host's compiler, on memory that is nan.

    count: of multiprocessors   source: another one   slots: by thread blocks of a head, with two teams that prepare, so
    that all
    rings go round in short sequences; None: as on a GPU   way: options of `kda_hopper_forward`   numbers: of the
    library: jitter, which warp is slow, and the seed of the times at which copies land; omitted, the number of a wait
    that is left out.
    """

    def kernels(kind, device):
        constants = dict(kind.defines())
        if slots:
            few = slots[kind.ctas()]
            constants |= {
                "PREPARE_WARPS": 2 * constants["TEAM"],
                "SLOTS": few,
                "SHARED_BYTES": kind.shared_with(few, 2),
            }
        found = on_cpu.Kernel(source, tuple(constants.items()), (hopper.NAME,), hopper.NAME)
        for name, value in {"jitter": 0, **numbers}.items():
            ctypes.c_int.in_dll(found.library, name).value = value
        return {hopper.NAME: found}

    with pytest.MonkeyPatch.context() as patch, hopper_acceptance.multiprocessors(count), poisoned_memory():
        patch.setattr(hopper, "kernels", kernels)
        return hopper.kda_hopper_forward(**arguments, **(way or {}))


def equal(x, y):
    return all(map(same_bits, x, y))


def errors(case, *args, **options):
    return [
        relative_error(x, y)
        for x, y in zip(call(case.arguments, *args, **options), acceptance.oracle(**case.arguments))
    ]


@needs_compiler
@pytest.mark.parametrize("gates, V", [("strong", 128), ("clears", 64)])
def test_no_order_of_events_changes_a_bit(gates, V):
    """One cluster for two heads of five sequences: it goes from one to the next, and every ring goes round."""
    case, ctas = acceptance.make("", gates, 183, H=2, K=64, V=V, cu_seqlens=MIXED), V // 64
    options = dict(count=ctas, slots=FEWEST)
    first = call(case.arguments, **options)
    assert max(relative_error(x, y) for x, y in zip(first, acceptance.oracle(**case.arguments))) < BOUND
    # a warp of the state, one that prepares, a loader and a storer, in either thread block; the rest are like these, or
    # idle
    for slow in (3, 5, 14) if ctas == 1 else (3, 16 + 5, 16 + 13, 14, 16 + 14):
        assert equal(first, call(case.arguments, **options, jitter=slow)), slow


@needs_compiler
def test_earlier_versions_and_one_for_checkers_give_the_same_bits():
    case = acceptance.make("", "long", 100, H=2, K=64, V=64)
    first = call(case.arguments)
    alone = call(case.arguments, way=dict(team=1))
    assert equal(alone, call(case.arguments, way=dict(warps=4, team=1, abreast=1)))
    # two warps sum their scores apart
    assert max(relative_error(x, y) for x, y in zip(alone, first)) < BOUND
    with hopper_acceptance.every_lane():
        assert equal(first, call(case.arguments))


# a statement that waits, and one that asks whether it still has to
BALANCED = r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
WAITS = re.compile(
    r"__syncthreads\(\);[^\n]*\n\s*if \(CTAS == 2\) cluster_barrier\(\);"
    r"|team\.(?:meet|done)\(\);"
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
    "wait(p.exits(n - CTAS)": "what lands in a thread block after its end is seen by nobody",
    "cluster_barrier(); // nobody leaves": "the memory of a thread block stays after its end",
    "__syncwarp(); if (CTAS == 2) cluster_barrier": "lanes come together again for the speed of it",
    "__syncwarp(); // the compiler would": "it keeps the order of the compiler's instructions",
    # lanes run in order from one product, load or store of tiles to the next, where each waits for all
    "__syncwarp(); for (int d = 16 * team": "the last stores of the head before wait for all lanes",
    "__syncwarp(); } // [/folded-decays]": "the first loads of `fold` wait for all lanes",
    "__syncwarp(); if (speaks(lane)) arrive(p.exits": "all lanes have written before another warp goes on",
    "__syncwarp(); else": "the lanes of a team of one wait for each other at the next load or store of tiles",
    "team.meet(); if (team.first() && lane == 0) load_tokens": "the vote has waited; this is for what the copy "
    "engine sees",
}


def switchable(folder):
    """The source with a number for each wait between warps: `omitted` leaves out one -> its path, and what each is."""
    names = []

    def switch(found):
        names.append(" ".join(found.string[found.start() : found.end() + 200].split()))
        if found[0].startswith("has_ended"):
            return f"(omitted == {len(names) - 1} || {found[0]})"
        return f"{{ if (omitted != {len(names) - 1}) {{ {found[0]} }} }}"  # an else may follow

    for path in sorted((*cuda_compile.HERE.glob("hopper_*.cuh"), cuda_compile.HERE / hopper.SOURCE)):
        text = re.sub(
            r"#include <(hopper_\w+\.cuh)>", lambda found: f'#include "{folder / found[1]}"', path.read_text()
        )
        text = WAITS.sub(switch, text)
        (folder / path.name).write_text(HANG + text if path.name == hopper.SOURCE else text)
    return str(folder / hopper.SOURCE), names


def raw_and_mixed(gates):
    """Raw gates, shifted head by head: most are weak, a few clear a channel, so blocks have one reference or two."""
    case = acceptance.make("", "strong", 183, H=2, K=64, cu_seqlens=MIXED)
    a = case.arguments
    a["lower_bound"], a["g"] = -60.0, a["g"].to(gates)
    a["dt_bias"] -= 8
    a["g"][torch.rand(a["g"].shape, generator=torch.Generator().manual_seed(1)) < 7e-4] = 100
    return case


@needs_compiler
def test_every_wait_is_needed(tmp_path):
    """Without any one of them some slow warp changes the answer, or somebody waits for ever."""
    source, names = switchable(tmp_path)

    def answer(case, jitter, omitted):
        return call(case.arguments, 2, source, slots=UNEQUAL, jitter=jitter, omitted=omitted)

    # teams of two, and of one
    expected = [(case, answer(case, 0, -1)) for case in map(raw_and_mixed, (torch.bfloat16, torch.float32))]
    for case, found in expected:
        assert max(relative_error(x, y) for x, y in zip(found, acceptance.oracle(**case.arguments))) < BOUND

    def caught(n):
        # 0: none, but copies land late
        for (case, whole), slow in itertools.product(expected, (0, 1, 2, 4, 5, 14, 30)):
            try:
                if not equal(whole, answer(case, slow, n)):
                    return True
            except RuntimeError:
                return True
        return False

    def unseen(name):
        return [key for key in UNSEEN if name.startswith(key)]

    needed = [n for n, name in enumerate(names) if not unseen(name)]
    assert len(needed) > 15
    assert not (stale := set(UNSEEN) - {key for name in names for key in unseen(name)}), stale
    assert not (missed := [names[n] for n in needed if not caught(n)]), missed


@needs_compiler
def test_short_sequences_grouped_heads_and_rows_of_nobody():
    case = acceptance.make("", "strong", 80, H=1, HV=5, cu_seqlens=ENDS)
    for name in ("q", "k", "v", "g", "beta"):
        case.arguments[name][:, ENDS[-1] :] = float("nan")
    whole = call(case.arguments, 2)
    assert max(relative_error(x, y) for x, y in zip(whole, acceptance.oracle(**case.arguments))) < BOUND
    assert not whole[0][:, ENDS[-1] :].any()
    for count in hopper_acceptance.FEW:
        assert equal(whole, call(case.arguments, count)), count


@needs_compiler
def test_a_head_that_a_cut_goes_through_is_whole():
    """Weak gates: what passes from one cluster to the next is there to the end."""
    case = acceptance.make("", "weak", 50, H=5)
    case.arguments["initial_state"] *= 10
    whole = call(case.arguments, 2)
    assert max(relative_error(x, y) for x, y in zip(whole, acceptance.oracle(**case.arguments))) < BOUND
    for count in hopper_acceptance.FEW:
        assert equal(whole, call(case.arguments, count)), count


@needs_compiler
@pytest.mark.parametrize("number", range(4))
def test_states_on_the_way(number):
    """At given rows, whether a cut falls before, on or behind them; asking for them costs the outputs nothing but
    rounding.
    """
    case, rows = list(hopper_acceptance.checkpoints("cpu"))[number]
    found = list(hopper_acceptance.run_checkpoints(case, rows))
    assert len(found) == 4 and all(row["ok"] for row in found), found


def cuts(lengths, heads, clusters):
    """Blocks before which a range ends inside a sequence: heads one after the other, all sequences of a head in a
    row.
    """
    blocks = [max(1, -(-n // hopper.C)) for _ in range(heads) for n in lengths]
    begins = {sum(blocks[:n]) for n in range(len(blocks))}
    share = max(-(-sum(blocks) // clusters), max(blocks))
    return set(range(share, sum(blocks), share)) - begins


@pytest.mark.parametrize("lengths, heads", [(torch.tensor(ENDS).diff().tolist(), 5), ([50], 5)], ids=str)
@pytest.mark.parametrize("count", hopper_acceptance.FEW)
def test_the_cases_of_cuts_have_some(lengths, heads, count):
    assert cuts(lengths, heads, count // 2)


@needs_compiler
@pytest.mark.parametrize("n", [hopper.BOUNDS - 1, hopper.BOUNDS + 40])
def test_more_sequences_than_bounds_in_shared_memory(n):
    """As many as fit and many more, each of its own length; on one cluster, on a few, and each on its own."""
    lengths = torch.randint(0, 40, (n,), generator=torch.Generator().manual_seed(n))
    ends = [0, *lengths.cumsum(0).tolist()]
    case = acceptance.make("", "strong", ends[-1] + 5, H=1, K=64, V=64, cu_seqlens=ends)
    whole = call(case.arguments, 1)
    assert max(relative_error(x, y) for x, y in zip(whole, acceptance.oracle(**case.arguments))) < BOUND
    assert not whole[0][:, ends[-1] :].any()
    assert cuts(lengths.tolist(), 1, 7) and not cuts(lengths.tolist(), 1, 1)
    for count in (7, n):
        assert equal(whole, call(case.arguments, count)), count


@needs_compiler
def test_gates_that_no_reference_can_carry():
    # some -60, -1e4 and -inf: what has decayed away is exactly gone
    assert max(errors(acceptance.make("", "clears", 70, H=1))) < BOUND


@needs_compiler
@pytest.mark.parametrize("K, V, gates", [(64, 64, "strong"), (128, 64, "softplus")])
def test_other_sizes_and_gates(K, V, gates):
    assert max(errors(acceptance.make("", gates, 66, H=1, K=K, V=V, scale=0.5))) < BOUND


@needs_compiler
@pytest.mark.parametrize(
    "T, options, segments, count",
    [
        # cuts go through increments and through transitions
        (150, {}, 4, 6),
        (150, dict(HV=2), 3, 4),
        # of 16, 16, 4, 0 and 0 tokens: an empty one's transition is the identity
        (36, {}, 5, None),
        (90, dict(cu_seqlens=[0, 77]), 3, None),
        (70, dict(state=False), 3, 4),
    ],
    ids=str,
)
def test_segments_give_what_the_whole_sequence_gives(T, options, segments, count):
    # weak gates: the first state is still there at the end, through transitions in bf16 products
    case = acceptance.make("", "weak", T, H=1, seed=3, **options)
    if options.get("cu_seqlens"):
        for name in ("q", "k", "v", "g", "beta"):
            case.arguments[name][:, options["cu_seqlens"][1] :] = float("nan")
    whole, cut = (call(case.arguments, count, way=dict(segments=n)) for n in (1, segments))
    assert max(relative_error(x, y) for x, y in zip(cut, whole)) < BOUND
    assert max(relative_error(x, y) for x, y in zip(cut, acceptance.oracle(**case.arguments))) < BOUND


@pytest.mark.parametrize(
    "options, segments", [(dict(B=2), 3), (dict(cu_seqlens=[0, 9, 20]), 3), (dict(V=64), 3), ({}, 2)], ids=str
)
def test_segments_are_of_one_sequence_as_wide_as_its_keys(options, segments):
    with pytest.raises(
        ValueError, match=f"segments are 1, or 3 and more for one sequence with V >= K, got {segments} for"
    ):
        call(acceptance.make("", "weak", 20, H=1, **options).arguments, way=dict(segments=segments))


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
    plain = ChunkCall(*(a[name] for name in ("q", "k", "v", "g", "beta")), gate="bounded", lower_bound=-5.0)

    def said(**changed):
        return hopper.unsupported(plain._replace(**changed))

    assert said() is None
    assert "got K=96" in said(**{name: a[name][..., :96] for name in ("q", "k", "v", "g")})
    assert "in bfloat16" in said(**{name: a[name].float() for name in "qkv"})
    assert "exact products were asked for" in said(exact=True)
    assert "the delta rule" in said(erase=False)
    assert "a gate for each channel" in said(g=a["g"][..., 0])
    assert "the delta rule with beta" in said(beta=None)
    assert "gate must be one of" in said(gate="raw")
    assert said(dt_bias=torch.zeros(1)).endswith("a dt_bias for each head and channel, got (1,)")
    strided = torch.stack((a["k"], a["k"]), -1)[..., 0]
    assert "those of k have stride 2" in said(k=strided)
    assert "multiples of 16 bytes" in said(k=torch.zeros(1, 4, 1, 136, dtype=torch.bfloat16)[..., 4:132])
    with pytest.raises(ValueError, match="use kda_chunk_forward"):
        hopper.kda_hopper_forward(**plain._replace(k=strided)._asdict())
    with pytest.raises(ValueError, match="the delta rule with beta"):
        hopper.kda_hopper_forward(**plain._replace(erase=False)._asdict())


@pytest.mark.parametrize(
    "options, said",
    [
        (dict(team=3), "a team is 1 warp, or 2"),
        (dict(team=2, gates=torch.float32), "a team is 1 warp, or 2 with gates in bfloat16"),
        (dict(warps=3), "whole teams of 2"),
        (dict(warps=10), "at most 8"),
        (dict(team=1, abreast=3), "abreast must divide the 8 slices"),
        (dict(abreast=-1), "abreast must divide"),
    ],
)
def test_options_that_cannot_be_built_are_refused(options, said):
    assert said in hopper.misbuilt(hopper.Constants(**options))
    a = acceptance.make("", "strong", 4, H=1).arguments
    if "gates" not in options:
        with pytest.raises(ValueError, match=said):
            hopper.kda_hopper_forward(**a, **options)


@pytest.mark.parametrize("name", HOPPER_STEPS)
def test_the_steps_of_the_ladder_can_be_built(name):
    assert hopper.misbuilt(hopper.Constants(**HOPPER_STEPS[name])) is None


@needs_compiler
@pytest.mark.parametrize(
    "function, K, dtype, chosen",
    [
        ("kda", 64, torch.bfloat16, "hopper"),
        ("kda", 64, torch.float32, "readable"),
        ("kda", 96, torch.bfloat16, "readable"),
        ("gated_delta_rule", 64, torch.bfloat16, "readable"),
        ("delta_rule", 64, torch.bfloat16, "readable"),
    ],
)
def test_public_functions_choose_this_kernel_where_it_can_answer(function, K, dtype, chosen, monkeypatch):
    """As on a GPU, but both kernels run through the host's compiler; the readable one only has to be asked."""
    asked, answer = [], hopper.kda_hopper_forward
    monkeypatch.setattr(run, "kernel_answers", lambda call: True)
    monkeypatch.setattr(
        hopper, "kda_hopper_forward", lambda *args, **options: asked.append("hopper") or answer(*args, **options)
    )
    monkeypatch.setattr(
        chunk, "kda_chunk_forward", lambda q, k, v, *rest, **options: asked.append("readable") or (v, None)
    )
    a = acceptance.make(
        "", "strong", 66, H=1, HV=2, K=K, V=64, dtype=dtype, cu_seqlens=ENDS[:4] + [60], scale=0.3
    ).arguments
    named = {
        name: a[name] for name in ("q", "k", "v", "beta", "scale", "initial_state", "output_final_state", "cu_seqlens")
    }
    raw = {name: a[name] for name in ("g", "A_log", "dt_bias", "lower_bound")} | dict(use_gate_in_kernel=True)
    named |= {"kda": raw, "gated_delta_rule": dict(g=-a["g"][..., 0].abs()), "delta_rule": {}}[function]
    named |= dict(use_qk_l2norm_in_kernel=True, use_beta_sigmoid_in_kernel=True)
    found = getattr(ops, f"chunk_{function}")(**named)
    assert asked == [chosen]
    if chosen == "hopper":
        wanted = ops.naive_kda(**named)
        assert max(relative_error(x, y) for x, y in zip(found, wanted)) < BOUND


def test_no_tokens_leave_the_state_as_it_was():
    a = acceptance.make("", "long", 0, H=2).arguments
    o, S = hopper.kda_hopper_forward(**a)
    assert o.shape[1] == 0 and torch.equal(S, a["initial_state"])


def test_which_gates_may_leave_the_units_of_the_middle():
    def unbounded(gates, **changed):
        call = chunk_call(acceptance.make("", gates, 4, H=1).arguments)._replace(**changed)
        return hopper.constants_of(call).unbounded

    # -5 a token over half a block fits the units of the middle; -6 does not
    assert not unbounded("strong") and unbounded("strong", lower_bound=-6.0)
    assert unbounded("long") and unbounded("softplus")

"""Block tables of attention, states and rings: the step tables of chapter 20, hits, copies and what a request holds."""

import json

import pytest

from kda_lab.serving.blocks.coordinator import joint_hit
from kda_lab.serving.blocks.request import Request
from kda_lab.serving.blocks.scheduler import hybrid
from kda_lab.serving.run import timeline
from kda_lab.serving.run.engine import Engine
from kda_lab.serving.trials.scenarios import fresh, right_drafts, serve
from kda_lab.serving.trials.traces import read_trace
from tests.serving.vectors import FIXTURES, VECTORS


def states(frames, name="A"):
    """The state table of each step."""
    return [frame["tables"][name][1] for frame in frames]


def run(prompt=2000, outputs=2, **settings):
    engine = Engine(hybrid(**settings))
    engine.add("A", range(prompt), outputs)
    return engine, timeline.record(engine)


def keys(engine):
    """{(group, tokens): block} of all keys."""
    return {(g, engine.library.owner(d)[1]): next(iter(held)) for (d, g), held in engine.scheduler.pool.holders.items()}


def test_case_a_two_chunks():
    engine, frames = run(retention=None)
    assert states(frames) == [[0, 0, 4], [0, 0, 4, 6], [0, 0, 0, 6]]
    assert keys(engine) == {(0, 640): 1, (0, 1280): 2, (0, 1920): 3, (1, 1920): 4}
    assert frames[2]["blocks"][4] == {"group": 1, "refs": 0, "holders": [], "keys": ["A:1920"], "holds": "S@1920"}


def test_case_a_prime_one_chunk_that_exports_a_state():
    _, frames = run(retention=None, alignment=16)
    assert states(frames) == [[0, 0, 5, 6], [0, 0, 0, 6]]
    assert [frames[0]["blocks"][b]["holds"] for b in (5, 6)] == ["S@1920", "S@2000"]


@pytest.mark.parametrize("retention, hit", [(None, 1280), (0, 0)])
def test_case_b_a_chunk_a_block(retention, hit):
    engine, frames = run(retention=retention, budget=640)
    assert ["".join(".x"[b > 0] for b in table) for table in states(frames)[:4]] == ["x", "xx", ".xx", "..xx"]
    if retention is None:
        assert states(frames)[:4] == [[2], [2, 4], [0, 4, 6], [0, 0, 6, 8]]
    probe = Request("B", [*range(1300), *fresh(700)], 640)
    found = engine.scheduler.coordinator.lookup(probe)
    # without dense retention the states at 640 and 1280 get no key
    assert (found.tokens, found.junction) == (hit, 0 if hit else 1280)


def test_chunks_shorter_than_a_block_stay_in_one_column():
    _, frames = run(budget=256)
    assert [frame["chunks"][0]["end"] for frame in frames[:4]] == [256, 512, 640, 896]
    assert states(frames)[:3] == [[2]] * 3


def test_third_occurrence_of_a_shared_prefix_is_the_first_to_be_served():
    prompts = [[*range(1300), *fresh(700, i)] for i in (1, 2, 3)]
    engine = serve(Engine(hybrid()), *({name: prompt} for name, prompt in zip("ABC", prompts, strict=True)), outputs=1)
    assert engine.hits == {"A": [0], "B": [0], "C": [1280]}


def test_a_hash_unit_does_not_refine_the_junction_but_the_tail():
    prompts = [[*range(1300), *fresh(700, i)] for i in (1, 2, 3)]
    waves = [{"A": prompts[0]}, {"A2": prompts[0]}, {"B": prompts[1]}, {"C": prompts[2]}]
    engine = serve(Engine(hybrid(unit=64)), *waves, outputs=1)
    assert engine.hits == {"A": [0], "A2": [1984], "B": [0], "C": [1280]}


@pytest.mark.parametrize("flag, hits", [(False, [0, 0, 640, 640]), (True, [0, 0, 1216, 1216])])
def test_a_junction_inside_a_block_needs_its_own_checkpoint(flag, hits):
    prompts = {name: [*range(1300), *fresh(700, i)] for i, name in enumerate("ABCD", 1)}
    engine = Engine(hybrid(unit=64, eagle=True, checkpoint_junction=flag))
    serve(engine, *({name: prompt} for name, prompt in prompts.items()), outputs=1)
    assert [engine.hits[name][0] for name in "ABCD"] == hits


def test_an_exported_tail_costs_the_state_of_the_block_before_it():
    probe = [*range(1950), *fresh(300)]
    for alignment, hit in ((None, 1920), (16, 0)):
        engine = serve(Engine(hybrid(unit=64, alignment=alignment)), {"A": range(2000)}, outputs=1)
        assert engine.scheduler.coordinator.lookup(Request("B", probe, 64)).tokens == hit


HITS = {
    "36_eagle_drop_640_dense": {"eagle": True},
    "37_noeagle_640_dense": {},
    "38_eagle_caseB_640": {"eagle": True, "budget": 640},
}


@pytest.mark.parametrize("name", HITS)
def test_hits_of_prefixes_and_extensions(name):
    """The probes of these traces are prefixes of A, longer ones extended: here without any guess."""
    engine, _ = run(retention=None, **HITS[name])
    probes = [event for event in read_trace(FIXTURES / f"{name}.json.gz").events if event["event"] == "probe"]
    assert len(probes) == 9
    for probe in probes:
        n = probe["prompt_len"]
        request = Request("?", [*range(2000)][:n] + list(fresh(max(n - 2000, 0), 9)), 640)
        hit = engine.scheduler.coordinator.lookup(request)
        assert [hit.tokens, hit.junction] == [probe["hit"], probe["shared_prefix_boundary"]], n
        assert engine.scheduler.coordinator.lookup_alone(request) == probe["per_group"], n


def test_a_state_group_is_asked_again_below_its_first_answer():
    have = {"attention": range(0, 50, 10), "state": (0, 10, 30), "other": (0, 10, 20)}
    asked = []

    def find(kind, limit):
        asked.append((kind, limit))
        return [], max(n for n in have[kind] if n <= limit)

    tokens, _, longest = joint_hit(["attention", "state", "other"], find, 49)
    assert (tokens, longest) == (10, 40)
    assert asked == [
        ("attention", 49),
        ("state", 40),
        ("other", 30),
        ("state", 20),
        ("other", 10),
        ("state", 10),
        ("other", 10),
    ]


def test_a_reader_gets_a_private_copy_and_a_writer_keeps_its_block():
    engine = Engine(hybrid(unit=64))
    engine.add("A", range(2000), 1)
    frames = timeline.record(engine)
    # chunk [1984, 2000): the key of 1984 moves to block 7, A goes on in 6
    assert [(c["source"], c["target"]) for c in frames[2]["copies"] if c["why"] == "copy on write"] == [(6, 7)]
    assert frames[2]["tables"]["A"] == [[1, 2, 3, 5], [0, 0, 0, 6]]
    engine.add("B", [*range(2000), *fresh(300)], 1)
    frame = timeline.frame(engine)
    assert [(c["source"], c["target"]) for c in frame["copies"] if c["why"] == "copy on write"] == [(5, 6), (7, 8)]
    assert frame["tables"]["B"] == [[1, 2, 3, 6], [0, 0, 0, 8]] and frame["chunks"][0]["hit"] == 1984


@pytest.mark.parametrize(
    "prompt, eagle, tails", [(1984, True, [1984]), (1984, False, []), (2000, True, [1984]), (2000, False, [1984])]
)
def test_the_tail_of_attention_may_be_the_whole_prompt_with_eagle(prompt, eagle, tails):
    """Without eagle the last token runs again anyway; 1,920 is a block's end and has its key as such."""
    engine = serve(Engine(hybrid(unit=64, eagle=eagle)), {"A": range(prompt)}, outputs=1)
    assert [tokens for group, tokens in keys(engine) if group == 0 and tokens % 640] == tails


def test_attention_does_not_hit_beyond_a_block_that_it_has_lost():
    engine = serve(Engine(hybrid(block=16, unit=4)), {"A": range(46)}, outputs=1)
    pool = engine.scheduler.pool
    second = next(pool.blocks[b] for (g, tokens), b in keys(engine).items() if (g, tokens) == (0, 32))
    pool.drop_keys(second)
    request = Request("B", range(46), 4)
    # the tail's key at 44 is still there
    assert (0, 44) in keys(engine)
    assert engine.scheduler.coordinator.lookup_alone(request) == [16, 44]
    assert engine.scheduler.coordinator.lookup(request).tokens == 0


def test_an_exported_state_takes_every_other_key_of_its_block():
    """Under the rules of 0.32.0 the block before the running one is first keyed by its place in the table."""
    engine = Engine(hybrid(eagle=True, alignment=16, retention=None, safe=False))
    engine.add("A", range(2000), 1)
    timeline.record(engine)
    assert [tokens for group, tokens in keys(engine) if group == 1] == [1280]
    assert not engine.violations


def test_attention_carries_two_keys_where_a_state_keeps_one_position():
    engine = serve(Engine(hybrid(block=160, unit=16)), {"A": range(500)}, outputs=150)
    blocks = {g: {} for g in (0, 1)}
    for (digest, g), held in engine.scheduler.pool.holders.items():
        for block in held:
            blocks[g].setdefault(block, []).append(engine.library.owner(digest)[1])
    assert [496, 640] in [sorted(tokens) for tokens in blocks[0].values()]
    assert all(len(tokens) == 1 for tokens in blocks[1].values())


def test_slots_of_drafted_tokens_move_to_the_end_of_the_table():
    engine = Engine(hybrid(block=16, num_spec=3, eagle=True), right_drafts())
    engine.add("A", range(50), 30)
    frames = timeline.record(engine)
    assert states(frames)[:3] == [[0, 4, 5, 6, 7], [0, 4, 0, 6, 7, 5, 9], [0, 0, 0, 6, 7, 5, 9]]


@pytest.mark.parametrize("num_spec", [0, 1, 3, 7])
def test_residency(num_spec):
    want = {v["checkpoint"]: v for v in VECTORS["residency"] if v["num_spec"] == num_spec}
    for checkpoint in (0, 1):
        settings = hybrid(block=16, num_spec=num_spec, alignment=1 if checkpoint else None, budget=48, retention=None)
        engine = Engine(settings, right_drafts())
        engine.add("A", range(200), 60)
        held = [sum(map(bool, table)) for table in states(timeline.record(engine))]
        # a chunk that exports takes new slots for drafts instead of moving the old ones
        extra = num_spec if checkpoint else 0
        assert max(held) <= want[checkpoint]["max_state_blocks"] + extra
        assert min(held[-20:]) == want[checkpoint]["steady_state"]
        assert not engine.violations


def test_a_ring_is_one_block_that_nobody_shares():
    engine = serve(Engine(hybrid(block=16, rings=1)), {"A": range(40)}, {"B": range(40)})
    assert engine.hits["B"] == [32] and not engine.violations
    assert all(g != 2 for _, g in engine.scheduler.pool.holders)


@pytest.mark.parametrize("ring, right", [(8, True), (4, False)])
def test_a_ring_must_have_room_for_drafts_that_fail(ring, right):
    engine = Engine(hybrid(block=16, num_spec=3, rings=1, ring=ring), right_drafts(wrong_every=4))
    serve(engine, {"A": range(21)}, outputs=30)
    assert (not engine.violations) == right


def test_a_timeline_is_plain_data_that_says_what_every_block_holds():
    settings = hybrid(block=16, unit=4, num_spec=3, eagle=True, rings=1, blocks=40, alignment=4)
    engine = Engine(settings, right_drafts(3))
    for name, prompt in {"A": range(46), "B": [*range(46), *fresh(20)], "C": fresh(30)}.items():
        engine.add(name, prompt, 12)
    frames = timeline.record(engine)
    assert json.loads(json.dumps(frames))[0]["chunks"][0]["request"] == "A"
    assert not any(frame["wrong"] for frame in frames)
    whys = {copy["why"] for frame in frames for copy in frame["copies"]}
    assert whys == {"copy on write", "to the running column", "to the block boundary"}
    for frame in frames:
        for chunk in frame["chunks"]:
            held = {frame["blocks"][b]["holds"] for b in frame["tables"][chunk["request"]][1] if b}
            # the state after the chunk's own tokens, before any draft, stands in the running column
            assert f"S@{chunk['end'] - chunk['drafts']}" in held
    assert len(timeline.lines(frames)) == sum(len(frame["chunks"]) for frame in frames)

"""Where chunks end, in vLLM 0.32.0's own numbers; the order inside a step; budgets and preemption."""

import pytest

from kda_lab.serving.blocks.chunking import (
    Splitting,
    checkpoint_column,
    checkpoint_position,
    checkpoint_valid,
    chunk_end,
    prefill_chunks,
)
from kda_lab.serving.blocks.request import Request
from kda_lab.serving.blocks.retention import replay_boundaries, retention_mask
from kda_lab.serving.blocks.scheduler import Scheduler, hybrid, hybrid_of
from kda_lab.serving.drafts.speculation import boundary_copy, running_column, slot, window_length, window_offset
from tests.serving.vectors import VECTORS


def test_chunk_ends_of_3000_random_cases():
    fields = VECTORS["split_fuzz_fields"]
    assert len(VECTORS["split_fuzz"]) == 3000
    for case, tokens in VECTORS["split_fuzz"]:
        v = dict(zip(fields, case, strict=True))
        alignment = v["align_"] if v["internal"] else None
        splitting = Splitting(v["block"], v["hb"], v["partial"], v["eagle"], alignment, v["spc"], v["budget"], v["lpt"])
        end = chunk_end(v["start"], v["want"], v["prompt"], v["ntok"], v["junction"], splitting)
        assert end - v["start"] == tokens, v


def test_chunk_plans():
    assert len(VECTORS["chunk_plans"]) == 449
    for v in VECTORS["chunk_plans"]:
        unit, alignment = v.get("hb", 640), 16 if v.get("internal") else None
        splitting = Splitting(640, unit, unit < 640, v.get("eagle", False), alignment, v.get("spc", False), v["budget"])
        chunks = prefill_chunks(v["prompt"], splitting, v.get("start", 0), v.get("junction", 0))
        assert [list(chunk) for chunk in chunks] == v["chunks"], v


def test_a_chunk_waits_only_if_a_whole_block_could_run_in_another_step():
    assert chunk_end(640, 300, 2000, 2000, 0, Splitting(640, 640, budget=8192)) == 640
    assert chunk_end(640, 256, 2000, 2000, 0, Splitting(640, 640, budget=256)) == 896


@pytest.mark.parametrize(
    "v", VECTORS["checkpoint_position"], ids=lambda v: f"{v['num_tokens']}-{v['unit']}-{v['eagle']}"
)
def test_checkpoint_positions(v):
    assert checkpoint_position(v["num_tokens"], v["unit"], v["eagle"]) == v["pos"]


def test_checkpoints_inside_a_chunk():
    for v in VECTORS["checkpoint_valid"]:
        splitting = Splitting(
            v["mamba_block"], v["hash_block"], v["hash_block"] < v["mamba_block"], v["eagle"], v["alignment"]
        )
        position = checkpoint_position(v["query_end"], v["unit"], v["eagle"])
        valid = checkpoint_valid(v["query_start"], v["query_end"], position, splitting)
        column = checkpoint_column(v["query_end"], v["mamba_block"]) if valid else -1
        assert (position, valid, column) == (v["position"], v["valid"], v["column"]), v


def test_replay_boundaries():
    for v in VECTORS["replay_boundaries"]:
        assert sorted(replay_boundaries(v["n"], v["block"], v["eagle"])) == sorted(v["out"]), v


def test_retention_masks():
    for v in VECTORS["retention_mask"]:
        assert retention_mask(v["start"], v["end"], 640, v["retention"], v["boundaries"], v["align"]) == v["mask"], v


def test_slots_of_drafted_tokens():
    for v in VECTORS["spec_slots"]:
        assert slot(v["slots"], v["num_accepted_tokens"]) == v["slot"]


def test_windows_of_the_convolution():
    for v in VECTORS["conv_window"]:
        assert window_length(v["conv_kernel"], v["num_spec"]) == v["rows"]
        for read in v["read_offset"]:
            assert window_offset(read["num_accepted"]) == read["offset"]


def test_copies_to_a_block_boundary_after_sampling():
    for v in VECTORS["spec_post_copy"]:
        assert running_column(v["start"], v["n"], v["block"]) == v["state_col"]
        copy, accepted = boundary_copy(v["start"], v["n"], v["drafts"], v["accepted"], v["block"])
        assert (copy and list(copy), accepted) == (v["copy"], v["num_accepted_out"]), v


# the scheduler as a whole


def schedule(scheduler, sample=7):
    """One step in which every chunk that may sample does; returns {name: (start, end)}."""
    step = scheduler.schedule()
    for chunk in step.chunks:
        scheduler.update(chunk, [sample] if chunk.end >= len(chunk.request.tokens) else [])
    return {chunk.request.name: (chunk.start, chunk.end) for chunk in step.chunks}, step


def server(*prompts, **settings):
    scheduler = Scheduler(hybrid(**settings))
    for name, prompt in zip("ABCD", prompts, strict=False):
        scheduler.add(Request(name, prompt, scheduler.settings.splitting.unit))
    return scheduler


def test_running_requests_go_before_waiting_ones_and_the_budget_is_shared():
    scheduler = server(range(40), range(1000, 1060), block=16, budget=48)
    assert [schedule(scheduler)[0] for _ in range(3)] == [
        {"A": (0, 32), "B": (0, 16)},
        {"A": (32, 40), "B": (16, 48)},
        {"A": (40, 41), "B": (48, 60)},
    ]


def test_no_more_requests_run_at_once_than_may():
    scheduler = server(range(20), range(100, 120), block=16, requests=1)
    assert list(schedule(scheduler)[0]) == ["A"]


def test_a_long_prefill_takes_no_more_than_its_threshold():
    assert schedule(server(range(200), block=16, long_prefill=40))[0] == {"A": (0, 32)}


def test_a_prompt_that_cannot_fit_whole_is_not_admitted():
    scheduler = server(range(100), block=16, blocks=8, budget=16)
    assert schedule(scheduler)[0] == {} and [r.name for r in scheduler.waiting] == ["A"]


def test_the_last_to_come_is_preempted_and_the_first_to_come_back():
    scheduler = server(range(30), range(100, 130), range(200, 210), block=16, blocks=10, requests=2)
    preempted = []
    for _ in range(40):
        _chunks, step = schedule(scheduler)
        preempted += step.preempted
        if preempted:
            break
    assert preempted == ["B"] and [r.name for r in scheduler.waiting] == ["B", "C"]
    b = scheduler.waiting[0]
    assert b.computed == 0 and b.preemptions == 1 and scheduler.tables("B") == [[], []]


def test_rejected_drafts_are_taken_back():
    scheduler = server(range(10), block=16, num_spec=3)
    schedule(scheduler)
    a = scheduler.running[0]
    a.drafts = [1, 2, 3]
    step = scheduler.schedule()
    assert (step.chunks[0].start, step.chunks[0].end, step.chunks[0].drafts) == (10, 14, 3)
    scheduler.update(step.chunks[0], [5, 6])
    assert a.computed == 12 and a.output == [7, 5, 6] and not a.drafts


def test_a_request_with_other_digests_is_refused():
    with pytest.raises(ValueError, match="hashes 8 tokens at a time, the cache 16"):
        server(block=16).add(Request("A", range(5), unit=8))


def test_an_empty_prompt_is_refused():
    with pytest.raises(ValueError, match="empty prompt"):
        Request("A", [])


def test_settings_that_cannot_work_are_refused():
    with pytest.raises(ValueError, match="does not divide"):
        hybrid(block=640, unit=100)
    with pytest.raises(ValueError, match="inside a pool of 4"):
        hybrid(block=16, unit=2, rings=1)


def test_windows_are_not_simulated_and_said_so():
    class Windows:
        kind, block = "window", 16

    with pytest.raises(ValueError, match="one attention group"):
        hybrid_of([Windows()])


def test_a_finer_hash_serves_prompts_shorter_than_a_block():
    for unit, hit in ((640, 0), (64, 576)):
        scheduler = server(range(600), unit=unit)
        while not scheduler.running or not scheduler.running[0].output:
            schedule(scheduler)
        scheduler.finish(scheduler.running[0])
        scheduler.add(Request("B", range(600), unit))
        assert schedule(scheduler)[0]["B"][0] == hit

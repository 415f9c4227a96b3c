"""Every trace of vLLM 0.32.0's own scheduler replays, and every value in it is checked."""

import argparse
import copy
import json

import pytest

from kda_lab.serving.trials import cli
from kda_lab.serving.trials.replay import Replay
from kda_lab.serving.trials.traces import TraceError, read_trace
from tests.serving.vectors import FIXTURES, unpacked

TRACES = sorted(path.name.removesuffix(".json.gz") for path in FIXTURES.glob("[0-9]*.json.gz"))
DEFECT = [name for name in TRACES if name[:2] in ("26", "90", "92")]


def replay(name, safe=False):
    return Replay(read_trace(FIXTURES / f"{name}.json.gz", safe)).run()


def test_all_traces_are_here():
    assert len(TRACES) == 54 and len(DEFECT) == 4


@pytest.mark.parametrize("name", TRACES)
def test_a_trace_replays(name):
    run = replay(name)
    assert run.difference is None, str(run.difference)
    # the worker finds what the trace's own worker found, by comparing values
    found = [
        {"kind": v.kind, "step": v.step, "group": v.group, "true_len": v.holds}
        | ({"block": v.block, "key": v.key} if v.key else {"req": v.request, "start": v.tokens})
        for v in run.violations
        if not v.inherited
    ]
    assert found == run.trace.verified["violations"]
    assert (not found) == (name not in DEFECT)


@pytest.mark.parametrize("name", DEFECT)
def test_under_the_safe_rule_no_value_is_wrong_and_the_trace_is_left(name):
    run = replay(name, safe=True)
    assert not run.violations and run.difference.aspect == "keys"


SAME = [
    "01_caseA_640_dense",
    "31_tail_pmu64_internal",
    "51_spec3_eagle_block16",
    "80_fuzz_1",
    "93_junction_nointernal_then_1950",
]


@pytest.mark.parametrize("name", SAME)
def test_elsewhere_the_safe_rule_changes_nothing(name):
    run = replay(name, safe=True)
    assert run.difference is None and not run.violations


def steps(trace):
    return [event for event in trace["trace"] if event["event"] == "step"]


def later_chunk(trace):
    scheduled = steps(trace)[1]["scheduled"]["A"]
    scheduled["end"] += 1


def another_hit(trace):
    next(e for e in trace["trace"] if e["event"] == "probe")["hit"] += 64


def another_junction(trace):
    steps(trace)[0]["scheduled"]["A"]["shared_prefix_boundary"] = 640


def a_null(trace):
    steps(trace)[1]["tables"]["A"][1][2] = 0


def one_key_less(trace):
    steps(trace)[1]["cached"].pop()


def another_id(trace):
    steps(trace)[1]["tables"]["A"][0][3] = 9


def another_reference(trace):
    steps(trace)[1]["cached"][0]["ref"] = 2


def one_copy_less(trace):
    steps(trace)[2]["cow_copies"] = []


def no_pre_copy(trace):
    steps(trace)[1]["scheduled"]["A"]["pre_copy"] = False


def a_preemption(trace):
    steps(trace)[1]["preempted"] = ["A"]


def another_queue(trace):
    steps(trace)[1]["free_head"][:2] = reversed(steps(trace)[1]["free_head"][:2])


def another_end(trace):
    next(e for e in trace["trace"] if e["event"] == "finish")["num_free"] -= 1


@pytest.mark.parametrize(
    "change, aspect, event",
    [
        (later_chunk, "chunk ends", 2),
        (another_hit, "hits", 7),
        (another_junction, "hits", 1),
        (a_null, "null pattern", 2),
        (one_key_less, "keys", 2),
        (another_id, "block ids", 2),
        (another_reference, "block ids of keys", 2),
        (one_copy_less, "copies before a write", 3),
        (no_pre_copy, "copies of states", 2),
        (a_preemption, "preemptions", 2),
        (another_queue, "frees", 2),
        (another_end, "frees", 6),
    ],
    ids=lambda x: getattr(x, "__name__", str(x)),
)
def test_a_changed_trace_is_told_from_the_real_one(change, aspect, event, tmp_path, capsys):
    trace = unpacked("30_tail_pmu64_dense")
    change(trace)
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(trace))
    run = Replay(read_trace(path)).run()
    assert (run.difference.aspect, run.difference.event) == (aspect, event)
    assert cli_status(str(path)) == 1
    assert f"(event {event}): {aspect}" in capsys.readouterr().out.replace(f"event {event}:", f"(event {event}):")


def cli_status(*arguments):
    parser = argparse.ArgumentParser()
    cli.add_arguments(parser)
    return cli.run(parser.parse_args(arguments))


def test_wrong_values_are_listed_and_do_not_change_the_status(capsys):
    path = str(FIXTURES / "90_midblock_resume_internal_ret0.json.gz")
    assert cli_status(path) == 0
    out = capsys.readouterr().out
    assert "key B:2560 in group 1, block 14 holds the state after 1984" in out and "2 wrong" in out
    assert cli_status(path, "--safe") == 0
    out = capsys.readouterr().out
    assert "0 wrong" in out and "chunks and block ids after it are the simulator's own" in out


def test_one_json_document(capsys):
    assert cli_status(str(FIXTURES / "71_same_step_defer.json.gz"), "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["difference"] is None and report["steps"] == 4 and report["violations"] == []


def test_a_request_that_reaches_its_max_tokens_ends_by_itself():
    trace = unpacked("01_caseA_640_dense")
    events = trace["trace"]
    before, finish = copy.deepcopy(events[3]), events[4]
    assert finish["event"] == "finish" and before["sampled"] == {"A": 1}
    events[0]["max_tokens"] = 2
    # instead of an event, the request is gone in the next step
    events[4] = {**before, "scheduled": {}, "tables": {}, "sampled": {}, "sampled_ids": {}, "unknown": 1}
    events[4] |= {key: finish[key] for key in ("cached", "free_head", "num_free")}
    path_like = {"event": "add", "req": "A", "prompt_len": 2000, "prompt_ranges": [[0, 2000]], "max_tokens": 2}
    assert events[0] == path_like
    from kda_lab.serving.trials.traces import Trace, settings_of

    run = Replay(Trace("", "", settings_of(trace["config"], False), events, {})).run()
    assert run.difference is None, str(run.difference)


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "cannot be read as a trace"),
        ("[]", "lacks"),
        ('{"config": {}, "trace": []}', "lacks 'block'"),
        ('{"config": {"block": 16, "num_blocks": 9, "hash_block": 5}, "trace": []}', "does not divide"),
        ('{"config": {"block": 16, "num_blocks": 9}, "trace": [{"event": "step"}]}', "scheduled of event 0"),
        (
            '{"config": {"block": 16, "num_blocks": 9}, "trace": [{"event": "add", "req": "A", "prompt_ranges": '
            "[[0]]}]}",
            "configuration",
        ),
    ],
)
def test_a_file_that_is_no_trace_gets_one_sentence(text, message, tmp_path, capsys):
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(TraceError, match=message):
        read_trace(path)
    assert cli_status(str(path)) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1

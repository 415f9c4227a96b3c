"""Replay a trace: run the same requests through the simulator, compare every decision, and check every value."""

import os
from typing import Any, NamedTuple

from kda_lab.data.doors import known
from kda_lab.serving.blocks.request import Request
from kda_lab.serving.run.engine import Engine
from kda_lab.serving.trials.traces import SAMPLED, prompt_of, read_trace

# ids that no trace uses, for the part of a probe's prompt that was never seen
UNSEEN = 1 << 40


class Difference(NamedTuple):
    """event: index in the trace   step: number of the step, from 1   aspect: what was compared   expected, got: both
    sides.

    >>> print(Difference(4, 2, "chunk ends", [0, 1920], [0, 2000]))
    step 2 (event 4): chunk ends: the trace has [0, 1920], the simulator [0, 2000]
    """

    event: int
    step: int
    aspect: str
    expected: object
    got: object

    def __str__(self):
        place = f"step {self.step} (event {self.event})" if self.step else f"event {self.event}"
        return f"{place}: {self.aspect}: the trace has {self.expected}, the simulator {self.got}"


class Replay:
    """One run over a trace. ``difference`` is the first one or None, ``violations`` are what the worker found by value.

    trace: from ``read_trace``.   Aspects are compared in this order: chunk ends, hits, null pattern, keys, then exact
    block ids, copies, preemptions, frees. After a difference the requests run on without comparison.

    >>> from kda_lab.serving.trials.traces import Trace, settings_of
    >>> add = {"event": "add", "req": "A", "prompt_len": 3, "prompt_ranges": [[0, 3]]}
    >>> replay = Replay(Trace("", "", settings_of({"block": 16, "num_blocks": 4}, False), [add], {})).run()
    >>> replay.difference
    """

    def __init__(self, trace):
        self.trace = trace
        self.engine = Engine(trace.settings)
        self.event, self.steps, self.unrecorded = -1, 0, 0
        self.difference = None
        # tokens that each request emitted in the trace, for the steps with drafts
        self.emitted = {}
        for event in trace.events:
            for name, ids in event.get("sampled_ids", {}).items():
                if ids:
                    self.emitted.setdefault(name, []).append((event["scheduled"][name]["drafts"], ids))
        self.guessed = 0

    @property
    def violations(self):
        return self.engine.violations

    def run(self):
        """Replay all events; returns itself."""
        for number, event in enumerate(self.trace.events):
            self.event = number
            handler = getattr(self, f"on_{event['event']}", None)
            if handler:
                found = len(self.violations)
                handler(event)
                for violation in self.violations[found:]:
                    violation.step = self.event
        return self

    def compare(self, aspect, expected, got):
        if self.difference is None and expected != got:
            self.difference = Difference(self.event, self.steps, aspect, *differing(expected, got))

    # events

    def on_add(self, event):
        self.engine.add(event["req"], prompt_of(event), event.get("max_tokens"))

    def on_step(self, event):
        self.steps += 1
        step = self.engine.schedule()
        while self.difference is None and self.is_unrecorded(event, step):
            self.execute(step)
            self.unrecorded += 1
            step = self.engine.schedule()
        self.compare_schedule(event, step)
        self.compare_snapshot(event)
        recorded = event if self.difference is None else None
        self.execute(step, recorded)
        self.compare_copies(event, step)
        self.compare("frees", [event["num_free"], event["free_head"]], self.free_before)

    def on_finish(self, event):
        request, scheduler = self.engine.requests[event["req"]], self.engine.scheduler
        missing = self.outputs_in_trace(request) if self.difference else 0
        for _ in range(len(request.prompt) + missing):
            # the runs have come apart: let the request reach the outputs that it had in the trace
            if request not in scheduler.running or len(request.output) >= missing:
                break
            self.execute(self.engine.schedule())
        if self.unrecorded and self.difference is None:
            self.decode_unrecorded(request)
        if request in scheduler.running or request in scheduler.waiting:
            self.engine.finish(request.name)
        self.compare_snapshot(event)
        self.compare("frees", [event["num_free"], event["free_head"]], self.free(event))

    def on_probe(self, event):
        if self.difference:
            return
        expected = [event["hit"], event["shared_prefix_boundary"], event["per_group"], event["blocks"]]
        answers = [self.lookup(prompt) for prompt in self.prompts_of_probe(event)]
        got = next((answer for answer in answers if answer == expected), answers[0])
        self.compare("hits", expected[:3], got[:3])
        self.compare("block ids", expected[3], got[3])

    # probes

    def prompts_of_probe(self, event):
        """Prompts that a probe may have had: its own, the next request's, or any prefix of an earlier request and a new
        rest.
        """
        if "prompt_ranges" in event:
            return [prompt_of(event)]
        later = self.trace.events[self.event + 1 : self.event + 2]
        if later and later[0]["event"] == "add" and later[0]["prompt_len"] == event["prompt_len"]:
            return [prompt_of(later[0])]
        self.guessed += 1
        length, unit = event["prompt_len"], self.trace.settings.splitting.unit
        new = [UNSEEN + i for i in range(length)]
        prompts = []
        for request in self.engine.requests.values():
            most = min(len(request.tokens), length)
            for shared in sorted({most, *range(0, most, unit)}, reverse=True):
                prompts.append(request.tokens[:shared] + new[shared:])
        return prompts or [new]

    def lookup(self, prompt):
        """What the cache has of a prompt: [hit, junction, hit of each group, block ids of each group]."""
        coordinator = self.engine.scheduler.coordinator
        request = Request("probe", prompt, self.trace.settings.splitting.unit)
        hit = coordinator.lookup(request)
        return [
            hit.tokens,
            hit.junction,
            coordinator.lookup_alone(request),
            [[b.id for b in blocks] for blocks in hit.blocks],
        ]

    # steps that the trace leaves out

    def is_unrecorded(self, event, step):
        """Whether a trace without its steps far from block boundaries left this one out: pure decode, still behind
        it.
        """
        expected = event["scheduled"]
        if not expected or {chunk.request.name for chunk in step.chunks} != set(expected):
            return False
        return all(chunk.n == 1 and chunk.end <= expected[chunk.request.name]["start"] for chunk in step.chunks)

    def outputs_in_trace(self, request):
        """How many tokens a request emitted in the trace."""
        return sum(len(ids) for _, ids in self.emitted.get(request.name, []))

    def decode_unrecorded(self, request):
        """Decode on, up to the outputs that a later prompt repeats."""
        while request in self.engine.scheduler.running and len(request.output) < self.last_output(request):
            step = self.engine.schedule()
            self.execute(step)
            self.unrecorded += 1

    def last_output(self, request):
        """How many outputs of a request a later prompt repeats."""
        first = SAMPLED + len(request.prompt)
        counts = [
            count for event in self.trace.events for start, count in event.get("prompt_ranges", []) if start == first
        ]
        return max(counts, default=0)

    # running a step

    def execute(self, step, event=None):
        """Run a scheduled step; ``event``: with the tokens that the trace sampled."""
        self.free_before = self.free(event)

        def sample(chunk, outputs):
            name = chunk.request.name
            if event:
                return event["sampled_ids"].get(name, [])
            if not outputs:
                return []
            if chunk.drafts:
                return next((ids for drafts, ids in self.emitted.get(name, []) if drafts), [UNSEEN])[: chunk.drafts + 1]
            return [SAMPLED + len(chunk.request.tokens)]

        self.engine.execute(step, sample)
        if self.trace.settings.num_spec:
            for chunk in step.chunks:
                chunk.request.drafts = self.next_drafts(chunk.request)

    def next_drafts(self, request):
        """The drafts of a request's next step: those that will be accepted, then wrong ones."""
        for event in self.trace.events[self.event + 1 :]:
            if event["event"] == "step" and request.name in event["scheduled"]:
                count = event["scheduled"][request.name]["drafts"]
                return (event["sampled_ids"].get(request.name, [])[:-1] + [UNSEEN + i for i in range(count)])[:count]
        return []

    # comparisons

    def compare_schedule(self, event, step):
        expected, got = event["scheduled"], {chunk.request.name: chunk for chunk in step.chunks}
        self.compare(
            "chunk ends",
            [[name, s["start"], s["end"], s["drafts"]] for name, s in expected.items()],
            [[name, c.start, c.end, c.drafts] for name, c in got.items()],
        )
        self.compare(
            "hits",
            [[name, s["start"], s["shared_prefix_boundary"], s["new"]] for name, s in expected.items()],
            [[name, c.start, c.request.junction, c.new and not c.request.preemptions] for name, c in got.items()],
        )

    def compare_snapshot(self, event):
        scheduler = self.engine.scheduler
        tables = {request.name: scheduler.tables(request.name) for request in scheduler.running}
        self.compare("null pattern", null_pattern(event["tables"]), null_pattern(tables))
        cached = sorted(
            [key[1], self.engine.library.name(key[0]), block.id, block.refs, block.primary == key]
            for key, holders in scheduler.pool.holders.items()
            for block in holders.values()
        )
        recorded = sorted([c["group"], c["prefix"], c["block"], c["ref"], c["primary"]] for c in event["cached"])
        self.compare("keys", sorted(c[:2] for c in recorded), sorted(c[:2] for c in cached))
        self.compare("block ids", event["tables"], tables)
        self.compare("block ids of keys", recorded, cached)

    def compare_copies(self, event, step):
        notes, unit = self.engine.notes, ["state_src_col", "state_dst_col", "pre_copy", "accept_bias", "post_copy"]
        self.compare("copies before a write", sorted(event["cow_copies"]), sorted(list(copy) for copy in step.copies))
        self.compare(
            "copies of states",
            [[name] + [s.get(field) for field in unit] for name, s in event["scheduled"].items()],
            [
                [name, n.source, n.target, n.pre_copy, n.bias, n.post_copy and list(n.post_copy)]
                for name, n in notes.items()
            ],
        )
        self.compare(
            "exported states",
            [[name, s.get("internal_checkpoint", {}).get("position")] for name, s in event["scheduled"].items()],
            [[chunk.request.name, chunk.checkpoint] for chunk in step.chunks],
        )
        self.compare("preemptions", event["preempted"], step.preempted)

    def free(self, event):
        """Number of free blocks, and as many of the next ones as the trace shows."""
        queue = [block.id for block in self.engine.scheduler.pool.free_queue]
        return [len(queue), queue[: len(event["free_head"])] if event else []]


def differing(expected, got):
    """The entries of two lists that the other lacks, or all of both when only their order differs.

    >>> differing([[1, "a"], [2, "b"]], [[1, "a"], [2, "c"]])
    ([[2, 'b']], [[2, 'c']])
    """
    if isinstance(expected, dict) and isinstance(got, dict):
        return tuple({k: v for k, v in a.items() if b.get(k) != v} for a, b in ((expected, got), (got, expected)))
    if not isinstance(expected, list) or not isinstance(got, list):
        return expected, got
    left, right = [x for x in expected if x not in got], [x for x in got if x not in expected]
    return (left, right) if left or right else (expected, got)


def null_pattern(tables):
    """Which columns of each table are null.

    >>> null_pattern({"A": [[1, 2], [0, 3]]})
    {'A': ['xx', '.x']}
    """
    return {
        name: ["".join("x" if block else "." for block in group) for group in groups] for name, groups in tables.items()
    }


@known
def replay(path: str | os.PathLike[str], safe: bool = False) -> dict[str, Any]:
    """A trace of a real scheduler against the simulator -> what was found, as plain data.

    path: a .json or .json.gz file   safe: never key a column that its chunk did not finish (the trace may then differ).
    The result has "difference" (None, or the first one), "steps", "checks" and "violations": values that are not what
    their key promises.
    Raises TraceError for a file that is no trace.
    """
    trace = read_trace(path, safe)
    run = Replay(trace).run()
    return {
        "trace": str(path),
        "title": trace.title,
        "version": trace.version,
        "safe": safe,
        "steps": run.steps,
        "unrecorded_steps": run.unrecorded,
        "guessed_probes": run.guessed,
        "checks": run.engine.worker.checks.count,
        "difference": run.difference and {**run.difference._asdict(), "text": str(run.difference)},
        "violations": [
            {"event": v.step, "group": v.group, "block": v.block, "inherited": v.inherited, "text": v.line()}
            for v in run.violations
        ],
    }

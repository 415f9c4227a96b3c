"""Traces of a real scheduler: what came in, and what it decided, step by step.

A trace is a JSON document, gzipped or not: ``config``, and ``trace``, a list of events ``add``, ``step``, ``probe`` and
``finish``. A step's snapshot is taken after scheduling and before the forward. Keys that are not known are ignored.
"""

import gzip
import json
from pathlib import Path
from typing import NamedTuple

from kda_lab.serving.blocks.scheduler import hybrid

# the oracle's model "samples" this plus the position of the token
SAMPLED = 900_000


# what each event must have
PARTS = {
    "add": ("req", "prompt_ranges"),
    "step": (
        "scheduled",
        "tables",
        "cached",
        "cow_copies",
        "preempted",
        "num_free",
        "free_head",
        "sampled",
        "sampled_ids",
    ),
    "probe": ("prompt_len", "hit", "per_group", "shared_prefix_boundary", "blocks"),
    "finish": ("req", "tables", "cached", "num_free", "free_head"),
}


class Trace(NamedTuple):
    """title, version: of the system that made it   settings: as for the scheduler, rules of that version
    events: in order   verified: what the trace's own worker found.

    >>> Trace._fields
    ('title', 'version', 'settings', 'events', 'verified')
    """

    title: str
    version: str
    settings: object
    events: list
    verified: dict


class TraceError(ValueError):
    """A file that is no trace; the message is one sentence."""


def read_trace(path, safe=False):
    """Read a trace; ``safe``: replay it under the safe rule for keys.

    Raises TraceError for a file that is missing, no JSON, or lacks a part.

    >>> try:
    ...     read_trace("no-such-file")
    ... except TraceError as error:
    ...     print(error)
    no-such-file is not there; give the path of a trace (.json or .json.gz)
    """
    path = Path(path)
    try:
        data = path.read_bytes()
        document = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
        config, events = document["config"], document["trace"]
        settings = settings_of(config, safe)
        check_events(events)
    except FileNotFoundError:
        raise TraceError(f"{path} is not there; give the path of a trace (.json or .json.gz)") from None
    except (OSError, EOFError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise TraceError(
            f"{path} cannot be read as a trace ({error}); it should be a JSON document, gzipped or not"
        ) from None
    except (KeyError, TypeError) as error:
        raise TraceError(
            f"{path} lacks {error}, which a trace of this format has; is it another kind of file?"
        ) from None
    except ValueError as error:
        raise TraceError(f"{path} has a configuration that cannot run: {error}") from None
    title, version = document.get("title", path.name), document.get("vllm", "?")
    return Trace(title, version, settings, with_endings(events), document.get("verified", {}))


def settings_of(config, safe):
    """The scheduler's settings from a trace's ``config``.

    >>> settings_of({"block": 16, "num_blocks": 40}, safe=False).splitting.budget
    8192
    """
    return hybrid(
        block=config["block"],
        blocks=config["num_blocks"],
        unit=config.get("hash_block"),
        states=config.get("n_mamba", 1),
        budget=config.get("budget", 8192),
        eagle=config.get("eagle", False),
        num_spec=config.get("num_spec", 0),
        alignment=config.get("align") if config.get("internal") else None,
        retention=config.get("retention"),
        checkpoint_junction=config.get("shared_prefix_ckpt", False),
        long_prefill=config.get("long_prefill", 0),
        requests=config.get("max_seqs", 8),
        safe=safe,
    )


def check_events(events):
    """Raise KeyError for a part that an event lacks, or a request that was never added.

    >>> check_events([{"event": "finish", "req": "A", "tables": {}, "cached": [], "num_free": 1, "free_head": []}])
    Traceback (most recent call last):
    ...
    KeyError: 'the request A before its end (event 0)'
    """
    known = set()
    for i, event in enumerate(events):
        for part in PARTS.get(event["event"], ()):
            if part not in event:
                raise KeyError(f"{part} of event {i}")
        if event["event"] == "add":
            prompt_of(event)
            known.add(event["req"])
        for name in [*event.get("scheduled", ()), *([event["req"]] if event["event"] == "finish" else [])]:
            if name not in known:
                raise KeyError(f"the request {name} before its end (event {i})")


def prompt_of(event):
    """The prompt of an ``add`` event, or of a ``probe`` that has one: ranges [first token, count], one after the other.

    >>> prompt_of({"prompt_ranges": [[0, 2], [100, 3]]})
    [0, 1, 100, 101, 102]
    """
    return [first + i for first, count in event["prompt_ranges"] for i in range(count)]


def with_endings(events):
    """The events, where each request that ended by itself has its ``max_tokens``.

    A request ends by itself if it has no ``finish`` and is gone from the tables in the step after its last one, without
    being preempted there.
    """
    ended = {event["req"] for event in events if event["event"] == "finish"}
    steps = [event for event in events if event["event"] == "step"]
    counts, present, limits = {}, set(), {}
    for step in steps:
        for name in present - set(step["tables"]) - set(step["preempted"]) - ended:
            limits[name] = counts[name]
        for name, sampled in step["sampled"].items():
            counts[name] = counts.get(name, 0) + sampled
        present = set(step["tables"])
    return [{"max_tokens": limits.get(event["req"]), **event} if event["event"] == "add" else event for event in events]

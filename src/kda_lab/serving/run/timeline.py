"""A run as plain data, one frame a step, for a table or a widget that steps through it."""

from kda_lab.serving.run.worker import StateBlock


def record(engine, *waves, outputs=2, steps=1000):
    """Run the engine until nobody is left, and keep a frame of each step.

    engine: with or without requests   waves: {name: prompt} of requests that arrive when everybody before them is done
    outputs: tokens that each of them answers   returns a list of frames, see ``frame``.

    >>> from kda_lab.serving.run.engine import Engine
    >>> from kda_lab.serving.blocks.scheduler import hybrid
    >>> for step in record(Engine(hybrid(block=640, retention=None)), {"A": range(2000)}):
    ...     print(step["chunks"][0]["start"], step["chunks"][0]["end"], step["tables"]["A"], step["blocks"][4]["holds"])
    0 1920 [[1, 2, 3], [0, 0, 4]] S@1920
    1920 2000 [[1, 2, 3, 5], [0, 0, 4, 6]] S@1920
    2000 2001 [[1, 2, 3, 5], [0, 0, 0, 6]] S@1920
    """
    frames = []
    for wave in waves or [{}]:
        for name, prompt in wave.items():
            engine.add(name, prompt, outputs)
        while engine.busy and len(frames) < steps:
            frames.append(frame(engine))
    return frames


def frame(engine):
    """Run one step and describe it; tables and references are those after scheduling, contents those after the forward.

    Keys of the frame: step; chunks (request, start, end, drafts, new, hit, junction, checkpoint); preempted; copies
    (why,
    request or None, group, source, target: block ids); tables {request: block ids of each group}; blocks {id: group,
    refs, holders, keys, holds}, every block that is referenced or keyed; free: ids, next first; sampled {request:
    count}; waiting; wrong: what the worker found wrong in this step.
    """
    step = engine.schedule()
    scheduler, pool = engine.scheduler, engine.scheduler.pool
    tables = {request.name: scheduler.tables(request.name) for request in scheduler.running}
    blocks = {block.id: describe(engine, block, tables) for block in pool.blocks if block.refs or block.keys}
    free = [block.id for block in pool.free_queue]
    waiting = [request.name for request in scheduler.waiting]
    chunks = [
        {
            "request": c.request.name,
            "start": c.start,
            "end": c.end,
            "drafts": c.drafts,
            "new": c.new,
            "hit": c.start if c.new else None,
            "junction": c.request.junction,
            "checkpoint": c.checkpoint,
        }
        for c in step.chunks
    ]
    found = len(engine.violations)
    sampled = engine.execute(step)
    for number, block in blocks.items():
        block["holds"] = content(engine, number, block["group"])
    return {
        "step": engine.steps,
        "chunks": chunks,
        "preempted": step.preempted,
        "copies": copies(engine, step, tables),
        "tables": tables,
        "blocks": blocks,
        "free": free,
        "waiting": waiting,
        "sampled": {name: len(tokens) for name, tokens in sampled.items()},
        "wrong": [violation.line() for violation in engine.violations[found:]],
    }


def describe(engine, block, tables):
    """A block's group, references, who holds it, and what its keys promise."""
    holders = [(name, g) for name, groups in tables.items() for g, ids in enumerate(groups) if block.id in ids]
    group = holders[0][1] if holders else block.keys[0][1] if block.keys else None
    keys = [engine.library.name(digest) for digest, _ in block.keys]
    return {"group": group, "refs": block.refs, "holders": sorted({name for name, _ in holders}), "keys": keys}


def content(engine, number, group):
    """What a block holds, found by value: "S@1920" or "tokens 640..1279"; "?" if it is nothing of its writer's, "" if
    the group that holds it has not written it yet.
    """
    worker = engine.worker
    memory, kind = worker.memory.get(number), engine.settings.groups[group].kind
    if memory is None or isinstance(memory, StateBlock) != (kind == "state"):
        return ""
    writer = worker.writer[number]
    if kind == "state":
        n = engine.library.of(writer).length_of(group, memory.S)
        return "?" if n is None else f"S@{n}"
    # a row that was never written is NaN
    written = int((memory[:, 0] == memory[:, 0]).sum())
    table = engine.scheduler.coordinator.managers[group].tables.get(writer, ())
    first = next((column * len(memory) for column, block in enumerate(table) if block.id == number), None)
    return f"{written} rows" if first is None or kind == "ring" else f"tokens {first}..{first + written - 1}"


def copies(engine, step, tables):
    """Every copy of a step: before a write, to a new running column, and to a block boundary after sampling."""
    found = [{"why": "copy on write", "request": None, "group": None, "source": s, "target": t} for s, t in step.copies]
    groups = [g for g, group in enumerate(engine.settings.groups) if group.kind == "state"]
    for name, note in engine.notes.items():
        moves = [("to the running column", note.source + note.bias, note.target)] if note.pre_copy else []
        moves += [("to the block boundary", *note.post_copy)] if note.post_copy else []
        for why, source, target in moves:
            for g in groups:
                table = tables[name][g]
                found.append(
                    {"why": why, "request": name, "group": g, "source": table[source], "target": table[target]}
                )
    return found


def lines(frames):
    """The frames as a table of text, a line a chunk: step, request, tokens, block ids of each group, states in them.

    >>> from kda_lab.serving.run.engine import Engine
    >>> from kda_lab.serving.blocks.scheduler import hybrid
    >>> print("\\n".join(lines(record(Engine(hybrid(block=640)), {"A": range(700)}, outputs=1))))
    1  A  [0, 640)    1 | 2      S@640
    2  A  [640, 700)  1 3 | 2 4  S@640 S@700
    """
    cells = []
    for step in frames:
        for chunk in step["chunks"]:
            tables = step["tables"][chunk["request"]]
            holds = [step["blocks"][b]["holds"] for ids in tables for b in ids if b]
            ids = " | ".join(" ".join(str(b) if b else "." for b in group) for group in tables)
            states = " ".join(text for text in holds if text.startswith("S@") or text == "?")
            cells.append([f"{step['step']}", chunk["request"], f"[{chunk['start']}, {chunk['end']})", ids, states])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]

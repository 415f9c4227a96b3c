"""Things to move in the chapter on which states to keep."""

from kda_lab.pages.widgets.timeline import timeline
from kda_lab.serving.blocks.scheduler import hybrid
from kda_lab.serving.run.engine import Engine
from kda_lab.serving.run.timeline import record
from kda_lab.serving.trials.scenarios import fresh

# title -> what differs from ample budget, dense retention and no export
CASES = {
    "A: ample budget": {},
    "A': and an exported state": {"alignment": 16},
    "B: 640 tokens a step": {"budget": 640},
    "B with retention 0": {"budget": 640, "retention": 0},
}


def unfinished_column(safe):
    """Frames of three requests; the second resumes inside a block and runs past its end, the third shares its first
    2,570 tokens.

    safe: as for `hybrid`; without it, the third request is served by a key that promises another state.

    >>> len(unfinished_column(safe=True))
    5
    """
    B = [*range(2000), *fresh(1300)]
    engine = Engine(hybrid(unit=64, alignment=16, retention=None, safe=safe))
    return record(engine, {"A": range(2000)}, {"B": B}, {"C": [*B[:2570], *fresh(100, 2)]}, outputs=1)


def cases():
    """The four cases of the chapter, each followed by the same prompt again, and three requests with a key that lies.

    Controls: the run, and its step. Blocks have 640 tokens.

    >>> cases()
    <widget: Which S is kept, step by step>
    """
    runs = {
        title: record(Engine(hybrid(**{"retention": None, **how})), {"A": range(2000)}, {"A again": range(2000)})
        for title, how in CASES.items()
    }
    runs["A, B, C: a key that lies, unit 64"] = unfinished_column(safe=False)
    return timeline("cases", runs, title="Which S is kept, step by step", run=2, step=4)

"""Exercises of the chapter on which states to keep."""

import itertools

import numpy as np

import kda_lab as kl
from kda_lab.serving import Engine, Splitting, fresh, hybrid, joint_hit, prefill_chunks

hit_of, served = kl.figures.keeping.hit_of, kl.figures.keeping.served
FAULTS = kl.serving.faults.FAULTS


def by_hand():
    """Chunk ends and hits: blocks of 512, a prompt of 1,300.

    Retention is dense. Returns four answers: the chunk ends with
    budget for everything, those with 600 tokens a step, and two
    pairs, the hits of later requests that share 1,100 and 600
    tokens, after the first way and after the second.
    """
    # <solution>
    # 1024: the last multiple of 512 that leaves a token to run
    ample = [1024, 1300]
    # 600 is cut down to 512
    small = [512, 1024, 1300]
    # rows reach to 1024 and 512; S@512 exists the second way only
    return ample, small, (1024, 0), (1024, 512)
    # </solution>


def check_by_hand(by_hand):
    got = by_hand()
    for i, budget in enumerate((8192, 600)):
        ends = [end for _, end in prefill_chunks(1300, Splitting(512, 512, budget=budget))]
        rule = "at the last boundary below 1300, and at multiples of 512 where the step ends first"
        assert list(got[i]) == ends, f"with {budget} tokens a step chunks do not end at {list(got[i])}: {rule}"
        server = served(1300, hybrid(block=512, budget=budget, retention=None))
        hits = tuple(hit_of(server, shared).tokens for shared in (1100, 600))
        rule = "rows and a state at the same position are needed"
        assert tuple(got[2 + i]) == hits, f"with {budget} tokens a step the hits are not {tuple(got[2 + i])}: {rule}"


def joint(rows, states, limit):
    """The longest hit of at most ``limit`` tokens, 0 if none.

    rows: tokens, counted from the start, whose rows attention
      holds, a multiple of the block; every smaller multiple of
      the block is a hit for attention too
    states: one set for each group of states, one group or more;
      the positions that have a state, all multiples of the block
    """
    # <solution>
    common = set.intersection(*map(set, states))
    return max((n for n in common if n <= min(rows, limit)), default=0)
    # </solution>


def check_joint(joint):
    rng = np.random.default_rng(0)
    for _ in range(200):
        rows, limit = 16 * int(rng.integers(0, 12)), int(rng.integers(1, 200))
        states = [{16 * int(n) for n in rng.integers(1, 12, rng.integers(0, 9))} for _ in range(rng.integers(1, 4))]
        have = {"attention": set(range(0, rows + 1, 16))} | {f"state {i}": s for i, s in enumerate(states)}

        def find(kind, most, have=have):
            return [], max((n for n in have[kind] if n <= most), default=0)

        want, _, _ = joint_hit(list(have), find, limit)
        got, given = joint(rows, states, limit), [sorted(group) for group in states]
        rule = "a position counts if every group has it"
        assert got == want, f"rows for {rows} tokens, states at {given}, at most {limit}: not {got}; {rule}"


def place(weights, count):
    """Where to keep at most ``count`` states to reuse most.

    weights[d]: the chance that a later request shares exactly d
      blocks, d = 0..len(weights) - 1; it reuses the blocks up to
      the last kept state that is not above d
    Returns a sorted list of block numbers above 0. Any choice
    that reuses the most blocks on average passes. Must be fast
    for 40 blocks and 8 states.
    """
    # <solution>
    n = len(weights)
    tail = [sum(weights[p:]) for p in range(n)]
    # best[p]: what states from p on gain, and where they are,
    # if the first of them is at p
    best = {p: (p * tail[p], [p]) for p in range(1, n)}
    for _ in range(min(count, n - 1) - 1):
        more = {}
        for p in range(1, max(best)):
            more[p] = max((gain + p * (tail[p] - tail[q]), [p, *kept]) for q, (gain, kept) in best.items() if q > p)
        best = more
    return max(best.values())[1]
    # </solution>


def reused(weights, kept):
    """Blocks reused on average."""
    return sum(w * max((p for p in kept if p <= d), default=0) for d, w in enumerate(weights))


def check_place(place):
    rng = np.random.default_rng(1)
    # equal chances: adding the best state one by one ends elsewhere
    for n, count, equal in ((5, 1, False), (8, 2, False), (9, 2, True), (10, 3, False)):
        weights = [1 / n] * n if equal else rng.dirichlet(np.full(n, 0.5)).tolist()
        got = place(weights, count)
        fits = list(got) == sorted(set(got)) and len(got) <= count and all(0 < p < n for p in got)
        assert fits, f"at most {count} different block numbers from 1 to {n - 1} were asked for, in order; got {got}"
        most = max(reused(weights, kept) for kept in itertools.combinations(range(1, n), count))
        mean, given = reused(weights, got), [round(w, 3) for w in weights]
        assert mean > most - 1e-9, (
            f"states at {got} reuse {mean:.3f} blocks on average, and {most:.3f} are possible: {given}"
        )
    even = (np.ones(40) / 40).tolist()
    mean, most = reused(even, place(even, 8)), reused(even, range(5, 40, 5))
    assert mean > most, f"for 40 blocks, all alike, a state every 5 blocks reuses {most:.3f}, and yours {mean:.3f}"


def reveal(make):
    """Traffic that shows the fault in an output; the engine.

    The faulty kernel counts the exported position from the
    beginning of the batch, not from the request's chunk.
    make(settings): gives an engine, which the fault may be in
    Start from ``hybrid(block=16, alignment=1)``, a kernel that
    exports; then ``engine.add(name, prompt, outputs)`` and
    ``engine.run()``. ``fresh(n, i)`` is n tokens of family i,
    which share nothing with those of another family.
    """
    # <solution>
    engine = make(hybrid(block=16, alignment=1))
    # one token is enough to give the second prompt an offset
    engine.add("A", fresh(1, 1), 1)
    # a block and a token: S@16 is exported, S@17 with the fault
    engine.add("B", fresh(17, 2), 1)
    engine.run()
    # the same again starts from what B has left
    engine.add("C", fresh(17, 2), 1)
    engine.run()
    return engine
    # </solution>


def check_reveal(reveal):
    right = reveal(Engine)
    wrong = reveal(lambda settings: Engine(settings, **FAULTS["batch-offset"].parts))
    assert not right.violations, "without the fault nothing may be wrong"
    assert any(hits[0] for hits in right.hits.values()), "nobody resumes from a kept state: send a prompt twice"
    assert wrong.violations, "with the fault every key is still true: the first chunk of a batch has the offset 0"
    changed = [name for name, request in right.requests.items() if request.output != wrong.requests[name].output]
    assert changed, (
        f"a key lies and nobody reads it ({wrong.violations[0].line()}): repeat the prompt whose state is wrong"
    )

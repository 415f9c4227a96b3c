"""Slots, ReplaySSM and RecoverSSM: the tokens of no speculation, true blocks, bytes of the formulas, and faults seen by
value.
"""

import functools
import inspect
import itertools

import pytest
import torch

from kda_lab import rules
from kda_lab.proof.registry import variant
from kda_lab.serving.blocks.scheduler import hybrid
from kda_lab.serving.drafts.recoverssm import RecoverSSM
from kda_lab.serving.drafts.replayssm import Inputs, ReplaySSM, drift
from kda_lab.serving.drafts.slots import Slots
from kda_lab.serving.plan import costs
from kda_lab.serving.run import decoding, recordworker
from kda_lab.serving.run.worker import Worker
from kda_lab.serving.trials.speculation_faults import FAULTS, MIXED, promised, run, wrong_blocks

MODEL = decoding.Model()
PROMPT = list(range(1, 22))
TRUTH = decoding.plain(MODEL, PROMPT, 70)
MEMORIES = {
    "slots": lambda S, position: Slots(S, [41, 9, 72, 18], position),
    "slots-blocks": lambda S, position: Slots(S, [1, 2], position, 16),
    "replay": lambda S, position: ReplaySSM(S, 9, position),
    "replay-blocks": lambda S, position: ReplaySSM(S, 9, position, 16),
    "replay-shortest": lambda S, position: ReplaySSM(S, 4, position, 16),
    "recover": lambda S, position: RecoverSSM(S, 3, position),
    "recover-blocks": lambda S, position: RecoverSSM(S, 3, position, 16),
}
PATTERNS = {"none": (None,), "right": (3,), "wrong": (0,), "mixed": MIXED}
BF16 = torch.bfloat16


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("name", MEMORIES)
def test_tokens_are_those_of_the_loop_and_blocks_hold_what_their_keys_promise(name, pattern):
    leftover = pattern == "mixed"
    draft = decoding.drafter(TRUTH, PATTERNS[pattern], 3)
    got = decoding.decode(MODEL, MEMORIES[name], PROMPT, len(TRUTH), draft, leftover)
    assert got.tokens == TRUTH
    if pattern == "right":
        # all drafts but those behind the last token
        assert set(got.accepted[:-1]) == {4}
    tokens = (PROMPT + TRUTH)[: got.memory.position]
    assert promised(MODEL, tokens, got.memory.state())
    assert wrong_blocks(MODEL, tokens, len(PROMPT), got.memory) == []
    if got.memory.block:
        assert got.memory.cached(48) is not None


def test_a_request_that_hits_a_block_goes_on_as_one_that_computed_it():
    tokens = PROMPT + TRUTH
    # the window of a block's end, which the state's page holds too
    _, window, token = MODEL.prefill(tokens[:48])
    for name in ("slots-blocks", "replay-blocks", "recover-blocks"):
        memory = decoding.decode(MODEL, MEMORIES[name], PROMPT, len(TRUTH), decoding.drafter(TRUTH, MIXED, 3)).memory
        S, at, new = memory.cached(48), window, token
        assert new == tokens[48]
        for wanted in tokens[49:60]:
            S, at, new = MODEL.prefill([new], S, at)
            assert new == wanted, name


def given(T, H=8, K=128, V=128, seed=0):
    """Inputs of T tokens in fp32, and a state."""
    options = {"generator": torch.Generator().manual_seed(seed)}
    q, k = (torch.nn.functional.normalize(torch.randn(T, H, K, **options), dim=-1) for _ in "qk")
    x = Inputs(q, k, torch.randn(T, H, V, **options), -torch.rand(T, H, K, **options), torch.rand(T, H, **options))
    return x, torch.randn(H, V, K, **options)


def tokens_of(x, first, end):
    return Inputs(*(row[first:end] for row in x))


S_BYTES, R_BYTES = costs.state_bytes(8, 128, 128), costs.record_bytes(8, 128, 128)


@pytest.mark.parametrize("L", (1, 2, 4, 11, 16))
def test_a_ring_moves_the_bytes_of_the_formula(L):
    x, S = given(L)
    memory = ReplaySSM(S, L, record=BF16)
    for t in range(L):
        memory.step(tokens_of(x, t, t + 1))
    assert memory.flushes == 1 and memory.pending == 0
    assert memory.traffic.total == L * costs.replay_step(S_BYTES, R_BYTES, L)
    assert memory.held == costs.recover_memory(S_BYTES, R_BYTES, L)
    plain = Slots(S, [0])
    plain.step(tokens_of(x, 0, 1))
    assert plain.traffic.total == costs.baseline_step(S_BYTES)


@pytest.mark.parametrize("T", (1, 2, 3, 4, 8))
def test_a_verified_step_moves_and_holds_the_bytes_of_the_formulas(T):
    x, S = given(T)
    slots, recover, replay = Slots(S, range(T)), RecoverSSM(S, T - 1, record=BF16), ReplaySSM(S, 16, record=BF16)
    for memory in (slots, recover, replay):
        memory.verify(x)
    assert slots.traffic.total == costs.slots_step(S_BYTES, T) and slots.held == costs.slots_memory(S_BYTES, T)
    assert recover.traffic.total == replay.traffic.total == costs.replay_verify(S_BYTES, R_BYTES, T)
    for memory in (slots, recover, replay):
        memory.accept(T)
    assert slots.traffic.total == costs.slots_step(S_BYTES, T)
    assert recover.traffic.total == costs.recover_step(S_BYTES, R_BYTES, T)
    assert recover.held == costs.recover_memory(S_BYTES, R_BYTES, T)
    # replay commits by counting; the next step reads what counts
    assert replay.traffic.total == costs.replay_verify(S_BYTES, R_BYTES, T)
    replay.verify(tokens_of(x, 0, 1))
    assert replay.traffic.total == 2 * S_BYTES + R_BYTES * (T + T + 1)


@pytest.mark.parametrize("L", (16, 12, 64))
def test_a_ring_is_written_as_often_as_its_length_and_the_blocks_say(L):
    x, S = given(64, H=1, K=3, V=2)
    memory = ReplaySSM(S, L, block=64)
    for t in range(64):
        memory.step(tokens_of(x, t, t + 1))
    assert memory.flushes == 64 * costs.flushes_per_token(L, 64)


def test_strong_decays_overflow_nothing():
    """e^-G would be e^320 behind 64 tokens of -5."""
    x, S = given(64, H=1, K=8, V=4)
    x = x._replace(g=torch.full_like(x.g, -5.0))
    memory = ReplaySSM(S, 64)
    for t in range(63):
        o = memory.step(tokens_of(x, t, t + 1))[0, 0]
        S = torch.stack([rules.kda(S[0], *(row[t, 0] for row in x[:3]), x.g[t, 0].exp(), x.beta[t, 0])[0]])
        assert (o - S[0] @ x.q[t, 0]).abs().max() < 1e-5  # a few roundings of numbers of order one, fp32
    assert (memory.state() - S).abs().max() < 1e-5


def test_fp32_records_are_as_good_as_the_loop_and_bf16_records_cost_their_rounding_whatever_the_ring():
    options = {"tokens": 48, "size": 12}
    seed = lambda: torch.Generator().manual_seed(0)
    loop = drift(None, seed(), **options)
    for L in (1, 6, 24):
        assert drift(L, seed(), **options) < 3 * loop
        assert 2**-11 < drift(L, seed(), record=BF16, **options) < 2**-7
        # keys and log decays that arrive in bf16 lose nothing in the ring
        assert drift(L, seed(), record=BF16, given=BF16, **options) < 3 * loop


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_seen_and_its_repair_is_not(name):
    assert run(name, fault=False) == (None, [])
    broken = run(name)
    assert broken.first is not None or broken.blocks


def test_a_lost_step_counts_no_token():
    """Nobody sampled from it, so its tokens come again; records make that free, slots are already overwritten."""
    x, S = given(6, H=2, K=3, V=2)
    wanted = ReplaySSM(S, 4)
    for t in range(6):
        wanted.step(tokens_of(x, t, t + 1))
    for memory in (ReplaySSM(S, 6), RecoverSSM(S, 3)):
        memory.verify(tokens_of(x, 0, 4)), memory.accept(2)
        memory.verify(tokens_of(x, 2, 5)), memory.accept(0)
        memory.verify(tokens_of(x, 2, 6)), memory.accept(4)
        assert torch.allclose(memory.state(), wanted.state(), atol=1e-5)
    wrong = type(
        "Wrong",
        (ReplaySSM,),
        {"accept": variant(ReplaySSM.accept, ("self.position += n", "self.position += max(n, 1)"))},
    )(S, 6)
    wrong.verify(tokens_of(x, 0, 4)), wrong.accept(0)
    assert not torch.allclose(wrong.state(), S, atol=1e-2)
    slots = Slots(S, range(4))
    slots.verify(tokens_of(x, 0, 4))
    with pytest.raises(ValueError, match="always right"):
        slots.accept(0)


def test_slots_are_those_of_the_worked_example():
    x, S = given(4, H=1, K=3, V=2)
    for accepted, (number, state) in enumerate(((41, 1), (9, 2), (72, 3), (18, 4)), 1):
        memory = Slots(S, [41, 9, 72, 18])
        memory.verify(x), memory.accept(accepted)
        one = ReplaySSM(S, 8)
        one.verify(x), one.accept(state)
        assert memory.source == number and torch.allclose(memory.state(), one.state(), atol=1e-5)
        # the source is read before slot 0 is written
        again = tokens_of(x, 0, 2)
        got, wanted = memory.verify(again), one.verify(again)
        assert torch.allclose(got, wanted, atol=1e-5)


@pytest.mark.parametrize(
    "start, accepted, copy, after",
    [
        (60, 4, (6, 3), 1),
        (60, 3, None, 3),
        (61, 3, (6, 3), 3),
        (62, 1, None, 1),
        (62, 2, (5, 3), 2),
        (63, 1, (4, 3), 1),
        (63, 4, (4, 3), 4),
        (64, 4, None, 4),
    ],
)
def test_the_state_of_a_finished_block_moves_to_its_column(start, accepted, copy, after):
    x, S = given(start + 4, H=1, K=3, V=2)
    one = ReplaySSM(S, 80)
    for t in range(start):
        one.verify(tokens_of(x, t, t + 1)), one.accept(1)
    memory = Slots(one.state(), [1], start, 16)
    memory.verify(tokens_of(x, start, start + 4))
    before = len(memory.copies)
    memory.accept(accepted)
    assert memory.copies[before:] == ([copy] if copy else []) and memory.accepted == after
    if start + accepted >= 64:
        count = max(64 - start, 0)
        one.verify(tokens_of(x, start, start + 4)), one.accept(count)
        assert torch.allclose(memory.cached(64), one.state(), atol=1e-4)


def test_what_does_not_fit_is_refused():
    x, S = given(3, H=1, K=3, V=2)
    for make, message in (
        (lambda: ReplaySSM(S, 0), "at least one record"),
        (lambda: ReplaySSM(S, 2).verify(x), "do not fit a ring of 2"),
        (lambda: ReplaySSM(S, 4).accept(1), "0 were verified"),
        (lambda: RecoverSSM(S, 1).verify(x), "raise num_spec"),
        (lambda: RecoverSSM(S, 1).accept(-1), "0 were verified"),
        (lambda: Slots(S, [4, 5]).verify(x), "has 2 slots"),
        (lambda: run("typo"), "slot-off-by-one"),
    ):
        with pytest.raises((ValueError, KeyError), match=message):
            make()


class CloseWorker(Worker):
    """Slots, with values compared up to rounding, as for records."""

    def __init__(self, scheduler, library):
        super().__init__(scheduler, library)
        self.checks = recordworker.CloseChecks(self, library)


WORKERS = {
    "slots": CloseWorker,
    "short ring": recordworker.replaying(4),
    "ring": recordworker.replaying(9),
    "recover": recordworker.recovering(),
}


def serve(worker, truth=None, blocks=64, states=2):
    """Four requests, two of which share blocks with others; drafts of the usual pattern if the tokens are known."""
    pattern = itertools.cycle(MIXED)

    def drafter(request, library):
        n, known = next(pattern), (truth or {}).get(request.name)
        if n is None or known is None:
            return []
        return [token if i < n else token + 1 for i, token in enumerate(known[len(request.output) :][:3])]

    settings = hybrid(block=16, budget=64, num_spec=3 if truth else 0, states=states, retention=None, blocks=blocks)
    engine = recordworker.ScoreEngine(settings, drafter=drafter, worker=worker)
    engine.add("A", range(37), max_tokens=60), engine.add("B", [*range(20), 9, 9, 3], max_tokens=50)
    engine.run()
    again = [*range(37), *engine.requests["A"].output[:40]]
    engine.add("C", [*again, 5, 6], max_tokens=20), engine.add("D", [*again[:60], 8], max_tokens=20)
    engine.run()
    return engine


PLAIN = {name: list(request.output) for name, request in serve(CloseWorker).requests.items()}


@pytest.mark.parametrize("blocks", (64, 27))
@pytest.mark.parametrize("name", WORKERS)
def test_the_engine_gives_the_tokens_of_no_speculation_with_records_too(name, blocks):
    engine = serve(WORKERS[name], PLAIN, blocks)
    assert {name: request.output for name, request in engine.requests.items()} == PLAIN
    assert engine.violations == [] and engine.worker.checks.count > 300
    if blocks == 64:
        assert engine.hits["C"][0] >= 64 and engine.hits["D"][0] >= 32
    else:
        assert sum(request.preemptions for request in engine.requests.values())
    if name != "slots":
        assert engine.worker.memories == {} and engine.worker.traffic


WRONG_LINES = [
    ("finish", "memory.cached(end)[0].numpy()", "memory.state()[0].numpy()"),
    ("finish", "memory.accept(max(len(sampled), 1))", "memory.accept(1)"),
    ("finish", "for end in block_ends(chunk.start, memory.position, manager.block):", "for end in ():"),
    ("finish", "n = end - chunk.start", "n = end - chunk.start - 1"),
    ("forward_state", "inputs[1:], name", "inputs[:-1], name"),
    (
        "initial",
        "at = memory.state()[0].numpy(), self.window_start(self.slots_accepted(name))",
        "at = memory.state()[0].numpy(), 0",
    ),
    ("after_sampling", ".accepted)", ".accepted + 1)"),
    ("drop", "self.memories.pop((name, group), None)", "None"),
]


def ring_with(method, *patches):
    """The worker with a ring and a changed method; compiled on its own, a function does not know its class."""
    function = getattr(recordworker.RecordWorker, method)
    lines = [line.strip() for line in inspect.getsource(function).splitlines() if "super()" in line]
    calls = [(line, line.replace("super()", "super(RecordWorker, self)")) for line in lines]
    return type("Changed", (WORKERS["ring"],), {method: variant(function, *calls, *patches)})


@functools.cache
def unchanged(method):
    """Whether the method, compiled on its own, still does what it did."""
    engine = serve(ring_with(method), PLAIN)
    return engine.violations == [] and engine.worker.memories == {}


@pytest.mark.parametrize(
    "method, right, wrong", WRONG_LINES, ids=[f"{line[0]}: {line[2][:30]}" for line in WRONG_LINES]
)
def test_a_wrong_line_of_the_worker_is_seen(method, right, wrong):
    assert unchanged(method)
    engine = serve(ring_with(method, (right, wrong)), PLAIN)
    assert (
        engine.violations
        or engine.worker.memories
        or {name: request.output for name, request in engine.requests.items()} != PLAIN
    )

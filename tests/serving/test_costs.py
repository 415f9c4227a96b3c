"""Cost formulas: against values computed elsewhere from the published formulas, and against counts of single steps."""

import pytest

from kda_lab.serving.plan import costs as k
from tests.serving.mutants import assert_seen, each_check, each_fault
from tests.serving.vectors import VECTORS

MODEL = k.Hybrid(4, 24, 28, D=4096, N=128)
RECORDS = {
    "KDA u fp32 + k,g bf16 (vLLM K3 record)": k.record_bytes(8, 128, 128),
    "KDA u,k,g bf16": k.record_bytes(8, 128, 128, u=2),
    "GDN u,k bf16 + scalar g fp32": k.record_bytes(8, 128, 128, u=2, gates=1, gate=4),
    "Mamba2-like x,B bf16 + dt fp32, d=64 n=128": k.record_bytes(8, 128, 64, u=2, gates=1, gate=4),
}


def check_marconi():
    v = VECTORS["marconi"]
    assert MODEL.checkpoint_bytes == v["ssm_checkpoint_bytes"] == 24 * v["ssm_state_bytes_per_layer"]
    for e in v["eff"]:
        assert (MODEL.flops(e["L"]), MODEL.kv_bytes(e["L"])) == (e["flops"], e["kv_bytes"])
        assert round(MODEL.saved(e["L"]), 1) == e["flops_per_byte"]
    for e in v["dense_10k"]:
        count = k.dense_checkpoints(10_000, e["block"])
        assert (count, MODEL.prefix_bytes(10_000, count)) == (e["checkpoints"], e["bytes"])
    assert round(MODEL.prefix_bytes(10_000, 2) / 1e9, 3) == v["marconi_2_checkpoints_10k_GB"]


def check_replay():
    for v in VECTORS["replayssm_standard"]:
        record = RECORDS[v["record"]]
        if "L_opt" in v:
            assert round(k.best_ring(524_288, record), 2) == v["L_opt"]
            continue
        assert (k.state_bytes(8, 128, 128), record) == (v["state_bytes"], v["record_bytes"])
        assert (k.baseline_step(524_288), k.replay_step(524_288, record, v["L"])) == (
            v["base_per_step"],
            v["replay_per_step"],
        )
        assert round(k.speedup(524_288, record, v["L"]), 4) == v["speedup"]


def check_speculation():
    state, record = 524_288, 8_192
    for v in VECTORS["spec_decode_costs"]:
        T = v["T"]
        assert (k.slots_step(state, T), k.slots_memory(state, T)) == (v["baseline_bytes"], v["memory_baseline"])
        assert k.replay_verify(state, record, T) == v["recover_verify"]
        assert k.recover_commit(state, record, T) == v["recover_commit"]
        assert k.recover_step(state, record, T) == v["recover_total"]
        assert k.recover_memory(state, record, T) == v["memory_recover"]
        assert round(k.slots_step(state, T) / k.recover_step(state, record, T), 3) == v["recover_ratio"]


def check_steps():
    """A ring's steps, one by one: each reads the state and the records before its own, which it writes; the last one
    writes the state.
    """
    state, record = 1000, 7
    for L in (1, 2, 5, 16):
        total = sum(state + record + record * n + (state if n == L - 1 else 0) for n in range(L))
        assert k.replay_step(state, record, L) == pytest.approx(total / L)


CHECKS = (check_marconi, check_replay, check_speculation, check_steps)


@each_check(CHECKS)
def test_costs_are_those_of_the_formulas(check):
    check()


FAULTS = [
    (k, "replay_step", ("record * (L - 1) / 2", "record * L / 2"), check_steps),
    (k, "replay_step", ("return state + state / L", "return state + state / (L + 1)"), check_replay),
    (k, "best_ring", ("sqrt(2 * state / record)", "sqrt(state / record)"), check_replay),
    (k, "slots_step", ("return state + T * state", "return T * state"), check_speculation),
    (k, "recover_commit", ("return 2 * state", "return state"), check_speculation),
    (k, "recover_memory", ("return state + T * record", "return state + record"), check_speculation),
    (k.Hybrid, "flops", ("4 * L**2", "2 * L**2"), check_marconi),
    (k.Hybrid, "flops", ("+ 10 * L", "+ 10 * L * self.D"), check_marconi),
    (k.Hybrid, "kv_bytes", ("* 2 * L", "* L"), check_marconi),
]


@each_fault(FAULTS)
def test_a_wrong_formula_is_seen(fault, monkeypatch):
    assert_seen(fault, monkeypatch)


def test_the_best_ring_moves_the_fewest_bytes():
    for record in RECORDS.values():
        best = min(range(1, 200), key=lambda L: k.replay_step(524_288, record, L))
        assert abs(best - k.best_ring(524_288, record)) < 1


def test_replay_wins_exactly_where_it_moves_fewer_bytes_and_never_twice_as_few():
    for state, record in ((524_288, 8_192), (1000, 300), (1000, 2000)):
        for L in range(1, 300):
            assert k.replay_wins(state, record, L) == (k.replay_step(state, record, L) < k.baseline_step(state))
            assert k.speedup(state, record, L) < 2


def test_recovering_saves_traffic_from_three_tokens_on_and_memory_from_two():
    state, record = 524_288, 8_192
    traffic = [k.recover_step(state, record, T) < k.slots_step(state, T) for T in range(1, 9)]
    memory = [k.recover_memory(state, record, T) < k.slots_memory(state, T) for T in range(1, 9)]
    assert traffic == [False] * 2 + [True] * 6 and memory == [False] + [True] * 7


def test_a_ring_that_divides_the_block_flushes_no_extra_time():
    for L, B in ((16, 640), (12, 640), (7, 64)):
        flushes = sum(1 for t in range(1, B + 1) if t % L == 0 or t == B)
        assert k.flushes_per_token(L, B) == flushes / B
    assert k.flushes_per_token(16, 640) == 1 / 16

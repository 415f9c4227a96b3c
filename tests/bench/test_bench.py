"""The benchmark: no time of a wrong result, the same inputs for all, quoted figures that say so."""

import inspect
import json
import math
import re
import statistics

import pytest
import torch

from kda_lab import inputs, ops
from kda_lab.bench import check, document, implementations, peers, run, table
from kda_lab.bench.clock import percentiles
from kda_lab.bench.implementations import IMPLEMENTATIONS, READABLE, Implementation
from kda_lab.cuda import workloads
from tests.bench.benches import (
    RIGHT,
    SETTINGS,
    SHAPE,
    UNSEEN,
    Clock,
    changed,
    made,
    raising,
    right,
    rows,
    set_to,
    spoiled,
)

pytestmark = pytest.mark.usefixtures("one_thread")


def shows_no_time(row):
    return row["graph"] is None and row["call"] is None and not re.search(r"0\.[45]\d\d\d", table.line(row))


def test_a_right_result_has_its_times_and_its_errors():
    for gates in inputs.GATES:
        first, second = rows(RIGHT, gates=gates)
        assert first["outcome"] == second["outcome"] == "right" and first["agreement"] is None
        assert second["graph"] == {"median": 0.42, "low": 0.404, "high": 0.436} and second["call"]["median"] == 0.52
        # bf16 rounds o; its own readable result is the same to the bit, and still the errors are those against float64
        assert 1e-4 < second["error"]["o"] < check.LIMIT and 0 < second["error"]["state"] < 1e-5
        assert second["agreement"] == {"o": 0, "state": 0, "worst": 0}
        assert "0.4200" in table.line(second) and f"{0.42 / second['floor']:.2f}" in table.line(second)


WRONG = {
    "a head that float64 does not see": spoiled(set_to(1.1, 0, slice(None), UNSEEN)),
    "one token": spoiled(set_to(3.0, 0, 60, UNSEEN)),
    "nan in one number": spoiled(set_to(None, 0, 130, UNSEEN, 5)),
    "a state of keys first": spoiled(lambda o, S: (o, S.mT)),
    "a state that is not decayed": spoiled(lambda o, S: (o, S + 0.02)),
    "no initial state": changed(initial_state=torch.zeros(3, 4, 128, 128)),
    "one sequence instead of three": spoiled(lambda o, S: (o.roll(50, 1), S)),
    "another bound of the gates": changed(lower_bound=-4.0),
    "softplus gates": changed(gate="softplus", lower_bound=None),
    "another shape": spoiled(lambda o, S: (o[:, :-1], S)),
}


@pytest.mark.parametrize("fault", WRONG)
def test_no_time_of_a_wrong_result(fault):
    first, second = rows(WRONG[fault])
    assert first["outcome"] == "right" and second["outcome"] == "wrong" and second["note"]
    assert shows_no_time(second) and not shows_no_time(first) and "WRONG" in table.line(second)
    assert document.problem_of(made([first, second])) is None


def test_a_wrong_readable_kernel_is_no_standard():
    first, *others = rows(RIGHT, RIGHT, readable=spoiled(lambda o, S: (2 * o, S)))
    assert first["outcome"] == "wrong"
    assert [(row["outcome"], row["agreement"]) for row in others] == [("right", None)] * 2


def test_one_wrong_token_among_many_is_seen_where_the_norm_hides_it():
    generator = torch.Generator().manual_seed(1)
    o, S = torch.randn(1, 4096, 8, 16, generator=generator), torch.randn(1, 8, 16, 16, generator=generator)
    rough = o + 4e-3 * torch.randn(o.shape, generator=generator)
    good = check.agreement((rough, S), (o, S))
    rough[0, 2000, 3] *= 0
    found = check.agreement((rough, S), (o, S))
    fine = {"o": 4e-3, "state": 4e-3}
    assert found["o"] < check.LIMIT and check.fault(fine, found) and check.fault(fine, good) is None


@pytest.mark.parametrize("what", ["o", "state", "worst"])
def test_each_number_has_its_limit(what):
    small = {"o": 4e-3, "state": 4e-3, "worst": 0.02}
    for bad in (0.2, math.inf, math.nan):
        assert check.fault(small, small | {what: bad})
        assert what == "worst" or (check.fault(small | {what: bad}, None) and check.fault(small | {what: bad}, small))


def test_an_implementation_cannot_spoil_the_inputs_of_the_next():
    def prepare(arguments):
        call = right(arguments)

        def run():
            result = call()
            arguments["v"][0, 3] = 0
            return result

        return run

    _, second, third = rows(Implementation(prepare), RIGHT)
    assert second["outcome"] == "wrong" and "inputs" in second["note"] and shows_no_time(second)
    assert third["outcome"] == "right"


def test_what_an_implementation_raises_becomes_a_row():
    error = RuntimeError("cannot load /opt/some where/lib/x.so from /usr/lib/y.so\nand more")
    _, refused, failed = rows(raising(ValueError("K must be 64")), raising(error))
    assert (refused["outcome"], refused["note"]) == ("refused", "ValueError: K must be 64") and shows_no_time(refused)
    assert (
        failed["outcome"] == "failed"
        and "/usr" not in failed["note"]
        and "y.so" in failed["note"]
        and shows_no_time(failed)
    )


def test_a_graph_that_leaves_nothing_has_no_time():
    class Empty(Clock):
        def graph(self, call, repeats):
            return [0.001] * repeats, [torch.full_like(x, math.nan) for x in call()]

    class Uncapturable(Clock):
        def graph(self, call, repeats):
            raise RuntimeError("operation not permitted when stream is capturing")

    for clock, word in ((Empty(), "another result"), (Uncapturable(), "not permitted")):
        (row,) = rows(settings=SETTINGS._replace(clock=clock))
        assert row["graph"] is None and word in row["note"] and row["call"]["median"] == 0.52
        assert f"{0.52 / row['floor']:.2f}" in table.line(row)


def test_a_workload_that_fits_in_the_cache_says_so():
    assert [r["note"] for r in rows(settings=SETTINGS._replace(l2_bytes=50 << 20))] == ["all of it fits in L2"]


def test_float64_needs_the_token_loop_to_agree(monkeypatch):
    exact = ops.chunk_kda
    monkeypatch.setattr(ops, "chunk_kda", lambda **named: tuple(x * (1 + 1e-8) for x in exact(**named)))
    with pytest.raises(RuntimeError, match="differ by 1.0e-08"):
        check.exact(run.fresh("20+30 H=2", "weak", SETTINGS))


@pytest.mark.parametrize("name", ["5+0+7 H=3", "T=40 H=2", "2x9 H=1"])
def test_inputs_are_what_the_floor_counts(name):
    a, again = (run.fresh(name, "long", SETTINGS) for _ in range(2))
    moved = [a[x] for x in ("q", "k", "v", "g", "beta", "initial_state")]
    moved += [torch.empty_like(a["v"]), torch.empty_like(a["initial_state"])]
    assert sum(x.numel() * x.element_size() for x in moved) == workloads.bytes_moved(**workloads.shape(name))
    assert all(torch.equal(a[x], again[x]) for x in ("q", "g", "initial_state")) and not torch.equal(a["q"], a["k"])


def test_the_gates_are_the_families_of_the_house():
    def decays(gates):
        a = run.fresh("T=200 H=4", gates, SETTINGS)
        rate = a["A_log"].exp()[:, None]
        return a["lower_bound"] * torch.sigmoid(rate * (a["g"].float() + a["dt_bias"]))

    strong, long, weak = (decays(x) for x in inputs.GATES)
    assert -4 < strong.mean() < -2
    assert long.min() < -0.5 and long.max() > -1e-3 and weak.min() > -2e-2 and weak.max() > -1e-3


@pytest.mark.parametrize(
    "name", ["T=8192", "T=8192 H=0", "T=0 H=4", "0x5 H=1", "T=8192 H=96 ", "T=-4 H=1", "mixed", ""]
)
def test_a_shape_that_is_none(name):
    with pytest.raises(ValueError, match="a shape is one of T=8192 H=96, .* got"):
        workloads.shape(name)


def test_our_kernels_take_the_inputs_as_they_are():
    arguments = run.fresh("T=20 H=1", "strong", SETTINGS)
    for name in ("chunk", "hopper"):
        call = IMPLEMENTATIONS[name].prepare(arguments)
        inspect.signature(call.func).bind(*call.args, **call.keywords)
        assert call.keywords["q"] is arguments["q"]


def test_fla_gets_its_states_keys_first_before_the_clock_runs(monkeypatch):
    seen = []

    def fake(initial_state, **named):
        seen.append(initial_state)
        o, S = ops.chunk_kda(initial_state=initial_state.mT.contiguous(), **named)
        return o, S.mT.contiguous()

    monkeypatch.setattr(implementations, "function", lambda where: fake)
    _, row = rows(IMPLEMENTATIONS["fla"])
    assert row["outcome"] == "right"
    assert len(seen) == 3 and all(x is seen[0] for x in seen) and seen[0].is_contiguous()


def test_cudnn_gets_bounds_before_the_clock_runs(monkeypatch):
    seen = []

    def fake(cu_seqlens, **named):
        seen.append(cu_seqlens)
        return ops.chunk_kda(cu_seqlens=cu_seqlens, **named)

    monkeypatch.setattr(implementations, "function", lambda where: fake)
    _, row = rows(IMPLEMENTATIONS["cudnn"], shape="T=70 H=2")
    assert row["outcome"] == "right" and seen[0].tolist() == [0, 70] and all(x is seen[0] for x in seen)


def test_who_is_timed_in_which_rows():
    known = {"a": RIGHT, "slow": Implementation(right, rows=("T=8192 H=96",))}
    known |= {"gone": Implementation(right, package="no_such_package", install="pip install it")}
    chosen, absent = run.choose(None, known)
    assert {name: rows for name, (_, rows) in chosen.items()} == {"a": None, "slow": ("T=8192 H=96",)}
    assert absent == [{"impl": "gone", "why": "not installed; pip install it"}]
    assert run.choose(["slow"], known)[0]["slow"][1] is None
    assert not [
        r for r in run.workload_rows("T=32 H=2", "long", {"slow": chosen["slow"]}, SETTINGS) if r["impl"] == "slow"
    ]


def test_quoted_figures_are_possible_and_named():
    data = peers.data()
    for row in data["rows"]:
        floor = workloads.bytes_moved(**workloads.shape(row["shape"])) / data["copy_rate"] * 1e3
        assert row["gates"] in (None, *inputs.GATES) and row["impl"] in data["versions"]
        assert floor < row.get("ms", math.inf) and row.get("o", 0) < check.LIMIT
    assert not re.search(r"[/\\]\w+[/\\]", json.dumps(data))


def test_quoted_figures_stand_beside_ours_and_say_so():
    found = list(run.workload_rows("T=8192 H=96", "long", {}, SETTINGS))
    assert [(x["impl"], x["outcome"], x["call"]["median"]) for x in found] == [
        ("fla", "reported", 2.634),
        ("flashkda", "reported", 1.451),
        ("cudnn", "reported", 2.341),
    ]
    assert "fla *" in table.line(found[0]) and f"{2.634 / 0.23962:.2f}" in table.line(found[0])
    errors = list(run.workload_rows("T=2048 H=8", "weak", {}, SETTINGS))
    assert [x["call"] for x in errors] == [None, None] and "8.3e-03" in table.line(errors[0])
    assert "errors: float64 token loop, as reported" in table.table(made(errors))
    text = table.table(made(found))
    assert "FlashKDA 1ce47ea" in text and "* reported: " in text and "NVIDIA H200" in text


def test_a_figure_is_quoted_unless_it_was_measured(monkeypatch):
    row = {"shape": "T=32 H=1", "impl": "fla", "gates": None, "ms": 1.0}
    known = peers.data()
    monkeypatch.setattr(peers, "data", lambda: known | {"rows": [row]})
    for other, levels in ((RIGHT, ["measured"]), (raising(ValueError("no")), ["measured", "reported"])):
        found = list(run.workload_rows("T=32 H=1", "weak", {"fla": (other, None)}, SETTINGS))
        assert [x["level"] for x in found] == levels


@pytest.mark.parametrize("n", [3, 10, 21])
def test_percentiles(n):
    samples = torch.rand(n, generator=torch.Generator().manual_seed(n), dtype=torch.float64).tolist()
    found = percentiles(samples)
    assert found["median"] == pytest.approx(statistics.median(samples))
    low, *_, high = statistics.quantiles(samples, n=10, method="inclusive")
    assert (found["low"], found["high"]) == (pytest.approx(low), pytest.approx(high))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU on this machine")
def test_the_readable_kernel_on_this_gpu():
    chosen, _ = run.choose([READABLE])
    (row,) = run.workload_rows(SHAPE, "long", chosen, run.Settings(repeats=5))
    assert row["outcome"] == "right" and 0 < row["graph"]["low"] <= row["graph"]["median"] <= row["graph"]["high"]
    assert 1e-4 < row["error"]["o"] < check.LIMIT

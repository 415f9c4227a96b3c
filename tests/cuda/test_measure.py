"""What the clock of the GPU does around a call, on events that need no GPU."""

import statistics

import pytest
import torch

from kda_lab.bench.clock import Clock
from kda_lab.cuda import measure


class Device:
    """A stream on which each call takes the time that stands in its list; `now` in ms."""

    def __init__(self, times):
        self.now, self.times, self.calls, self.waits = 0.0, iter(times), 0, 0

    def call(self):
        self.calls += 1
        self.now += next(self.times)

    def wait(self):
        self.waits += 1

    def event(self, enable_timing):
        return Event(self)


class Event:
    def __init__(self, device):
        self.device = device

    def record(self):
        self.at = self.device.now

    def elapsed_time(self, end):
        return end.at - self.at


@pytest.fixture
def device(monkeypatch):
    # the first calls compile and load, and take as long as they like
    found = Device([1000.0] * measure.WARM_UP + [4.0, 1.0, 2.0, 8.0, 32.0])
    monkeypatch.setattr(torch.cuda, "Event", found.event)
    monkeypatch.setattr(torch.cuda, "synchronize", found.wait)
    return found


@pytest.mark.parametrize("samples", [measure.samples_ms, Clock().call], ids=["measure", "clock"])
def test_a_sample_is_one_call_after_the_first_ones(device, samples):
    assert samples(device.call, 5) == [4.0, 1.0, 2.0, 8.0, 32.0]
    assert (device.calls, device.waits) == (measure.WARM_UP + 5, 1)


def test_the_median_is_of_the_samples(device):
    assert measure.median_ms(device.call, 5) == statistics.median([4.0, 1.0, 2.0, 8.0, 32.0])


@pytest.fixture
def graph(device, monkeypatch):
    """A graph that replays the writes of a call into x, and leaves y, which is not part of it."""
    x, y = torch.zeros(2), torch.zeros(2)

    class Graph:
        def replay(self):
            device.call()
            x.fill_(5)

    class Capture:
        def __init__(self, graph):
            pass

        def __enter__(self):
            pass

        def __exit__(self, *_):
            pass

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", Capture)
    return x, y


@pytest.mark.parametrize("samples", [measure.graph_samples_ms, Clock().graph], ids=["measure", "clock"])
def test_what_is_not_part_of_a_graph_stays_nan(graph, samples):
    x, y = graph
    times, (left, other) = samples(lambda: (x, y), 5)
    assert times == [4.0, 1.0, 2.0, 8.0, 32.0]
    assert left.tolist() == [5, 5] and other.isnan().all()


@pytest.mark.parametrize("case", ["same", "not captured", "other bits"])
def test_a_graph_is_compared_with_the_call(graph, case):
    x, y = graph
    # what is captured, and what the call gives afterwards
    answers = iter({"same": [(x,), (x,)], "not captured": [(x, y)] * 2, "other bits": [(x,), (y.fill_(6),)]}[case])
    assert measure.graph_ms(lambda: next(answers), 5) == (4.0, case == "same")

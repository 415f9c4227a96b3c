"""Times on a GPU in milliseconds: between events around a call, and of a CUDA graph's replay."""

import math

import torch

WARM_UP = 3


def percentiles(samples):
    """The 10th, 50th and 90th percentile of samples -> {low, median, high}.

    >>> percentiles([5.0, 1.0, 2.0, 3.0, 4.0])
    {'median': 3.0, 'low': 1.4, 'high': 4.6}
    """
    ordered = sorted(samples)

    def at(share):
        place = share * (len(ordered) - 1)
        n = min(int(place), len(ordered) - 2) if len(ordered) > 1 else 0
        right = ordered[min(n + 1, len(ordered) - 1)]
        return round(ordered[n] + (place - n) * (right - ordered[n]), 9)

    return {"median": at(0.5), "low": at(0.1), "high": at(0.9)}


class Clock:
    """CUDA events on torch's current stream. Tests put another object with the same two methods in its place."""

    def call(self, call, repeats):
        """Milliseconds of each of some calls one after another, host work included where the GPU waits for it -> a list."""
        for _ in range(WARM_UP):
            call()
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
        for start, end in events:
            start.record()
            call()
            end.record()
        torch.cuda.synchronize()
        return [start.elapsed_time(end) for start, end in events]

    def graph(self, call, repeats):
        """Milliseconds of each replay of a call as a CUDA graph, and what the last replay left -> (a list, results).

        call: returns a sequence of tensors, and has run before. Results are nan before the first replay, so that what
        was not part of the graph stays nan. Raises RuntimeError for a call that cannot be captured.
        """
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = call()
        for x in captured:
            x.fill_(math.nan)
        return self.call(graph.replay, repeats), captured

"""Times on a GPU in milliseconds: between events around a call, and of a CUDA graph's replay."""

from kda_lab.cuda import measure


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

    call = staticmethod(measure.samples_ms)
    graph = staticmethod(measure.graph_samples_ms)

"""Exercises of the chapter on prefill and decode."""

from kda_lab import intensity


def by_hand():
    """Intensity of the matrix, share of the peak that attention reaches."""
    # <solution>
    return 100 / 3, 1 / 20
    # </solution>


def check_by_hand(by_hand):
    card = intensity.GPU("by hand", 10**9, bandwidth=1, flops=20)
    layer = intensity.linear_layer(50, 200, 200)
    caches = intensity.attention(1, 500, query_heads=1, row=100, flop=200, vectors=0)
    got, share = by_hand()
    assert abs(got - layer.intensity) < 0.01, f"{layer.flop:,} operations and {layer.bytes:,} bytes, so not {got}"
    assert abs(share - card.busy(caches)) < 1e-9, (
        "a cached number is used for one multiplication and one addition, in every request"
    )


def smallest_batch(ridge, inputs, outputs):
    """Tokens that [outputs, inputs] wants for the ridge, or None."""
    # <solution>
    reach = inputs * outputs / (inputs + outputs)
    if ridge >= reach:
        return None
    least = -(-ridge * reach // (reach - ridge))
    return int(least)
    # </solution>


def check_smallest_batch(smallest_batch):
    for ridge, inputs, outputs in ((100, 8192, 8192), (206.5, 2048, 512), (37, 64, 4096), (10, 30, 60)):
        got = smallest_batch(ridge, inputs, outputs)
        assert got is not None, f"ridge {ridge}, {inputs} by {outputs}: there is such a number"
        assert intensity.linear_layer(got, inputs, outputs).intensity >= ridge, (
            f"{got} tokens are too few for the ridge {ridge}"
        )
        assert intensity.linear_layer(got - 1, inputs, outputs).intensity < ridge, (
            f"fewer than {got} tokens reach the ridge {ridge}"
        )
    assert smallest_batch(100, 100, 100) is None, "a matrix of 100 by 100 stays below 50 operations per byte"


def best_drafts(rate, cost):
    """Drafts, each right with probability `rate`, for `cost` of a pass."""

    # <solution>
    def speed(m):
        return intensity.accepted(m, rate) / (1 + m * cost)

    return max(range(51), key=speed)
    # </solution>


def check_best_drafts(best_drafts):
    assert best_drafts(0.5, 0.6) == 0, "a draft that takes longer than it is right should not be used"
    assert best_drafts(0.5, 0.25) == 1, "rate 1/2, cost 1/4: one draft yields 1.5 / 1.25, two yield 1.75 / 1.5"
    assert best_drafts(0.9, 0.0) == 50, "free drafts are always worth it"
    many, few = best_drafts(0.9, 0.05), best_drafts(0.7, 0.05)
    assert many > few > 0, f"better drafts should be longer, got {many} for 0.9 and {few} for 0.7"


def never_busy():
    """Inputs and outputs of the matrix."""
    # <solution>
    return 32, 32768
    # </solution>


def check_never_busy(never_busy):
    inputs, outputs = never_busy()
    assert inputs * outputs >= 10**6, f"{inputs} by {outputs} has fewer than a million weights"
    work = intensity.linear_layer(10**9, inputs, outputs)
    for card in intensity.gpus().values():
        assert card.busy(work) < 1, (
            f"{work.intensity:.0f} operations per byte reach the ridge of the {card.name}, {card.ridge:.0f}"
        )

"""Exercises of the chapter on the layer."""

import torch

from kda_lab import features, layer, rules


def by_hand():
    """(sum, kept): a number, and a list with the oldest first."""
    # <solution>
    return 7.0, [2.0, 3.0]
    # </solution>


def check_by_hand(by_hand):
    taps, x = torch.tensor([[1.0, 0.0, 2.0]]), torch.tensor([[1.0], [2.0], [3.0]])
    y, window = features.short_convolution(x, taps)
    total, kept = by_hand()
    assert torch.isclose(torch.nn.functional.silu(torch.tensor(float(total))), y[2, 0]), (
        "the last tap meets the current token, the first the oldest"
    )
    assert list(kept) == window[:, 0].tolist(), "w - 1 inputs are kept, the oldest first"


def where_it_begins(state_slots, num_accepted, w):
    """Where the next step finds state and window: (slot, first row, last row).

    state_slots: the slots of one request, one for each token of the last step
    num_accepted: how many of those tokens stay, at least 1   w: taps
    """
    # <solution>
    first = num_accepted - 1
    return state_slots[first], first, first + w - 2
    # </solution>


def check_where_it_begins(where_it_begins):
    slots, width, k = [41, 9, 72, 18], 4, 3
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 9, 1, generator=generator)
    pool = torch.zeros(1, width - 1 + k, 1)
    none, first = torch.tensor([0]), torch.tensor([0])
    from kda_lab.layer import convolve

    convolve(x[:, :4], torch.ones(1, width), pool, none, first, torch.float32)
    for n in range(1, 5):
        slot, low, high = where_it_begins(slots, n, width)
        assert slot == slots[n - 1], f"after {n} of its tokens a step left the state in slot {slots[n - 1]}, got {slot}"
        before = torch.cat([torch.zeros(1, 3, 1), x[:, :n]], 1)[0, -3:]
        assert high - low == width - 2 and torch.equal(pool[0, low : high + 1], before), (
            f"{n} accepted: rows {low} to {high} are not the last inputs"
        )


def one_pass(S, q, k, v, alpha, beta):
    """(S after, o) of a KDA step, with S used as a factor of one product only.

    S: [V, K]   q, k, alpha: [K]   v: [V]   beta: scalar
    """
    # <solution>
    reads = S @ torch.stack([alpha * k, alpha * q], 1)  # [V, 2]
    r = (v - reads[:, 0]) * beta
    return S * alpha + rules.outer(r, k), reads[:, 1] + r * (k @ q)
    # </solution>


class _Counted(torch.Tensor):
    """A tensor that counts the matrix products it is a factor of."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function in (
            torch.matmul,
            torch.Tensor.matmul,
            torch.Tensor.__matmul__,
            torch.Tensor.__rmatmul__,
            torch.mv,
            torch.mm,
        ):
            cls.products += 1
        return super().__torch_function__(function, types, args, kwargs or {})


def check_one_pass(one_pass):
    generator = torch.Generator().manual_seed(1)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)
    S, q, k, v, alpha = draw(3, 5), draw(5), draw(5), draw(3), torch.rand(5, generator=generator, dtype=torch.float64)
    for got, wanted in zip(one_pass(S, q, k, v, alpha, 0.7), rules.kda(S, q, k, v, alpha, 0.7)):
        assert torch.allclose(got, wanted), "the outputs are those of rules.kda: decay, read, residual, write, read out"
    _Counted.products = 0
    one_pass(S.as_subclass(_Counted), q, k, v, alpha, 0.7)
    # the product k q with plain vectors is not counted
    assert _Counted.products == 1, f"the state was a factor of {_Counted.products} products; read both answers at once"


def blind_prompt():
    """Hidden states x [1, 8, 48] in float64, not zero.

    They hide a window that is one token late.
    """
    # <solution>
    return torch.ones(1, 8, 48, dtype=torch.float64)
    # </solution>


def check_blind_prompt(blind_prompt):
    made = layer.KimiDeltaAttention(
        48, head_dim=8, num_heads=2, dtype=torch.float64, generator=torch.Generator().manual_seed(2)
    )
    x = blind_prompt().double()
    assert x.shape == (1, 8, 48) and x.abs().max() > 0, "x is [1, 8, 48] and not zero"
    with torch.no_grad():
        whole, cache = made.prefill(x), made.new_cache(requests=1)
        made.prefill(x[:, :6], cache)
        late = made.project(x[:, :6])[0][:, -4:-1]
        cache.restore(cache.snapshot()._replace(window=late))
        y = made.prefill(x[:, 6:], cache)
    assert torch.allclose(y, whole[:, 6:], atol=1e-12), (
        "the damaged window shows: which prompts have the same rows wherever you look?"
    )

"""Exercises of the chapter on linear attention."""

import torch

from kda_lab import features, rules


def by_hand():
    """What the query (1, 2) reads without the denominator, and with it.

    Returns two numbers, in this order.
    """
    # <solution>
    return 5, 5 / 7
    # </solution>


def check_by_hand(by_hand):
    keys, values, q = torch.tensor([[1.0, 1.0], [2.0, 1.0]]), torch.tensor([[3.0], [-1.0]]), torch.tensor([1.0, 2.0])
    _, rows = rules.scan(
        rules.normalised_linear, (torch.zeros(1, 2), torch.zeros(2)), torch.stack([q, q]), keys, values
    )
    numerator, denominator = rows[-1][0].item(), rows[-1][1].item()
    without, averaged = by_hand()
    assert abs(without - numerator) < 1e-6, (
        "without the denominator: add v k^T for both tokens, then multiply by the query"
    )
    assert abs(averaged - numerator / denominator) < 1e-6, (
        "with it: divide by the product of the query with the sum of the keys"
    )


def difference(k1, k2):
    """A query [2] that reads v2 - v1 from the state v1 k1^T + v2 k2^T.

    k1, k2: [2], not parallel.
    """
    # <solution>
    weights = torch.tensor([-1.0, 1.0], dtype=k1.dtype)
    return torch.linalg.solve(torch.stack([k1, k2]), weights)
    # </solution>


def check_difference(difference):
    generator = torch.Generator().manual_seed(0)
    for keys in (torch.eye(2, dtype=torch.float64), torch.randn(2, 2, generator=generator, dtype=torch.float64)):
        values = torch.randn(2, 3, generator=generator, dtype=torch.float64)
        S, _ = rules.scan(rules.linear, torch.zeros(3, 2, dtype=torch.float64), keys, keys, values)
        o = S @ difference(*keys)
        assert torch.allclose(o, values[1] - values[0]), (
            f"for the keys {keys.tolist()} the weights of v1 and v2 should be -1 and 1"
        )


def convolution_step(x, weight, state):
    """One token of the short convolution.

    x: [D]   weight: [D, w], the last tap meets x
    state: [w - 1, D], the inputs before x, oldest first
    Returns the output [D] and the state [w - 1, D] for the next token.
    """
    # <solution>
    window = torch.cat([state, x[None]])  # [w, D]
    y = (window * weight.T).sum(0)
    return torch.nn.functional.silu(y), window[1:]
    # </solution>


def check_convolution_step(convolution_step):
    generator = torch.Generator().manual_seed(1)
    x, weight = (
        torch.randn(6, 3, generator=generator, dtype=torch.float64),
        torch.randn(3, 4, generator=generator, dtype=torch.float64),
    )
    want, last = features.short_convolution(x, weight)
    state = torch.zeros(3, 3, dtype=torch.float64)
    for t in range(6):
        y, state = convolution_step(x[t], weight, state)
        assert torch.allclose(y, want[t]), (
            f"the output of token {t + 1} should be {want[t].tolist()}; the state keeps inputs from before the taps "
            "and SiLU"
        )
    assert torch.allclose(state, last), "after the last token the state should hold the last three inputs, oldest first"


def silent_query():
    """A query [4] in bfloat16, no entry below -9, that elu(x) + 1 answers
    with zero, whatever the keys, if 1e-6 is added to the denominator.
    """
    # <solution>
    return torch.full((4,), -7.0, dtype=torch.bfloat16)
    # </solution>


def check_silent_query(silent_query):
    q = silent_query()
    assert q.dtype == torch.bfloat16 and q.shape == (4,) and (q >= -9).all(), (
        "return four numbers in bfloat16, none below -9"
    )
    keys, values = torch.randn(5, 4, generator=torch.Generator().manual_seed(2)).bfloat16(), torch.ones(5, 2)

    def answer(phi):  # features in bf16, sums in fp32
        state = (torch.zeros(2, 4), torch.zeros(4))
        _, rows = rules.scan(rules.normalised_linear, state, phi(q).float().expand(5, 4), phi(keys).float(), values)
        return rows[-1][0] / (rows[-1][1] + 1e-6)

    naive, stable = answer(lambda x: torch.nn.functional.elu(x) + 1), answer(features.elu_plus_one)
    assert (naive == 0).all(), (
        f"elu(x) + 1 still reads {naive.tolist()}: every channel of the query has to round to zero"
    )
    assert torch.allclose(stable, values[0], atol=0.01), f"elu_plus_one should still read 1, got {stable.tolist()}"

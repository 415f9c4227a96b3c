"""Keys and states of the chapter on capacity: what the seven equations of the registry do not already say."""

import torch

from kda_lab import capacity, rules


def added(S, k, v):
    return rules.linear(S, k, k, v)[0]


def corrected(S, k, v):
    return rules.delta(S, k, k, v, 1.0)[0]


def drawn(n, K, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return capacity.random_keys(n, K, generator), capacity.random_values(n, 3, generator)


def test_least_squares_is_exact_while_the_keys_are_independent_and_no_further():
    for n, exact in ((5, True), (6, True), (7, False)):
        keys, values = drawn(n, 6)
        error = capacity.recall_errors(capacity.least_squares(keys, values), keys, values).max().item()
        # float64, and keys whose condition number stays below a few hundred
        assert (error < 1e-20) == exact, (n, error)


def test_passes_start_from_the_state_that_they_are_given():
    keys, values = drawn(4, 6)
    once = capacity.write(corrected, keys, values)
    assert torch.equal(capacity.write(corrected, keys, values, S=once), capacity.write(corrected, keys, values, passes=2))
    assert not torch.equal(once, capacity.write(corrected, keys, values, passes=2))


def test_averaged_errors_are_the_average_of_single_draws():
    draws = [drawn(5, 4, seed) for seed in range(3)]
    keys, values = (torch.stack(x) for x in zip(*draws))
    for rule, passes in ((added, 1), (corrected, 2)):
        single = torch.stack([capacity.recall_errors(capacity.write(rule, k, v, passes), k, v) for k, v in draws]).mean(0)
        assert torch.allclose(capacity.average_errors(rule, keys, values, passes), single, rtol=1e-12)
    best = torch.stack([capacity.recall_errors(capacity.least_squares(k, v), k, v) for k, v in draws]).mean(0)
    assert torch.allclose(capacity.average_errors(None, keys, values), best, rtol=1e-12)


def test_read_weights_are_attention_weights_for_a_query_that_is_no_key():
    keys, values = drawn(9, 4)
    q = torch.randn(4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    weights, rest = capacity.read_weights(keys, q)
    S = capacity.write(corrected, keys, values)
    assert torch.allclose(S @ q, values.T @ torch.stack(weights), rtol=1e-12)
    assert abs(sum(c * c for c in weights) + rest @ rest - q @ q) < 1e-12

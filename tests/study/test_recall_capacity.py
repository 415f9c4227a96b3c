"""Keys and states of the chapter on capacity: what the seven equations of the registry do not already say."""

import itertools

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
    assert torch.equal(
        capacity.write(corrected, keys, values, S=once), capacity.write(corrected, keys, values, passes=2)
    )
    assert not torch.equal(once, capacity.write(corrected, keys, values, passes=2))


def test_averaged_errors_are_the_average_of_single_draws():
    draws = [drawn(5, 4, seed) for seed in range(3)]
    keys, values = (torch.stack(x) for x in zip(*draws))
    for rule, passes in ((added, 1), (corrected, 2)):
        single = torch.stack([capacity.recall_errors(capacity.write(rule, k, v, passes), k, v) for k, v in draws]).mean(
            0
        )
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


def test_answers_have_a_mean_square_of_at_most_one_for_unrelated_values():
    keys, _ = drawn(7, 4)
    q = capacity.random_keys(1, 4, torch.Generator().manual_seed(1))[0]
    weights, rest = capacity.read_weights(keys, q)
    # all values of 1 and -1: unrelated, mean zero
    signs = torch.tensor(list(itertools.product((1.0, -1.0), repeat=7)), dtype=torch.float64)
    squares = [(capacity.write(corrected, keys, v[:, None]) @ q).square().sum() for v in signs]
    assert abs(sum(squares) / len(squares) - sum(c * c for c in weights)) < 1e-12
    assert sum(squares) / len(squares) < 1 - rest @ rest + 1e-12 and max(squares) > 1.5


def test_answers_can_grow_with_the_root_of_the_writes_for_equal_values():
    generator = torch.Generator().manual_seed(0)
    S = torch.zeros(1, 16, dtype=torch.float64)
    for k in capacity.random_keys(200, 16, generator):
        k = k - S[0] * (S[0] @ k) / (S[0] @ S[0]).clamp(min=1e-300)
        S = corrected(S, k / k.norm(), torch.ones(1, dtype=torch.float64))
    # each key stands at right angles to the state, so each write adds one to its squared length
    assert abs(S.norm() - 200**0.5) < 1e-9


def test_the_floor_needs_values_of_mean_zero():
    keys = capacity.cone_keys(32, 16, 0.5, torch.Generator().manual_seed(0))
    constant = torch.ones(32, 1, dtype=torch.float64)
    error = capacity.recall_errors(capacity.least_squares(keys, constant), keys, constant).mean()
    # keys on a cone: their axis answers every one alike
    assert error < 1e-20 and capacity.floor(32, 16) == 0.5

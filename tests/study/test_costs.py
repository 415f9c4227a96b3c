"""Costs: the tally counts what it says, and the formulas give the numbers that the book prints."""

from fractions import Fraction

import numpy as np
import pytest

from kda_lab import chunk, costs


def test_a_product_counts_a_multiplication_and_an_addition_for_each_pair():
    A, x = costs.counted(np.ones((3, 5)), np.ones(5))
    A @ x
    assert A.tally == {"matmul": 30}


def test_multiplications_by_zero_are_no_work():
    a, b = costs.counted(np.array([1.0, 0.0, 2.0]), np.ones(3))
    a * b
    assert a.tally == {"multiply": 2}


def test_slices_and_transposes_count_into_the_same_tally():
    A, _ = costs.counted(np.ones((4, 4)), np.ones(1))
    A[:2].T + A[:, :2]
    assert A.tally == {"add": 8}


def test_counting_does_not_change_the_numbers():
    generator = np.random.default_rng(0)
    args = [generator.uniform(0.5, 1.0, shape) for shape in ((3, 4), (6, 4), (6, 4), (6, 3), (6, 4), 6)]
    plain, counted = chunk.kda(*args), chunk.kda(*costs.counted(*args))
    assert all(np.array_equal(a, b) for a, b in zip(plain, counted))


def test_scores_with_a_decay_for_each_channel_are_counted_as_triangles():
    C, K = 6, 4
    X, alpha = costs.counted(np.full((C, K), 0.5), np.full((C, K), 0.9))
    chunk.decayed_scores(X, X, alpha)
    # the product that only gives the result its type is C^2 pairs
    assert X.tally["matmul"] == 2 * K * (C * (C + 1) // 2 + C * C)


@pytest.mark.parametrize(
    ("got", "wanted"),
    [
        (costs.recurrent_flops(128, 128), 114944),
        (costs.chunk_flops(64, 128, 128) // 64, 181589),
        (costs.crossover(64, 128, 128), 709),
        (costs.parity(128, 128, traffic=True), 256),
        (costs.parity(128, 128), 128),
        (costs.layer_bytes(8, 128, 128), 542720),
        (costs.latent_parity(8, 128, 128), 530),
        (costs.doubling_products(64), 10),
        (costs.doubling_products(16), 6),
        (round(costs.checkpoint_saving(128, 128), 1), Fraction(427, 10)),
    ],
)
def test_a_number_of_the_book(got, wanted):
    assert got == wanted


def test_the_chunk_form_does_more_operations_than_the_loop():
    assert 1.5 < costs.chunk_flops(64, 128, 128) / 64 / costs.recurrent_flops(128, 128) < 1.6


def test_a_composition_costs_more_than_a_step_unless_chunks_are_long():
    assert costs.combine_flops(128, 128) > costs.low_rank_apply_flops(64, 128, 128)
    assert costs.low_rank_apply_flops(64, 128, 128) == costs.dense_apply_flops(128, 128)

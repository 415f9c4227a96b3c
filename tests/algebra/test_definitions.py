"""What the definitions refuse, in one sentence each."""

import numpy as np
import pytest
import torch

from kda_lab import chunk, inputs, rules


def test_scan_refuses_sequences_of_different_lengths():
    k = np.ones((3, 2))
    with pytest.raises(ValueError, match=r"same number of tokens, got \[3, 3, 2\]"):
        rules.scan(rules.linear, np.zeros((1, 2)), k, k, np.ones((2, 1)))


def test_split_refuses_an_empty_chunk():
    one = np.ones((3, 1))
    with pytest.raises(ValueError, match="at least one token, got C = 0"):
        chunk.split(chunk.linear, np.zeros((1, 1)), 0, one, one, one)


def test_inputs_name_the_families_of_gates():
    with pytest.raises(ValueError, match="strong, long, weak"):
        inputs.log_decay((1, 1, 1), "mild", torch.Generator())


def test_the_definitions_run_on_integers_without_losing_decays():
    K = np.array([[1, 0], [0, 1], [1, 0]])
    half = np.full((3, 2), 0.5)
    terms = chunk.kda(np.zeros((1, 2)), K, K, np.array([[5], [6], [7]]), half, np.array([1, 1, 1]))
    assert terms.A[2, 0] == 0.25

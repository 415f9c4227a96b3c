"""What tests of several folders share."""

import pytest


@pytest.fixture(scope="module")
def one_thread():
    """Small tensors are slower on many threads than on one, above all where tests run side by side."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)

"""How far back inputs matter."""

import pytest
import torch

import elman
from elman import lens
from elman.lens.sample import Sample


def test_context_of_a_window_is_its_width():
    torch.manual_seed(0)
    found = lens.context(elman.cell("window", 2, 3, k=4), Sample(torch.randn(8, 20, 2), torch.randn(8, 20, 3)))
    assert found.n == [1, 2, 4, 8, 16, 20] and found.effective == 4
    assert found.excess[2:] == pytest.approx([0.0] * 4, abs=1e-6)

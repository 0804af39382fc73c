"""Dropout from random bits: how often, by how much, from which generator, and its gradient."""

import pytest
import torch

from elman import kernels


@pytest.mark.parametrize("p", [0.05, 0.5, 0.9])
def test_a_share_is_zero_and_the_rest_is_scaled(p):
    torch.manual_seed(0)
    x = torch.randn(301, 1001, requires_grad=True)  # not a multiple of four
    y = kernels.dropout(x, p, True)
    share, n = float((y == 0).float().mean()), x.numel()
    assert abs(share - p) < 5 * (p * (1 - p) / n) ** 0.5
    kept = y != 0
    torch.testing.assert_close(y[kept], x[kept] / (1 - p))
    (gradient,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(gradient, kept.float() / (1 - p))
    # Neighbours are decided apart: of pairs, p * p are both zero.
    for shift in (1, 2, 3, 4):
        both = ((y == 0) & (y.roll(shift, 1) == 0)).float().mean()
        assert abs(float(both) - p * p) < 6 * (p * p * (1 - p * p) / n) ** 0.5, shift


def test_the_generator_is_torchs():
    x, found = torch.ones(5000, dtype=torch.float64), []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found.append(kernels.dropout(x, 0.3, True))
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])


def test_odd_ones():
    x = torch.ones(4000)
    assert kernels.dropout(x, 0.5, False) is x and kernels.dropout(x, 0.0, True) is x
    assert not kernels.dropout(x, 1.0, True).any() and kernels.dropout(torch.ones(0, 3), 0.5, True).shape == (0, 3)
    assert kernels.dropout(x.bfloat16(), 0.5, True).dtype == torch.bfloat16

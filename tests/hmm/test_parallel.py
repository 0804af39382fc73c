"""All time steps at once against the filter: values, and gradients, which are posteriors and expected counts."""

import pytest
import torch

from elman import kernels
from elman.hmm.parallel import log_likelihood


@pytest.mark.parametrize("T", [0, 1, 2, 3, 7, 64, 1001])
def test_the_parallel_product_is_the_filter(T: int) -> None:
    g = torch.Generator().manual_seed(T)
    B, K = 3, 4
    start = torch.rand(K, generator=g, dtype=torch.float64).softmax(-1)
    transition = (3 * torch.rand(K, K, generator=g, dtype=torch.float64)).softmax(-1)
    transition = torch.where(torch.eye(K).roll(1, 1).bool(), 0.0, transition)
    inputs = [
        v.requires_grad_() for v in (5 * torch.randn(B, T, K, generator=g, dtype=torch.float64), start, transition)
    ]
    x, start, transition = inputs
    lengths, reset = torch.full((B,), T), torch.zeros(B, T, dtype=torch.bool)
    filtered = kernels.hmm_log_prob(x, start, transition, start.expand(B, K), lengths, reset).sum(1)
    at_once = log_likelihood(x, start, transition)
    torch.testing.assert_close(at_once, filtered, rtol=1e-12, atol=1e-10)
    if T > 1:
        for a, b in zip(*(torch.autograd.grad(v.sum(), inputs) for v in (at_once, filtered)), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-9)


def test_a_million_steps_do_not_underflow() -> None:
    x = torch.full((1, 1_000_000, 2), -700.0, dtype=torch.float64)
    half = torch.full((2,), 0.5, dtype=torch.float64)
    assert float(log_likelihood(x, half, half.expand(2, 2))) == pytest.approx(-7e8, rel=1e-12)


def test_impossible_data_are_minus_infinity() -> None:
    half = torch.full((2,), 0.5)
    assert log_likelihood(torch.full((1, 3, 2), -torch.inf), half, half.expand(2, 2)).tolist() == [-torch.inf]

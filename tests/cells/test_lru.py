"""The LRU against powers of its dense system, and its ring."""

from __future__ import annotations

import math

import pytest
import torch

from elman.cells.lru import LRU, LRUState
from elman.errors import InputError


def complex_of(pairs, dim):
    real, imaginary = pairs.detach().double().unbind(dim)
    return torch.complex(real, imaginary)


def test_output_is_the_sum_over_powers_of_the_dense_system():
    """y[t] = Re(C (Lambda^(t+1) h0 + sum_s Lambda^(t-s) Gamma B x[s])) + D x[t]."""
    torch.manual_seed(0)
    core = LRU(3, 5, state_size=7).double()
    x = torch.randn(2, 12, 3, dtype=torch.float64)
    h0 = torch.randn(2, 7, dtype=torch.complex128)
    Lambda = torch.diag(torch.exp(torch.complex(-core.nu.exp(), core.theta.exp())))
    B, C = complex_of(core.B, 1), complex_of(core.C, 2)
    Gamma = torch.diag(core.gamma_log.exp()).to(B.dtype)

    def power(n):
        return torch.linalg.matrix_power(Lambda, n)

    y, state = core.scan(x, LRUState(h0))
    for t in range(12):
        h = h0 @ power(t + 1).T + sum(x[:, s].to(B.dtype) @ (power(t - s) @ Gamma @ B).T for s in range(t + 1))
        torch.testing.assert_close(y[:, t], (h @ C.T).real + x[:, t] @ core.D.T, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(state.h, h, rtol=1e-10, atol=1e-10)


def test_eigenvalues_fill_the_ring_evenly():
    torch.manual_seed(0)
    core = LRU(2, 2, state_size=20000, r_min=0.5, r_max=0.9, max_phase=1.0)
    eigenvalues = core.eigenvalues().detach()
    radius, phase = eigenvalues.abs().double(), eigenvalues.angle().double()
    assert radius.min() >= 0.5 - 1e-6 and radius.max() <= 0.9 + 1e-6
    assert phase.min() >= 0 and phase.max() <= 1.0
    # Even over the area: the squared radius and the phase are uniform. 5 standard errors of their deciles.
    for values, low, high in ((radius**2, 0.25, 0.81), (phase, 0.0, 1.0)):
        deciles = torch.quantile((values - low) / (high - low), torch.arange(1, 10, dtype=torch.float64) / 10)
        assert (deciles - torch.arange(1, 10) / 10).abs().max() < 5 * 0.5 / 20000**0.5


@pytest.mark.slow
def test_gamma_gives_the_state_the_variance_of_the_input():
    core = LRU(2, 2, state_size=1000, r_max=0.99)
    torch.testing.assert_close(core.gamma_log.exp() ** 2, 1 - core.eigenvalues().abs() ** 2, rtol=1e-4, atol=1e-6)
    torch.manual_seed(0)
    narrow = LRU(8, 4, state_size=64, r_min=0.3, r_max=0.9)
    with torch.no_grad():
        _, state = narrow.scan(torch.randn(2000, 100, 8))
    # |B_n|^2 is a chi-square of 16 degrees of freedom over 16: its mean over 64 states has a standard error of 0.044.
    assert abs(float((state.h.abs() ** 2).mean()) - 1) < 4 * 0.044


@pytest.mark.parametrize("ring", [(0.0, 0.0), (0.0, 1.0), (1.0, 1.0)])
def test_the_ends_of_the_ring_are_finite_with_their_gradients(ring):
    core = LRU(2, 3, state_size=500, r_min=ring[0], r_max=ring[1])
    y, _ = core.scan(torch.randn(1, 20, 2))
    y.sum().backward()
    assert y.isfinite().all() and all(p.isfinite().all() and p.grad.isfinite().all() for p in core.parameters())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"r_min": 0.9, "r_max": 0.5}, "r_min <= r_max"),
        ({"r_max": 1.5}, "r_max is 1.5"),
        ({"max_phase": 7.0}, "max_phase is 7.0"),
        ({"max_phase": 0}, "max_phase is 0"),
        ({"max_phase": math.nan}, "max_phase is nan"),
        ({"state_size": 0}, "state_size is 0"),
    ],
)
def test_options_outside_their_range_are_named(options, message):
    with pytest.raises(InputError, match=message):
        LRU(2, 3, **options)

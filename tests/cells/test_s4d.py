"""S4D against the matrix exponential and its convolution kernel, and its initial values against the formulas."""

from __future__ import annotations

import math

import pytest
import torch

from elman.cells.poles import inverse_poles, linear_poles, zero_order_hold
from elman.cells.s4d import S4D, S4DState
from elman.errors import InputError


def test_zero_order_hold_is_the_matrix_exponential():
    """exp(dt [[A, B], [0, 0]]) holds both coefficients; A as a real 2 x 2 block."""
    decay, frequency, dt = 0.7, 2.3, 0.31
    augmented = torch.tensor([[-decay, -frequency, 1], [frequency, -decay, 0], [0, 0, 0]], dtype=torch.float64)
    expected = torch.linalg.matrix_exp(dt * augmented)
    logs = [torch.tensor(v, dtype=torch.float64) for v in (math.log(decay), frequency, math.log(dt))]
    a, b = zero_order_hold(*logs)
    torch.testing.assert_close(torch.view_as_real(a), expected[:2, 0], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(torch.view_as_real(b), expected[:2, 2], rtol=1e-12, atol=1e-12)


def test_zero_order_hold_keeps_its_digits_at_small_steps():
    logs = [torch.tensor(v, dtype=torch.float64) for v in (math.log(0.5), 0.1, math.log(1e-4))]
    _, exact = zero_order_hold(*logs)
    _, single = zero_order_hold(*(v.float() for v in logs))
    assert float((single - exact).abs() / exact.abs()) < 1e-6


@pytest.mark.parametrize("init", ["lin", "inv"])
def test_output_is_the_convolution_with_the_kernel(init):
    """K[l] = 2 Re sum_n C_n b_n a_n^l; y = K * u + D u, and a carried state adds 2 Re sum_n C_n a_n^(t+1) h0_n."""
    torch.manual_seed(0)
    T = 20
    core = S4D(3, 3, state_size=8, init=init, dt_min=0.01, dt_max=0.5).double()
    u = torch.randn(2, T, 3, dtype=torch.float64)
    h0 = torch.randn(2, 3, 4, dtype=torch.complex128)
    A = torch.complex(-core.A_log.exp(), core.A_im)
    dt = core.log_dt.exp()[:, None]
    a, b, C = torch.exp(dt * A), (torch.exp(dt * A) - 1) / A, torch.view_as_complex(core.C.detach())
    powers = a[..., None] ** torch.arange(T + 1)
    kernel = 2 * torch.einsum("hn,hn,hnl->hl", C, b, powers).real
    memory = 2 * torch.einsum("hn,bhn,hnl->blh", C, h0, powers[..., 1:]).real
    y, _ = core.scan(u, S4DState(h0))
    for t in range(T):
        past = sum(kernel[:, t - s] * u[:, s] for s in range(t + 1))
        torch.testing.assert_close(y[:, t], past + memory[:, t] + core.D * u[:, t], rtol=1e-10, atol=1e-10)


def test_initial_poles_are_those_of_the_paper():
    half = torch.full((2,), -0.5, dtype=torch.float64)
    torch.testing.assert_close(linear_poles(4), torch.complex(half, torch.tensor([0.0, math.pi], dtype=torch.float64)))
    inverse = torch.tensor([12 / math.pi, 4 / (3 * math.pi)], dtype=torch.float64)
    torch.testing.assert_close(inverse_poles(4), torch.complex(half, inverse))
    core = S4D(2, 2, state_size=4, init="inv")
    torch.testing.assert_close(core.A_im[1].double(), inverse, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(-core.A_log[1].double().exp(), half, rtol=1e-6, atol=1e-6)


def test_steps_are_spread_evenly_in_the_logarithm():
    torch.manual_seed(0)
    log_dt = S4D(1, 20000, state_size=2, dt_min=1e-3, dt_max=1e-1).log_dt.detach().double()
    share = (log_dt - math.log(1e-3)) / math.log(100)
    assert share.min() >= -1e-6 and share.max() <= 1 + 1e-6
    deciles = torch.quantile(share, torch.arange(1, 10, dtype=torch.float64) / 10)
    assert (deciles - torch.arange(1, 10) / 10).abs().max() < 5 * 0.5 / 20000**0.5


def test_other_widths_are_projected_first():
    torch.manual_seed(0)
    wide = S4D(5, 3, state_size=4).double()
    own = S4D(3, 3, state_size=4).double()
    assert own.U is None
    own.load_state_dict({name: p for name, p in wide.state_dict().items() if name != "U"})
    x = torch.randn(2, 6, 5, dtype=torch.float64)
    torch.testing.assert_close(wide.scan(x)[0], own.scan(x @ wide.U.T)[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"state_size": 5}, "state_size is 5; it must be even"),
        ({"state_size": 0}, "state_size is 0"),
        ({"init": "legs"}, "'lin', 'inv'"),
        ({"dt_min": 0.0}, "dt_min is 0.0"),
        ({"dt_min": 0.5, "dt_max": 0.1}, "dt_max 0.1"),
    ],
)
def test_options_outside_their_range_are_named(options, message):
    with pytest.raises(InputError, match=message):
        S4D(3, 3, **options)

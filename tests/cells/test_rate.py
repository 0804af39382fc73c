from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import functional_call

from elman.cells.rate import Rate, RateState
from elman.errors import InputError


@pytest.mark.parametrize("phi", ["tanh", "relu"])
@pytest.mark.parametrize("dale", [None, 0.75])
def test_without_leak_it_is_torch_rnn(phi, dale, same, randomised, draw):
    core = randomised(Rate(3, 4, phi=phi, dt=5.0, tau=5.0, dale=dale, baseline=0.25))
    x, h = draw(0, 2, 6, 3), draw(1, 2, 4)
    y, last = core.scan(x, RateState(h))
    rnn = nn.RNN(3, 4, nonlinearity=phi, batch_first=True).double()
    W = core.W if dale is None else core.W.abs() @ torch.diag(torch.tensor([1.0, 1.0, 1.0, -1.0]).double())
    weights = {"weight_ih_l0": core.B, "weight_hh_l0": W, "bias_ih_l0": core.b, "bias_hh_l0": torch.zeros_like(core.b)}
    y2, last2 = functional_call(rnn, weights, (x, h[None]))
    same([y, last.h], [y2 + 0.25, last2[0]], {"x": x, "h": h, **dict(core.named_parameters())})


@pytest.mark.parametrize("phi", ["tanh", "relu"])
def test_each_step_goes_the_fraction_a_of_the_way_to_an_rnn_cell(phi, same, randomised, draw):
    core = randomised(Rate(3, 4, phi=phi, dt=3.0, tau=10.0))
    x, h0 = draw(0, 2, 5, 3), draw(1, 2, 4)
    y, last = core.scan(x, RateState(h0))
    weights = {"weight_ih": core.B, "weight_hh": core.W, "bias_ih": core.b, "bias_hh": torch.zeros_like(core.b)}
    cell, h, hs = nn.RNNCell(3, 4, nonlinearity=phi).double(), h0, []
    for t in range(5):
        h = torch.lerp(h, functional_call(cell, weights, (x[:, t], h)), 0.3)
        hs.append(h)
    same([y, last.h], [torch.stack(hs, 1), h], {"x": x, "h": h0, **dict(core.named_parameters())})


def test_alone_a_unit_relaxes_exponentially(randomised):
    """With W = 0 the rate after t steps of constant input is (1 - (1 - a)^t) times its target."""
    core = randomised(Rate(2, 3, phi="tanh"))
    nn.init.zeros_(core.W)
    x = torch.tensor([0.3, -1.2], dtype=torch.float64)
    y, _ = core.scan(x.expand(1, 7, 2))
    t = torch.arange(1, 8, dtype=torch.float64)
    expected = (1 - 0.8**t)[:, None] * torch.tanh(core.B @ x + core.b)
    torch.testing.assert_close(y[0], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("optimiser", "lr"), [(torch.optim.SGD, 0.03), (torch.optim.Adam, 0.3)])
def test_dales_law_survives_training(optimiser, lr):
    torch.manual_seed(0)
    core = Rate(3, 10, dale=0.8)
    before = core.weights().detach().clone()
    steps = optimiser(core.parameters(), lr=lr)
    for _ in range(20):
        steps.zero_grad()
        y, _ = core.scan(torch.randn(4, 10, 3))
        (y + torch.rand_like(y)).square().sum().backward()
        steps.step()
    after = core.weights().detach()
    assert (core.W < 0).any(), "the steps were too small to try the law"
    assert not torch.equal(before, after)
    assert (after[:, :8] >= 0).all() and (after[:, 8:] <= 0).all()


def test_dale_starts_balanced_at_the_edge_of_stability():
    torch.manual_seed(0)
    W = Rate(3, 50, dale=0.8).weights().detach()
    torch.testing.assert_close(W.sum(1), torch.zeros(50), atol=1e-5, rtol=0)
    torch.testing.assert_close(torch.linalg.eigvals(W).abs().max(), torch.tensor(1.0))


@pytest.mark.parametrize("dale", [0.0, 1.0])
def test_all_units_may_be_of_one_kind(dale):
    W = Rate(3, 6, dale=dale).weights()
    assert (W * (2 * dale - 1) >= 0).all() and W.isfinite().all() and W.abs().max() > 0


def test_without_dale_it_starts_orthogonal(orthogonal):
    orthogonal(Rate(3, 16).W)


def test_past_lengths_there_is_no_baseline(draw):
    core = Rate(3, 4, baseline=0.5).double()
    y, state = core.scan(draw(0, 2, 5, 3), lengths=torch.tensor([2, 5]))
    assert (y[0, 2:] == 0).all() and (y[0, :2] >= 0.5).all()
    torch.testing.assert_close(state.h, torch.stack([y[0, 1], y[1, 4]]) - 0.5)
    assert Rate(3, 4).output_is_state and not core.output_is_state


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dale": 1.2}, "dale is 1.2; it must be a number from 0 to 1"),
        ({"dt": 2.0, "tau": 1.0}, "dt is 2 and tau 1; dt must not exceed tau"),
        ({"tau": 0.0}, "tau is 0.0"),
        ({"dt": -1.0}, "dt is -1.0"),
        ({"phi": "elu"}, "phi is 'elu'"),
        ({"baseline": float("nan")}, "baseline is nan"),
    ],
)
def test_options_outside_their_range(options, message):
    with pytest.raises(InputError, match=message):
        Rate(3, 4, **options)

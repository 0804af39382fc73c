"""minGRU against the paper's own evaluation in logarithms, and against the textbook formula."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from elman.cells.mingru import MinGRU, MinGRUState, positive
from elman.errors import InputError

B, T, D, H = 3, 40, 4, 6


def sample(form):
    torch.manual_seed(0)
    return MinGRU(D, H, form=form).double(), torch.randn(B, T, D, dtype=torch.float64) * 3


def log_candidate(v):
    """log g(v) as the paper gives it: log(v + 1/2) for v >= 0, log s(v) below."""
    return torch.where(v >= 0, (F.relu(v) + 0.5).log(), -F.softplus(-v))


def log_space(log_a, log_b, h0):
    """h[t] = a[t] h[t-1] + b[t] for positive a, b and h0, by cumulative sums of logarithms."""
    a = F.pad(log_a.cumsum(1), (0, 0, 1, 0))
    terms = torch.cat([h0.log()[:, None], log_b], 1) - a
    return (a + terms.logcumsumexp(1)).exp()[:, 1:]


def test_it_agrees_with_the_log_space_form():
    core, x = sample("log")
    h0 = torch.rand(B, H, dtype=torch.float64) + 0.1
    k, v = F.linear(x, core.U, core.b).chunk(2, -1)
    expected = log_space(-F.softplus(k), -F.softplus(-k) + log_candidate(v), h0)
    y, state = core.scan(x, MinGRUState(h0))
    torch.testing.assert_close(y, expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(state.h, expected[:, -1], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("form", ["plain", "log"])
def test_it_is_its_equation_from_a_state_of_any_sign(form):
    core, x = sample(form)
    h = h0 = torch.randn(B, H, dtype=torch.float64)
    ys = []
    for t in range(T):
        k, v = F.linear(x[:, t], core.U, core.b).chunk(2, -1)
        z = torch.sigmoid(k)
        h = (1 - z) * h + z * (v if form == "plain" else log_candidate(v).exp())
        ys.append(h)
    assert (h0 < 0).any() and (h0 > 0).any()
    torch.testing.assert_close(core.scan(x, MinGRUState(h0))[0], torch.stack(ys, 1), rtol=1e-10, atol=1e-10)


def test_positive_states_stay_positive_in_the_log_form():
    core, x = sample("log")
    y, _ = core.scan(x * 100, MinGRUState(torch.rand(B, H, dtype=torch.float64)))
    assert (y > 0).all()


def test_the_candidate_of_the_log_form_is_continuous_and_increasing():
    v = torch.linspace(-5, 5, 1001, dtype=torch.float64)
    assert (positive(v).diff() > 0).all()
    assert positive(v).diff().max() < 0.0101


def test_the_gate_does_not_round_to_one():
    """In float32 1 - s(20) is 0, and the state would be forgotten where it should keep a share of e^-20."""
    core = MinGRU(1, 1)
    with torch.no_grad():
        core.U.zero_()
        core.b.copy_(torch.tensor([20.0, 0.0]))
    y, _ = core.scan(torch.zeros(1, 1, 1), MinGRUState(torch.tensor([[1.0]])))
    torch.testing.assert_close(y.squeeze(), torch.tensor(-20.0).exp(), rtol=1e-5, atol=0)


def test_an_unknown_form_is_named():
    with pytest.raises(InputError, match=r"'logspace'.*'plain', 'log'"):
        MinGRU(D, H, form="logspace")


def test_chrono_starts_with_memories_of_one_to_so_many_steps():
    torch.manual_seed(0)
    core = MinGRU(3, 4000, chrono=100)
    z = torch.sigmoid(core.b[:4000])
    steps = 1 / z - 1  # z = 1 / (1 + u)
    assert 1 <= steps.min() < 1.5 and 99.5 < steps.max() <= 100.001
    assert abs(steps.mean() - 50.5) < 2  # uniform
    assert not core.b[4000:].any()

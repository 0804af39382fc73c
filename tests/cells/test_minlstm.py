"""minLSTM against the paper's own evaluation in logarithms, and against the textbook formula."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from elman.cells.minlstm import MinLSTM, MinLSTMState
from elman.errors import InputError

B, T, D, H = 3, 40, 4, 6


def sample(form):
    torch.manual_seed(0)
    return MinLSTM(D, H, form=form).double(), torch.randn(B, T, D, dtype=torch.float64) * 3


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
    f, i, v = F.linear(x, core.U, core.b).chunk(3, -1)
    diff = F.softplus(-f) - F.softplus(-i)
    expected = log_space(-F.softplus(diff), -F.softplus(-diff) + log_candidate(v), h0)
    y, _ = core.scan(x, MinLSTMState(h0))
    torch.testing.assert_close(y, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("form", ["plain", "log"])
def test_it_is_its_equation_from_a_state_of_any_sign(form):
    core, x = sample(form)
    h = h0 = torch.randn(B, H, dtype=torch.float64)
    ys = []
    for t in range(T):
        f, i, v = F.linear(x[:, t], core.U, core.b).chunk(3, -1)
        f, i = torch.sigmoid(f), torch.sigmoid(i)
        h = f / (f + i) * h + i / (f + i) * (v if form == "plain" else log_candidate(v).exp())
        ys.append(h)
    torch.testing.assert_close(core.scan(x, MinLSTMState(h0))[0], torch.stack(ys, 1), rtol=1e-10, atol=1e-10)


def test_with_both_gates_shut_keeps_their_ratio():
    """s(-200) is 0 in float32: the quotient of the gates would be 0 / 0."""
    core = MinLSTM(1, 1)
    with torch.no_grad():
        core.U.zero_()
        core.b.copy_(torch.tensor([-200.0, -200.0 + torch.tensor(3.0).log(), 8.0]))  # i is three times f
    x = torch.zeros(1, 1, 1, requires_grad=True)
    y, _ = core.scan(x, MinLSTMState(torch.tensor([[4.0]])))
    torch.testing.assert_close(y, torch.tensor([[[4.0 / 4 + 8.0 * 3 / 4]]]))
    assert torch.autograd.grad(y.sum(), core.b)[0].isfinite().all()


def test_an_unknown_form_is_named():
    with pytest.raises(InputError, match=r"'logspace'.*'plain', 'log'"):
        MinLSTM(D, H, form="logspace")

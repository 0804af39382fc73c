from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import functional_call

from elman.cells.indrnn import IndRNN, IndRNNState
from elman.errors import InputError


@pytest.mark.parametrize("phi", ["tanh", "relu"])
def test_is_torch_rnn_with_a_diagonal_matrix(phi, same, randomised, draw):
    core = randomised(IndRNN(3, 4, phi=phi))
    x, h = draw(0, 2, 6, 3), draw(1, 2, 4)
    y, last = core.scan(x, IndRNNState(h))
    rnn = nn.RNN(3, 4, nonlinearity=phi, batch_first=True).double()
    weights = {"weight_ih_l0": core.W, "weight_hh_l0": core.u.diag(), "bias_ih_l0": core.b}
    y2, last2 = functional_call(rnn, weights | {"bias_hh_l0": torch.zeros_like(core.b)}, (x, h[None]))
    same([y, last.h], [y2, last2[0]], {"x": x, "h": h, **dict(core.named_parameters())})


def test_recurrent_weights_start_where_the_gradient_stays_below_two():
    """The paper's range: over T steps u^T is the gradient, and it may reach 2."""
    for t_max, highest in ((2, 2**0.5), (10, 2**0.1), (None, 1.0)):
        u = IndRNN(2, 5000, t_max=t_max).u.detach()
        assert u.min() >= 0 and u.max() <= highest
        assert u.max() > 0.99 * highest and u.min() < 0.01
        assert abs(u.mean() - highest / 2) < 0.03


def test_options_outside_their_range():
    with pytest.raises(InputError, match="phi is 'elu'"):
        IndRNN(3, 4, phi="elu")
    with pytest.raises(InputError, match="t_max is 0"):
        IndRNN(3, 4, t_max=0)

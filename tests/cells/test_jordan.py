from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import functional_call

from elman.cells.jordan import Jordan, JordanState
from elman.errors import InputError


def test_with_linear_outputs_it_is_torch_rnn_with_the_product_of_weights(same, randomised, draw):
    """y = V h + c makes R y' = (R V) h' + R c: a simple recurrent network on h, read out by V and c."""
    core = randomised(Jordan(3, 4, hidden=7, psi="identity"))
    x, h = draw(0, 2, 6, 3), draw(1, 2, 7)
    y, last = core.scan(x, JordanState(h @ core.V.T + core.c))
    weights = {"weight_ih_l0": core.U, "weight_hh_l0": core.R @ core.V}
    weights |= {"bias_ih_l0": core.b, "bias_hh_l0": core.R @ core.c}
    hs, last_h = functional_call(nn.RNN(3, 7, batch_first=True).double(), weights, (x, h[None]))
    y2, last2 = hs @ core.V.T + core.c, last_h[0] @ core.V.T + core.c
    same([y, last.y], [y2, last2], {"x": x, "h": h, **dict(core.named_parameters())})


@pytest.mark.parametrize(("psi", "function"), [("tanh", torch.tanh), ("logistic", torch.sigmoid)])
def test_is_an_rnn_cell_fed_with_its_own_output(psi, function, same, randomised, draw):
    core = randomised(Jordan(3, 4, psi=psi))
    x, y0 = draw(0, 2, 5, 3), draw(1, 2, 4)
    y, last = core.scan(x, JordanState(y0))
    weights = {"weight_ih": core.U, "weight_hh": core.R, "bias_ih": core.b, "bias_hh": torch.zeros_like(core.b)}
    cell, out, ys = nn.RNNCell(3, 4).double(), y0, []
    for t in range(5):
        out = function(functional_call(cell, weights, (x[:, t], out)) @ core.V.T + core.c)
        ys.append(out)
    same([y, last.y], [torch.stack(ys, 1), out], {"x": x, "y": y0, **dict(core.named_parameters())})


def test_both_ways_through_the_output_start_orthogonal(orthogonal):
    core = Jordan(3, 4, hidden=9)
    orthogonal(core.R)
    orthogonal(core.V)


def test_options_outside_their_range():
    with pytest.raises(InputError, match="psi is 'softmax'; it must be one of 'tanh', 'logistic', 'identity'"):
        Jordan(3, 4, psi="softmax")
    with pytest.raises(InputError, match="hidden is 0"):
        Jordan(3, 4, hidden=0)

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import functional_call

from elman.cells.deep_transition import DeepTransition, DeepTransitionState
from elman.errors import InputError


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_is_an_rnn_cell_followed_by_layers(depth, same, randomised, draw):
    core = randomised(DeepTransition(3, 4, depth=depth))
    x, h0 = draw(0, 2, 5, 3), draw(1, 2, 4)
    y, last = core.scan(x, DeepTransitionState(h0))
    zero = torch.zeros(4, dtype=torch.float64)
    weights = {"weight_ih": core.U, "weight_hh": core.W[0], "bias_ih": core.b[0], "bias_hh": zero}
    cell, layer, h, hs = nn.RNNCell(3, 4).double(), nn.Linear(4, 4).double(), h0, []
    for t in range(5):
        h = functional_call(cell, weights, (x[:, t], h))
        for k in range(1, depth):
            h = functional_call(layer, {"weight": core.W[k], "bias": core.b[k]}, (h,)).tanh()
        hs.append(h)
    same([y, last.h], [torch.stack(hs, 1), h], {"x": x, "h": h0, **dict(core.named_parameters())})


def test_every_layer_starts_orthogonal(orthogonal):
    for W in DeepTransition(3, 8, depth=3).W:
        orthogonal(W)


@pytest.mark.parametrize("depth", [0, 1.5, True])
def test_depth_is_a_positive_whole_number(depth):
    with pytest.raises(InputError, match=r"depth is .*; it must be a whole number of at least 1"):
        DeepTransition(3, 4, depth=depth)

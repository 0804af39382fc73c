from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from elman.cells.elman import Elman, ElmanState
from elman.errors import InputError


def theirs(core: Elman, x: torch.Tensor) -> dict[str, torch.Tensor]:
    weights = {"weight_ih_l0": core.U, "weight_hh_l0": core.W, "bias_ih_l0": core.b}
    return weights | {"bias_hh_l0": torch.zeros_like(core.b)}


@pytest.mark.parametrize("phi", ["tanh", "relu"])
def test_is_torch_rnn(phi, same, randomised, draw):
    core = randomised(Elman(3, 4, phi=phi))
    x, h = draw(0, 2, 6, 3), draw(1, 2, 4)
    y, last = core.scan(x, ElmanState(h))
    rnn = nn.RNN(3, 4, nonlinearity=phi, batch_first=True).double()
    y2, last2 = functional_call(rnn, theirs(core, x), (x, h[None]))
    same([y, last.h], [y2, last2[0]], {"x": x, "h": h, **dict(core.named_parameters())})


def test_ragged_rows_are_packed_rows(same, randomised, draw):
    core = randomised(Elman(3, 4))
    x, h, lengths = draw(0, 3, 6, 3), draw(1, 3, 4), torch.tensor([2, 6, 4])
    y, last = core.scan(x, ElmanState(h), lengths=lengths)
    packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    out, last2 = functional_call(nn.RNN(3, 4, batch_first=True).double(), theirs(core, x), (packed, h[None]))
    y2, _ = pad_packed_sequence(out, batch_first=True)
    same([y, last.h], [y2, last2[0]], {"x": x, "h": h, **dict(core.named_parameters())})


def test_step_is_torch_rnn_cell(same, randomised, draw):
    core = randomised(Elman(3, 4))
    x, h = draw(0, 2, 3), draw(1, 2, 4)
    y, _ = core.step(x, ElmanState(h))
    weights = {name.removesuffix("_l0"): w for name, w in theirs(core, x).items()}
    same([y], [functional_call(nn.RNNCell(3, 4).double(), weights, (x, h))], {"x": x, "h": h})


def test_starts_orthogonal_and_unbiased(orthogonal):
    core = Elman(3, 16)
    orthogonal(core.W)
    assert core.b.count_nonzero() == 0


def test_phi_is_tanh_or_relu():
    with pytest.raises(InputError, match="phi is 'gelu'; it must be one of 'tanh', 'relu'"):
        Elman(3, 4, phi="gelu")

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from elman.cells.gru import GRU, GRUState
from elman.errors import InputError


def theirs(core: GRU) -> dict[str, Tensor]:
    H = core.output_size
    return {
        "weight_ih_l0": core.U,
        "weight_hh_l0": core.W,
        "bias_ih_l0": core.b,
        "bias_hh_l0": torch.cat([torch.zeros(2 * H, dtype=core.b.dtype), core.c]),
    }


def test_is_torch_gru(same, randomised, draw):
    core = randomised(GRU(3, 4))
    x, h = draw(0, 2, 6, 3), draw(1, 2, 4)
    y, last = core.scan(x, GRUState(h))
    y2, last2 = functional_call(nn.GRU(3, 4, batch_first=True).double(), theirs(core), (x, h[None]))
    same([y, last.h], [y2, last2[0]], {"x": x, "h": h, **dict(core.named_parameters())})


def test_ragged_rows_are_packed_rows(same, randomised, draw):
    core = randomised(GRU(3, 4))
    x, h, lengths = draw(0, 3, 6, 3), draw(1, 3, 4), torch.tensor([2, 6, 4])
    y, last = core.scan(x, GRUState(h), lengths=lengths)
    packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    out, last2 = functional_call(nn.GRU(3, 4, batch_first=True).double(), theirs(core), (packed, h[None]))
    same([y, last.h], [pad_packed_sequence(out, batch_first=True)[0], last2[0]], {"x": x, "h": h, "W": core.W})


def test_step_is_torch_gru_cell(same, randomised, draw):
    core = randomised(GRU(3, 4))
    x, h = draw(0, 2, 3), draw(1, 2, 4)
    y, _ = core.step(x, GRUState(h))
    weights = {name.removesuffix("_l0"): w for name, w in theirs(core).items()}
    same([y], [functional_call(nn.GRUCell(3, 4).double(), weights, (x, h))], {"x": x, "h": h})


def transcribed(core: GRU, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """The equations on top of gru.py, literally: no library has these options."""
    W_r, W_z, W_n = core.W.chunk(3)
    U, b = core.U, core.b
    H = len(W_r)
    hs = []

    def norm(v: Tensor, gain: Tensor | None) -> Tensor:
        return v if gain is None else gain * F.layer_norm(v, (v.shape[-1],))

    gain_W = core.gain_W if core.layer_norm else None
    gain_U = core.gain_U if core.layer_norm else None
    for t in range(x.shape[1]):
        ux_gates = norm(x[:, t] @ U[: 2 * H].T, None if gain_U is None else gain_U[: 2 * H])
        ux_new = norm(x[:, t] @ U[2 * H :].T, None if gain_U is None else gain_U[2 * H :]) + b[2 * H :]
        wh_gates = norm(h @ torch.cat([W_r, W_z]).T, None if gain_W is None else gain_W[: 2 * H])
        r, z = torch.sigmoid(ux_gates + wh_gates + b[: 2 * H]).chunk(2, 1)
        gain_n = None if gain_W is None else gain_W[2 * H :]
        if core.reset_after:
            n = torch.tanh(ux_new + r * (norm(h @ W_n.T, gain_n) + core.c))
        else:
            n = torch.tanh(ux_new + norm((r * h) @ W_n.T, gain_n))
        h = (1 - z) * n + z * h
        hs.append(h)
    return torch.stack(hs, 1), h


@pytest.mark.parametrize(
    "options",
    [{"reset_after": False}, {"layer_norm": True}, {"reset_after": False, "layer_norm": True}],
)
def test_options_are_their_equations(options, same, randomised, draw):
    core = randomised(GRU(3, 4, **options))
    x, h = draw(0, 2, 5, 3), draw(1, 2, 4)
    y, last = core.scan(x, GRUState(h))
    same([y, last.h], transcribed(core, x, h), {"x": x, "h": h, **dict(core.named_parameters())})


def test_where_reset_comes_matters_only_through_the_reset_gate(randomised, draw):
    """With r = 1 and c = 0 both forms are one."""
    after, before = randomised(GRU(3, 4)), randomised(GRU(3, 4, reset_after=False))
    before.load_state_dict({name: p for name, p in after.state_dict().items() if name != "c"})
    x = draw(0, 2, 5, 3)
    assert (after.scan(x)[0] - before.scan(x)[0]).abs().max() > 1e-3
    with torch.no_grad():
        after.c.zero_()
        for core in (after, before):
            core.b[:4] = 1e4
    torch.testing.assert_close(after.scan(x)[0], before.scan(x)[0], rtol=1e-10, atol=1e-10)


def test_each_gate_starts_orthogonal(orthogonal):
    orthogonal(GRU(3, 8).W, gates=3)


def test_options_outside_their_range():
    with pytest.raises(InputError, match="reset_after is 'no'; it must be True or False"):
        GRU(3, 4, reset_after="no")
    with pytest.raises(InputError, match="layer_norm with size 1"):
        GRU(3, 1, layer_norm=True)

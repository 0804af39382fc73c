from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from elman.cells.lstm import LSTM, LSTMState
from elman.errors import InputError


def theirs(core: LSTM) -> dict[str, Tensor]:
    """Our parameters as nn.LSTM's. Coupled gates are there f = s(-v) = 1 - s(v) = 1 - i."""
    W, U, b = core.W, core.U, core.b
    if core.coupled:
        (W, U, b) = (torch.cat([p.chunk(3)[0], -p.chunk(3)[0], *p.chunk(3)[1:]]) for p in (W, U, b))
    weights = {"weight_ih_l0": U, "weight_hh_l0": W, "bias_ih_l0": b, "bias_hh_l0": torch.zeros_like(b)}
    return weights if core.P is None else weights | {"weight_hr_l0": core.P}


@pytest.mark.parametrize("coupled", [False, True])
@pytest.mark.parametrize("projection", [None, 3])
def test_is_torch_lstm(projection, coupled, same, randomised, draw):
    core = randomised(LSTM(3, 5, projection=projection, coupled=coupled))
    x, h, c = draw(0, 2, 6, 3), draw(1, 2, projection or 5), draw(2, 2, 5)
    y, last = core.scan(x, LSTMState(h, c))
    lstm = nn.LSTM(3, 5, proj_size=projection or 0, batch_first=True).double()
    y2, (h2, c2) = functional_call(lstm, theirs(core), (x, (h[None], c[None])))
    inputs = {"x": x, "h": h, "c": c, **dict(core.named_parameters())}
    same([y, last.h, last.c], [y2, h2[0], c2[0]], inputs)


def test_ragged_rows_are_packed_rows(same, randomised, draw):
    core = randomised(LSTM(3, 5))
    x, h, c, lengths = draw(0, 3, 6, 3), draw(1, 3, 5), draw(2, 3, 5), torch.tensor([2, 6, 4])
    y, last = core.scan(x, LSTMState(h, c), lengths=lengths)
    packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    lstm = nn.LSTM(3, 5, batch_first=True).double()
    out, (h2, c2) = functional_call(lstm, theirs(core), (packed, (h[None], c[None])))
    y2, _ = pad_packed_sequence(out, batch_first=True)
    same([y, last.h, last.c], [y2, h2[0], c2[0]], {"x": x, "h": h, "c": c, **dict(core.named_parameters())})


def test_step_is_torch_lstm_cell(same, randomised, draw):
    core = randomised(LSTM(3, 5))
    x, h, c = draw(0, 2, 3), draw(1, 2, 5), draw(2, 2, 5)
    y, last = core.step(x, LSTMState(h, c))
    weights = {name.removesuffix("_l0"): w for name, w in theirs(core).items()}
    h2, c2 = functional_call(nn.LSTMCell(3, 5).double(), weights, (x, (h, c)))
    same([y, last.c], [h2, c2], {"x": x, "h": h, "c": c})


def transcribed(core: LSTM, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The equations on top of lstm.py, literally: no library has these options together."""
    hs = []
    for t in range(x.shape[1]):
        Wh, Ux = h @ core.W.T, x[:, t] @ core.U.T
        if core.layer_norm:
            Wh = core.gain_W * F.layer_norm(Wh, Wh.shape[1:])
            Ux = core.gain_U * F.layer_norm(Ux, Ux.shape[1:])
        v = dict(zip(core.letters, (Wh + Ux + core.b).chunk(len(core.letters), 1), strict=True))
        p = dict(zip(core.letters.replace("g", ""), core.p, strict=True)) if core.peephole else {}
        i = torch.sigmoid(v["i"] + p.get("i", 0) * c)
        f = 1 - i if core.coupled else torch.sigmoid(v["f"] + p.get("f", 0) * c)
        g = torch.tanh(v["g"]) if core.candidate == "tanh" else torch.sigmoid(v["g"])
        c = f * c + i * g
        o = torch.sigmoid(v["o"] + p.get("o", 0) * c)
        h = o * torch.tanh(core.gain_c * F.layer_norm(c, c.shape[1:]) + core.b_c if core.layer_norm else c)
        h = h if core.P is None else h @ core.P.T
        hs.append(h)
    return torch.stack(hs, 1), h, c


@pytest.mark.parametrize(
    ("peephole", "coupled", "projection", "layer_norm", "candidate"),
    list(itertools.product([False, True], [False, True], [None, 3], [False, True], ["tanh", "logistic"])),
)
def test_every_combination_is_its_equations(
    peephole, coupled, projection, layer_norm, candidate, same, randomised, draw
):
    options = {"peephole": peephole, "coupled": coupled, "layer_norm": layer_norm}
    core = randomised(LSTM(3, 5, projection=projection, candidate=candidate, **options))
    x, h, c = draw(0, 2, 4, 3), draw(1, 2, projection or 5), draw(2, 2, 5)
    y, last = core.scan(x, LSTMState(h, c))
    inputs = {"x": x, "h": h, "c": c, **dict(core.named_parameters())}
    same([y, *last], transcribed(core, x, h, c), inputs)


def test_layer_norm_ignores_the_scale_of_the_input(randomised, draw):
    core = randomised(LSTM(8, 5, layer_norm=True))
    x = draw(0, 2, 6, 8)
    torch.testing.assert_close(core.scan(1e3 * x)[0], core.scan(2e3 * x)[0], rtol=1e-6, atol=1e-6)


def test_starts_orthogonal_by_gate_and_remembering(orthogonal):
    core = LSTM(3, 8)
    orthogonal(core.W, gates=4)
    assert core.b.tolist() == [0.0] * 8 + [1.0] * 8 + [0.0] * 16
    assert LSTM(3, 2, forget_bias=2.5).b.tolist() == [0, 0, 2.5, 2.5, 0, 0, 0, 0]
    orthogonal(LSTM(3, 8, projection=4).P)


def test_coupled_gates_start_with_the_same_forgetting():
    """f = 1 - s(b_i) = s(1)."""
    assert LSTM(3, 2, coupled=True).b.tolist() == [-1, -1, 0, 0, 0, 0]


@pytest.mark.parametrize("coupled", [False, True])
def test_chrono_spreads_memory_evenly_up_to_t_max(coupled):
    """f = s(b_f) forgets at the rate 1 / (1 + exp(b_f)), so exp(b_f) + 1 is the time that a cell remembers."""
    torch.manual_seed(0)
    core = LSTM(2, 400, t_max=50.0, coupled=coupled)
    parts = dict(zip(core.letters, core.b.detach().chunk(len(core.letters)), strict=True))
    times = 1 / torch.sigmoid(parts["i"])
    assert times.min() >= 2 - 1e-4 and times.max() <= 50 + 1e-3
    assert times.min() < 3 and times.max() > 49 and abs(times.mean() - 26) < 3
    assert parts["g"].count_nonzero() == parts["o"].count_nonzero() == 0
    if not coupled:
        assert torch.equal(parts["f"], -parts["i"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"candidate": "relu"}, "candidate is 'relu'; it must be one of 'tanh', 'logistic'"),
        ({"projection": 0}, "projection is 0; it must be a whole number of at least 1"),
        ({"t_max": 1.0}, "t_max is 1.0; it must be a number from 2"),
        ({"t_max": 20.0, "forget_bias": 2.0}, "t_max is 20 and forget_bias 2; both set the bias"),
        ({"peephole": 1}, "peephole is 1; it must be True or False"),
        ({"forget_bias": float("nan")}, "forget_bias is nan"),
    ],
)
def test_options_outside_their_range(options, message):
    with pytest.raises(InputError, match=message):
        LSTM(3, 4, **options)


def test_layer_norm_of_one_cell_is_refused():
    with pytest.raises(InputError, match="layer_norm with size 1"):
        LSTM(3, 1, layer_norm=True)
    with pytest.raises(InputError, match="size is 0"):
        LSTM(3, 0, projection=2)

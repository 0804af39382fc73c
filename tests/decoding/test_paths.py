"""Paths that a model draws: the same bits however many are drawn in one native call."""

import pytest
import torch
from torch import nn

import elman
from elman import kernels
from elman.decoding import paths
from elman.errors import InputError
from elman.model import SequenceModel
from elman.nn.readout import StudentTReadout
from elman.progress import cancellable

B, S, H, D = 3, 5, 4, 2


@pytest.fixture
def drawing():
    torch.manual_seed(0)
    model = SequenceModel(nn.Identity(), elman.cell("gru", D, 6), StudentTReadout(6, 1))
    _, state = model.core.scan(torch.randn(B, 7, D))
    draws = torch.stack([torch.arange(B * S), torch.full((B * S,), 2)], 1)
    x = torch.randn(B, H, D)
    return lambda: paths.draw_paths(model.eval(), state, x, draws)


@pytest.mark.skipif(kernels.active() != "native", reason="the reference has no native paths")
@pytest.mark.parametrize("most", [1, H, 2 * H, S * H, S * H + 1, 2 * S * H])
def test_paths_do_not_depend_on_how_many_are_drawn_in_a_call(drawing, monkeypatch, most):
    whole = drawing()
    assert whole.shape == (B * S, H, 1) and len(whole.unique()) > B * S
    monkeypatch.setattr(paths, "NUMBERS", most)
    calls = []
    with cancellable(lambda: calls.append(1)):
        assert torch.equal(drawing(), whole)
    assert len(calls) == {1: B * S, H: B * S, 2 * H: B * 3, S * H: B, S * H + 1: B, 2 * S * H: 2}[most]


@pytest.mark.parametrize(("rows", "steps"), [(0, H), (B, 0)])
def test_nothing_to_draw_is_refused(rows, steps):
    model = SequenceModel(nn.Identity(), elman.cell("gru", D, 6), StudentTReadout(6, 1)).eval()
    draws = torch.zeros(rows * S, 2, dtype=torch.int64)
    with pytest.raises(InputError, match="at least one row and one step"):
        paths.draw_paths(model, model.init_state(rows), torch.zeros(rows, steps, D), draws)


def test_drawing_can_be_left(drawing, monkeypatch):
    monkeypatch.setattr(paths, "NUMBERS", H)

    def leave():
        raise TimeoutError

    with cancellable(leave), pytest.raises(TimeoutError):
        drawing()

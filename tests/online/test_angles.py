"""The angle between online gradients and true ones."""

from __future__ import annotations

import pytest
import torch

import elman
from elman.errors import InputError
from elman.nn.readout import GaussianReadout
from elman.online import angles


def test_what_a_rule_leaves_out_shows_as_an_angle_that_grows_with_the_past() -> None:
    torch.manual_seed(0)
    core = elman.stack("mingru", 2, 4, layers=2)
    model = elman.SequenceModel(torch.nn.Identity(), core, GaussianReadout(4, 1)).double()
    x, y = torch.randn(6, 8, 2, dtype=torch.float64), torch.randn(6, 8, 1, dtype=torch.float64)
    exact = angles(model, x, y, rule="rtrl", steps=[1, 8])
    assert all(angle.degrees < 1e-6 for angle in exact)
    spatial = {(angle.layer, angle.steps): angle.degrees for angle in angles(model, x, y, rule="spatial", steps=[1, 8])}
    assert spatial["core.cores.1", 8] < 1e-6 and spatial["readout.linear", 8] < 1e-6
    assert spatial["core.cores.0", 1] < 1e-6 < 1.0 < spatial["core.cores.0", 8] < 90.0


def test_steps_that_are_not_there_are_named() -> None:
    model = elman.SequenceModel(torch.nn.Identity(), elman.cell("mingru", 2, 2), GaussianReadout(2, 1))
    with pytest.raises(InputError, match="the sequences have 3"):
        angles(model, torch.zeros(1, 3, 2), torch.zeros(1, 3, 1), steps=[4])

"""A distribution that a user adds to forecasts is one class, its read-out and a line in READOUTS."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from elman import random
from elman.errors import InputError
from elman.kernels import softplus
from elman.nn.distributions import Numeric
from elman.nn.distributions.distribution import checked_levels
from elman.nn.readout import Affine
from elman.run import load, train
from elman.tasks.forecast.config import ForecastConfig
from elman.tasks.forecast.readout import READOUTS, Family


@dataclass(frozen=True)
class Laplace(Numeric):
    centre: Tensor
    scale: Tensor

    def log_prob(self, value):
        return (-(value - self.centre).abs() / self.scale - (2 * self.scale).log()).sum(-1)

    def sample(self, draws):
        u = random.uniform(draws, self.centre.shape[-1]) - 0.5
        return (self.centre - self.scale * u.sign() * (-2 * u.abs()).log1p()).to(self.centre.dtype)

    @property
    def mode(self):
        return self.centre

    mean = mode

    def quantile(self, levels):
        u = checked_levels(levels) - 0.5
        return self.centre[..., None] - self.scale[..., None] * u.sign() * (-2 * u.abs()).log1p()

    def rescaled(self, shift, scale):
        return Laplace(shift + scale * self.centre, scale * self.scale)


class LaplaceReadout(Affine[Laplace]):
    def __init__(self, input_size, size, *, dropout=0.0):
        super().__init__(input_size, 2 * size, dropout=dropout)

    def distribution(self, values):
        centre, width = values.chunk(2, -1)
        return Laplace(centre, softplus(width) + 1e-3)


def test_a_distribution_of_ones_own_is_one_class_and_its_readout(tmp_path, monkeypatch):
    """It is trained, with values that are missing, scored, saved, loaded and forecast with."""
    monkeypatch.setitem(READOUTS, "laplace", Family(LaplaceReadout, "numbers"))
    values = [[f"{5 * np.sin(t / 2) + c:.3f}" if (t + c) % 7 else "" for t in range(90)] for c in range(2)]
    rows = {"ds": [str(t) for t in range(90)], "a": values[0], "b": values[1]}
    settings = {
        "data": {"horizon": 4, "samples": 20, "target": ["a", "b"], "seasonality": 1},
        "model": {"size": 8, "readout": "laplace", "feedback": "sample"}, "training": {"steps": 30},
    }  # fmt: skip
    forecaster, lines = train(ForecastConfig(**settings, out=str(tmp_path / "run")), {"train": rows})
    assert [np.isfinite(line["valid"]) for line in lines if "valid" in line] == [True]
    predicted = forecaster.one_ahead(forecaster.state)
    assert isinstance(predicted, Laplace)
    found = forecaster.forecast(forecaster.state, 3, quantiles=[0.25, 0.75], samples=20)
    exact = predicted.centre[0] + predicted.scale[0] * np.log(2) * torch.tensor([[-1.0], [1.0]])  # by its definition
    np.testing.assert_allclose(found.quantiles[0, 0].T, exact, rtol=1e-5)
    again = load(tmp_path / "run")
    assert np.array_equal(again.forecast(again.state, 3, samples=20).paths, found.paths)


@pytest.mark.parametrize(("readout", "value"), [("poisson", 1.5), ("bernoulli", 2.0), ("categorical", 3.0)])
def test_a_value_that_a_readout_cannot_predict_is_named(tmp_path, readout, value):
    rows = {"ds": [str(t) for t in range(40)], "y": [str(float(t % 2)) for t in range(39)] + [str(value)]}
    settings = {"data": {"horizon": 2}, "model": {"readout": readout, "classes": 3 * (readout == "categorical")}}
    with pytest.raises(InputError, match=f"has the value {value:g}, and model.readout is {readout}"):
        train(ForecastConfig(**settings, out=str(tmp_path / "run")), {"train": rows})

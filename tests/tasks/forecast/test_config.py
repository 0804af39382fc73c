"""What a config leaves open is chosen by the data, and is no worse than the naive forecast; what it names stays."""

from dataclasses import replace

import numpy as np
import pytest

import elman
from elman.tasks.forecast.config import ForecastConfig, ForecastDataConfig, ForecastModelConfig
from elman.tasks.forecast.task import ForecastTask
from elman.training.loop import TrainingConfig
from elman.training.optim import OptimConfig

# Monthly passengers of airlines, in thousands, 1949 to 1960 (Box and Jenkins 1976, series G).
PASSENGERS = [
    112, 118, 132, 129, 121, 135, 148, 148, 136, 119, 104, 118, 115, 126, 141, 135, 125, 149,
    170, 170, 158, 133, 114, 140, 145, 150, 178, 163, 172, 178, 199, 199, 184, 162, 146, 166,
    171, 180, 193, 181, 183, 218, 230, 242, 209, 191, 172, 194, 196, 196, 236, 235, 229, 243,
    264, 272, 237, 211, 180, 201, 204, 188, 235, 227, 234, 264, 302, 293, 259, 229, 203, 229,
    242, 233, 267, 269, 270, 315, 364, 347, 312, 274, 237, 278, 284, 277, 317, 313, 318, 374,
    413, 405, 355, 306, 271, 306, 315, 301, 356, 348, 355, 422, 465, 467, 404, 347, 305, 336,
    340, 318, 362, 348, 363, 435, 491, 505, 404, 359, 310, 337, 360, 342, 406, 396, 420, 472,
    548, 559, 463, 407, 362, 405, 417, 391, 419, 461, 472, 535, 622, 606, 508, 461, 390, 432,
]  # fmt: skip


def passengers():
    return {
        "ds": [f"{1949 + t // 12}-{t % 12 + 1:02d}-01" for t in range(144)],
        "y": [str(value) for value in PASSENGERS],
    }


def opened(data, config):
    return ForecastTask().open_in_memory(config, None, {"train": data}).config


@pytest.mark.slow
def test_passengers_are_no_worse_than_naive(tmp_path):
    """In fewer steps than a run has by default."""
    settings = {"data": {"horizon": 12, "test_windows": 2}, "training": {"steps": 200}, "out": str(tmp_path / "run")}
    model, history = elman.train(ForecastConfig(**settings), {"train": passengers()})
    assert model.seasonality == 12 and model.config.residual == "seasonal" and model.config.lags == [1, 2, 12, 13]
    assert history[-1]["mase"] <= history[-1]["naive_mase"] and "test" in history[-1]


def test_what_is_open_is_chosen():
    config = opened(passengers(), ForecastConfig(data=ForecastDataConfig(horizon=6)))
    assert (config.data.seasonality, config.data.valid_windows, config.data.segment) == (12, 4, 0)
    g = np.random.default_rng(0)
    walk = {"ds": [str(t) for t in range(3000)], "y": np.cumsum(g.normal(size=3000)).tolist()}
    config = opened(walk, ForecastConfig(data=ForecastDataConfig(horizon=10)))
    assert config.data.seasonality == 1 and config.model.residual == "last" and config.model.lags == [1, 2]
    assert config.data.valid_windows == 20 and config.data.segment == 256 and config.data.warmup == 64
    hours = {"ds": [str(np.datetime64("2024-01-01T00") + t) for t in range(900)]}
    daily, noise = g.normal(size=24)[np.arange(900) % 24], 0.1 * g.normal(size=900)
    weekly = daily * np.array([1, 1, 1, 1, 1, 0.2, 0.2])[np.arange(900) // 24 % 7]
    hours["y"] = (10 + daily + noise).tolist()
    assert opened(hours, ForecastConfig()).model.lags == [1, 2, 24, 25]
    hours["y"] = (10 + weekly + noise).tolist()
    assert opened(hours, ForecastConfig()).model.lags == [1, 2, 24, 25, 168, 169]
    counts = ForecastConfig(model=ForecastModelConfig(readout="poisson"))
    assert opened({**passengers()}, counts).model.residual == "none"


@pytest.mark.parametrize("kind", ["network", "linear"])
def test_what_is_named_stays(kind):
    data = ForecastDataConfig(horizon=6, seasonality=1, valid_windows=1, segment=0)
    model = ForecastModelConfig(kind=kind, residual="none", size=64, readout_dropout=0.0)
    config = ForecastConfig(data=data, model=model, optim=OptimConfig(), training=TrainingConfig())
    found = opened(passengers(), config)
    assert found == config and found.model.lags == [] and found.training.average == 1 and found.optim.lr == 0.002
    assert replace(config, training={"steps": 5}).training.average == 5  # what is not named is by default

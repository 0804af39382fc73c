"""Panels of series for the tests of forecasting."""

from dataclasses import replace
from itertools import pairwise

import numpy as np

from elman.tasks.forecast.config import ForecastConfig, ForecastDataConfig, ForecastModelConfig
from elman.tasks.forecast.data import Series
from elman.training.loop import TrainingConfig
from elman.training.optim import OptimConfig

SEASON = 4


def values(name, n, start=0):
    """A season, a level and some noise; each series has its own size."""
    g = np.random.default_rng([len(name), ord(name[-1])])
    size = 10.0 ** (ord(name[-1]) % 4)
    wave = np.array([1.0, 3.0, 2.0, 5.0])[np.arange(start + n) % SEASON]
    return (size * (wave + 0.1 * g.normal(size=start + n)))[start:]


def write(path, lengths, start=0, extra=None):
    """Series as long rows; `extra` has functions of name and time by column."""
    extra = extra or {}
    rows = ["unique_id,ds,y" + "".join(f",{name}" for name in extra)]
    for name, n in lengths.items():
        for t, y in zip(range(start, start + n), values(name, n, start), strict=True):
            stamp = np.datetime64("2024-01-01T00") + np.timedelta64(t, "h")
            more = "".join(f",{f(name, t)}" for f in extra.values())
            rows.append(f'"{name}",{str(stamp).replace("T", " ")}:00,{y:.6g}{more}')
    path.write_text("\n".join(rows) + "\n")
    return str(path)


LENGTHS = {"a": 60, "b": 44, "c": 90, "series, d": 31}


def config_in(folder, **changes):
    data = {"train": write(folder / "train.csv", LENGTHS), "horizon": 5, "seasonality": SEASON, "samples": 20}
    data |= {"batch_size": 2, "window": 12}
    model = {"size": 6, "residual": "seasonal", "readout": "gaussian", "readout_dropout": 0.0}
    config = ForecastConfig(
        data=ForecastDataConfig(**{**data, **changes.pop("data", {})}),
        model=ForecastModelConfig(**{**model, **changes.pop("model", {})}),
        optim=OptimConfig(lr=0.01, warmup=2),
        training=TrainingConfig(**{"steps": 12, "log_every": 2, "evaluate_every": 5, **changes.pop("training", {})}),
        out=str(folder / "run"),
    )
    return replace(config, **changes)


def cut(series, *places):
    return [[one.cut(a, b) for one in series] for a, b in pairwise(places)]


def panel(names="xyz", n=30, past=0):
    g = np.random.default_rng(1)
    return [
        Series(name, 5, values(name, n)[:, None], g.normal(size=(n, past)), np.zeros((n, 0)), np.zeros(0))
        for name in names
    ]


def driven(folder, n=400, name="driven.csv", seed=0):
    """y[t] follows a load of the hour before, and a switch that is known ahead."""
    g = np.random.default_rng(seed)
    load, switch = g.normal(size=n), g.integers(0, 2, n)
    y = 50 + 3 * np.concatenate([[0], load[:-1]]) + 8 * switch + 0.1 * g.normal(size=n)
    rows = [f"{t},{y[t]:.5f},{load[t]:.5f},{'on' if switch[t] else 'off'}" for t in range(n)]
    (folder / name).write_text("ds,y,load,switch\n" + "\n".join(rows) + "\n")
    return str(folder / name)

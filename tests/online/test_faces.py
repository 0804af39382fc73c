"""The faces against river's own checks, and against what can be said of simple streams."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import pytest
import torch

from elman.errors import InputError
from elman.online import Classifier, Forecaster, Regressor, Standardise

base = pytest.importorskip("river.base")
series = pytest.importorskip("river.time_series.base")
SLOW = {"check_bounded_memory_growth"}  # it counts the bytes of thousands of rows


def checks(model: object) -> list:
    from river import checks as of_river

    return [check for check in of_river.yield_checks(model) if check.__name__ not in SLOW]  # type: ignore[arg-type]


class RiverRegressor(Regressor, base.Regressor):
    """What a user of river's pipelines writes."""


class RiverClassifier(Classifier, base.Classifier):
    """The same of a classifier; with two labels river checks it on two streams instead of three."""

    _multiclass = False


class RiverForecaster(Forecaster, series.Forecaster):
    """And of a forecaster."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", [RiverRegressor, RiverClassifier, RiverForecaster])
def test_rivers_checks(kind) -> None:
    model = kind(size=4)
    for check in checks(model):
        check(model.clone())


def test_a_forecast_is_the_last_season_and_its_drift_before_anything_is_learned() -> None:
    """By hand: a season of 2 that rises by 4 each time."""
    model = Forecaster(size=2, season=2, lr=0.0)
    for value in (1.0, 10.0, 5.0, 14.0, 9.0, 18.0):
        model.learn_one(value)
    assert model.forecast(4) == pytest.approx([13.0, 22.0, 17.0, 26.0])


@pytest.mark.slow
def test_a_recurrence_tells_what_no_function_of_the_row_can() -> None:
    """y[t] = x[t-1]: a function of the row can do no better than the mean, whose error is 1."""
    generator = torch.Generator().manual_seed(0)
    x = (torch.rand(1500, generator=generator) < 0.5).double() * 2 - 1
    model, errors = Regressor(size=16, lr=0.01), []
    for t in range(1, len(x)):
        y = float(x[t - 1])
        errors.append(abs(y - model.predict_one({"x": float(x[t])})))
        model.learn_one({"x": float(x[t])}, y)
    assert sum(errors[:100]) / 100 > 0.8 and sum(errors[-200:]) / 200 < 0.4


def test_saved_and_loaded_it_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    rows = [({"a": math.sin(t), "b": t % 3}, "x" if t % 3 else "y") for t in range(40)]
    whole, half = Classifier(size=4), Classifier(size=4)
    for t, (x, y) in enumerate(rows):
        whole.learn_one(x, y)
        half.learn_one(x, y)
        if t == 20:
            half.save(tmp_path / "face")
            half = Classifier.load(tmp_path / "face")
    assert whole.predict_proba_one(rows[0][0]) == half.predict_proba_one(rows[0][0])
    assert copy.deepcopy(half).predict_proba_one(rows[1][0]) == whole.predict_proba_one(rows[1][0])


def test_a_text_among_the_features_is_refused_and_a_missing_number_is_not() -> None:
    model = Regressor(size=4)
    model.learn_one({"a": 1.0, "b": 2.0}, 3.0)
    assert math.isfinite(model.predict_one({"a": None}))
    with pytest.raises(InputError, match="'b' is 'two'; a learner takes numbers"):
        model.learn_one({"a": 1.0, "b": "two"}, 3.0)


def test_running_means_are_those_of_numpy_and_forget() -> None:
    x = torch.randn(1, 50, 2, dtype=torch.float64) * 3 + 7
    state = Standardise(2).scan(x)[1]
    torch.testing.assert_close(state.mean, x.mean(1))
    torch.testing.assert_close(state.variance, x.var(1, unbiased=False))
    jump = torch.cat([torch.zeros(1, 200, 1), torch.ones(1, 30, 1)], 1)
    assert Standardise(1, forget=0.9).scan(jump)[1].mean > 0.9 > 0.2 > Standardise(1).scan(jump)[1].mean

"""The faces against river's own checks, and against what can be said of simple streams."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import pytest
import torch

from elman import state as states
from elman.errors import InputError
from elman.online import Classifier, Forecaster, Regressor, Standardise
from elman.online.series import Bytes

base = pytest.importorskip("river.base")
series = pytest.importorskip("river.time_series.base")
LEFT_OUT = {
    "check_bounded_memory_growth",  # it counts the bytes of thousands of rows
    "check_predict_proba_one_binary",  # it wants True and False before the first row; labels are those that came
}


def checks(model: object) -> list:
    from river import checks as of_river

    return [check for check in of_river.yield_checks(model) if check.__name__ not in LEFT_OUT]  # type: ignore[arg-type]


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


def test_the_seed_is_that_of_the_first_weights() -> None:
    weights = []
    for seed in (0, 1, 1):
        model = Regressor(size=4, seed=seed)
        model.learn_one({"a": 1.0}, 1.0)
        weights.append(model.state.learner.weights)
    assert torch.equal(weights[1], weights[2]) and not torch.equal(weights[0], weights[1])


def test_features_and_target_follow_a_drift_where_they_forget() -> None:
    means = {}
    for forget in (0.9, 1.0):
        model = Regressor(size=2, forget=forget)
        for t in range(60):
            model.learn_one({"a": float(t >= 30)}, float(t >= 30))
        scales, *_ = states.leaves(model.state.learner.h)
        means[forget] = [float(scales), float(model.state.target.mean)]
    assert means[1.0] == [0.5, 0.5] and min(means[0.9]) > 0.9


def test_a_target_is_standardised_by_those_before_it() -> None:
    """By hand: of 0 and 2 the mean and the deviation are 1, so 10 is learned as 9."""
    model = Regressor(size=4)
    for y in (0.0, 2.0):
        model.learn_one({"a": y}, y)
    learner = model._learner.fork()
    learner.learn_one(torch.tensor([[5.0]]), torch.tensor([[9.0]]))
    model.learn_one({"a": 5.0}, 10.0)
    assert torch.equal(model.state.learner.weights, learner.state.weights)


def test_a_text_in_pieces_is_the_text_and_a_look_at_it_is_what_would_be_lost() -> None:
    whole, parts = Bytes(size=4, lr=0.05), Bytes(size=4, lr=0.05)
    whole.learn_one("ab é cd")
    for part in ("ab ", "", "é", " cd"):
        parts.learn_one(part)
    for one, other in zip(states.leaves(whole.state.learner), states.leaves(parts.state.learner), strict=True):
        assert torch.equal(one, other)
    still = Bytes(size=4, lr=0.0)
    still.learn_one("x")
    seen = still.predict_one("abc")
    assert still.predict_one("abc") == seen == pytest.approx(still.learn_one("abc"), abs=1e-6)


def test_what_is_missing_counts_for_nothing() -> None:
    """Neither in the running means nor, as a feature, beyond its mean."""
    there, missing = torch.tensor([[[1.0], [5.0], [3.0]]]), torch.tensor([[[1.0], [math.nan], [5.0], [3.0]]])
    y, state = Standardise(1, forget=0.9).scan(missing)
    assert all(map(torch.equal, state, Standardise(1, forget=0.9).scan(there)[1])) and y[0, 1] == 0
    model = Regressor(size=4)
    for t in range(20):
        model.learn_one({"a": 5.0 + t % 3, "b": float(t % 2)}, float(t % 5))
    mean = float(states.leaves(model.state.learner.h)[0][0, 0])
    for x in ({"b": 1.0}, {"a": None, "b": 1.0}, {"a": mean, "b": 1.0, "new": 7.0}):
        assert model.predict_one(x) == pytest.approx(model.predict_one({"a": mean, "b": 1.0}), abs=1e-6)


def test_a_label_too_many_is_refused_and_nothing_moves() -> None:
    model = Classifier(size=2, classes=2)
    for label in "aba":
        model.learn_one({"x": 1.0}, label)
    before = model.predict_proba_one({"x": 1.0})
    with pytest.raises(InputError, match="'c' is label number 3; build the Classifier with more `classes`"):
        model.learn_one({"x": 1.0}, "c")
    assert model.predict_proba_one({"x": 1.0}) == before and [*before] == ["a", "b"] and model.rows == 3


def test_a_forecast_reads_what_it_forecast() -> None:
    """By hand: each difference is the input of the next."""
    model = Forecaster(size=4, lr=0.05)
    for t in range(30):
        model.learn_one(math.sin(t))
    _, target, past, before = model._own
    state, value = model.state.learner, float(past[0, -1])
    for found in (made := model.forecast(4)):
        predicted, state = model._learner.follow(state, before)
        before = predicted.mode
        value += float(target.mean + target.variance.sqrt() * before)
        assert found == pytest.approx(value, abs=1e-6)
    assert model.forecast(4) == made


@pytest.mark.parametrize("value", [math.inf, -math.inf, 1e300])
def test_a_number_that_would_make_all_that_is_learned_nan_is_refused(value: float) -> None:
    model, series = Regressor(size=2), Forecaster(size=2)
    for t in range(3):
        model.learn_one({"a": float(t)}, float(t))
        series.learn_one(float(t))
    before = states.leaves(model.state), states.leaves(series.state)
    with pytest.raises(InputError, match=r"the feature 'a' is .*; it must be a number that float32 has"):
        model.learn_one({"a": value}, 1.0)
    for learn in (lambda: model.learn_one({"a": 1.0}, value), lambda: series.learn_one(value)):
        with pytest.raises(InputError, match=r"the target is .*; it must be a number"):
            learn()
    after = states.leaves(model.state), states.leaves(series.state)
    for old, new in zip(before, after, strict=True):
        assert all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(old, new, strict=True))


def test_nothing_is_learned_from_a_target_that_is_missing() -> None:
    model = Regressor(size=2)
    for t in range(3):
        model.learn_one({"a": float(t)}, float(t))
    before = states.leaves(model.state.learner)
    model.learn_one({"a": 1.0}, math.nan)
    assert all(map(torch.equal, before, states.leaves(model.state.learner))) and model.rows == 4

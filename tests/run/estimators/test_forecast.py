import numpy as np
import pandas as pd
import pytest
from sklearn import base

import elman
from elman.errors import InputError

HOURS = [f"2024-01-{1 + t // 24:02d} {t % 24:02d}:00" for t in range(240)]
LOAD = [100 + 40 * np.sin(t * np.pi / 12) + t % 7 for t in range(240)]
SMALL = {"horizon": 6, "seasonality": 24, "size": 6, "samples": 20, "steps": 6, "evaluate_every": 3, "random_state": 5}


def forecaster(**settings):
    return elman.SeriesForecaster(**{**SMALL, **settings})


@pytest.fixture(scope="module")
def fitted():
    return forecaster().fit({"ds": HOURS, "y": LOAD})


def test_it_is_the_forecaster_that_elman_train_gives_for_the_same_config_from_a_file(fitted, tmp_path):
    rows = "".join(f"{ds},{y!r}\n" for ds, y in zip(HOURS, map(float, LOAD), strict=True))
    (tmp_path / "series.csv").write_text("ds,y\n" + rows)
    config = elman.ForecastConfig(
        data={"train": str(tmp_path / "series.csv"), "horizon": 6, "seasonality": 24, "samples": 20},
        model={"size": 6},
        training={"steps": 6, "evaluate_every": 3},
        seed=5,
    )
    model, _ = elman.train(config, out=tmp_path / "run", progress=False)
    found = model.forecast(model.state, 9, samples=20)
    assert fitted.predict(9).shape == (1, 9) and fitted.predict_quantiles(9).shape == (1, 9, 3)
    np.testing.assert_array_equal(fitted.predict(9), found.mean[..., 0])
    np.testing.assert_array_equal(fitted.predict_quantiles(9), found.quantiles[..., 0, :])
    assert (np.diff(fitted.predict_quantiles(), axis=-1) >= 0).all() and fitted.predict().shape == (1, 6)


def test_frames_mappings_and_numbers(fitted):
    frame = pd.DataFrame({"unique_id": ["a"] * 240 + ["b"] * 240, "ds": HOURS * 2, "y": [*LOAD, *LOAD[::-1]]})
    two = forecaster(kind="seasonal_naive").fit(frame)
    assert two.names == ["a", "b"]
    # A naive forecast is last season's values.
    np.testing.assert_allclose(two.predict_quantiles(6, [0.5])[..., 0], [LOAD[-24:-18], LOAD[23:17:-1]], rtol=0.2)
    one = forecaster(kind="seasonal_naive").fit(LOAD)
    np.testing.assert_array_equal(one.predict_quantiles(6), forecaster(kind="seasonal_naive").fit({
        "ds": [*range(240)], "y": LOAD}).predict_quantiles(6))  # fmt: skip
    assert one.names == ["series"] and fitted.names == ["series"]


def test_clones_are_not_fitted(fitted):
    copy = base.clone(fitted)
    assert copy.get_params() == fitted.get_params() and not hasattr(copy, "model_")
    with pytest.raises(InputError, match="this SeriesForecaster is not fitted yet"):
        copy.names  # noqa: B018


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ([[1.0, 2.0]], r"y is float64\[1, 2\]; it must be the numbers \(T,\) of one series"),
        (["a", "b"], "it must be the numbers"),
        ({"ds": HOURS}, "no column 'y'"),
    ],
)
def test_what_is_wrong_is_said(y, message):
    with pytest.raises(InputError, match=message):
        forecaster().fit(y)

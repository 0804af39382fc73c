"""The numbers of forecasts against libraries nobody here wrote, and by hand."""

import numpy as np
import pytest
import scoringrules

from elman.tasks.forecast.metrics import LEVELS, ForecastErrors, crps, measure


def test_crps_is_scoringrules():
    g = np.random.default_rng(0)
    y, paths = g.normal(size=(7, 3, 2)), g.normal(1, 2, size=(7, 50, 3, 2))
    wanted = scoringrules.crps_ensemble(y, np.moveaxis(paths, 1, -1), estimator="nrg")
    np.testing.assert_allclose(crps(y, paths), wanted, rtol=1e-10)


def test_all_of_them_by_hand():
    """Two series, two steps. Medians 2, 4 and 10, 10; truths 1, 4 and 14, missing; seasonal errors 2 and 4."""
    truth = np.array([[[1.0], [4.0]], [[14.0], [np.nan]]])
    median = np.array([[[2.0], [4.0]], [[10.0], [10.0]]])
    steps = np.array(LEVELS) - 0.5
    quantiles = median[..., None] + 10 * steps  # from median - 4 to median + 4
    naive = np.array([[[3.0], [4.0]], [[8.0], [9.0]]])
    found = measure(ForecastErrors(truth, median[:, None], quantiles, np.array([2.0, 4.0]), naive))
    assert found["mase"] == pytest.approx(((1 + 0) / 2 / 2 + 4 / 4) / 2)
    assert found["smape"] == pytest.approx((2 * 1 / 3 + 0 + 2 * 4 / 24) / 3)
    assert found["nd"] == pytest.approx((1 + 0 + 4) / (1 + 4 + 14))
    assert found["coverage"] == 1.0
    assert found["naive_mase"] == pytest.approx(((2 + 0) / 2 / 2 + 6 / 4) / 2)
    assert found["naive_nd"] == pytest.approx((2 + 0 + 6) / (1 + 4 + 14))
    assert found["crps"] == pytest.approx((1 + 0 + 4) / 3)  # of one path it is the absolute error
    total = sum(
        scoringrules.quantile_score(y, q, p)
        for y, row in ((1.0, quantiles[0, 0, 0]), (4.0, quantiles[0, 1, 0]), (14.0, quantiles[1, 0, 0]))
        for q, p in zip(row, LEVELS, strict=True)
    )
    assert found["wql"] == pytest.approx(2 * total / 9 / 19)


def test_a_window_without_a_truth_is_no_window_without_an_error():
    truth, naive = np.array([[[1.0]], [[np.nan]]]), np.array([[[4.0]], [[4.0]]])
    quantiles = np.full((2, 1, 1, len(LEVELS)), 3.0)
    found = measure(ForecastErrors(truth, np.full((2, 1, 1, 1), 3.0), quantiles, np.array([2.0, 2.0]), naive))
    assert found["mase"] == 1.0 and found["naive_mase"] == 1.5


def test_what_is_not_defined_is_nan():
    nothing = np.zeros((1, 1, 1))
    found = measure(ForecastErrors(nothing, nothing[:, None], np.zeros((1, 1, 1, 9)), np.array([np.nan]), nothing))
    assert np.isnan(found["mase"]) and np.isnan(found["nd"]) and found["smape"] == 0

"""The season of a panel, of its frequency or of its values."""

import numpy as np
import pytest

from elman.tasks.forecast.calendar import Frequency, find
from elman.tasks.forecast.data import Series
from elman.tasks.forecast.season import find_season


def panel(*columns):
    return [
        Series(str(i), 0, np.asarray(y, float)[:, None], np.zeros((len(y), 0)), np.zeros((len(y), 0)), np.zeros(0))
        for i, y in enumerate(columns)
    ]


def wave(season, rows, seed=0, noise=0.1):
    g = np.random.default_rng(seed)
    return 5 + g.normal(size=season)[np.arange(rows) % season] + noise * g.normal(size=rows) + 0.01 * np.arange(rows)


@pytest.mark.parametrize("season", [2, 4, 7, 12, 24, 52, 168])
def test_what_values_repeat_after_is_found(season):
    assert find_season(Frequency(), panel(*(wave(season, 6 * season + 20, seed) for seed in range(5)))) == season


def test_of_a_day_and_a_week_the_day_is_found():
    days = wave(24, 1200) + 0.3 * wave(168, 1200, 1)
    assert find_season(Frequency(), panel(days)) == 24


def test_what_does_not_repeat_has_no_season():
    g = np.random.default_rng(0)
    walks = np.cumsum(g.normal(size=(20, 300)), 1)
    assert find_season(Frequency(), panel(*walks)) == 1
    assert find_season(Frequency(), panel(np.arange(200.0), np.arange(200.0) ** 2)) == 1
    assert find_season(Frequency(), panel(np.ones(100), np.ones(3), np.full(50, np.nan))) == 1


@pytest.mark.parametrize(
    ("times", "season"),
    [("2024-01-01 00:00,2024-01-01 01:00", 24), ("2024-01-01 00:00,2024-01-01 00:30", 48), ("2024-01-01,2024-01-02", 7),
     ("2024-01-01,2024-01-08", 52), ("2024-01-31,2024-02-29", 12), ("2024-01-01,2024-04-01", 4)],
)  # fmt: skip
def test_a_usual_season_is_taken_where_the_values_have_it(times, season):
    frequency = find({"a": times.split(",")})
    rows = 8 * season
    assert find_season(frequency, panel(wave(season, rows, noise=0.4))) == season
    assert find_season(frequency, panel(np.cumsum(np.random.default_rng(3).normal(size=rows)))) == 1


def test_rows_that_are_judged_and_values_that_are_missing_do_not_matter():
    y = wave(12, 200)
    y[::17] = np.nan
    late = np.concatenate([y, 9 * wave(7, 200)])
    assert find_season(Frequency(), panel(late), last=200) == 12
    assert find_season(Frequency(), panel(late)) == 7

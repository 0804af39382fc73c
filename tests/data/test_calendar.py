"""Frequencies are found, checked and counted on, against pandas."""

import numpy as np
import pandas as pd
import pytest

from elman.data.calendar import find
from elman.errors import InputError

FREQUENCIES = {
    "s": "s", "15min": "15min", "h": "h", "D": "D", "W": "W-WED", "2W": "14D", "M": "ME", "Q": "QS", "Y": "YE",
}  # fmt: skip


@pytest.mark.parametrize("name", FREQUENCIES)
def test_a_frequency_is_found_and_goes_on_as_pandas_has_it(name):
    dates = pd.date_range("2023-11-20", periods=40, freq=FREQUENCIES[name])
    times = [str(date) for date in dates]
    found = find({"a": times[:30], "b": times[7:20]})
    assert str(found) == name and find({"a": times[:3]}, name).every == found.every
    ticks = found.ticks("a", times[:30])
    assert (np.diff(ticks) == 1).all()
    assert list(pd.to_datetime(found.stamps(ticks[-1] + 1 + np.arange(10)))) == list(dates[30:])


def test_the_commonest_distance_wins_and_gaps_stay_on_the_grid():
    found = find({"a": ["1", "3", "5", "9"]})
    assert str(found) == "2" and found.ticks("a", ["1", "9"]).tolist() == [0, 4]


def test_the_calendar_is_pandas():
    dates = pd.date_range("2024-02-28 22:00", periods=60, freq="h")
    found = find({"a": [str(date) for date in dates]})
    features = found.features(found.ticks("a", [str(date) for date in dates]))
    for column, turn in ((0, dates.hour / 24), (2, dates.day_of_week / 7), (4, (dates.day_of_year - 1) / 365.25)):
        np.testing.assert_allclose(features[:, column], np.sin(2 * np.pi * turn), atol=1e-6)
        np.testing.assert_allclose(features[:, column + 1], np.cos(2 * np.pi * turn), atol=1e-6)


BAD = {
    "off the grid": (["2024-01-01", "2024-01-02", "2024-01-03 05:00"], "D", "2024-01-03 05:00"),
    "no month end": (["2024-01-31", "2024-02-28", "2024-03-31"], "M", "does not fit the frequency M"),
    "no time": (["2024-01-01", "yesterday"], "auto", "'yesterday'"),
    "no distance": (["2024-01-01"], "auto", "no series has two times"),
    "a word": (["1", "2"], "monthly", "data.frequency is 'monthly'"),
    "zero": (["1", "2"], "0", "data.frequency is '0'"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_times_are_named(name):
    times, given, message = BAD[name]
    with pytest.raises(InputError, match=message):
        find({"a": times}, given).ticks("a", times)


def test_numbers_and_dates_do_not_mix():
    with pytest.raises(InputError, match="all need the same"):
        find({"a": ["1", "2"], "b": ["2024-01-01", "2024-01-02"]})
    with pytest.raises(InputError, match="not whole numbers"):
        find({"a": ["1", "2"]}).ticks("b", ["2024-01-01"])

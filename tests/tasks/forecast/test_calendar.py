"""Frequencies are found, checked and counted on, against pandas."""

import numpy as np
import pandas as pd
import pytest

from elman.errors import InputError
from elman.tasks.forecast.calendar import find

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


@pytest.mark.parametrize("day", [28, 29, 30, 31])
@pytest.mark.parametrize("months", [1, 3])
def test_a_day_that_some_months_do_not_have_is_their_last(day, months):
    wanted = pd.Timestamp(2023, 3, day) + np.array([pd.DateOffset(months=months * i) for i in range(30)])
    times = [str(date.date()) for date in wanted]
    found = find({"a": times[:20], "b": times[:1] * 2})
    assert str(found) == ("M" if months == 1 else "Q")
    ticks = found.ticks("a", times)
    assert (np.diff(ticks) == 1).all() and found.stamps(ticks) == times
    with pytest.raises(InputError, match="does not fit"):
        found.ticks("a", ["2024-09-15"])


PHASES = {  # what is between rows, and where the first stands
    "2h": ("2024-01-01 03:20", "2h"), "3D": ("2024-01-03 07:00", "3D"), "W": ("2024-01-04", "W-THU"),
    "M": ("2024-01-31 06:30", "ME"), "Q": ("2024-02-01", "QS-FEB"), "2B": ("2024-01-04 16:30", "2B"),
}  # fmt: skip


@pytest.mark.parametrize("name", PHASES)
def test_phase_and_clock_are_those_of_the_first_time(name):
    first, freq = PHASES[name]
    dates = pd.date_range(first, periods=30, freq=freq)
    times = [str(date) for date in dates]
    found = find({"a": times[:20]}, name)
    ticks = found.ticks("a", times[:20])
    assert (np.diff(ticks) == 1).all()
    assert list(pd.to_datetime(found.stamps(ticks[-1] + 1 + np.arange(10)))) == list(dates[20:])
    np.testing.assert_array_equal(found.seconds(ticks), dates[:20].as_unit("s").asi8)
    for late in ("10min", "1h" if name == "2h" else "1D"):
        with pytest.raises(InputError, match="does not fit"):
            found.ticks("a", [str(dates[5] + pd.Timedelta(late))])


def test_business_days():
    dates = pd.bdate_range("2024-03-20", periods=60)
    times = [str(date.date()) for date in dates]
    found = find({"a": times[:40], "b": times[3:9]})
    ticks = found.ticks("a", times)
    assert str(found) == "B" and (np.diff(ticks) == 1).all() and found.stamps(ticks) == times
    assert str(find({"a": times}, gaps="fill")) == "D"  # then the weekends are filled in, as ever
    assert str(find({"a": [*times, "2024-06-01"]})) == "D"  # a Saturday
    with pytest.raises(InputError, match="2024-03-23"):
        found.ticks("a", ["2024-03-22", "2024-03-23"])
    features = found.features(ticks)
    np.testing.assert_allclose(features[:, 0], np.sin(2 * np.pi * dates.day_of_week / 7), atol=1e-6)


@pytest.mark.parametrize("zone", ["+02:00", "-03:30", "Z", "+0530"])
def test_an_offset_is_kept(zone):
    times = [f"2024-06-{1 + h // 24:02d}T{h % 24:02d}:00:00{zone}" for h in range(50)]
    found = find({"a": times[:24]})
    ticks = found.ticks("a", times)
    written = found.stamps(ticks)
    assert list(pd.to_datetime(written, utc=True)) == list(pd.to_datetime(times, utc=True))
    assert written[25].startswith("2024-06-02 01:00:00") and written[25].endswith(zone.replace("0530", "05:30"))
    np.testing.assert_allclose(found.features(ticks)[:, 0], np.sin(2 * np.pi * np.arange(50) / 24), atol=1e-6)
    utc = [str(date) for date in pd.to_datetime(times, utc=True)]  # the same times, told by another clock
    np.testing.assert_array_equal(found.ticks("a", utc), ticks)
    with pytest.raises(InputError, match="without an offset"):
        found.ticks("a", ["2024-06-02 00:00"])
    with pytest.raises(InputError, match="with an offset"):
        find({"a": ["2024-06-01 00:00", "2024-06-01 01:00"]}).ticks("a", times)


def test_months_with_an_offset_begin_by_its_clock():
    times = [f"2024-{month:02d}-01 00:00:00+02:00" for month in range(1, 10)]
    found = find({"a": times[:5]})
    assert str(found) == "M" and found.stamps(found.ticks("a", times)) == times


def test_several_offsets_are_written_in_utc_and_none_beside_some_is_an_error():
    times = [str(date) for date in pd.date_range("2024-03-30 20:00", periods=12, freq="h", tz="Europe/Berlin")]
    found = find({"a": times})
    ticks = found.ticks("a", times)
    assert (np.diff(ticks) == 1).all()
    assert found.stamps(ticks)[-1] == "2024-03-31 06:00:00+00:00"
    with pytest.raises(InputError, match="some have none"):
        find({"a": [*times, "2024-04-01 00:00"]})


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


@pytest.mark.parametrize("clock", ["12:00:00", "12:00", "12"])
@pytest.mark.parametrize("mark", ["+02", "-03"])
def test_an_offset_of_hours_alone_is_one(clock, mark):
    short, long = ([f"2024-06-0{day} {clock}{zone}" for day in (1, 2, 3)] for zone in (mark, f"{mark}:00"))
    found = find({"a": short})
    assert found == find({"a": long}) and found.zone == f"{mark}:00"
    assert found.ticks("a", short).tolist() == found.ticks("a", long).tolist()
    assert found.stamps(found.ticks("a", short)) == [f"2024-06-0{day} 12:00:00{mark}:00" for day in (1, 2, 3)]


@pytest.mark.parametrize("zone", ["", "Z", "+02:00"])
def test_a_fraction_of_a_second_is_refused(zone):
    whole = [f"2024-06-01 12:00:0{i}" for i in range(3)]
    found = find({"a": [f"{time}{zone}" for time in whole]})
    zeros = [f"{time}.000{zone}" for time in whole]
    assert (
        find({"a": zeros}) == found
        and found.ticks("a", zeros).tolist() == found.ticks("a", [f"{t}{zone}" for t in whole]).tolist()
    )
    for call in (lambda wrong: find({"b": wrong}), lambda wrong: found.ticks("b", wrong)):
        with pytest.raises(InputError, match=r"series 'b' has the time '2024-06-01 12:00:01\.250.*', .* whole seconds"):
            call([f"{whole[0]}{zone}", f"{whole[1]}.250{zone}"])


@pytest.mark.parametrize(
    "time", ["today", "now", "NaT", str(2**70), "292277026596-01-01", "10000-01-01", "0000-01-01",
             "2024-02-30", "2024-13-01", "２０２４-01-01", "-2024-01-01", "2024-01-01 25:00"],
)  # fmt: skip
def test_what_is_no_date_of_ours_is_refused_by_name(time):
    with pytest.raises(InputError, match=r"neither a whole number .* nor a date"):
        find({"a": ["2024-01-01", time]})


def test_dates_and_numbers_in_one_series_are_refused():
    with pytest.raises(InputError, match=r"has dates and whole numbers \(7\) for times"):
        find({"a": ["2024-01-01", "7"]})


@pytest.mark.parametrize(
    "time", ["2024", "2024-03", "2024-03-01", "2024-03-01 00", "2024-03-01T00:00", " 2024-03-01 00:00:00.000 "]
)
def test_a_date_may_be_written_as_short_as_it_is(time):
    found = find({"a": ["2024-01-01", "2024-01-02"]})
    wanted = "2024-01-01" if time == "2024" else "2024-03-01"
    assert found.stamps(found.ticks("a", [time, "2024-03-05"])[:1]) == [wanted]


def test_dates_as_whole_numbers_are_refused_and_other_numbers_are_not():
    with pytest.raises(InputError, match=r"the time 20250131, a date written as a whole number.*write 2025-01-31"):
        find({"a": ["20250131", "20250201"]})
    assert str(find({"a": ["20250131", "20250201"]}, "1")) == "1"
    assert str(find({"a": ["20250131", "20250132"]})) == str(find({"a": ["1", "2"]})) == "1"

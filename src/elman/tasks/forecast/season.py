"""The season of a panel: the usual one of its frequency, or where the times say nothing, what the values repeat after.

A season is how many rows later the changes of a series come again: the autocorrelation of first differences there, the
median over series. Differences, for a trend is alike at every distance.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from elman.tasks.forecast.calendar import DAY, Frequency
from elman.tasks.forecast.data import Series

USUAL = {"D": 7, "B": 5, "W": 52, "M": 12, "Q": 4, "Y": 1}
SERIES = 200  # of a panel, evenly apart, that are examined
ROWS = 20_000  # of each, the last
LONGEST = 400  # a season that is searched for
LEAST = 0.3  # the autocorrelation that counts as a season
SOME = 0.1  # of one that is usual
WEEK = 7
MORE = 0.02  # by which a week is above its neighbours


def find_season(frequency: Frequency, series: Sequence[Series], last: int = 0) -> int:
    """How many rows a season has; 1 for none. The `last` rows of each series are left out.

    >>> wave = [Series("a", 0, np.sin(np.arange(90.0)[:, None] * np.pi / 6), *[np.zeros((90, 0))] * 2, np.zeros(0))]
    >>> find_season(Frequency(), wave)
    12
    """
    again, number = _again(series, last)
    usual = _usual(frequency)
    if usual:
        return usual if usual <= LONGEST and again[usual] >= SOME else 1
    # Of noise too, the largest of many lies far out: by four deviations of a median over the series.
    least = max(LEAST, 4 / np.sqrt(max(1, number)))
    peaks = [m for m in range(2, LONGEST) if again[m] >= max(least, again[m - 1], again[m + 1]) and _twice(again, m)]
    best = max((again[m] for m in peaks), default=0.0)
    return next((m for m in peaks if again[m] >= 0.8 * best), 1)  # of a day and a week, the day


def has_weeks(season: int, series: Sequence[Series], last: int = 0) -> bool:
    """Whether changes come again after seven seasons more than after six, and after two: days differ within a week."""
    if season < 2 or WEEK * season > LONGEST:
        return False
    again, _ = _again(series, last)
    return bool(again[WEEK * season] > MORE + max(0.0, again[(WEEK - 1) * season], again[2 * season]))


def _again(series: Sequence[Series], last: int) -> tuple[NDArray[np.float64], int]:
    """The autocorrelation at the distances 0 to LONGEST, the median over series, -1 where few are long enough to say;
    and of how many changes it is."""
    chosen = series[:: max(1, len(series) // SERIES)]
    found = [_autocorrelation(column) for one in chosen for column in one.y[: len(one.y) - last][-ROWS:].T]
    wide = np.full((max(1, len(found)), LONGEST + 1), np.nan)
    for row, values in zip(wide, found, strict=False):
        row[: len(values)] = values
    known = (~np.isnan(wide)).sum(0) * 2 > len(wide)
    again = np.where(known, np.nanmedian(np.where(known, wide, 0.0), 0), -1.0)
    return again, 3 * sum(len(values) for values in found)


def _twice(again: NDArray[np.float64], m: int) -> bool:
    """Whether what comes again after m rows does so after 2 m too, if that is known."""
    return 2 * m > LONGEST or again[2 * m] == -1.0 or again[2 * m] >= 0.5 * again[m]


def _usual(frequency: Frequency) -> int:
    """The season that rows so far apart have by custom: a day below it, a week of days, a year; 0 where it is not
    known."""
    if frequency.unit == "step":
        return 0
    if frequency.unit == "second" and frequency.every < DAY:
        return DAY // frequency.every if DAY % frequency.every == 0 else 0
    return USUAL.get(str(frequency), 0)


def _autocorrelation(y: NDArray[np.float64]) -> NDArray[np.float64]:
    """That of the first differences of y (T,), at the distances 0 to a third of them."""
    change = np.diff(y)
    there = ~np.isnan(change)
    change = np.where(there, change - (change[there].mean() if there.any() else 0.0), 0.0)
    most = min(LONGEST, len(change) // 3)
    if most < 2 or not change.any():
        return np.zeros(0)
    change = change / np.abs(change).max()  # whose squares are numbers too
    size = 1 << (2 * len(change)).bit_length()
    power = np.abs(np.fft.rfft(change, size)) ** 2
    sums = np.fft.irfft(power, size)[: most + 1]
    pairs = np.fft.irfft(np.abs(np.fft.rfft(there.astype(float), size)) ** 2, size)[: most + 1]
    return sums / np.maximum(pairs, 1) / (sums[0] / max(1, pairs[0]))

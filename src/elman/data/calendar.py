"""Times of series: a frequency is found and checked, and times become whole numbers, one apart, that can be counted on.

A time is a whole number as it stands in the file (1, 2, 3 ...), or a date, as seconds since 1970. A tick is its number
on the grid of a frequency: that of the next row is one higher, whatever month has how many days.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from elman.errors import InputError

Ticks = NDArray[np.int64]

DAY = 86400
SECONDS = {"s": 1, "min": 60, "h": 3600, "D": DAY, "W": 7 * DAY}
MONTHS = {"M": 1, "Q": 3, "Y": 12}
END = 31  # the day of a frequency of months whose times are last days
NAMES = "1 (whole numbers), s, min, h, D, W, M, Q or Y, with a number before it where that is not one: 15min"


@dataclass(frozen=True)
class Frequency:
    """The grid of times: `every` so many steps, seconds or months, `phase` after zero.

    >>> hourly = find({"a": ["2024-01-01 00:00", "2024-01-01 01:00"]})
    >>> str(hourly), hourly.stamps(hourly.ticks("a", ["2024-01-01 01:00"]) + 1)
    ('h', ['2024-01-01 02:00:00'])

    Args:
        unit: step, second or month
        every: how many of them are between rows
        phase: what the first time leaves when divided by that
        day: of months, the day of the month, 31 for the last
        clock: of months, seconds of the day
    """

    unit: str = "step"
    every: int = 1
    phase: int = 0
    day: int = 1
    clock: int = 0

    def ticks(self, name: str, times: Sequence[str]) -> Ticks:
        """The numbers of the times of a series called `name`; an InputError at the first that is not on the grid."""
        numbers, dated = parsed(name, times)
        if dated == (self.unit == "step"):
            wanted = "whole numbers" if self.unit == "step" else "dates"
            raise InputError(f"the times of series {name!r} are not {wanted}, as those of the model are: {times[0]}")
        if self.unit == "month":
            months, days, clocks = _months(numbers)
            fits = (days == (END if self.day == END else self.day)) | ((self.day == END) & _last_days(numbers))
            off = ~fits | (clocks != self.clock) | ((months - self.phase) % self.every != 0)
            ticks = (months - self.phase) // self.every
        else:
            off = (numbers - self.phase) % self.every != 0
            ticks = (numbers - self.phase) // self.every
        if off.any():
            raise InputError(
                f"series {name!r} has the time {times[int(off.argmax())]}, which does not fit the frequency {self}. "
                f"Correct it, or give data.frequency: {NAMES}."
            )
        return ticks

    def stamps(self, ticks: Ticks) -> list[str]:
        """Times as they would stand in a file."""
        if self.unit == "step":
            return [str(n) for n in (ticks * self.every + self.phase).tolist()]
        seconds = self.seconds(ticks)
        plain = not (seconds % DAY).any() and (self.unit == "month" or self.every % DAY == 0)
        dates = seconds.astype("datetime64[s]")
        return [str(date).replace("T", " ") for date in (dates.astype("datetime64[D]") if plain else dates)]

    def seconds(self, ticks: Ticks) -> Ticks:
        """Dates as seconds since 1970."""
        if self.unit != "month":
            return ticks * self.every + self.phase
        months = ticks * self.every + self.phase
        first = months.astype("datetime64[M]").astype("datetime64[D]")
        last = (months + 1).astype("datetime64[M]").astype("datetime64[D]") - np.timedelta64(1, "D")
        days = last if self.day == END else first + np.timedelta64(self.day - 1, "D")
        return days.astype("datetime64[s]").astype(np.int64) + self.clock

    def features(self, ticks: Ticks) -> NDArray[np.float32]:
        """Where times stand in the day, the week and the year, each as a point on a circle: (T, 2 n)."""
        if self.unit == "step":
            return np.zeros((len(ticks), 0), np.float32)
        seconds = self.seconds(ticks)
        step = self.every if self.unit == "second" else 30 * DAY * self.every
        day = seconds.astype("datetime64[s]").astype("datetime64[D]")
        year = (day - day.astype("datetime64[Y]").astype("datetime64[D]")).astype(np.int64) / 365.25
        turns = [
            *([(seconds % DAY) / DAY] if step < DAY else []),
            *([(seconds // DAY + 3) % 7 / 7] if step < 7 * DAY else []),
            *([year] if step < 365 * DAY else []),
        ]
        circles = [wave(2 * np.pi * turn) for turn in turns for wave in (np.sin, np.cos)]
        return np.stack(circles, 1).astype(np.float32) if circles else np.zeros((len(ticks), 0), np.float32)

    def __str__(self) -> str:
        names = {"step": {"": 1}, "second": SECONDS, "month": MONTHS}[self.unit]
        name, size = max((n for n in names.items() if self.every % n[1] == 0), key=lambda n: n[1])
        return f"{self.every // size if self.every > size or not name else ''}{name}"


def find(times: Mapping[str, Sequence[str]], given: str = "auto") -> Frequency:
    """The frequency of some series: the one that is `given`, or the commonest distance between their times."""
    numbers, dated = {}, set()
    for name, values in times.items():
        numbers[name], is_dated = parsed(name, values)
        dated.add(is_dated)
    if len(dated) > 1:
        raise InputError("some series have dates and some have whole numbers for times; all need the same")
    first = next(iter(numbers.values()))[0]
    unit, every = _given(given) if given != "auto" else _commonest(numbers, dated.pop())
    if unit != "month":
        return Frequency(unit, every, int(first) % every)
    months, days, clocks = (part[:1] for part in _months(np.array([first])))
    all_last = all(_last_days(values).all() for values in numbers.values())
    return Frequency(unit, every, int(months[0]) % every, END if all_last else int(days[0]), int(clocks[0]))


def _given(text: str) -> tuple[str, int]:
    match = re.fullmatch(r"(\d*)(s|min|h|D|W|M|Q|Y)|(\d+)", str(text))
    if not match or (match[1] or match[3] or "1").strip("0") == "":
        raise InputError(f"data.frequency is {text!r}; it must be auto, or one of {NAMES}")
    if match[3]:
        return "step", int(match[3])
    size = int(match[1] or 1)
    return ("second", size * SECONDS[match[2]]) if match[2] in SECONDS else ("month", size * MONTHS[match[2]])


def _commonest(numbers: dict[str, Ticks], dated: bool) -> tuple[str, int]:
    gaps = Counter(gap for values in numbers.values() for gap in np.diff(np.sort(values)).tolist() if gap > 0)
    if not gaps:
        raise InputError(f"no series has two times, so their frequency cannot be found; give data.frequency: {NAMES}")
    gap = gaps.most_common(1)[0][0]
    if not dated:
        return "step", gap
    alike = {int(day) for values in numbers.values() for day in _months(values)[1]}
    last = all(_last_days(values).all() for values in numbers.values())
    if gap < 28 * DAY or (len(alike) > 1 and not last):
        return "second", gap
    steps = (np.diff(_months(np.sort(values))[0]).tolist() for values in numbers.values())
    return "month", Counter(step for each in steps for step in each if step > 0).most_common(1)[0][0]


def parsed(name: str, times: Sequence[str]) -> tuple[Ticks, bool]:
    """Times as numbers, and whether they are dates."""
    if all(re.fullmatch(r"\s*-?\d{1,18}\s*", time) for time in times):  # 20240131 too
        return np.array([int(time) for time in times], np.int64), False
    try:
        return np.array([time.strip() for time in times], "datetime64[s]").astype(np.int64), True
    except ValueError:
        bad = next(time for time in times if not _is_date(time))
        raise InputError(
            f"series {name!r} has the time {bad!r}, which is neither a whole number nor a date such as 2024-01-31 or "
            "2024-01-31 13:00"
        ) from None


def _is_date(time: str) -> bool:
    try:
        return not np.isnat(np.datetime64(time.strip(), "s"))
    except ValueError:
        return False


def _months(seconds: Ticks) -> tuple[Ticks, Ticks, Ticks]:
    """Of dates the months since 1970, the day of the month from 1 on, and the seconds of the day."""
    dates = seconds.astype("datetime64[s]")
    months = dates.astype("datetime64[M]")
    days = (dates.astype("datetime64[D]") - months.astype("datetime64[D]")).astype(np.int64) + 1
    return months.astype(np.int64), days, seconds % DAY


def _last_days(seconds: Ticks) -> NDArray[np.bool_]:
    days = seconds.astype("datetime64[s]").astype("datetime64[D]")
    return (days + np.timedelta64(1, "D")).astype("datetime64[M]") > days.astype("datetime64[M]")

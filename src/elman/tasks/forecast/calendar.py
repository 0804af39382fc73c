"""Times of series: a frequency is found and checked, and times become whole numbers, one apart, that can be counted on.

A time is a whole number as it stands in the file (1, 2, 3 ...), or a date, as seconds since 1970. A tick is its number
on the grid of a frequency: that of the next row is one higher, whatever month has how many days. Times with an offset
from UTC are read, and written, as clocks of that offset show them; where there are several offsets, in UTC.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from elman.errors import InputError

Ticks = NDArray[np.int64]

DAY = 86400
SECONDS = {"s": 1, "min": 60, "h": 3600, "D": DAY, "W": 7 * DAY}
MONTHS = {"M": 1, "Q": 3, "Y": 12}
BUSINESS = "B"  # Monday to Friday
END = 31  # the day of a frequency of months whose times are last days
NAMES = "1 (whole numbers), s, min, h, D, B (Monday to Friday), W, M, Q or Y, with a number before it: 15min"
OFFSET = re.compile(r"(?<=[T :]\d\d)(\.\d+)?\s*(Z|[+-]\d\d(:?\d\d)?)$")  # what may stand behind a clock
BARE_DATE = re.compile(r"(19|20)\d\d(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])", re.ASCII)  # 20240131
NUMBER = re.compile(r"\s*-?\d{1,18}\s*")
# NumPy would read "today" too, and the year 10^11.
DATE = re.compile(r"(?!0000)\d{4}(-\d\d(-\d\d([T ]\d\d(:\d\d(:\d\d(\.0*)?)?)?)?)?)?", re.ASCII)
FRACTION = re.compile(r":\d\d\.0*[1-9]")  # of a second
UTC = "+00:00"
EPOCH = np.datetime64("1970-01-01")  # a Thursday: business days are counted from there


@dataclass(frozen=True)
class Frequency:
    """The grid of times: `every` so many steps, seconds or months, `phase` after zero.

    >>> hourly = find({"a": ["2024-01-01 00:00", "2024-01-01 01:00"]})
    >>> str(hourly), hourly.stamps(hourly.ticks("a", ["2024-01-01 01:00"]) + 1)
    ('h', ['2024-01-01 02:00:00'])

    Args:
        unit: step, second, month or business (a day, Monday to Friday)
        every: how many of them are between rows
        phase: what the first time leaves when divided by that
        day: of months, the day of the month, or the last one of a month that has fewer; 31 for the last of all
        clock: of months and business days, seconds of the day
        zone: the offset from UTC that times have, +02:00 or Z; none if they have none; None where it was not kept, and
            times were read as UTC
    """

    unit: str = "step"
    every: int = 1
    phase: int = 0
    day: int = 1
    clock: int = 0
    zone: str | None = ""

    def ticks(self, name: str, times: Sequence[str]) -> Ticks:
        """The numbers of the times of a series called `name`; an InputError at the first that is not on the grid."""
        found = parsed(name, times)
        if found.dated == (self.unit == "step"):
            wanted = "whole numbers" if self.unit == "step" else "dates"
            raise InputError(f"the times of series {name!r} are not {wanted}, as those of the model are: {times[0]}")
        numbers = self._local(name, found, times)
        if self.unit == "month":
            months, days, clocks = _months(numbers)
            places = months - self.phase
            off = (days != np.minimum(self.day, _month_lengths(numbers))) | (clocks != self.clock)
        elif self.unit == "business":
            days = (numbers // DAY).astype("datetime64[D]")
            places = np.busday_count(EPOCH, days) - self.phase
            off = ~np.is_busday(days) | (numbers % DAY != self.clock)
        else:
            places = numbers - self.phase
            off = np.zeros(len(places), bool)
        off, ticks = off | (places % self.every != 0), places // self.every
        if off.any():
            raise InputError(
                f"series {name!r} has the time {times[int(off.argmax())]}, which does not fit the frequency {self}. "
                f"Correct it, or give data.frequency: {NAMES}."
            )
        return ticks

    def _local(self, name: str, found: Times, times: Sequence[str]) -> Ticks:
        """Times as clocks of this frequency's offset show them; an InputError where only one side has an offset."""
        if not found.dated or self.zone is None:
            return found.numbers
        bare = [i for i, zone in enumerate(found.zones) if (zone == "") != (self.zone == "")]
        if bare:
            raise InputError(
                f"series {name!r} has the time {times[bare[0]]}, {'without' if self.zone else 'with'} an offset from "
                f"UTC; those of the model have {self.zone or 'none'}. Write all times alike."
            )
        return found.numbers + _seconds_of(self.zone)

    def stamps(self, ticks: Ticks) -> list[str]:
        """Times as they would stand in a file."""
        if self.unit == "step":
            return [str(n) for n in (ticks * self.every + self.phase).tolist()]
        seconds = self.seconds(ticks)
        plain = not self.zone and not (seconds % DAY).any() and (self.unit != "second" or self.every % DAY == 0)
        dates = seconds.astype("datetime64[s]")
        zone = self.zone or ""
        return [str(date).replace("T", " ") + zone for date in (dates.astype("datetime64[D]") if plain else dates)]

    def seconds(self, ticks: Ticks) -> Ticks:
        """Dates as seconds since 1970, by the clocks of the zone."""
        places = ticks * self.every + self.phase
        if self.unit == "business":
            days = np.busday_offset(EPOCH, places)
        elif self.unit == "month":
            first = places.astype("datetime64[M]").astype("datetime64[D]")
            last = (places + 1).astype("datetime64[M]").astype("datetime64[D]") - np.timedelta64(1, "D")
            days = np.minimum(first + np.timedelta64(self.day - 1, "D"), last)
        else:
            return places
        return np.asarray(days.astype("datetime64[s]").astype(np.int64) + self.clock)

    def features(self, ticks: Ticks) -> NDArray[np.float32]:
        """Where times stand in the day, the week and the year, each as a point on a circle: (T, 2 n)."""
        if self.unit == "step":
            return np.zeros((len(ticks), 0), np.float32)
        seconds = self.seconds(ticks)
        step = self.every * {"second": 1, "business": DAY, "month": 30 * DAY}[self.unit]
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
        names = {"step": {"": 1}, "second": SECONDS, "business": {BUSINESS: 1}, "month": MONTHS}[self.unit]
        name, size = max((n for n in names.items() if self.every % n[1] == 0), key=lambda n: n[1])
        return f"{self.every // size if self.every > size or not name else ''}{name}"


def find(times: Mapping[str, Sequence[str]], given: str = "auto", gaps: str = "error") -> Frequency:
    """The frequency of some series: the one that is `given`, or the commonest distance between their times.

    Days that are all of Monday to Friday are business days, unless gaps are filled: then the weekends are.
    """
    found = {name: parsed(name, values) for name, values in times.items()}
    if given == "auto":
        _refuse_bare_dates(times)
    if len({one.dated for one in found.values()}) > 1:
        raise InputError("some series have dates and some have whole numbers for times; all need the same")
    zone = _zone(found)
    numbers = {name: one.numbers + _seconds_of(zone) for name, one in found.items()}
    first, dated = next(iter(numbers.values()))[:1], next(iter(found.values())).dated
    unit, every = _given(given) if given != "auto" else _commonest(numbers, dated, gaps)
    if unit == "month":
        months, days, clocks = (int(part[0]) for part in _months(first))
        return Frequency(unit, every, months % every, _day_of_month(numbers) or days, clocks, zone)
    if unit == "business":
        place = int(np.busday_count(EPOCH, (first // DAY).astype("datetime64[D]"))[0])
        return Frequency(unit, every, place % every, clock=int(first[0]) % DAY, zone=zone)
    return Frequency(unit, every, int(first[0]) % every, zone=zone)


def _refuse_bare_dates(times: Mapping[str, Sequence[str]]) -> None:
    """As whole numbers, 20250201 would be 70 steps after 20250131."""
    if not all(BARE_DATE.fullmatch(time.strip()) for values in times.values() for time in values):
        return
    name, first = next((name, values[0].strip()) for name, values in times.items() if values)
    raise InputError(
        f"series {name!r} has the time {first}, a date written as a whole number, from which the next day may be many "
        f"steps away; write {first[:4]}-{first[4:6]}-{first[6:]}, or, if it is a number, give data.frequency: 1"
    )


def _zone(found: Mapping[str, Times]) -> str:
    """The offset of all times; UTC where there are several."""
    zones = {zone for one in found.values() for zone in one.zones}
    if "" in zones and len(zones) > 1:
        raise InputError(
            f"some times have an offset from UTC ({', '.join(sorted(zones - {''})[:3])}) and some have none; all need "
            "one, or none has"
        )
    return zones.pop() if len(zones) == 1 else UTC if zones else ""


def _seconds_of(zone: str) -> int:
    """
    >>> _seconds_of("-03:30"), _seconds_of("Z")
    (-12600, 0)
    """
    if zone in ("", "Z"):
        return 0
    return (-1 if zone[0] == "-" else 1) * (3600 * int(zone[1:3]) + 60 * int(zone[-2:]))


def _given(text: str) -> tuple[str, int]:
    match = re.fullmatch(r"(\d*)(s|min|h|D|B|W|M|Q|Y)|(\d+)", str(text))
    if not match or (match[1] or match[3] or "1").strip("0") == "":
        raise InputError(f"data.frequency is {text!r}; it must be auto, or one of {NAMES}")
    if match[3]:
        return "step", int(match[3])
    size = int(match[1] or 1)
    if match[2] == BUSINESS:
        return "business", size
    return ("second", size * SECONDS[match[2]]) if match[2] in SECONDS else ("month", size * MONTHS[match[2]])


def _commonest(numbers: dict[str, Ticks], dated: bool, gaps: str) -> tuple[str, int]:
    ordered = {name: np.sort(values) for name, values in numbers.items()}
    counts = Counter(gap for values in ordered.values() for gap in np.diff(values).tolist() if gap > 0)
    if not counts:
        raise InputError(f"no series has two times, so their frequency cannot be found; give data.frequency: {NAMES}")
    gap = counts.most_common(1)[0][0]
    if not dated:
        return "step", gap
    if gap == DAY and gaps == "error" and _is_business(ordered):
        return "business", 1
    if gap < 28 * DAY or not _day_of_month(numbers):
        return "second", gap
    steps = (np.diff(_months(values)[0]).tolist() for values in ordered.values())
    return "month", Counter(step for each in steps for step in each if step > 0).most_common(1)[0][0]


def _is_business(ordered: Mapping[str, Ticks]) -> bool:
    """Whether no row is of a weekend, and a Monday follows a Friday."""
    days = [(values // DAY).astype("datetime64[D]") for values in ordered.values()]
    skipped = any((np.diff(each.astype(np.int64)) == 3).any() for each in days)
    return skipped and all(np.is_busday(each).all() for each in days)


def _day_of_month(numbers: Mapping[str, Ticks]) -> int:
    """The day that all dates have, or the last one where a month has fewer: END if all are last days; 0 for none."""
    days = [(_months(values)[1], _month_lengths(values)) for values in numbers.values()]
    if all((day == length).all() for day, length in days):
        return END
    most = max(int(day.max()) for day, _ in days)
    return most if all((day == np.minimum(most, length)).all() for day, length in days) else 0


class Times(NamedTuple):
    """Times as numbers, dates as seconds since 1970 in UTC; whether they are dates, and the offset of each."""

    numbers: Ticks
    dated: bool
    zones: Sequence[str] = ()


def parsed(name: str, times: Sequence[str]) -> Times:
    """Times of a series as numbers."""
    if all(map(NUMBER.fullmatch, times)):  # 20240131 too
        return Times(np.array([int(time) for time in times], np.int64), False)
    broken = next((time for time in times if "." in time and FRACTION.search(time)), None)
    if broken is not None:
        raise InputError(
            f"series {name!r} has the time {broken!r}, with a fraction of a second; times are read in whole seconds. "
            "Round them, or number the rows: 1, 2, 3"
        )
    bare = [time.strip() for time in times]
    marks = [OFFSET.search(time) for time in bare]
    zones = ["" if mark is None else mark[2] for mark in marks]
    if any(zones):
        bare = [time if mark is None else time[: mark.start()] for time, mark in zip(bare, marks, strict=True)]
        zones = [zone if len(zone) < 3 else f"{zone[:3]}:{zone[3:].lstrip(':') or '00'}" for zone in zones]
    try:
        if not all(map(DATE.fullmatch, bare)):
            raise ValueError
        seconds = np.array(bare, "datetime64[s]").astype(np.int64)
    except ValueError:
        bad = [time for time, plain in zip(times, bare, strict=True) if not is_date(plain)]
        word = next((time for time in bad if not NUMBER.fullmatch(time)), None)
        if word is None:
            raise InputError(
                f"series {name!r} has dates and whole numbers ({bad[0]}) for times; all need the same"
            ) from None
        raise InputError(
            f"series {name!r} has the time {word!r}, which is neither a whole number of at most 18 digits nor a date "
            "such as 2024-01-31 or 2024-01-31 13:00, in the years 1 to 9999"
        ) from None
    if any(zones):
        seconds = seconds - np.array([_seconds_of(zone) for zone in zones], np.int64)
    return Times(seconds, True, zones)


def is_date(time: str) -> bool:
    """Whether a text is a date; 2024 is one too.

    >>> is_date("2024-01-31 13:00"), is_date("H1")
    (True, False)
    """
    try:
        return bool(DATE.fullmatch(time.strip())) and not np.isnat(np.datetime64(time.strip(), "s"))
    except ValueError:
        return False


def _months(seconds: Ticks) -> tuple[Ticks, Ticks, Ticks]:
    """Of dates the months since 1970, the day of the month from 1 on, and the seconds of the day."""
    dates = seconds.astype("datetime64[s]")
    months = dates.astype("datetime64[M]")
    days = (dates.astype("datetime64[D]") - months.astype("datetime64[D]")).astype(np.int64) + 1
    return months.astype(np.int64), days, seconds % DAY


def _month_lengths(seconds: Ticks) -> Ticks:
    """How many days the months of dates have."""
    months = seconds.astype("datetime64[s]").astype("datetime64[M]")
    return ((months + 1).astype("datetime64[D]") - months.astype("datetime64[D]")).astype(np.int64)

"""Many series in one file: what a forecaster reads.

`long` is the frame of the ecosystem, a row for each series and time: unique_id, ds, y and covariates, as CSV or
Parquet. `wide` is M4's, a line for each series: its name, then its values, no times. `arrays` are vectors (T, C), many
sequences in a `.npz` or `.mat` file; FILE:KEY names one of its arrays.

A covariate is `static` (one value for each series), `past` (known until now) or `future` (known ahead), a number or a
category.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple, overload

import numpy as np
import torch
from numpy.typing import NDArray

from elman.data import splits
from elman.data.arrays import Numbers
from elman.data.tables import Columns, number_of, texts_of
from elman.errors import InputError
from elman.lengths import valid
from elman.options import choice
from elman.tasks.forecast import calendar
from elman.tasks.forecast.calendar import Frequency, Ticks
from elman.tasks.forecast.covariates import Covariate, fit_covariate
from elman.tasks.forecast.files import open_rows

NAMELESS = frozenset(("", "nan"))  # a name that is not there, as `texts_of` has it
MOST_FILLED = 20_000_000  # rows without values that gaps are filled with, in all series together: a slip in a date


class Series(NamedTuple):
    """One series, a row for each tick from `start` on, NaN where a value is missing."""

    name: str
    start: int
    y: Numbers  # (T, C)
    past: Numbers  # (T, P)
    future: Numbers  # (T, F)
    static: Numbers  # (S,)

    def cut(self, first: int, last: int | None = None) -> Series:
        """The rows from `first` to before `last`."""
        rows = slice(first, last)
        return self._replace(start=self.start + first, y=self.y[rows], past=self.past[rows], future=self.future[rows])


class Panel(Sequence[Series]):
    """Some series whose rows stand one behind the other in arrays of all, so that many are handled at once.

    >>> one = Series("a", 3, np.ones((2, 1)), *[np.zeros((2, 0))] * 2, np.zeros(0))
    >>> panel = Panel.of([one, one.cut(1)])
    >>> panel.lengths.tolist(), panel.starts.tolist(), panel[1].start, panel.padded(panel.y, 0.0)[1].tolist()
    ([2, 1], [3, 4], 4, [[1.0], [0.0]])
    """

    def __init__(
        self, names: Sequence[str], starts: Ticks, lengths: Ticks, y: Numbers, past: Numbers, future: Numbers,
        static: Numbers,
    ) -> None:  # fmt: skip
        self.names, self.starts, self.lengths = names, starts, lengths  # (B,)
        self.y, self.past, self.future, self.static = y, past, future, static  # (N, C), (N, P), (N, F), (B, S)
        self.ends = np.cumsum(lengths)

    @classmethod
    def of(cls, series: Sequence[Series]) -> Panel:
        """Series as a panel; there must be some."""
        if isinstance(series, Panel):
            return series
        names, starts, *parts, static = zip(*series, strict=True)
        y, past, future = map(np.concatenate, parts)
        lengths = np.array([len(one.y) for one in series])
        return cls(list(names), np.array(starts, np.int64), lengths, y, past, future, np.stack(static))

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, i: int) -> Series: ...
    @overload
    def __getitem__(self, i: slice) -> list[Series]: ...
    def __getitem__(self, i: int | slice) -> Series | list[Series]:
        if isinstance(i, slice):
            return [self[j] for j in range(*i.indices(len(self)))]
        end = int(self.ends[i])
        rows = slice(end - int(self.lengths[i]), end)
        parts = self.y[rows], self.past[rows], self.future[rows]
        return Series(self.names[i], int(self.starts[i]), *parts, self.static[i])

    def take(self, places: Ticks) -> Panel:
        """Some of the series, in that order."""
        same = np.array_equal(places, np.arange(len(self)))
        return self if same else Panel.of([self[i] for i in places.tolist()])

    def begun(self, starts: Ticks) -> Panel:
        """The same rows from other ticks on."""
        return Panel(self.names, starts, self.lengths, self.y, self.past, self.future, self.static)

    def padded(self, part: Numbers, value: float) -> Numbers:
        """Rows (N, W) as (B, T, W), `value` behind the shorter series."""
        B, T, W = len(self), int(self.lengths.max(initial=0)), part.shape[1]
        if len(part) == B * T:
            return part.reshape(B, T, W)
        found = np.full((B, T, W), value)
        found[inside(self.lengths)] = part
        return found


@dataclass(frozen=True)
class PanelReader:
    """How series are read, as the data section of a config says it (`ForecastDataConfig`). What depends on the training
    data, the frequency and how each covariate is read, is found there by `fit`.
    """

    format: str = "auto"
    id: str = "unique_id"
    time: str = "ds"
    target: tuple[str, ...] = ("y",)
    static: tuple[str, ...] = ()
    past: tuple[str, ...] = ()
    future: tuple[str, ...] = ()
    gaps: str = "error"
    frequency: Frequency | None = None
    covariates: Mapping[str, Covariate] = field(default_factory=dict)
    errors: str = "strict"

    def fit(self, given: object, frequency: str = "auto", last: int = 0) -> tuple[PanelReader, Panel]:
        """The series of some files or of a frame, and the reader that knows what they are.

        The `last` rows of each series, which a model is scored on, do not say how large covariates are.
        """
        choice("data.gaps", self.gaps, ("error", "fill"))
        kind, rows = open_rows(given, self.format, self.id, self.time, self.errors)
        if not isinstance(rows, dict):
            C = rows[0][1].shape[1] if rows else 1
            names = tuple(str(i) for i in range(C)) if kind == "arrays" else self.target[:1]
            reader = replace(self, format=kind, frequency=Frequency(), target=names)
            return reader, reader._unnamed(kind, rows)
        columns = _columns(rows, self)
        groups = _groups(columns[self.id])
        times = {name: [columns[self.time][i] for i in rows] for name, rows in groups.items()}
        reader = replace(self, format="long", frequency=calendar.find(times, frequency, self.gaps))
        used = _without_last(reader._ticks(columns), groups, last)
        named = (*self.static, *self.past, *self.future)
        reader = replace(reader, covariates={name: fit_covariate(name, columns[name], used) for name in named})
        return reader, reader._series(columns)

    def __call__(self, given: object, *, future: bool = False, filled: int = MOST_FILLED) -> Panel:
        """The series of some files or of a frame, as this reader knows them; `future` rows have no target.

        At most so many rows without values are `filled` in, in all series together.
        """
        kind, rows = open_rows(given, self.format, self.id, self.time, self.errors)
        if not isinstance(rows, dict):
            return self._unnamed(kind, rows)
        columns = _columns(rows, replace(self, past=()) if future else self, targets=not future)
        return self._series(columns, future, filled)

    def after(self, series: Sequence[Series], ticks: Sequence[int] | Ticks, filled: int = MOST_FILLED) -> Panel:
        """New rows of series that have been read up to `ticks` (B,), each from the tick after its own on."""
        panel, ticks = Panel.of(series), np.asarray(ticks)
        if self.format != "long":  # they have no times: what comes is what follows
            return panel.begun(ticks + 1)
        missing = panel.starts - ticks - 1
        if not missing.any():
            return panel
        if self.gaps == "fill":
            self._check_filled(panel.names, np.maximum(missing, 0), panel.starts, filled)
        return Panel.of([self._after(one, tick) for one, tick in zip(panel, ticks.tolist(), strict=True)])

    def _check_filled(self, names: Sequence[str], missing: Ticks, ticks: Ticks, most: int) -> None:
        """Raise an InputError if more rows would be filled in than `most`; each is missing before a tick."""
        if missing.sum(dtype=np.float64) <= most:  # of 10^18 steps the sum of a few would not be an int64
            return
        assert self.frequency is not None
        i = int(np.argmax(missing))
        when = self.frequency.stamps(ticks[i : i + 1])[0]
        raise InputError(
            f"series {names[i]!r} has {missing[i]:,} rows missing before {when} (frequency {self.frequency}); "
            f"{most:,} at most are filled in, in all series together. Correct the time, or send the rows "
            "that are missing."
        )

    def _after(self, one: Series, tick: int) -> Series:
        assert self.frequency is not None
        if one.start == tick + 1:
            return one
        first, wanted = (self.frequency.stamps(np.array([at]))[0] for at in (one.start, tick + 1))
        if one.start <= tick:
            raise InputError(
                f"series {one.name!r} begins at {first}, and its state has read that already: the next row is {wanted}."
                " Give new rows only, or read all from the start with --from_start."
            )
        gap = one.start - tick - 1
        if self.gaps != "fill":
            raise InputError(
                f"series {one.name!r} begins at {first}, but its state ends before {wanted}; give the rows between, or "
                "train with --data.gaps fill"
            )
        blank = (np.full((gap, part.shape[1]), np.nan) for part in (one.y, one.past, one.future))
        y, past, future = (np.concatenate(pair) for pair in zip(blank, (one.y, one.past, one.future), strict=True))
        return one._replace(start=tick + 1, y=y, past=past, future=future)

    def frame(self, series: Sequence[Series]) -> Columns:
        """Series as columns by name, which another reader can be fitted to."""
        assert self.frequency is not None
        ticks = np.concatenate([one.start + np.arange(len(one.y)) for one in series])
        found = {self.id: [one.name for one in series for _ in one.y], self.time: self.frequency.stamps(ticks)}
        for i, name in enumerate(self.target):
            found[name] = texts_of(v for one in series for v in one.y[:, i].tolist())
        wholes = {
            "static": np.concatenate([np.broadcast_to(one.static, (len(one.y), len(one.static))) for one in series]),
            "past": np.concatenate([one.past for one in series]),
            "future": np.concatenate([one.future for one in series]),
        }
        for kind, values in wholes.items():
            first = 0
            for name in getattr(self, kind):
                covariate = self.covariates[name]
                found[name] = covariate.decode(values[:, first : first + covariate.width])
                first += covariate.width
        return found

    def width(self, names: Sequence[str]) -> int:
        """How many numbers some covariates are."""
        return sum(self.covariates[name].width for name in names)

    def _unnamed(self, kind: str, rows: Sequence[tuple[str, Numbers]]) -> Panel:
        """Series without times and covariates."""
        if self.static or self.past or self.future:
            raise InputError(f"data.format is {kind}, which has no covariates; write the series as long rows")
        if not rows:
            raise InputError("there is no series in the data; a forecaster needs some to read")
        return _checked(Panel.of([Series(name, 0, y, _none(len(y)), _none(len(y)), np.zeros(0)) for name, y in rows]))

    def _series(self, columns: Columns, future: bool = False, filled: int = MOST_FILLED) -> Panel:
        """All rows are read at once, column by column, and put into the order of series and times."""
        assert self.frequency is not None
        names, owner = _owners(columns[self.id])
        ticks = self._ticks(columns)
        places = np.lexsort((ticks, owner))
        owner, ticks = owner[places], ticks[places]
        gaps = _has_gaps(names, owner, ticks, self)
        if gaps:
            steps = np.where(np.diff(owner) == 0, np.diff(ticks) - 1, 0)
            self._check_filled([names[i] for i in owner[1:]], steps, ticks[1:], filled)
        y = np.full((len(ticks), len(self.target)), np.nan)
        for column, target in enumerate(() if future else self.target):
            y[:, column] = _numbers(columns[target], target)[places]
        past, ahead, static = (
            self._matrix(columns, () if future and kind == "past" else getattr(self, kind), places)
            for kind in ("past", "future", "static")
        )
        sizes = np.bincount(owner, minlength=len(names))
        firsts = np.cumsum(sizes) - sizes
        starts, fixed = ticks[firsts], np.zeros((len(names), static.shape[1]))
        for i, (first, size) in enumerate(zip(firsts.tolist(), sizes.tolist(), strict=True) if self.static else ()):
            fixed[i] = _constant(names[i], static[first : first + size], self.static)
        if gaps:
            sizes = ticks[firsts + sizes - 1] - starts + 1
            at = ticks - starts[owner] + (np.cumsum(sizes) - sizes)[owner]
            y, past, ahead = (_spread(part, at, int(sizes.sum())) for part in (y, past, ahead))
        return _checked(Panel(names, starts, sizes, y, past, ahead, fixed))

    def _ticks(self, columns: Columns) -> Ticks:
        """The tick of each row; an InputError names the series of the first that is wrong."""
        assert self.frequency is not None
        times = columns[self.time]
        distinct = [*dict.fromkeys(times)]  # series of a panel often share them
        whole = [time.strip().isdigit() for time in distinct]
        if not any(whole) or all(whole):
            with suppress(InputError):
                found = dict(zip(distinct, self.frequency.ticks("", distinct).tolist(), strict=True))
                return np.fromiter(map(found.__getitem__, times), np.int64, len(times))
        ticks = np.zeros(len(times), np.int64)
        for name, rows in _groups(columns[self.id]).items():
            ticks[rows] = self.frequency.ticks(name, [times[i] for i in rows])
        return ticks

    def _matrix(self, columns: Columns, names: Sequence[str], places: Ticks) -> Numbers:
        parts = [self.covariates[name].encode(columns[name])[places] for name in names]
        return np.concatenate(parts, 1) if parts else _none(len(places))


def inside(lengths: Ticks) -> NDArray[np.bool_]:
    """Where rows stand, and no padding (B, T)."""
    return valid(torch.from_numpy(lengths), int(lengths.max(initial=0))).numpy()


def fingerprint(series: Iterable[Series]) -> str:
    """sha256 of series, in order."""
    return splits.fingerprint(content for one in series for content in _contents(one))


def _contents(one: Series) -> Iterator[bytes]:
    yield f"{one.name}\n{one.start} {one.y.shape}\n".encode()
    for part in (one.y, one.past, one.future, one.static):
        yield np.ascontiguousarray(part).tobytes()


def _none(T: int) -> Numbers:
    return np.zeros((T, 0))


def _checked(panel: Panel) -> Panel:
    """The series; an InputError where a value is infinite."""
    wrong = np.isinf(panel.y).any(1)
    if wrong.any():
        at = int(wrong.argmax())
        i = int(np.searchsorted(panel.ends, at, "right"))
        raise InputError(
            f"series {panel.names[i]!r} has an infinite value at row {at - int(panel.ends[i] - panel.lengths[i])} of "
            "its times; correct it, or leave it empty if it is missing"
        )
    return panel


def _columns(frame: Columns, reader: PanelReader, targets: bool = True) -> Columns:
    """The columns that a reader needs. One series alone needs no column of names."""
    wanted = [reader.time, *(reader.target if targets else ()), *reader.static, *reader.past, *reader.future]
    if not frame:
        raise InputError("the data are empty; they need columns with names, and rows")
    for name in wanted:
        if name not in frame:
            raise InputError(
                f"the data have no column {name!r}; there are {', '.join(frame)}. data.id, data.time, data.target, "
                "data.static, data.past and data.future name columns."
            )
    rows = len(frame[reader.time])
    if not rows:
        raise InputError("there is no row in the data; a forecaster needs some to read")
    names = frame.get(reader.id, ["series"] * rows)
    if not NAMELESS.isdisjoint(names):
        i = next(i for i, name in enumerate(names) if name in NAMELESS)
        raise InputError(f"row {i} of the data has no name of its series in column {reader.id!r}; give it one")
    return {**{name: frame[name] for name in wanted}, reader.id: names}


def _groups(names: Sequence[str]) -> dict[str, list[int]]:
    groups: dict[str, list[int]] = {}
    for i, name in enumerate(names):
        groups.setdefault(name, []).append(i)
    return groups


def _owners(names: Sequence[str]) -> tuple[list[str], Ticks]:
    """The series, in the order in which they come, and of which of them each row is."""
    distinct = [*dict.fromkeys(names)]
    if len(distinct) == len(names):
        return distinct, np.arange(len(names))
    numbers = dict(zip(distinct, range(len(distinct)), strict=True))
    return distinct, np.fromiter(map(numbers.__getitem__, names), np.int64, len(names))


def _without_last(ticks: Ticks, groups: Mapping[str, list[int]], last: int) -> NDArray[np.bool_]:
    """Whether rows are none of the `last` of their series."""
    used = np.ones(len(ticks), bool)
    for rows in groups.values() if last else ():
        used[np.array(rows)[np.argsort(ticks[rows])[-last:]]] = False
    return used


def _numbers(cells: Sequence[str], name: str) -> Numbers:
    try:
        with suppress(ValueError):  # most columns are numbers alone
            return np.fromiter(map(float, cells), np.float64, len(cells))
        return np.array([number_of(cell) for cell in cells])
    except ValueError as error:
        raise InputError(f"column {name!r} has a value that is not a number: {error}") from error


def _has_gaps(names: Sequence[str], owner: Ticks, ticks: Ticks, reader: PanelReader) -> bool:
    """Whether rows, in order, leave times of their series out; an InputError where that may not be."""
    steps, same = np.diff(ticks), np.diff(owner) == 0
    assert reader.frequency is not None
    twice, gap = same & (steps == 0), same & (steps > 1)
    if twice.any():
        i = int(twice.argmax())
        stamp = reader.frequency.stamps(ticks[i : i + 1])[0]
        raise InputError(f"series {names[owner[i]]!r} has the time {stamp} twice; leave one of the rows out")
    if gap.any() and reader.gaps == "error":
        i = int(gap.argmax())
        missing = reader.frequency.stamps(ticks[i : i + 1] + 1)[0]
        business = reader.frequency.unit == "business"  # which is not found where gaps are filled
        raise InputError(
            f"series {names[owner[i]]!r} has no row for {missing} (frequency {reader.frequency}); add it, or pass "
            f"--data.gaps fill{f' --data.frequency {reader.frequency}' if business else ''} to read rows without "
            "values there"
        )
    return bool(gap.any())


def _spread(values: Numbers, at: Ticks, rows: int) -> Numbers:
    """Rows where they stand among so many, NaN in between."""
    found = np.full((rows, values.shape[1]), np.nan)
    found[at] = values
    return found


def _constant(name: str, values: Numbers, names: Sequence[str]) -> Numbers:
    if not values.shape[1]:
        return np.zeros(0)
    known = values[~np.isnan(values).any(1)]
    if not len(known) or (known != known[0]).any():
        what = "no value" if not len(known) else "several values"
        raise InputError(f"series {name!r} has {what} of a static covariate ({', '.join(names)}); it needs one")
    return known[0]

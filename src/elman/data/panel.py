"""Many series in one file: what a forecaster reads.

`long` is the frame of the ecosystem, a row for each series and time: unique_id, ds, y and covariates, as CSV or
Parquet. `wide` is M4's, a line for each series: its name, then its values, no times. `arrays` are vectors (T, C), many
sequences in a `.npz` or `.mat` file; FILE:KEY names one of its arrays.

A covariate is `static` (one value for each series), `past` (known until now) or `future` (known ahead), a number or a
category.
"""

from __future__ import annotations

import csv
import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from elman.data import calendar
from elman.data.arrays import read_arrays
from elman.data.calendar import Frequency, Ticks
from elman.data.covariates import Covariate, fit_covariate
from elman.data.observations import MISSING
from elman.data.text import open_text
from elman.errors import FileError, InputError, MissingExtraError
from elman.options import choice

FORMATS = ("auto", "long", "wide", "arrays")
Numbers = NDArray[np.float64]
Frame = dict[str, list[str]]  # columns by name, as text; missing is empty


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


@dataclass(frozen=True)
class PanelReader:
    """How series are read. What depends on the training data (frequency, covariates) is found there by `fit`.

    Args:
        format: one of FORMATS
        id: the column of names
        time: the column of times
        target: the columns of what is predicted
        static: columns that do not change within a series
        past: columns that are known until now only
        future: columns that are known ahead
        gaps: what to do where times are missing, error or fill (rows without values)
        frequency: of the times; None where it is not known yet
        covariates: how each column is read
        errors: invalid UTF-8, strict or replace
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

    def fit(self, given: Any, frequency: str = "auto") -> tuple[PanelReader, list[Series]]:
        """The series of some files or of a frame, and the reader that knows what they are."""
        choice("data.gaps", self.gaps, ("error", "fill"))
        kind, frame = self._opened(given)
        if kind != "long":
            C = frame[0][1].shape[1] if frame else 1
            names = tuple(str(i) for i in range(C)) if kind == "arrays" else self.target[:1]
            reader = replace(self, format=kind, frequency=Frequency(), target=names)
            return reader, reader._unnamed(kind, frame)
        columns = _columns(frame, self)
        groups = _groups(columns[self.id])
        times = {name: [columns[self.time][i] for i in rows] for name, rows in groups.items()}
        covariates = {name: fit_covariate(name, columns[name]) for name in (*self.static, *self.past, *self.future)}
        reader = replace(self, format="long", frequency=calendar.find(times, frequency), covariates=covariates)
        return reader, reader._series(columns, groups)

    def __call__(self, given: Any, *, future: bool = False) -> list[Series]:
        """The series of some files or of a frame, as this reader knows them; `future` rows have no target."""
        kind, frame = self._opened(given)
        if kind != "long":
            return self._unnamed(kind, frame)
        columns = _columns(frame, replace(self, past=()) if future else self, targets=not future)
        return self._series(columns, _groups(columns[self.id]), future)

    def after(self, one: Series, tick: int) -> Series:
        """New rows of a series that has been read up to `tick`, from the tick after it on."""
        if self.format != "long":  # they have no times: what comes is what follows
            return one._replace(start=tick + 1)
        assert self.frequency is not None
        first, wanted = (self.frequency.stamps(np.array([at]))[0] for at in (one.start, tick + 1))
        if one.start <= tick:
            raise InputError(
                f"series {one.name!r} begins at {first}, and its state has read that already: the next row is {wanted}."
                " Give new rows only, or read all from the start with --from_start."
            )
        gap = one.start - tick - 1
        if gap and self.gaps != "fill":
            raise InputError(
                f"series {one.name!r} begins at {first}, but its state ends before {wanted}; give the rows between, or "
                "train with --data.gaps fill"
            )
        blank = (np.full((gap, part.shape[1]), np.nan) for part in (one.y, one.past, one.future))
        y, past, future = (np.concatenate(pair) for pair in zip(blank, (one.y, one.past, one.future), strict=True))
        return one._replace(start=tick + 1, y=y, past=past, future=future)

    def width(self, names: Sequence[str]) -> int:
        """How many numbers some covariates are."""
        return sum(self.covariates[name].width for name in names)

    def _opened(self, given: Any) -> tuple[str, Any]:
        choice("data.format", self.format, FORMATS)
        if hasattr(given, "columns") and hasattr(given, "to_dict"):  # a pandas frame
            return "long", _from_pandas(given)
        if isinstance(given, Mapping):
            return "long", {str(name): [_text(v) for v in values] for name, values in given.items()}
        names = [given] if isinstance(given, str | Path) else list(given)
        files = [str(name) for name in names]
        kind = self.format if self.format != "auto" else _guess(files, self)
        if kind == "arrays":
            return kind, [row for name in files for row in read_arrays(name)]
        if kind == "wide":
            return kind, [row for name in files for row in _wide(name, self.errors)]
        return kind, _joined([_long(name, self.errors) for name in files], files)

    def _unnamed(self, kind: str, rows: Sequence[tuple[str, Numbers]]) -> list[Series]:
        """Series without times and covariates."""
        if kind != "long" and (self.static or self.past or self.future):
            raise InputError(f"data.format is {kind}, which has no covariates; write the series as long rows")
        found = [Series(name, 0, y, _none(len(y)), _none(len(y)), np.zeros(0)) for name, y in rows]
        return _checked(found)

    def _series(self, columns: Frame, groups: Mapping[str, list[int]], future: bool = False) -> list[Series]:
        assert self.frequency is not None
        ticks = {
            name: self.frequency.ticks(name, [columns[self.time][i] for i in rows]) for name, rows in groups.items()
        }
        numbers = {} if future else {name: _numbers(columns[name], name) for name in self.target}
        found = []
        for name, rows in groups.items():
            order = np.argsort(ticks[name], kind="stable")
            sorted_ticks, places = ticks[name][order], np.array(rows)[order]
            at = _filled(name, sorted_ticks, self)
            T = int(at[-1]) + 1
            y = np.full((T, len(self.target)), np.nan)
            for column, target in enumerate(self.target):
                if not future:
                    y[at, column] = numbers[target][places]
            past, ahead = (
                self._matrix(columns, () if future and kind == "past" else getattr(self, kind), places, at, T)
                for kind in ("past", "future")
            )
            static = self._matrix(columns, self.static, places, at, T)
            found.append(Series(name, int(sorted_ticks[0]), y, past, ahead, _constant(name, static, self.static)))
        return _checked(found)

    def _matrix(self, columns: Frame, names: Sequence[str], places: Ticks, at: Ticks, T: int) -> Numbers:
        parts = []
        for name in names:
            values = self.covariates[name].encode([columns[name][i] for i in places])
            whole = np.full((T, values.shape[1]), np.nan)
            whole[at] = values
            parts.append(whole)
        return np.concatenate(parts, 1) if parts else _none(T)


def fingerprint(series: Sequence[Series]) -> str:
    """sha256 of series, in order."""
    total = hashlib.sha256()
    for one in series:
        total.update(f"{one.name}\n{one.start} {one.y.shape}\n".encode())
        for part in (one.y, one.past, one.future, one.static):
            total.update(np.ascontiguousarray(part).tobytes())
    return total.hexdigest()


def _none(T: int) -> Numbers:
    return np.zeros((T, 0))


def _checked(found: list[Series]) -> list[Series]:
    if not found:
        raise InputError("there is no series in the data: the file is empty. A forecaster needs some.")
    for one in found:
        if np.isinf(one.y).any():
            raise InputError(
                f"series {one.name!r} has an infinite value at row {int(np.isinf(one.y).any(1).argmax())} of its "
                "times; correct it, or leave it empty if it is missing"
            )
    return found


def _guess(files: Sequence[str], reader: PanelReader) -> str:
    """The format of files by their names, and of CSV by the header: where it names the times, rows are long."""
    endings = {Path(name.rpartition(":")[0] or name).suffix for name in files} | {Path(name).suffix for name in files}
    if endings & {".npz", ".mat"}:
        return "arrays"
    if endings & {".parquet"}:
        return "long"
    header = [cell.strip() for cell in next(_lines(files[0], reader.errors), (0, []))[1]]
    return "long" if reader.time in header else "wide"


def _lines(name: str, errors: str) -> Iterator[tuple[int, list[str]]]:
    text = "".join(piece for _, piece in open_text([name], errors).pieces())
    first = text.split("\n", 1)[0]
    between = next((mark for mark in "\t;," if mark in first), ",")
    reader = csv.reader(text.split("\n"), delimiter=between)
    try:
        for cells in reader:
            if cells and any(cell.strip() for cell in cells):
                yield reader.line_num, cells
    except csv.Error as error:
        raise InputError(f"line {reader.line_num} of {name} is not a line of columns: {error}") from error


def _long(name: str, errors: str) -> Frame:
    if Path(name).suffix == ".parquet":
        return _parquet(name)
    lines = _lines(name, errors)
    _, header = next(lines, (0, []))
    header = [cell.strip() for cell in header]
    rows = []
    for number, cells in lines:
        if len(cells) != len(header):
            raise InputError(f"line {number} of {name} has {len(cells)} values; the header names {len(header)}")
        rows.append(cells)
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(header)
    return {title: [cell.strip() for cell in column] for title, column in zip(header, columns, strict=True)}


def _parquet(name: str) -> Frame:
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise MissingExtraError("pyarrow", "parquet") from error
    try:
        table = parquet.read_table(name)
    except (OSError, ValueError) as error:
        raise FileError(f"cannot read {name}: {error}") from error
    return {column: [_text(v) for v in table[column].to_pylist()] for column in table.column_names}


def _from_pandas(frame: Any) -> Frame:
    plain = frame.reset_index() if getattr(frame.index, "name", None) else frame
    return {str(column): [_text(v) for v in plain[column].tolist()] for column in plain.columns}


def _text(value: object) -> str:
    """A cell as CSV would have it."""
    if value is None or (isinstance(value, float) and math.isnan(value)) or str(value) in ("NaT", "<NA>"):
        return ""
    return repr(value) if isinstance(value, float) else str(value)


def _joined(frames: list[Frame], names: Sequence[str]) -> Frame:
    for frame, name in zip(frames, names, strict=True):
        if list(frame) != list(frames[0]):
            raise InputError(f"{name} has the columns {', '.join(frame)}; {names[0]} has {', '.join(frames[0])}")
    return {column: [cell for frame in frames for cell in frame[column]] for column in frames[0]}


def _columns(frame: Frame, reader: PanelReader, targets: bool = True) -> Frame:
    """The columns that a reader needs. One series alone needs no column of names."""
    wanted = [reader.time, *(reader.target if targets else ()), *reader.static, *reader.past, *reader.future]
    for name in wanted:
        if name not in frame:
            raise InputError(
                f"the data have no column {name!r}; there are {', '.join(frame)}. data.id, data.time, data.target, "
                "data.static, data.past and data.future name columns."
            )
    rows = len(frame[reader.time])
    names = frame.get(reader.id, ["series"] * rows)
    return {**{name: frame[name] for name in wanted}, reader.id: names}


def _groups(names: Sequence[str]) -> dict[str, list[int]]:
    groups: dict[str, list[int]] = {}
    for i, name in enumerate(names):
        groups.setdefault(name, []).append(i)
    if not groups:
        raise InputError("there is no row in the data: the file is empty. A forecaster needs some.")
    return groups


def _numbers(cells: Sequence[str], name: str) -> Numbers:
    try:
        return np.array([math.nan if cell.lower() in MISSING else float(cell) for cell in cells])
    except ValueError as error:
        raise InputError(f"column {name!r} has a value that is not a number: {error}") from error


def _filled(name: str, ticks: Ticks, reader: PanelReader) -> Ticks:
    """Where rows stand among all ticks from the first to the last."""
    steps = np.diff(ticks)
    assert reader.frequency is not None
    if (steps == 0).any():
        twice = reader.frequency.stamps(ticks[1:][steps == 0][:1])[0]
        raise InputError(f"series {name!r} has the time {twice} twice; leave one of the rows out")
    if (steps > 1).any() and reader.gaps == "error":
        i = int((steps > 1).argmax())
        missing = reader.frequency.stamps(ticks[i : i + 1] + 1)[0]
        raise InputError(
            f"series {name!r} has no row for {missing} (frequency {reader.frequency}); add it, or pass "
            "--data.gaps fill to read rows without values there"
        )
    return ticks - ticks[0]


def _constant(name: str, values: Numbers, names: Sequence[str]) -> Numbers:
    if not values.shape[1]:
        return np.zeros(0)
    known = values[~np.isnan(values).any(1)]
    if not len(known) or (known != known[0]).any():
        what = "no value" if not len(known) else "several values"
        raise InputError(f"series {name!r} has {what} of a static covariate ({', '.join(names)}); it needs one")
    return known[0]


def _wide(name: str, errors: str) -> Iterator[tuple[str, Numbers]]:
    """M4's files: a header that says nothing, then a name and its values on each line, empty at the end."""
    for number, cells in _lines(name, errors):
        values = [cell.strip() for cell in cells[1:]]
        while values and not values[-1]:
            values.pop()
        if number == 1 and not all(_is_number(v) for v in values):
            continue
        try:
            y = np.array([math.nan if v.lower() in MISSING else float(v) for v in values])
        except ValueError as error:
            raise InputError(f"line {number} of {name} has a value that is not a number: {error}") from error
        yield cells[0].strip(), y[:, None]


def _is_number(cell: str) -> bool:
    try:
        float(cell or "nan")
    except ValueError:
        return False
    return True

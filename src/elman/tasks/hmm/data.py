"""What a hidden Markov model reads: columns of numbers, or the symbols of a text.

A file of columns has one observation per line, its values between commas, semicolons, tabs or spaces; the first line
may name them. An empty line ends a sequence, and so does the end of a file. An empty cell, nan, na, null or ? is a
missing value.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from elman.data.text import Text, open_text
from elman.errors import InputError, UnknownNameError

WAYS = ("columns", "letters", "characters")
MISSING = frozenset({"", "nan", "na", "null", "?"})


@dataclass(frozen=True)
class HMMDataConfig:
    """What is observed.

    Args:
        train: files, folders, .gz or - (standard input), one name or a list; embedded for the text that Python carries
        valid: the same, scored when the fit is done; empty for none
        read: columns (numbers), letters (in lower case, what is between words one space) or characters (as they are)
        columns: names of columns, or their numbers from 1, one or a list; empty for all
        missing: an empty cell or NaN, allow (it is integrated out) or refuse (an error)
        unit: of a text, file (each is a sequence) or lines (each line is one)
        errors: what to do with invalid UTF-8, strict (an error) or replace (U+FFFD)
    """

    train: list[str] | str = "observations.csv"
    valid: list[str] | str = ""
    read: str = "columns"
    columns: list[str | int] | str | int | None = None
    missing: str = "allow"
    unit: str = "file"
    errors: str = "strict"


class Observations(NamedTuple):
    """X (N, D), sequences end to end, NaN where a value is missing; their lengths; how many symbols were not known; and
    of each observation the cells by name that are not read: a date, an identifier."""

    X: NDArray[np.float64]
    lengths: list[int]
    unknown: int = 0
    others: Sequence[dict[str, str]] = ()


@dataclass(frozen=True)
class Reader:
    """How a model reads: which way, and what the columns are called or which symbols there are."""

    read: str = "columns"
    names: tuple[str, ...] = ()
    unit: str = "file"

    def __call__(
        self, files: Sequence[str], *, errors: str = "strict", missing: str = "allow", others: bool = False
    ) -> Observations:
        """The observations in some files, as this model knows them; with `others`, the cells that it does not read."""
        for kind, given, known in (
            ("way to read", self.read, WAYS),
            ("treatment of missing values", missing, ("allow", "refuse")),
            ("unit", self.unit, ("file", "lines")),
        ):
            if given not in known:
                raise UnknownNameError(kind, given, known)
        text = open_text(files, errors)
        found = self._columns(text, others) if self.read == "columns" else self._symbols(text)
        if not len(found.X):
            raise InputError(f"there is no observation in {', '.join(files)}; a model needs some to read")
        gone = int(np.isnan(found.X).sum()) - found.unknown
        if gone and missing == "refuse":
            raise InputError(
                f"{gone} values in {', '.join(files)} are missing, and data.missing is refuse; fill them in, or pass "
                "--data.missing allow to have them integrated out"
            )
        return found

    def text(self, X: NDArray[np.generic]) -> str:
        """Observations as they would stand in a file."""
        if self.read != "columns":
            return "".join(self.names[int(symbol)] for symbol in X[:, 0].tolist())
        head = [",".join(self.names)] if self.names else []
        return "\n".join([*head, *(",".join(map(_cell, row)) for row in X.tolist())])

    def _columns(self, text: Text, keep_others: bool) -> Observations:
        rows: list[list[float]] = []
        others: list[dict[str, str]] = []
        lengths = [0]
        for table in _tables(text):
            places = _places(self.names, table)
            if rows and len(places) != len(rows[0]):
                raise InputError(f"{table.file} has {len(places)} columns; the files before it have {len(rows[0])}")
            for line in table.lines:
                if line.cells:
                    rows.append(table.values(line, places))
                    if keep_others:
                        others.append({table.name(i): line.cells[i] for i in range(table.width) if i not in places})
                    lengths[-1] += 1
                else:
                    lengths.append(0)
            lengths.append(0)
        return Observations(np.array(rows, dtype=np.float64), [n for n in lengths if n], others=others)

    def _symbols(self, text: Text) -> Observations:
        number = {symbol: float(i) for i, symbol in enumerate(self.names)}
        pieces = [[number.get(symbol, math.nan) for symbol in piece] for piece in _texts(text, self.read, self.unit)]
        X = np.array([value for piece in pieces for value in piece], dtype=np.float64)[:, None]
        return Observations(X, [len(piece) for piece in pieces if piece], int(np.isnan(X).sum()))


def open_reader(config: HMMDataConfig) -> Reader:
    """The reader of a config, with the names of the columns or the symbols that the training files have."""
    chosen = _columns(config.columns)
    reader = Reader(config.read, chosen, config.unit)
    if config.read == "columns":
        table = next(_tables(open_text(_list(config.train), config.errors)), None)
        if table is None or not (table.header or chosen):
            return reader
        return replace(reader, names=tuple(table.name(i) for i in table.places(chosen)))
    if config.read not in WAYS:
        raise UnknownNameError("way to read", config.read, WAYS)
    texts = _texts(open_text(_list(config.train), config.errors), config.read, config.unit)
    return replace(reader, names=tuple(sorted({symbol for text in texts for symbol in text})))


def open_observations(config: HMMDataConfig) -> tuple[Reader, Observations, Observations | None]:
    """The reader of a config, what it trains on, and what it is validated on, if anything."""
    if not config.train:
        raise InputError("data.train is empty; name a file of observations")
    reader = open_reader(config)
    train = reader(_list(config.train), errors=config.errors, missing=config.missing)
    valid = reader(_list(config.valid), errors=config.errors, missing=config.missing) if config.valid else None
    empty = np.isnan(train.X).all(0)
    if empty.any():
        raise InputError(
            f"column {int(empty.argmax()) + 1} of {', '.join(_list(config.train))} has no value at all; "
            "leave it out with --data.columns"
        )
    return reader, train, valid


def _list(given: list[str] | str) -> list[str]:
    return [given] if isinstance(given, str) else given


def _columns(given: list[str | int] | str | int | None) -> tuple[str, ...]:
    if given is None or given == "":
        return ()
    return tuple(str(column) for column in (given if isinstance(given, list) else [given]))


# Columns


class Line(NamedTuple):
    number: int
    cells: list[str]  # none at the end of a sequence


@dataclass(frozen=True)
class Table:
    """One file: its header, if it has one, and its lines after it."""

    file: str
    header: list[str]
    width: int
    lines: Iterator[Line]

    def name(self, place: int) -> str:
        return self.header[place] if self.header else str(place + 1)

    def places(self, chosen: tuple[str, ...]) -> list[int]:
        """Where the chosen columns are: by name, or by number from 1. All of them, if none is chosen."""
        numbers = {str(i + 1): i for i in range(self.width)}
        known = {**numbers, **{name: i for i, name in enumerate(self.header)}}
        unknown = [name for name in chosen if name not in known]
        if unknown:
            has = (
                f"it has {', '.join(self.header)}, which also go by number from 1"
                if self.header
                else f"its first line does not name the columns, so they go by number, 1 to {self.width}"
            )
            raise InputError(f"{self.file} has no column {unknown[0]!r}; {has}")
        return [known[name] for name in chosen] or list(range(self.width))

    def values(self, line: Line, places: list[int]) -> list[float]:
        """The numbers in some columns of a line."""
        if len(line.cells) != self.width:
            raise InputError(
                f"line {line.number} of {self.file} has {len(line.cells)} values; the first line has {self.width}"
            )
        return [self._number(line, place) for place in places]

    def _number(self, line: Line, place: int) -> float:
        cell = line.cells[place].strip()
        try:
            return math.nan if cell.lower() in MISSING else float(cell)
        except ValueError as error:
            raise InputError(
                f"line {line.number} of {self.file} has {cell!r} in column {self.name(place)}, which is not a number; "
                "correct it, leave it empty if it is missing, or choose other columns with --data.columns"
            ) from error


def _tables(text: Text) -> Iterator[Table]:
    for number, pieces in groupby(text.pieces(), lambda piece: piece[0]):
        file = text.sources[number].name
        lines = _lines(file, "".join(piece for _, piece in pieces))
        first = next((line for line in lines if line.cells), None)
        if first is None:
            continue
        named = any(not _is_number(cell) for cell in first.cells)
        header = [cell.strip() for cell in first.cells] if named else []
        twice = next((name for i, name in enumerate(header) if name in header[:i]), None)
        if twice is not None:
            raise InputError(
                f"line {first.number} of {file} calls two columns {twice!r} (numbers {header.index(twice) + 1} and "
                f"{header.index(twice, header.index(twice) + 1) + 1}); give each a name of its own"
            )
        rest = lines if named else _again(first, lines)
        yield Table(file, header, len(first.cells), rest)


def _again(first: Line, rest: Iterator[Line]) -> Iterator[Line]:
    yield first
    yield from rest


def _lines(file: str, text: str) -> Iterator[Line]:
    lines = text.removeprefix("\ufeff").splitlines()  # some programs mark UTF-8 so
    first = next((line for line in lines if line.strip()), "")
    between = next((mark for mark in "\t;," if mark in first), None)
    if between is None:
        for number, line in enumerate(lines, 1):
            yield Line(number, line.split())
        return
    reader = csv.reader(lines, delimiter=between)
    try:
        for cells in reader:
            yield Line(reader.line_num, [] if cells == [] or (len(cells) == 1 and not cells[0].strip()) else cells)
    except csv.Error as error:
        raise InputError(f"line {reader.line_num} of {file} is not a line of columns: {error}") from error


def _is_number(cell: str) -> bool:
    if cell.strip().lower() in MISSING:
        return True
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _places(names: tuple[str, ...], table: Table) -> list[int]:
    """Where a model finds its columns: by name; or, in a file that does not name them, all that there are."""
    unnamed = not table.header and not any(name.isdecimal() for name in names)
    return table.places(() if unnamed else names)


def _cell(value: object) -> str:
    return f"{value:.10g}" if isinstance(value, float) else str(value)


# Text


def _texts(text: Text, read: str, unit: str) -> Iterator[str]:
    for _, pieces in groupby(text.pieces(), lambda piece: piece[0]):
        whole = "".join(piece for _, piece in pieces)
        for part in whole.splitlines() if unit == "lines" else [whole]:
            folded = re.sub(r"[\W\d_]+", " ", part.casefold()) if read == "letters" else part
            if folded:
                yield folded

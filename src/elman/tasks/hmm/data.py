"""What a hidden Markov model reads: columns of numbers, or the symbols of a text.

A file of columns has one observation per line, its values between commas, semicolons, tabs or spaces; the first line
may name them. An empty line ends a sequence, and so does the end of a file. An empty cell, nan, na, null or ? is a
missing value.

In memory, columns are an array (T, D), or (T,) of one column, which is one sequence; a padded array (B, T, D), with
rows of NaN after the end; a frame, or a mapping of columns by name; rows, each a list of numbers; or a list of
sequences, each an array or a frame. A text is one, or a list of them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from elman.data.names import Names, names_of, refuse_twice
from elman.data.tables import Line, Table, columns_of, is_number, number_of, read_table
from elman.data.text import ERRORS, Document, at_least_one, lines_of, read_documents
from elman.errors import InputError
from elman.files.config import one_of
from elman.options import choice
from elman.tasks.hmm.sequences import NotNumbers, read_values
from elman.tasks.hmm.sequences import read as read_padded

WAYS = ("columns", "letters", "characters")


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

    train: Names = "observations.csv"
    valid: Names = ""
    read: str = one_of("columns", WAYS)
    columns: list[str | int] | str | int | None = None
    missing: str = one_of("allow", ("allow", "refuse"))
    unit: str = one_of("file", ("file", "lines"))
    errors: str = one_of("strict", ERRORS)


Documents = Iterator[tuple[str, str]]  # a name and a text each


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
        choice("data.read", self.read, WAYS)
        choice("data.unit", self.unit, ("file", "lines"))
        documents = read_documents(files, errors)
        found = self._columns(documents, others) if self.read == "columns" else self._symbols(documents)
        self._check(found, files, missing)
        return found

    def in_memory(self, rows: object, *, missing: str = "allow", name: str = "data") -> Observations:
        """The observations in memory, as this model knows them."""
        if self.read != "columns":
            return self(_documents(rows, self.read), missing=missing)
        tables = in_memory_tables(rows, name)
        X = [table.columns(_model_places(self.names, table.head)) for table in tables]
        if len({part.shape[1] for part in X}) > 1:
            raise InputError(f"{name} has sequences of {[part.shape[1] for part in X][:9]} columns; all need as many")
        found = Observations(np.concatenate(X), [n for table in tables for n in table.lengths if n])
        self._check(found, [name], missing)
        return found

    def _check(self, found: Observations, sources: Sequence[str], missing: str) -> None:
        at_least_one(found.lengths, sources, "observation")
        gone = int(np.isnan(found.X).sum()) - found.unknown
        choice("data.missing", missing, ("allow", "refuse"))
        if gone and missing == "refuse":
            raise InputError(
                f"{gone} values in {', '.join(sources)} are missing, and data.missing is refuse; fill them in, or pass "
                "--data.missing allow to have them integrated out"
            )

    def text(self, X: NDArray[np.generic]) -> str:
        """Observations as they would stand in a file."""
        if self.read != "columns":
            return "".join(self.names[int(symbol)] for symbol in X[:, 0].tolist())
        head = [",".join(self.names)] if self.names else []
        return "\n".join([*head, *(",".join(map(_cell, row)) for row in X.tolist())])

    def _columns(self, documents: Documents, keep_others: bool) -> Observations:
        rows: list[list[float]] = []
        others: list[dict[str, str]] = []
        lengths = [0]
        for table in _tables(documents):
            places = _model_places(self.names, table)
            if rows and len(places) != len(rows[0]):
                raise InputError(f"{table.file} has {len(places)} columns; the files before it have {len(rows[0])}")
            for line in table.lines:
                if line.cells:
                    rows.append(_values(table, line, places))
                    if keep_others:
                        others.append({_name(table, i): cell for i, cell in enumerate(line.cells) if i not in places})
                    lengths[-1] += 1
                else:
                    lengths.append(0)
            lengths.append(0)
        return Observations(np.array(rows, dtype=np.float64), [n for n in lengths if n], others=others)

    def _symbols(self, documents: Documents) -> Observations:
        number = {symbol: float(i) for i, symbol in enumerate(self.names)}
        pieces = [
            [number.get(symbol, math.nan) for symbol in piece] for piece in _texts(documents, self.read, self.unit)
        ]
        X = np.array([value for piece in pieces for value in piece], dtype=np.float64)[:, None]
        return Observations(X, [len(piece) for piece in pieces if piece], int(np.isnan(X).sum()))


def open_reader(config: HMMDataConfig, rows: object = None) -> Reader:
    """The reader of a config, with the names of the columns or the symbols that the training data have: the files that
    the config names, or `rows` in memory."""
    chosen, read = _columns(config.columns), choice("data.read", config.read, WAYS)
    reader = Reader(read, chosen, config.unit)
    if read == "columns":
        tables = _tables(read_documents(names_of(config.train), config.errors)) if rows is None else _heads(rows)
        table = next(tables, None)
        if table is None or not (table.header or chosen):
            return reader
        return replace(reader, names=tuple(_name(table, i) for i in _places(table, chosen)))
    files = names_of(config.train) if rows is None else _documents(rows, read)
    texts = _texts(read_documents(files, config.errors), read, config.unit)
    return replace(reader, names=tuple(sorted({symbol for text in texts for symbol in text})))


def open_observations(
    config: HMMDataConfig, in_memory: Mapping[str, object] | None = None
) -> tuple[Reader, Observations, Observations | None]:
    """The reader of a config, what it trains on, and what it is validated on, if anything: what is `in_memory`, and
    else the files that the config names."""
    if not config.train:
        raise InputError("data.train is empty; name a file of observations")
    parts = in_memory or {}
    reader = open_reader(config, parts.get("train"))

    def observations(part: str) -> Observations:
        if part in parts:
            return reader.in_memory(parts[part], missing=config.missing, name=f"the {part} data")
        return reader(names_of(getattr(config, part)), errors=config.errors, missing=config.missing)

    train = observations("train")
    valid = observations("valid") if config.valid else None
    empty = np.isnan(train.X).all(0)
    if empty.any():
        where = "the train data" if "train" in parts else ", ".join(names_of(config.train))
        raise InputError(
            f"column {int(empty.argmax()) + 1} of {where} has no value at all; leave it out with --data.columns"
        )
    return reader, train, valid


def _columns(given: list[str | int] | str | int | None) -> tuple[str, ...]:
    if given is None or given == "":
        return ()
    return tuple(str(column) for column in (given if isinstance(given, list) else [given]))


# Columns


def _tables(documents: Documents) -> Iterator[Table]:
    for file, text in documents:
        table = read_table(file, text, named=None, spaces=True)
        refuse_twice(table.header, file)
        if table.width:
            yield table


class MemoryTable(NamedTuple):
    """Sequences in memory, end to end: what the columns are called, the numbers (N, D), the lengths, and of each column
    that is not numbers, by its place, a cell that is none."""

    head: Table
    X: NDArray[np.float64]
    lengths: Sequence[int]
    words: Mapping[int, str] = MappingProxyType({})

    def columns(self, places: Sequence[int]) -> NDArray[np.float64]:
        """The numbers in some columns."""
        for place in places:
            if place in self.words:
                raise InputError(
                    f"{self.head.file} has {self.words[place]!r} in column {_name(self.head, place)}, which is not a "
                    "number; correct it, or choose other columns with data.columns"
                )
        return self.X[:, places]


def _heads(rows: object) -> Iterator[Table]:
    return (table.head for table in in_memory_tables(rows, "the train data"))


def in_memory_tables(rows: object, name: str) -> list[MemoryTable]:
    """One table; or several, of a list of sequences. A list of lists of numbers has a row in each, as JSON has it."""
    if isinstance(rows, tuple) and len(rows) == 2 and _are_lengths(rows[1], rows[0]):
        raise InputError(
            f"{name} is a sequence and {len(rows[1])} lengths; give a list of the sequences, which np.split(X, "
            "np.cumsum(lengths)[:-1]) makes"
        )
    parts = rows if isinstance(rows, list | tuple) and any(map(_is_sequence, rows)) else [rows]
    return [_memory_table(part, name if len(parts) == 1 else f"sequence {i} of {name}") for i, part in enumerate(parts)]


def _are_lengths(given: object, X: object) -> bool:
    """Whether whole numbers would cut X into sequences."""
    if not isinstance(given, list | tuple | np.ndarray) or not isinstance(X, list | tuple | np.ndarray):
        return False
    return all(isinstance(n, int | np.integer) for n in given) and len(given) < len(X) == sum(given)


def _is_sequence(part: object) -> bool:
    """Whether a part of a list is a sequence: an array, a frame or a list of rows; a row is a list of numbers."""
    if isinstance(part, list | tuple):
        return any(isinstance(row, Sized) and not isinstance(row, str) for row in part)
    return isinstance(part, Mapping) or np.ndim(part) > 0  # type: ignore[arg-type]


def _memory_table(part: Any, name: str) -> MemoryTable:
    if isinstance(part, str):
        raise InputError(f"{name} is a text, and data.read is columns: give an array, or choose another data.read")
    words: dict[int, str] = {}
    if isinstance(part, Mapping) or _has_words(part):
        named = part if isinstance(part, Mapping) else {column: part[column] for column in part.columns}
        columns = columns_of(named)
        names, cells = tuple(columns) if all(isinstance(name, str) for name in named) else (), [*columns.values()]
        words = {i: word for i, column in enumerate(cells) if (word := _first_word(column)) is not None}
        array = np.array(
            [[math.nan if i in words else number_of(cell) for cell in cells[i]] for i in range(len(cells))]
        ).T
    else:
        values, frame_names = read_values(part)
        names = frame_names or ()
        if values.dtype.kind == "O":
            raise InputError(f"{name} has text; give columns of numbers, NaN where one is missing")
        array = values.astype(np.float64)
    if array.ndim not in (1, 2, 3) or not array.shape[-1]:
        raise InputError(f"{name} has the shape {array.shape}; give an array (T, D) or (T,), or a list of them")
    found = read_padded(array[:, None] if array.ndim == 1 else array)
    refuse_twice(names, name)
    return MemoryTable(Table(name, list(names), found.o.shape[1], iter(())), found.o.numpy(), found.lengths, words)


def _has_words(part: object) -> bool:
    """Whether a frame has columns that are not numbers, such as dates."""
    try:
        return hasattr(part, "columns") and read_values(part).values.dtype.kind == "O"
    except NotNumbers:
        return True


def _first_word(cells: Sequence[str]) -> str | None:
    return next((cell for cell in cells if not is_number(cell)), None)


def _documents(rows: object, read: str) -> list[str]:
    texts = [rows] if isinstance(rows, str) else rows
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise InputError(f"data.read is {read}: data are a text, or a list of texts; not a {type(rows).__name__}")
    return [text if isinstance(text, Document) else Document(text) for text in texts]


def _name(table: Table, place: int) -> str:
    return table.header[place] if table.header else str(place + 1)


def _places(table: Table, chosen: tuple[str, ...]) -> list[int]:
    """Where the chosen columns are: by name, or by number from 1. All of them, if none is chosen."""
    numbers = {str(i + 1): i for i in range(table.width)}
    known = {**numbers, **{name: i for i, name in enumerate(table.header)}}
    unknown = [name for name in chosen if name not in known]
    if unknown:
        has = (
            f"it has {', '.join(table.header)}, which also go by number from 1"
            if table.header
            else f"its columns have no names, so they go by number, 1 to {table.width}"
        )
        raise InputError(f"{table.file} has no column {unknown[0]!r}; {has}")
    return [known[name] for name in chosen] or list(range(table.width))


def _model_places(names: tuple[str, ...], table: Table) -> list[int]:
    """Where a model finds its columns: by name; or, in a file that does not name them, all that there are."""
    unnamed = not table.header and not any(name.isdecimal() for name in names)
    return _places(table, () if unnamed else names)


def _values(table: Table, line: Line, places: list[int]) -> list[float]:
    """The numbers in some columns of a line."""
    try:
        return [number_of(line.cells[place]) for place in places]
    except ValueError as error:
        place = next(place for place in places if not is_number(line.cells[place]))
        raise InputError(
            f"line {line.number} of {table.file} has {line.cells[place].strip()!r} in column {_name(table, place)}, "
            "which is not a number; correct it, leave it empty if it is missing, or choose other columns with "
            "--data.columns"
        ) from error


def _cell(value: object) -> str:
    return f"{value:.10g}" if isinstance(value, float) else str(value)


# Text


def _texts(documents: Documents, read: str, unit: str) -> Iterator[str]:
    for _, text in documents:
        for part in lines_of(text) if unit == "lines" else [text]:
            folded = re.sub(r"[\W\d_]+", " ", part.casefold()) if read == "letters" else part
            if folded:
                yield folded

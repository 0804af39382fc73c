"""Tables: CSV and TSV, Parquet, frames and mappings. Cells are text, and where one is missing a word of MISSING."""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, cast

from elman.data.names import refuse_twice
from elman.data.text import lines_of, on_disk
from elman.errors import FileError, InputError, MissingExtraError
from elman.options import choice, several

MISSING = frozenset({"", "nan", "na", "null", "?"})  # cells of a file, whatever the case
ABSENT = ("None", "nan", "NaT", "<NA>")  # as Python, NumPy and pandas spell a value that is not there

Columns = dict[str, list[str]]  # by name


class Line(NamedTuple):
    """The cells of a line, none of an empty one; and the number of the line, from 1."""

    number: int
    cells: list[str]


@dataclass(frozen=True)
class Table:
    """One file: what its columns are called, and the lines after that, each of `width` cells or of none."""

    file: str
    header: list[str]  # nothing where the first line does not name them
    width: int
    lines: Iterator[Line]


class _Tabs(csv.excel_tab):
    quoting = csv.QUOTE_NONE


def table_lines(file: str, text: str, *, spaces: bool = False, prose: bool = False) -> Iterator[Line]:
    """The lines of a table.

    Cells are separated by a tab, a semicolon or a comma, the first of these that the first line has; if it has none, a
    comma, or with `spaces` any number of them. Quotation marks may enclose such marks and line breaks. Where cells hold
    `prose`, a .tsv has tabs whatever its first line has, and between tabs quotation marks are characters like others.
    """
    first = next((line for line in io.StringIO(text, newline="") if line.strip()), "")
    between = next((mark for mark in "\t;," if mark in first), " " if spaces else ",")
    if prose and file.removesuffix(".gz").endswith(".tsv"):
        between = "\t"
    if between == " ":
        yield from (Line(number, line.split()) for number, line in enumerate(lines_of(text), 1))
        return
    dialect = _Tabs if prose and between == "\t" else csv.excel
    reader = csv.reader(io.StringIO(text, newline=""), dialect, delimiter=between)
    try:
        for cells in reader:
            yield Line(reader.line_num, [] if len(cells) == 1 and not cells[0].strip() else cells)
    except csv.Error as error:
        raise InputError(f"line {reader.line_num} of {file} is not a line of columns: {error}") from error


def read_table(file: str, text: str, *, named: bool | None = True, spaces: bool = False, prose: bool = False) -> Table:
    """A table whose first line names the columns, or does so if it is not all numbers where `named` is None.

    >>> table = read_table("a.csv", "x,y\\n1,2\\n")
    >>> table.header, [line.cells for line in table.lines]
    (['x', 'y'], [['1', '2']])
    """
    lines = table_lines(file, text, spaces=spaces, prose=prose)
    first = next((line for line in lines if line.cells), Line(1, []))
    if named is None:
        named = not all(is_number(cell) for cell in first.cells)
    header = [cell.strip() for cell in first.cells] if named else []
    width = len(first.cells)

    def checked() -> Iterator[Line]:
        for line in lines if named else chain([first], lines):
            if line.cells and len(line.cells) != width:
                raise InputError(
                    f"line {line.number} of {file} has {len(line.cells)} values; the first line has {width}"
                )
            yield line

    return Table(file, header, width, checked())


def read_columns(file: str, text: str) -> Columns:
    """The columns of a table by name; lines without a value are left out."""
    table = read_table(file, text)
    refuse_twice(table.header, file)
    rows = [line.cells for line in table.lines if any(cell.strip() for cell in line.cells)]
    columns: Iterable[Sequence[str]] = zip(*rows, strict=True) if rows else [()] * table.width
    return {name: [cell.strip() for cell in column] for name, column in zip(table.header, columns, strict=True)}


def read_parquet(name: str) -> Columns:
    """The columns of a Parquet file, or of a folder of them, as big data is written."""
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise MissingExtraError("pyarrow", "parquet") from error
    path = Path(name) if os.path.isdir(name) else on_disk(name)
    try:
        table = parquet.read_table(path)
    except (OSError, ValueError) as error:
        raise FileError(f"cannot read {name}: {error}") from error
    refuse_twice(table.column_names, name)
    return {column: texts_of(table[column].to_pylist()) for column in table.column_names}


def columns_of(table: object) -> Columns:
    """The columns of a mapping by name, all as long as each other, or of a pandas or polars frame."""
    if is_frame(table):
        return {name: texts_of(values) for name, values in values_of(table).items()}
    if not isinstance(table, Mapping):
        raise InputError(
            f"rows are given as a {type(table).__module__}.{type(table).__name__}, which is neither a mapping nor a "
            "pandas or polars frame with its rows in memory; collect a lazy one first"
        )
    refuse_twice(map(str, table), "the mapping")
    columns = {
        str(name): texts_of(several(f"column {str(name)!r}", values, "values")) for name, values in table.items()
    }
    if len({len(column) for column in columns.values()}) > 1:
        sizes = ", ".join(f"{name} has {len(column)}" for name, column in columns.items())
        raise InputError(f"the rows have columns of different lengths: {sizes}; each row needs a value in all of them")
    return columns


def is_frame(table: object) -> bool:
    """Whether it is a frame of pandas or polars, neither of which is imported.

    >>> is_frame({"ds": [1, 2]})
    False
    """
    return not isinstance(table, type) and (hasattr(table, "get_columns") or _is_pandas(table))


def _is_pandas(table: object) -> bool:
    return hasattr(table, "reset_index") and hasattr(table, "columns")


def values_of(frame: Any) -> dict[str, list[Any]]:
    """The values of a frame by the names of its columns. An index of pandas that has a name is a column too."""
    if not _is_pandas(frame):
        return {column.name: column.to_list() for column in frame.get_columns()}
    named = [name for name in frame.index.names if name is not None]
    refuse_twice(map(str, (*named, *frame.columns)), "the frame (its index is a column if it has a name)")
    plain = frame.reset_index(drop=not named)
    return {str(column): plain[column].tolist() for column in plain.columns}


def frame_of(columns: Mapping[str, Sequence[object]], like: object, typed: Sequence[str] = ()) -> Any:
    """Columns as a frame of what `like` names, pandas or polars; or of the kind that it is itself, and then the `typed`
    columns have the types that they have there."""
    kind = like if isinstance(like, str) else "polars" if hasattr(like, "get_columns") else "pandas"
    if not isinstance(like, str) and not is_frame(like):
        raise InputError(f"like is a {type(like).__name__}; it must be pandas, polars, or a frame of one of them")
    try:
        module = import_module(choice("like", kind, ("pandas", "polars")))
    except ImportError as error:
        raise MissingExtraError(kind, "frames") from error
    made = module.DataFrame(dict(columns))
    wanted = {} if isinstance(like, str) else _types(like)
    for name in (name for name in typed if name in wanted):
        try:
            column = made[name].cast(wanted[name]) if kind == "polars" else made[name].astype(wanted[name])
        except Exception as error:  # each of the two has many of its own
            raise InputError(
                f"column {name!r} cannot have the type {wanted[name]} that it has in the other frame: {error}"
            ) from error
        _refuse_loss(name, texts_of(made[name].to_list()), texts_of(column.to_list()), wanted[name])
        made = made.with_columns(column) if kind == "polars" else made.assign(**{name: column})
    return made


def _refuse_loss(name: str, before: Sequence[str], after: Sequence[str], kind: object) -> None:
    """A category that is not among those of a type becomes nothing, and hours of a day become the same date."""
    if after.count("") > before.count("") or len({*after}) < len({*before}):
        raise InputError(
            f"column {name!r} would lose values in the type {kind} that it has in the other frame; "
            "name pandas or polars in place of that frame"
        )


def _types(frame: Any) -> dict[str, Any]:
    """The types of the columns, which text keeps anyway."""
    plain = frame.reset_index() if _is_pandas(frame) else frame
    return {str(name): plain[name].dtype for name in plain.columns}


def join_columns(tables: Sequence[Columns], names: Sequence[str]) -> Columns:
    """The rows of several tables of the same columns, one after the other."""
    for table, name in zip(tables, names, strict=True):
        if list(table) != list(tables[0]):
            raise InputError(f"{name} has the columns {', '.join(table)}; {names[0]} has {', '.join(tables[0])}")
    return {column: [cell for table in tables for cell in table[column]] for column in tables[0]}


def texts_of(values: Iterable[object]) -> list[str]:
    """Cells as CSV would have them.

    >>> texts_of(["a", 1, 0.1, None, math.nan]), texts_of([0.5])
    (['a', '1', '0.1', '', ''], ['0.5'])
    """
    cells = list(values)
    kinds = {*map(type, cells)}
    if kinds == {float}:
        return [*map(repr, cells)]  # 'nan' is missing too
    if kinds == {str}:
        return cast(list[str], cells)
    return [value if type(value) is str else _text(value) for value in cells]


def _text(value: object) -> str:
    text = repr(float(value)) if isinstance(value, float) else str(value)
    return "" if text in ABSENT and not isinstance(value, str) else text


def is_missing(cell: str) -> bool:
    """Whether a cell has no value.

    >>> is_missing(" NA"), is_missing("0")
    (True, False)
    """
    return cell.strip().lower() in MISSING


def number_of(cell: str) -> float:
    """The number in a cell, NaN where it is missing; a ValueError if it is something else.

    >>> number_of("2.5"), number_of("?")
    (2.5, nan)
    """
    try:
        return float(cell)
    except ValueError:
        if is_missing(cell):
            return math.nan
        raise


def is_number(cell: str) -> bool:
    """Whether a cell is a number, or missing."""
    try:
        number_of(cell)
    except ValueError:
        return False
    return True

"""The files that series stand in, and what else rows may be given as."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from elman.data.arrays import Numbers, read_sequences
from elman.data.tables import (
    Columns,
    columns_of,
    is_number,
    join_columns,
    number_of,
    read_columns,
    read_parquet,
    table_lines,
)
from elman.data.text import read_documents
from elman.errors import InputError
from elman.options import choice
from elman.tasks.forecast import calendar

FORMATS = ("auto", "long", "wide", "arrays")
M4 = re.compile(r"(V\d+( |$))+")  # the header of M4's files: V1, V2 ...


def open_rows(
    given: object, format: str, id: str, time: str, errors: str
) -> tuple[str, Columns | list[tuple[str, Numbers]]]:
    """The format, and columns by name; or the values of each series by its name, where there is nothing else."""
    choice("data.format", format, FORMATS)
    if isinstance(given, Mapping) or hasattr(given, "columns"):
        return _in_memory(columns_of(given), format, id, time)
    names = [given] if isinstance(given, str | Path) else given
    if not isinstance(names, list | tuple) or not names or not all(isinstance(name, str | Path) for name in names):
        raise InputError(
            f"rows are given as a {type(given).__name__}; they are a file, a list of files, a mapping of columns "
            "by name, or a pandas or polars frame"
        )
    files = [name if isinstance(name, str) else str(name) for name in names]
    kind = format if format != "auto" else _guess(files, time, errors)
    if kind == "arrays":
        return kind, [(str(i), row) for name in files for i, row in enumerate(read_sequences(name))]
    if kind == "wide":
        return kind, [row for file, text in read_documents(files, errors) for row in _wide(file, text)]
    tables = [table for name in files for table in _tables(name, errors)]
    return kind, join_columns([table for _, table in tables], [file for file, _ in tables])


def _in_memory(columns: Columns, format: str, id: str, time: str) -> tuple[str, Columns | list[tuple[str, Numbers]]]:
    """Rows of a mapping or a frame: long ones, or where the format says so wide ones. A wide one has its names in the
    column `id`, or else in the first, and its values in the others, in their order."""
    if format == "arrays":
        raise InputError(
            "data.format is arrays, and the rows are a table; give long rows, or name an .npz or .mat file"
        )
    if format != "wide" or time in columns:
        return "long", columns
    columns = _names_first(columns, id)
    rows = ([cell if cell != "nan" else "" for cell in cells] for cells in zip(*columns.values(), strict=True))
    return "wide", [_wide_row(cells, f"row {number} of the table") for number, cells in enumerate(rows)]


def _names_first(columns: Columns, id: str) -> Columns:
    """The columns of a wide table, names before values; an InputError where either are not what they should be."""
    if id in columns:
        columns = {id: columns[id], **{name: cells for name, cells in columns.items() if name != id}}
    first, *others = columns
    if first != id and columns[first] and all(is_number(cell) for cell in columns[first]):
        raise InputError(
            f"data.format is wide, and the first column, {first!r}, has numbers alone, where the names of the series "
            f"should be; add a column {id!r} with a name for each row"
        )
    marks = [re.fullmatch(r"(\D*)(\d+)", name) for name in others]
    same = len({mark[1] for mark in marks if mark}) == 1 and all(marks)
    keys: list[int] | list[str] = [int(mark[2]) for mark in marks if mark] if same else []
    if all(map(calendar.is_date, others)) and not same:
        keys = others
    for before, after, name, other in zip(keys, keys[1:], others, others[1:], strict=False):
        if before > after:  # type: ignore[operator]
            raise InputError(
                f"data.format is wide, whose values stand in the order of time, and column {name!r} stands before "
                f"{other!r}; put the columns in order"
            )
    return columns


def _tables(name: str, errors: str) -> list[tuple[str, Columns]]:
    if Path(name).suffix == ".parquet":
        return [(name, read_parquet(name))]
    return [(file, read_columns(file, text)) for file, text in read_documents([name], errors)]


def _wide(file: str, text: str) -> Iterator[tuple[str, Numbers]]:
    """M4's files: a header that says nothing, then a name and its values on each line, empty at the end."""
    for number, cells in table_lines(file, text):
        title = number == 1 and not all(is_number(cell) for cell in cells[1:])
        if any(cell.strip() for cell in cells) and not title:
            yield _wide_row(cells, f"line {number} of {file}")


def _wide_row(cells: Sequence[str], where: str) -> tuple[str, Numbers]:
    """A name and its values, as far as there are any."""
    values = [cell.strip() for cell in cells[1:]]
    while values and not values[-1]:
        values.pop()
    try:
        y = np.array([number_of(value) for value in values])
    except ValueError as error:
        raise InputError(f"{where} has a value that is not a number: {error}") from error
    return cells[0].strip(), y[:, None]


def _guess(files: Sequence[str], time: str, errors: str) -> str:
    """The format of files by their names, and of CSV by the header: where it names the times, rows are long."""
    endings = {Path(name.rpartition(":")[0] or name).suffix for name in files} | {Path(name).suffix for name in files}
    if endings & {".npz", ".mat"}:
        return "arrays"
    if endings & {".parquet"}:
        return "long"
    lines = (
        [cell.strip() for cell in cells]
        for file, text in read_documents(files[:1], errors)
        for _, cells in table_lines(file, text)
    )
    rows = filter(any, lines)
    header = next(rows, [])
    if not header:
        raise InputError(f"{files[0]} is empty: there is no cell with a value in it")
    if time in header:
        return "long"
    first = header if _is_wide(header) else next(rows, [])
    titled, name = first is not header, first[0] if first else ""
    if (titled and not M4.fullmatch(" ".join(header[1:]))) or (calendar.is_date(name) and not name.isdigit()):
        raise InputError(
            f"{files[0]} has no column {time!r}; its first line is {', '.join(header[:8])}"
            f"{' ...' if len(header) > 8 else ''}. Name the columns: --data.time, --data.target and, of several "
            "series, --data.id. Or pass --data.format wide if each line is a series, its name and then its values."
        )
    return "wide"


def _is_wide(cells: Sequence[str]) -> bool:
    """Whether a line may be a series: a name, then numbers or nothing."""
    return len(cells) > 1 and all(is_number(cell) for cell in cells[1:])

"""The files that series stand in, as text: long rows as columns by name, M4's wide lines as they come."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elman.data.text import open_text
from elman.errors import FileError, InputError, MissingExtraError
from elman.options import several
from elman.tasks.hmm.data import MISSING

Numbers = NDArray[np.float64]
Frame = dict[str, list[str]]  # columns by name, as text; missing is empty


def lines_of(name: str, errors: str) -> Iterator[tuple[int, list[str]]]:
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


def read_long(name: str, errors: str) -> Frame:
    if Path(name).suffix == ".parquet":
        return _parquet(name)
    lines = lines_of(name, errors)
    _, header = next(lines, (0, []))
    header = [cell.strip() for cell in header]
    refuse_twice(header, name)
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
    refuse_twice(table.column_names, name)
    return {column: texts_of(table[column].to_pylist()) for column in table.column_names}


def from_frame(frame: Any) -> Frame:
    """The columns of a pandas or polars frame."""
    if hasattr(frame, "get_columns"):  # polars
        return {column.name: texts_of(column.to_list()) for column in frame.get_columns()}
    if not hasattr(frame, "reset_index"):
        raise InputError(
            f"rows are given as a {type(frame).__module__}.{type(frame).__name__}, which is neither a pandas nor a "
            "polars frame with its rows in memory; a lazy one is collected first"
        )
    plain = frame.reset_index() if getattr(frame.index, "name", None) else frame
    refuse_twice(map(str, plain.columns), "the frame")
    return {str(column): texts_of(plain[column].tolist()) for column in plain.columns}


def from_mapping(given: Mapping[Any, Any]) -> Frame:
    """The columns of a mapping by name, all as long as each other."""
    refuse_twice(map(str, given), "the mapping")
    found = {str(name): texts_of(several(f"column {str(name)!r}", values, "values")) for name, values in given.items()}
    if len({len(column) for column in found.values()}) > 1:
        sizes = ", ".join(f"{name} has {len(column)}" for name, column in found.items())
        raise InputError(f"the rows have columns of different lengths: {sizes}; each row needs a value in all of them")
    return found


def refuse_twice(names: Iterable[str], where: str) -> None:
    """Raise an InputError at a column that is named twice; spreadsheets leave several without a name, which may be."""
    seen = set()
    for name in names:
        if name in seen:
            raise InputError(f"{where} has the column {name!r} twice; leave one out, or give it another name")
        seen |= {name} - {""}


def texts_of(values: Iterable[object]) -> list[str]:
    """Cells as CSV would have them.

    >>> texts_of(["a", 1, 0.1, None, math.nan]), texts_of([0.5])
    (['a', '1', '0.1', '', ''], ['0.5'])
    """
    held = list(values)
    if all(type(value) is float for value in held):
        return [*map(repr, held)]  # 'nan' is missing too
    return [value if type(value) is str else _text(value) for value in held]


def _text(value: object) -> str:
    if isinstance(value, float):
        return "" if math.isnan(value) else repr(float(value))
    text = str(value)
    return "" if value is None or text in ("NaT", "<NA>") else text


def joined(frames: list[Frame], names: Sequence[str]) -> Frame:
    for frame, name in zip(frames, names, strict=True):
        if list(frame) != list(frames[0]):
            raise InputError(f"{name} has the columns {', '.join(frame)}; {names[0]} has {', '.join(frames[0])}")
    return {column: [cell for frame in frames for cell in frame[column]] for column in frames[0]}


def read_wide(name: str, errors: str) -> Iterator[tuple[str, Numbers]]:
    """M4's files: a header that says nothing, then a name and its values on each line, empty at the end."""
    for number, cells in lines_of(name, errors):
        values = [cell.strip() for cell in cells[1:]]
        while values and not values[-1]:
            values.pop()
        if number == 1 and not all(is_number(v) for v in values):
            continue
        try:
            y = np.array([math.nan if v.lower() in MISSING else float(v) for v in values])
        except ValueError as error:
            raise InputError(f"line {number} of {name} has a value that is not a number: {error}") from error
        yield cells[0].strip(), y[:, None]


def is_number(cell: str) -> bool:
    """Whether a cell is a number, or empty."""
    try:
        float(cell or "nan")
    except ValueError:
        return False
    return True

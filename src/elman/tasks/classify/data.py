"""Rows with labels: what a classifier reads. A row is a text or a series of numbers, with no, one or several labels.

Formats of texts: a table with a header (`.tsv`, `.csv`), JSON lines, fastText's `__label__NAME text` lines, and a file
per class, one text a line. series.py reads numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from elman.data import splits
from elman.data.names import refuse_twice
from elman.data.records import json_fields, text_field
from elman.data.tables import ABSENT, read_table, values_of
from elman.data.text import at_least_one, read_documents, read_lines
from elman.errors import InputError
from elman.options import choice
from elman.tasks.classify import series

Input = str | NDArray[np.generic]  # a text, or numbers (T, D)
Label = str | int | float  # of the type that the file has it in: most have texts alone
MARK = "__label__"  # fastText's
FORMATS = ("auto", "table", "jsonl", "fasttext", "files", "lines", "ts", "npz", "idx")
ENDINGS = {
    ".tsv": "table", ".csv": "table", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".ts": "ts",
    ".npz": "npz",
}  # fmt: skip


UNLABELLED = {  # where labels are in files of numbers
    "npz": "its array y (N,) has a label for each row of x, or y (N, C) zeros and ones",
    "ts": "with @classLabel true, each line ends with its label",
    "idx": "name the file of labels too, such as train-labels-idx1-ubyte",
}


class Row(NamedTuple):
    """One input, its labels as they are in the file, where that was, and its number there."""

    input: Input
    labels: tuple[Label, ...]
    where: str
    number: int = 0


@dataclass(frozen=True)
class Reader:
    """How rows are read, as the data section of a config says it (`ClassifyDataConfig`)."""

    format: str = "auto"
    text: str = "text"
    label: str = "label"
    permute: int | None = None
    errors: str = "strict"

    def __call__(self, names: Sequence[str], *, labelled: bool = True) -> list[Row]:
        """The rows of some files; `labelled` says whether each must have a label."""
        choice("data.format", self.format, FORMATS)
        format = self.format if self.format != "auto" else guess(names, labelled)
        numbers: dict[str, Callable[[Sequence[str]], Iterator[series.NumberRow]]] = {
            "ts": partial(series.read_ts, errors=self.errors),
            "npz": series.read_npz,
            "idx": partial(series.read_idx, permute=self.permute),
        }
        read = (
            (Row(*row) for row in numbers[format](names))
            if format in numbers
            else _texts(self, format, names, labelled)
        )
        rows = at_least_one(list(read), names, "row")
        if labelled and format in UNLABELLED and not any(row.labels for row in rows):
            raise InputError(f"there is no label in {', '.join(names)}; {UNLABELLED[format]}")
        return rows

    def frame(self, frame: object, *, labelled: bool = True) -> list[Row]:
        """The rows of a frame of pandas or polars, by the names that the columns of a table have. An input is a text,
        or a list of the numbers of a series; a cell may hold a list of labels."""
        columns = values_of(frame)
        if self.text not in columns:
            raise InputError(no_column("the frame", self.text, [*columns]))
        labels = columns.get(self.label) or [None] * len(columns[self.text])
        pairs = enumerate(zip(columns[self.text], labels, strict=True))
        return [_frame_row(self, i, cell, label, labelled) for i, (cell, label) in pairs]


def no_column(where: str, name: str, header: Sequence[str]) -> str:
    """What is wrong with a table that has no column of texts."""
    known = ", ".join(map(repr, header)) or "empty"
    return f"{where} has no column {name!r}; its header is {known}. Choose with --data.text and --data.label."


def input_of(row: object, number: int) -> str | NDArray[np.float64]:
    """A row that was given: a text, or the numbers of a series, as many at each step."""
    try:
        return row if isinstance(row, str) else np.asarray(row, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"row {number} is not a text, nor numbers (T,) or (T, D): {error}") from error


def _frame_row(reader: Reader, number: int, cell: object, label: object, labelled: bool) -> Row:
    x = input_of(cell, number)
    if not isinstance(x, str) and not x.ndim:
        raise InputError(
            f"row {number} has {cell} in column {reader.text!r}; it must be a text, or a list of numbers, a series"
        )
    labels = _labels_of(label)
    if labelled and not labels:
        raise InputError(f"row {number} has no label in column {reader.label!r}; give it one, or leave the row out")
    return Row(x, labels, f"row {number}", number)


def _labels_of(cell: Any) -> tuple[Label, ...]:
    """The labels in a cell of a frame: a list of them, or as in a file one, or texts with | between them."""
    if isinstance(cell, str):
        return tuple(cell.split("|")) if cell else ()
    if isinstance(cell, list | tuple | np.ndarray):
        return tuple(cell.tolist() if isinstance(cell, np.ndarray) else cell)
    return () if str(cell) in ABSENT else (cell if isinstance(cell, int | float) else str(cell),)


def guess(names: Sequence[str], labelled: bool = True) -> str:
    """The format of some files, by their names and, where those say nothing, by the first line.

    >>> guess(["reviews.tsv"]), guess(["a.pos", "a.neg"]), guess(["train-images-idx3-ubyte.gz"])
    ('table', 'files', 'idx')
    """
    plain = [Path(name.removesuffix(".gz")) for name in names]
    if any("idx3" in path.name or "idx1" in path.name for path in plain):
        return "idx"
    formats = {ENDINGS.get(path.suffix.lower(), "lines") for path in plain}
    if len(formats) > 1:
        raise InputError(f"{', '.join(names)} are of different kinds; give data.format, one of {', '.join(FORMATS)}")
    format = formats.pop()
    if format != "lines" or not labelled:
        return format
    if len(names) > 1:
        return "files"
    first = next((line for _, lines in read_lines(names, "replace") for line in lines if line.strip()), "")
    return "fasttext" if first.startswith(MARK) else "lines"


def class_names(names: Sequence[str]) -> list[str]:
    """What a file per class calls its classes: endings where all else is alike, else names without endings.

    >>> class_names(["data/rt.pos", "data/rt.neg"]), class_names(["pos.txt", "neg.txt"])
    (['pos', 'neg'], ['pos', 'neg'])
    """
    paths = [Path(name.removesuffix(".gz")) for name in names]
    endings = len({path.stem for path in paths}) == 1 and all(path.suffix for path in paths)
    classes = [path.suffix[1:] if endings else path.stem for path in paths]
    if len(set(classes)) < len(classes):
        raise InputError(f"the files {', '.join(names)} name the classes, and two are alike: {', '.join(classes)}")
    return classes


def fingerprint(rows: Iterable[Row]) -> str:
    """sha256 of the inputs and labels of rows, in order."""
    return splits.fingerprint(content for row in rows for content in _contents(row))


def _contents(row: Row) -> Iterator[bytes]:
    content = row.input.encode("utf-8", "surrogateescape") if isinstance(row.input, str) else row.input.tobytes()
    yield f"{len(content)} {tuple(map(str, row.labels))!r} ".encode()
    yield content


def _texts(reader: Reader, format: str, names: Sequence[str], labelled: bool) -> Iterator[Row]:
    if format == "files":
        if not labelled:
            yield from _plain(reader, names)
            return
        for name, label in zip(names, class_names(names), strict=True):
            for row in _plain(reader, [name]):
                yield row._replace(labels=(label,))
        return
    readers: dict[str, Callable[[Reader, Sequence[str]], Iterator[Row]]] = {
        "table": _table, "jsonl": _json_lines, "fasttext": _fasttext, "lines": _plain,
    }  # fmt: skip
    for row in readers[format](reader, names):
        if labelled and not row.labels:
            raise InputError(
                f"{row.where} has no label. Labelled rows are a table with a column {reader.label!r} (.tsv, .csv), "
                f"JSON lines with a field {reader.label!r}, lines that begin with {MARK}NAME, or a file per class"
            )
        yield row


def _plain(reader: Reader, names: Sequence[str]) -> Iterator[Row]:
    """One text a line; empty lines are left out."""
    for file, lines in read_lines(names, reader.errors):
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield Row(line, (), f"line {number} of {file}", number)


def _fasttext(reader: Reader, names: Sequence[str]) -> Iterator[Row]:
    for row in _plain(reader, names):
        assert isinstance(row.input, str)
        words = row.input.split()
        count = next((i for i, word in enumerate(words) if not word.startswith(MARK)), len(words))
        labels = tuple(word.removeprefix(MARK) for word in words[:count])
        yield row._replace(input=" ".join(words[count:]), labels=labels)


def _json_lines(reader: Reader, names: Sequence[str]) -> Iterator[Row]:
    for row in _plain(reader, names):
        assert isinstance(row.input, str)
        record = json_fields(row.input, row.where, (reader.text,))
        text, value = text_field(record, reader.text, row.where), record.get(reader.label)
        labels: list[object] = [] if value is None else value if isinstance(value, list) else [value]
        # null, a list in a list: whatever else JSON has is named as Python spells it
        kept = tuple(label if isinstance(label, str | int | float) else str(label) for label in labels)
        yield row._replace(input=text, labels=kept)


def _table(reader: Reader, names: Sequence[str]) -> Iterator[Row]:
    """A header, then a row a line; of several labels, separated by |. What is to be predicted has none yet."""
    for file, content in read_documents(names, reader.errors):
        table = read_table(file, content, prose=True)
        refuse_twice((name for name in table.header if name in (reader.text, reader.label)), file)
        if reader.text not in table.header:
            raise InputError(no_column(file, reader.text, table.header))
        text = table.header.index(reader.text)
        label = table.header.index(reader.label) if reader.label in table.header else None
        for number, cells in table.lines:
            if cells:
                labels = () if label is None or not cells[label] else tuple(cells[label].split("|"))
                yield Row(cells[text], labels, f"line {number} of {file}", number)

"""Rows with labels: what a classifier reads. A row is a text or a series of numbers, with no, one or several labels.

Formats of texts: a table with a header (`.tsv`, `.csv`), JSON lines, fastText's `__label__NAME text` lines, and a file
per class, one text a line. data/series.py reads numbers, data/synthetic.py makes rows up.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from elman.data.text import open_text
from elman.errors import FileError, InputError
from elman.options import choice, parse_json
from elman.tasks.classify import series

Input = str | NDArray[np.generic]  # a text, or numbers (T, D)
Label = str | int | float  # of the type that the file has it in: most have texts alone
MARK = "__label__"  # fastText's
FORMATS = ("auto", "table", "jsonl", "fasttext", "files", "lines", "ts", "npz", "idx")
ENDINGS = {
    ".tsv": "table", ".csv": "table", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".ts": "ts",
    ".npz": "npz",
}  # fmt: skip


UNLABELLED = {  # where labels stand in files of numbers
    "npz": "its array y (N,) has a label for each row of x, or y (N, C) zeros and ones",
    "ts": "with @classLabel true, each line ends with its label",
    "idx": "name the file of labels too, such as train-labels-idx1-ubyte",
}


class Row(NamedTuple):
    """One input, its labels as they stand in the file, where that was, and its number there."""

    input: Input
    labels: tuple[Label, ...]
    where: str
    number: int = 0


@dataclass(frozen=True)
class Reader:
    """How rows are read: in which format, from which columns, and how pixels are ordered.

    Args:
        format: one of FORMATS
        text: the column or field of the text
        label: the column or field of the label
        permute: the seed of a fixed order of the pixels of images; None for the order they have
        errors: invalid UTF-8, strict or replace
    """

    format: str = "auto"
    text: str = "text"
    label: str = "label"
    permute: int | None = None
    errors: str = "strict"

    def __call__(self, names: Sequence[str], *, labelled: bool = True) -> list[Row]:
        """The rows of some files; `labelled` says whether each must have a label."""
        choice("data.format", self.format, FORMATS)
        choice("data.errors", self.errors, ("strict", "replace"))
        found = self.format if self.format != "auto" else guess(names, labelled)
        if found in ("ts", "npz", "idx"):
            read = {"ts": series.read_ts, "npz": series.read_npz, "idx": series.read_idx}[found]
            rows = [Row(*row) for row in read(names, self.permute)]
        else:
            rows = list(_texts(self, found, names, labelled))
        if not rows:
            raise InputError(f"there is no row in {', '.join(names)}: the file is empty. A model needs some to read.")
        if labelled and found in UNLABELLED and not any(row.labels for row in rows):
            raise InputError(f"there is no label in {', '.join(names)}; {UNLABELLED[found]}")
        return rows


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
    found = formats.pop()
    if found != "lines" or not labelled:
        return found
    if len(names) > 1:
        return "files"
    first = next((line for _, _, line in _lines(names, "replace") if line.strip()), "")
    return "fasttext" if first.startswith(MARK) else "lines"


def class_names(names: Sequence[str]) -> list[str]:
    """What a file per class calls its classes: endings where all else is alike, else names without endings.

    >>> class_names(["data/rt.pos", "data/rt.neg"]), class_names(["pos.txt", "neg.txt"])
    (['pos', 'neg'], ['pos', 'neg'])
    """
    paths = [Path(name.removesuffix(".gz")) for name in names]
    endings = len({path.stem for path in paths}) == 1 and all(path.suffix for path in paths)
    found = [path.suffix[1:] if endings else path.stem for path in paths]
    if len(set(found)) < len(found):
        raise InputError(f"the files {', '.join(names)} name the classes, and two are alike: {', '.join(found)}")
    return found


def fingerprint(rows: Sequence[Row]) -> str:
    """sha256 of the inputs and labels of rows, in order."""
    total = hashlib.sha256()
    for row in rows:
        given = row.input.encode("utf-8", "surrogateescape") if isinstance(row.input, str) else row.input.tobytes()
        total.update(f"{len(given)} {tuple(map(str, row.labels))!r} ".encode())
        total.update(given)
    return total.hexdigest()


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


def _lines(names: Sequence[str], errors: str) -> Iterator[tuple[str, int, str]]:
    """The file, the number and the text of each line."""
    text = open_text(names, errors)
    for number, pieces in groupby(text.pieces(), lambda piece: piece[0]):
        whole = "".join(piece for _, piece in pieces).removeprefix("\ufeff")
        for i, line in enumerate(whole.replace("\r\n", "\n").split("\n"), 1):
            yield text.sources[number].name, i, line


def _plain(reader: Reader, names: Sequence[str]) -> Iterator[Row]:
    """One text a line; empty lines are left out."""
    for file, number, line in _lines(names, reader.errors):
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
        try:
            content = parse_json(row.input)
            text = content[reader.text]
        except (ValueError, LookupError, TypeError) as error:
            raise InputError(
                f"{row.where} is not JSON with a field {reader.text!r} (data.text names it): {error}"
            ) from error
        given = content.get(reader.label)
        labels = [] if given is None else given if isinstance(given, list) else [given]
        if not isinstance(text, str):
            raise InputError(f"{row.where} has {text!r} in its field {reader.text!r}, which is not a text")
        # null, a list in a list: whatever else JSON has is named as Python spells it
        kept = tuple(label if isinstance(label, str | int | float) else str(label) for label in labels)
        yield row._replace(input=text, labels=kept)


class _Tabs(csv.excel_tab):
    quoting = csv.QUOTE_NONE


def _table(reader: Reader, names: Sequence[str]) -> Iterator[Row]:
    """A header, then a row a line; of several labels, a | stands between two."""
    for file, group in groupby(_lines(names, reader.errors), lambda line: line[0]):
        lines = [line for _, _, line in group]
        tabs = file.removesuffix(".gz").endswith(".tsv") or "\t" in lines[0]
        # In a .tsv a quotation mark is a character like any other; in a .csv it may enclose commas and line breaks.
        dialect = _Tabs if tabs else csv.excel
        cells = csv.reader((line + "\n" for line in lines), dialect)
        try:
            header = next(cells, [])
            text, label = _column(header, reader.text, file), _label_column(header, reader, file)
            for row in cells:
                where = f"line {cells.line_num} of {file}"
                if not row:
                    continue
                if len(row) != len(header):
                    raise InputError(f"{where} has {len(row)} columns; the header has {len(header)}")
                labels = () if label is None or not row[label] else tuple(row[label].split("|"))
                yield Row(row[text], labels, where, cells.line_num)
        except csv.Error as error:
            raise FileError(f"line {cells.line_num} of {file} is not a row of a table: {error}") from error


def _column(header: Sequence[str], name: str, file: str) -> int:
    if name not in header:
        raise InputError(
            f"{file} has no column {name!r}; its header is {', '.join(map(repr, header)) or 'empty'}. "
            "Choose with --data.text and --data.label."
        )
    if header.count(name) > 1:
        raise InputError(f"{file} has the column {name!r} twice; leave one out, or give it another name")
    return header.index(name)


def _label_column(header: Sequence[str], reader: Reader, file: str) -> int | None:
    """None where there is none: what is to be predicted has no labels yet."""
    return _column(header, reader.label, file) if reader.label in header else None

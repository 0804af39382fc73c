"""Rows to tensors: texts to symbols, series to numbers of order one, labels to targets. What that takes is JSON."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from elman.data import vocabulary as vocabularies
from elman.data.names import refuse_alike
from elman.data.vocabulary import Vocabulary
from elman.errors import InputError
from elman.files.artifact import Content
from elman.options import choice
from elman.tasks.classify.data import Label, Row

LABEL_KINDS = ("class", "classes", "number")
TYPES: dict[str, Callable[[str], Label]] = {"str": str, "int": int, "float": float, "bool": "True".__eq__}


@dataclass(frozen=True)
class TextInputs:
    """A text to symbols (T,), in lower case if asked."""

    vocabulary: Vocabulary
    lower: bool = False
    kind: ClassVar[str] = "text"

    @staticmethod
    def fit(rows: Sequence[Row], vocabulary: str, min_count: int, size: int, lower: bool) -> TextInputs:
        """The symbols of some texts."""
        kind = vocabularies.kind(vocabulary)
        texts = (str(row.input).lower() if lower else str(row.input) for row in rows)
        between = " " if vocabulary in ("word", "bpe") else ""  # the end of a text ends a word, not a character
        symbols = kind.fit((text + between for text in texts), min_count, size)
        if symbols.unknown is not None and symbols.size < 3:
            raise InputError(f"nothing in the training texts occurs {min_count} times; lower data.min_count")
        return TextInputs(symbols, lower)

    def __call__(self, text: object, where: str) -> Tensor:
        if not isinstance(text, str):
            raise InputError(f"{where} is a {type(text).__name__}; this model reads texts")
        return torch.from_numpy(self.vocabulary.encode(text.lower() if self.lower else text))

    def all(self, rows: Sequence[Row]) -> Sequence[Tensor]:
        """All of them, encoded now: texts are short, and read in every pass."""
        return [self(row.input, row.where) for row in rows]

    def to_json(self) -> Content:
        return {"kind": self.kind, "vocabulary": self.vocabulary.to_json(), "lower": self.lower}


@dataclass(frozen=True)
class SeriesInputs:
    """Numbers (T, D), each dimension less its mean and over its standard deviation in the training data."""

    mean: tuple[float, ...]
    scale: tuple[float, ...]
    kind: ClassVar[str] = "series"

    @property
    def width(self) -> int:
        """D."""
        return len(self.mean)

    @staticmethod
    def fit(rows: Sequence[Row]) -> SeriesInputs:
        """Mean and standard deviation over all steps of all rows."""
        sums: list[np.ndarray] = []
        for row in rows:
            x = _numbers(row.input, row.where).astype(np.float64)
            if sums and x.shape[1] != len(sums[0]):
                raise InputError(f"{row.where} has {x.shape[1]} dimensions; the rows before it have {len(sums[0])}")
            new = [x.sum(0), (x * x).sum(0), np.full(x.shape[1], float(len(x)))]
            sums = new if not sums else [a + b for a, b in zip(sums, new, strict=True)]
        total, squares, n = sums
        mean = total / np.maximum(n, 1)
        std = np.sqrt(np.maximum(squares / np.maximum(n, 1) - mean * mean, 0))
        return SeriesInputs(tuple(mean.tolist()), tuple(np.where(std > 0, std, 1.0).tolist()))

    def __call__(self, series: object, where: str) -> Tensor:
        x = _numbers(series, where)
        if x.shape[1] != self.width:
            raise InputError(f"{where} has {x.shape[1]} dimensions; this model reads {self.width}")
        scaled = (x.astype(np.float32) - np.array(self.mean, np.float32)) / np.array(self.scale, np.float32)
        return torch.from_numpy(scaled)

    def all(self, rows: Sequence[Row]) -> Sequence[Tensor]:
        """All of them, each made when it is read: images as bytes need a quarter of the memory."""
        return _Lazy(self, rows)

    def to_json(self) -> Content:
        return {"kind": self.kind, "mean": self.mean, "scale": self.scale}


AnyInputs = TextInputs | SeriesInputs


def inputs_from_json(content: Content) -> AnyInputs:
    """What `to_json` wrote."""
    if content["kind"] == TextInputs.kind:
        return TextInputs(vocabularies.from_json(content["vocabulary"]), content["lower"])
    return SeriesInputs(tuple(content["mean"]), tuple(content["scale"]))


class _Lazy(Sequence[Tensor]):
    def __init__(self, make: Callable[[object, str], Tensor], rows: Sequence[Row]) -> None:
        self.make, self.rows = make, rows

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Tensor]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, i):  # type: ignore[no-untyped-def]
        row = self.rows[i]
        return self.make(row.input, row.where)


def _numbers(series: object, where: str) -> np.ndarray:
    x = np.asarray(series)
    if isinstance(series, str) or x.ndim not in (1, 2) or not np.issubdtype(x.dtype, np.number):
        raise InputError(f"{where} is a {type(series).__name__}; this model reads series of numbers (T, D)")
    if not np.isfinite(x).all():
        raise InputError(f"{where} has a missing or infinite value; fill it in, or leave the series out")
    return x if x.ndim == 2 else x[:, None]


@dataclass(frozen=True)
class Labels:
    """Labels to targets: the number of a class (N,), flags of several (N, C), or numbers (N,) as they are.

    A model predicts (number - mean) / scale.
    """

    kind: str
    names: tuple[str, ...] = ()
    mean: float = 0.0
    scale: float = 1.0
    type: str = "str"  # of the classes where they were read from; a model of an earlier version has noted none

    @property
    def answers(self) -> tuple[Label, ...]:
        """The classes as a model answers with them: of the type that they were given in.

        >>> Labels("class", ("2", "10"), type="int").answers
        (2, 10)
        """
        return tuple(map(TYPES[self.type], self.names))

    @staticmethod
    def fit(rows: Sequence[Row], kind: str) -> Labels:
        """The classes of some rows, by name; or the mean and the standard deviation of their numbers."""
        choice("data.label_kind", kind, LABEL_KINDS)
        if kind == "number":
            y = Labels(kind).targets(rows)
            return Labels(kind, (), float(y.mean()), float(y.std(correction=0)) or 1.0)
        for row in rows:
            absent = [
                label for label in row.labels if label is None or (isinstance(label, float) and math.isnan(label))
            ]
            if absent:
                raise InputError(
                    f"{row.where} has the label {absent[0]}, which is not a class; give it one, or leave the row out"
                )
        types = {type(label).__name__ for row in rows for label in row.labels}
        counts = Counter(str(label) for row in rows for label in row.labels)
        refuse_alike(counts, "labels")
        if len(counts) < 2 and kind == "class":
            raise InputError(
                f"all {len(rows)} rows of the training data are of the class {next(iter(counts))!r}; there is nothing "
                "to learn. Give at least two classes, or check which column data.label names."
            )
        alone = [name for name, n in counts.items() if n == 1]
        if alone and kind == "class":
            where = next(row.where for row in rows if alone[0] in map(str, row.labels))
            raise InputError(
                f"the class {alone[0]!r} has one member, {where}; a class needs two, to learn and to validate. "
                "Leave the row out, or give the class more. Labels that are numbers need data.label_kind number."
            )
        return Labels(kind, tuple(sorted(counts, key=_in_order)), type=types.pop() if len(types) == 1 else "str")

    def targets(self, rows: Sequence[Row]) -> Tensor:
        """What the labels of rows stand for."""
        if self.kind == "number":
            return torch.tensor([_number(row) for row in rows], dtype=torch.float64)
        if self.kind == "classes":
            y = torch.zeros(len(rows), len(self.names))
            for i, row in enumerate(rows):
                y[i, [self._place(label, row) for label in row.labels]] = 1
            return y
        return torch.tensor([self._place(_only(row), row) for row in rows], dtype=torch.int64)

    def _place(self, label: Label, row: Row) -> int:
        name = str(label)
        if name not in self.names:
            raise InputError(
                f"{row.where} has the label {name!r}, which the model was not trained on; "
                f"it knows {', '.join(self.names[:20])}{' ...' if len(self.names) > 20 else ''}"
            )
        return self.names.index(name)

    def to_json(self) -> Content:
        return asdict(self)


def _in_order(name: str) -> tuple[float, str]:
    """2 sorts before 10."""
    return (float(name) if name.isdecimal() else math.inf, name)


def _only(row: Row) -> Label:
    if len(row.labels) != 1:
        raise InputError(
            f"{row.where} has the labels {', '.join(map(str, row.labels)) or '(none)'}; each row needs one. "
            "For several classes at once: --data.label_kind classes."
        )
    return row.labels[0]


def _number(row: Row) -> float:
    label = _only(row)
    try:
        value = float(label)
    except ValueError as error:
        raise InputError(f"{row.where} has the label {label!r}, and data.label_kind is number") from error
    if not math.isfinite(value):
        raise InputError(f"{row.where} has the label {label!r}, which is not a number to learn from")
    return value

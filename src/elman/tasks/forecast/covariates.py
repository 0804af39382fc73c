"""A column of covariates as numbers of order one: numbers less their mean over their deviation, categories as bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from elman.data.tables import is_missing, number_of
from elman.errors import InputError

MOST = 1000  # categories; of more, a bit each would be a poor idea


@dataclass(frozen=True)
class Covariate:
    """How a column is read: (x - mean) / scale, or a bit for each of the categories that training saw.

    >>> fit_covariate("load", ["1", "3", ""]).encode(["2", "", "3"]).tolist()
    [[0.0], [nan], [1.0]]
    >>> fit_covariate("kind", ["a", "b"]).encode(["b"]).tolist()
    [[0.0, 1.0]]
    """

    name: str
    mean: float = 0.0
    scale: float = 1.0
    categories: tuple[str, ...] = ()

    @property
    def width(self) -> int:
        """How many numbers a value becomes."""
        return max(1, len(self.categories))

    def encode(self, cells: Sequence[str]) -> NDArray[np.float64]:
        """Values (T, width), NaN where one is missing; an InputError at a category that training never saw."""
        gone = np.array([is_missing(cell) for cell in cells], dtype=bool)
        if not self.categories:
            return ((_parsed(self.name, cells) - self.mean) / self.scale)[:, None]
        places = {category: i for i, category in enumerate(self.categories)}
        unknown = next((cell for cell, no in zip(cells, gone, strict=True) if not no and cell not in places), None)
        if unknown is not None:
            raise InputError(
                f"the covariate {self.name!r} has the category {unknown!r}, which does not occur in the training data; "
                f"there are {', '.join(self.categories[:20])}"
            )
        bits = np.zeros((len(cells), len(places)))
        for i, (cell, no) in enumerate(zip(cells, gone, strict=True)):
            bits[i] = np.nan if no else bits[i]
            if not no:
                bits[i, places[cell]] = 1.0
        return bits

    def decode(self, values: NDArray[np.float64]) -> list[str]:
        """Cells that `encode` makes these values (T, width) of, up to rounding."""
        gone: list[bool] = np.asarray(np.isnan(values).any(axis=1)).tolist()
        if self.categories:
            return ["" if no else self.categories[i] for i, no in zip(values.argmax(1), gone, strict=True)]
        numbers = values[:, 0] * self.scale + self.mean
        return ["" if no else repr(float(v)) for v, no in zip(numbers, gone, strict=True)]


def fit_covariate(name: str, cells: Sequence[str], used: NDArray[np.bool_] | None = None) -> Covariate:
    """How a column of the training data is read: as numbers if all that is there are numbers. Their mean and deviation
    are those of the rows that are `used`, unless none of these has a value."""
    gone = np.array([is_missing(cell) for cell in cells], dtype=bool)
    if gone.all():
        raise InputError(f"the covariate {name!r} has no value at all; leave it out")
    try:
        parsed = _parsed(name, cells)
        some = ~gone if used is None or not (used & ~gone).any() else used & ~gone
        values = parsed[some]
    except InputError:
        found = tuple(sorted({cell for cell, no in zip(cells, gone, strict=True) if not no}))
        if len(found) > MOST:
            raise InputError(
                f"the covariate {name!r} has {len(found)} categories; {MOST} at most are read. Is it meant as a number?"
            ) from None
        return Covariate(name, categories=found)
    deviation = float(values.std())
    return Covariate(name, float(values.mean()), deviation if deviation > 0 else 1.0)


def _parsed(name: str, cells: Sequence[str]) -> NDArray[np.float64]:
    try:
        values = np.array([number_of(cell) for cell in cells])
    except ValueError as error:
        raise InputError(f"the covariate {name!r} has a value that is not a number: {error}") from error
    if np.isinf(values).any():
        raise InputError(f"the covariate {name!r} has an infinite value; correct it, or leave it empty")
    return values

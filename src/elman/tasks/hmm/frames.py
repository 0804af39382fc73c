"""What users hold: arrays, lists, masked arrays, and the frames and series of pandas or polars (which are not imported:
they offer `to_numpy`). Out come numbers, NaN where one is missing, or text, with the names of the columns.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sized
from numbers import Real
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from elman.errors import InputError


class Given(NamedTuple):
    """Float64 with NaN, or for labels objects: str, and NaN where one is missing."""

    values: NDArray[np.generic]
    names: tuple[str, ...] | None = None  # of the columns

    @property
    def is_text(self) -> bool:
        return self.values.dtype.kind == "O"


class NotNumbers(InputError, TypeError):
    """Objects that are neither numbers nor text: scikit-learn has a TypeError there."""


def read(X: object) -> Given:
    """What is in X.

    >>> read([[1, None], [3, 4]]).values.tolist()
    [[1.0, nan], [3.0, 4.0]]
    """
    return Given(_values(_array(X)), _names(X))


def _array(X: object) -> NDArray[np.generic]:
    if isinstance(X, np.ma.MaskedArray):
        filled = np.array(X.data, dtype=np.float64 if X.dtype.kind in "biuf" else object)
        filled[np.ma.getmaskarray(X)] = np.nan
        return filled
    if hasattr(X, "nnz"):
        raise NotNumbers("X is a sparse matrix; sequences are dense here: give X.toarray()")
    if not hasattr(X, "to_numpy"):
        return _from_lists(X)
    array: NDArray[np.generic] = X.to_numpy()
    return array[:, None] if array.ndim == 1 else array  # a series is one column


def _from_lists(X: object) -> NDArray[np.generic]:
    try:
        return np.asarray(X)
    except ValueError as error:
        raise InputError(
            "X is a list of parts of different lengths. Lay sequences end to end, with their lengths beside: "
            f"X = np.concatenate(parts), lengths = [len(part) for part in parts]. ({error})"
        ) from None


def _values(array: NDArray[np.generic]) -> NDArray[np.generic]:
    if array.dtype.kind in "biuf":
        return np.ascontiguousarray(array, dtype=np.float64)
    if array.dtype.kind == "c":
        raise InputError("X holds complex numbers. Complex data not supported: give their parts, X.real and X.imag")
    if array.dtype.kind in "UT":
        return array.astype(object)
    if array.dtype.kind == "O":
        return _objects(array)
    raise InputError(f"X holds {array.dtype}; it must hold numbers, NaN where a value is missing")


def _objects(array: NDArray[np.generic]) -> NDArray[np.generic]:
    cells: list[object] = [math.nan if _is_missing(cell) else cell for cell in array.flat]
    if all(isinstance(cell, Real) for cell in cells):
        return np.array(cells, dtype=np.float64).reshape(array.shape)
    if all(isinstance(cell, str) or cell != cell for cell in cells):
        text = np.empty(len(cells), dtype=object)
        text[:] = cells
        return text.reshape(array.shape)
    names = ", ".join(sorted({type(cell).__name__ for cell in cells}))
    raise NotNumbers(
        f"X holds objects ({names}); each argument must be a string label (all of them) or a number, NaN where missing"
    )


def _is_missing(cell: object) -> bool:
    """None, NaN, or pandas' NA, which is neither equal to itself nor unequal."""
    if cell is None or isinstance(cell, Sized):
        return cell is None
    try:
        return bool(cell != cell)
    except (TypeError, ValueError):
        return True


def _names(X: object) -> tuple[str, ...] | None:
    """The names of the columns, where all of them are text: numbers from 0 are what a frame has without names."""
    columns = getattr(X, "columns", None)
    if columns is None and hasattr(X, "to_numpy"):
        columns = [getattr(X, "name", None)]
    if not isinstance(columns, Iterable):
        return None
    names = tuple(columns)
    return names if names and all(isinstance(name, str) for name in names) else None

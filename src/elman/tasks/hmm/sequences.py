"""Observations as users have them, and as the filter takes them.

Users have X (N, D), sequences end to end, with their `lengths`; or a padded array (B, T, D), with lengths or with rows
of NaN after the end. That is an array, a list, a masked array, or a frame or series of pandas or polars (which are not
imported: they offer `to_numpy`). Out come numbers, NaN where one is missing, or text, with the names of the columns.

The filter takes a batch of rows with resets: sequences are laid one after the other into rows as long as the longest,
so that a thousand short ones beside a long one cost no padding to speak of.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sized
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from elman.errors import InputError
from elman.lengths import valid


@dataclass(frozen=True)
class Sequences:
    """`o` (N, D), sequences end to end, NaN where a value is missing; their lengths; and the shape in which they were
    given."""

    o: Tensor
    lengths: tuple[int, ...]
    shape: tuple[int, ...]

    def unflatten(self, values: Tensor, fill: float) -> NDArray[Any]:
        """values (N, ...) in the shape that X had: (N, ...), or (B, T, ...) with `fill` in the padding."""
        if len(self.shape) == 2:
            return values.numpy()
        B, T = self.shape[:2]
        out = values.new_full((B, T, *values.shape[1:]), fill)
        out[valid(torch.tensor(self.lengths), T)] = values
        return out.numpy()


@dataclass(frozen=True)
class Rows:
    """How N observations lie in R rows of L steps: index (N,) into R * L, lengths (R,), reset (R, L)."""

    index: Tensor
    lengths: Tensor
    reset: Tensor

    def pack(self, x: Tensor) -> Tensor:
        """(N, C) -> (R, L, C), zero in the padding."""
        R, L = self.reset.shape
        if len(x) == R * L:
            return x.reshape(R, L, -1)
        return x.new_zeros(R * L, x.shape[1]).index_copy(0, self.index, x).reshape(R, L, -1)

    def unpack(self, y: Tensor) -> Tensor:
        """(R, L, ...) -> (N, ...)."""
        flat = y.reshape(-1, *y.shape[2:])
        return flat if len(flat) == len(self.index) else flat[self.index]


def rows(lengths: tuple[int, ...]) -> Rows:
    """Lay sequences into rows as long as the longest: each into the current row if it still fits there, else into a
    new one."""
    L = max(lengths, default=0)
    used: list[int] = []
    firsts, spans = [], []
    for n in lengths:
        if n == 0:
            continue
        if not used or used[-1] + n > L:
            used.append(0)
        first = (len(used) - 1) * L + used[-1]
        used[-1] += n
        firsts.append(first)
        spans.append(np.arange(first, first + n))
    reset = np.zeros(len(used) * L, dtype=np.bool_)
    reset[firsts] = True
    index = np.concatenate(spans) if spans else np.zeros(0, dtype=np.int64)
    where = torch.from_numpy(reset).reshape(len(used), L)
    return Rows(torch.from_numpy(index), torch.tensor(used, dtype=torch.long), where)


def read(values: NDArray[np.float64], lengths: ArrayLike | None = None, mask: ArrayLike | None = None) -> Sequences:
    """Check and flatten numbers that a user gave. `mask` is True where a value, or a whole observation, is known."""
    if values.ndim not in (2, 3):
        hint = "Reshape your data: X.reshape(-1, 1) if it has a single feature, X.reshape(1, -1) if a single step"
        raise InputError(f"X has the shape {values.shape}; expected (N, D) with lengths, or a padded (B, T, D). {hint}")
    if values.shape[-1] == 0:
        raise InputError(
            f"X has 0 feature(s) (shape={values.shape}) while a minimum of 1 is required: it has no columns"
        )
    o = torch.from_numpy(values.copy())
    if np.isinf(values).any():
        raise InputError("X holds infinities; mark what is missing with NaN, and remove or clip the rest")
    if mask is not None:
        o = o.masked_fill(~_checked_mask(mask, o), torch.nan)
    if values.ndim == 3:
        return _from_padded(o, lengths)
    ends = (len(o),) if lengths is None else _checked_lengths(lengths)
    if sum(ends) != len(o):
        raise InputError(
            f"lengths sum to {sum(ends)}, but X has {len(o)} rows; every row belongs to one sequence. What splits X by "
            "rows, as a GridSearchCV does, needs a padded (B, T, D) with one length for each of its B sequences"
        )
    return Sequences(o, ends, tuple(o.shape))


def lengths_of(shape: tuple[int, ...], y: ArrayLike | None, lengths: ArrayLike | None) -> ArrayLike | None:
    """The lengths among what `fit` and `score` were given. Their second argument is hmmlearn's lengths; scikit-learn
    puts targets there, one for each row of an X (N, D), which a model without targets leaves aside."""
    if lengths is not None or y is None:
        return lengths
    second = np.asarray(y)
    targets = len(shape) == 2 and second.shape[:1] == shape[:1] and not _sums_to(second, shape[0])
    return None if targets else y


def _sums_to(array: NDArray[np.generic], N: int) -> bool:
    return array.ndim == 1 and array.dtype.kind in "iu" and int(array.sum()) == N


def _from_padded(o: Tensor, lengths: ArrayLike | None) -> Sequences:
    B, T, _ = o.shape
    if lengths is None:
        seen = ~o.isnan().all(-1)
        ends = tuple(int((torch.arange(T) * row).max()) + 1 if bool(row.any()) else 0 for row in seen)
    else:
        ends = _checked_lengths(lengths)
        if len(ends) != B or max(ends, default=0) > T:
            raise InputError(
                f"{len(ends)} lengths up to {max(ends, default=0)} were given for a padded X with {B} rows of {T} steps"
            )
    return Sequences(o[valid(torch.tensor(ends), T)], ends, tuple(o.shape))


def _checked_lengths(lengths: ArrayLike) -> tuple[int, ...]:
    array = np.asarray(lengths)
    if array.dtype.kind == "O" and all(isinstance(n, Integral) for n in array.flat):  # a nullable column of pandas
        array = array.astype(np.int64)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu") or (array.size and int(array.min()) < 0):
        raise InputError(f"lengths is {lengths!r}; expected a list of whole numbers of at least 0, one per sequence")
    return tuple(int(n) for n in array)


def _checked_mask(mask: ArrayLike, o: Tensor) -> Tensor:
    observed = torch.as_tensor(np.asarray(mask))
    if observed.dtype != torch.bool or observed.shape not in (o.shape, o.shape[:-1]):
        raise InputError(
            f"mask is {observed.dtype} {tuple(observed.shape)}; expected bool {tuple(o.shape)} or "
            f"{tuple(o.shape[:-1])}, True = observed"
        )
    return observed if observed.shape == o.shape else observed[..., None].expand_as(o)


# What is in X


class Given(NamedTuple):
    """Float64 with NaN, or for labels objects: str, and NaN where one is missing."""

    values: NDArray[np.generic]
    names: tuple[str, ...] | None = None  # of the columns

    @property
    def is_text(self) -> bool:
        return self.values.dtype.kind == "O"


class NotNumbers(InputError, TypeError):
    """Objects that are neither numbers nor text: scikit-learn has a TypeError there."""


def read_values(X: object) -> Given:
    """What is in X.

    >>> read_values([[1, None], [3, 4]]).values.tolist()
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

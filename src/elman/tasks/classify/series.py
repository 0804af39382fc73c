"""Series of numbers with a label each: `.ts` files (UEA, sktime), `.npz` files, and IDX images as rows of pixels.

Each reader gives (numbers (T, D), labels, where it stood, its number there).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from elman.data.arrays import Array, cut_rows, open_arrays, read_array
from elman.data.text import read_lines
from elman.errors import FileError, InputError

NumberRow = tuple[Array, tuple[str | int | float, ...], str, int]


def read_ts(names: Sequence[str], errors: str = "strict") -> Iterator[NumberRow]:
    """The format of the UEA and UCR archives: one row a line, a colon between dimensions, a comma between values.

    Dimensions of one row have one length, rows may differ. The last field is the label, unless the header says that
    there is none.
    """
    for name, lines in read_lines(names, errors):
        labelled, inside = True, False
        for number, line in enumerate(lines, 1):
            where, text = f"line {number} of {name}", line.strip()
            if not text or text.startswith(("#", "%")):
                continue
            if inside:
                yield *_ts_row(text, labelled, where), where, number
                continue
            words = text.lower().split()
            if words[0] == "@data":
                inside = True
            elif words[0] in ("@classlabel", "@targetlabel"):
                labelled = words[1:2] == ["true"]
            elif words[:2] == ["@timestamps", "true"]:
                raise InputError(f"{where}: this file has time stamps, which are not read; write the values alone")
            elif not words[0].startswith("@"):
                raise InputError(f"{where} comes before @data and does not begin with @: this is not a .ts file")
        if not inside:
            raise InputError(f"{name} has no line @data: it is not a .ts file")


def _ts_row(text: str, labelled: bool, where: str) -> tuple[Array, tuple[str, ...]]:
    *dimensions, label = text.split(":") if labelled else (*text.split(":"), "")
    if not dimensions:
        raise InputError(f"{where} has no label after its last colon")
    try:
        values = [[float(v) if v.strip() != "?" else math.nan for v in part.split(",")] for part in dimensions]
    except ValueError as error:
        raise InputError(f"{where} has a value that is not a number: {error}") from error
    if len({len(row) for row in values}) > 1:
        raise InputError(f"{where} has dimensions of {sorted({len(row) for row in values})} values; they must be equal")
    return _finite(np.array(values, dtype=np.float32).T, where), (label.strip(),) if labelled else ()


def read_npz(names: Sequence[str]) -> Iterator[NumberRow]:
    """Arrays `x` (N, T, D) or (N, T), `lengths` (N,) if they differ, and `y` (N,), or (N, C) of zeros and ones."""
    for name in names:
        arrays = open_arrays(name)
        if "x" not in arrays:
            raise FileError(f"{name} has no array x; it has {', '.join(arrays) or 'none'}")
        rows, y = cut_rows(arrays["x"], arrays.get("lengths"), f"x of {name}"), arrays.get("y")
        if y is not None and len(y) != len(rows):
            raise InputError(f"{name} has {len(rows)} rows of x and {len(y)} of y; each row needs its own")
        if y is not None and y.ndim > 1 and not np.isin(y, (0, 1)).all():
            row, column = np.argwhere(~np.isin(y, (0, 1)))[0][:2]
            raise InputError(f"row {row} of y of {name} has {y[row, column]}; y (N, C) must be zeros and ones")
        for i, values in enumerate(rows):
            yield _finite(values, f"row {i} of {name}"), _npz_labels(y, i), f"row {i} of {name}", i


def _npz_labels(y: Array | None, i: int) -> tuple[str | int | float, ...]:
    if y is None:
        return ()
    if y.ndim > 1:
        return tuple(np.flatnonzero(y[i]).tolist())
    label = y[i].item()
    return (label if isinstance(label, str | int | float) else str(label),)


def read_idx(names: Sequence[str], permute: int | None = None) -> Iterator[NumberRow]:
    """Images (N, H, W) as sequences of pixels (H * W, 1), and labels (N,): the files in any order, `.gz` or not.

    With `permute`, the pixels of each image are in one order that this seed chose.
    """
    arrays = [read_array(name, lambda key, array: True)[0] for name in names]
    images = [(name, array) for name, array in zip(names, arrays, strict=True) if array.ndim > 1]
    labels = [(name, array) for name, array in zip(names, arrays, strict=True) if array.ndim == 1]
    if len(images) != 1 or len(labels) > 1:
        raise InputError(f"{', '.join(names)} must be one IDX file of images and one of labels")
    (name, pixels) = images[0]
    y = labels[0][1] if labels else None
    if y is not None and len(y) != len(pixels):
        raise InputError(f"{name} has {len(pixels)} images, {labels[0][0]} has {len(y)} labels; each needs its own")
    rows = pixels.reshape(len(pixels), -1, 1)
    if permute is not None:
        rows = rows[:, torch.randperm(rows.shape[1], generator=torch.Generator().manual_seed(permute)).numpy()]
    for i, row in enumerate(rows):
        yield row, () if y is None else (int(y[i]),), f"image {i} of {name}", i


def _finite(row: Array, where: str) -> Array:
    if not np.isfinite(row).all():
        step = int(np.argmax(~np.isfinite(row).all(axis=1)))
        raise InputError(f"{where} has a missing or infinite value at step {step}; fill it in, or leave the series out")
    return row

"""Images: `.npz`, IDX and MATLAB files, detected by their content, and the digits that scikit-learn carries.

A file holds an array (N, R, C) of N images of R rows and C columns, or (N, R * C). FILE:KEY names the array where there
are several.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from elman.data import splits
from elman.data.arrays import read_array
from elman.errors import InputError, MissingExtraError
from elman.options import choice, whole

Array = NDArray[Any]

EMBEDDED = "embedded:digits"
BINARISATIONS = ("fixed", "threshold", "sampled")


class Images(NamedTuple):
    """Images as they are in files: values from 0 to `white`, (N, R, C)."""

    values: Array
    white: float

    def __len__(self) -> int:
        return len(self.values)


def read_images(names: Sequence[str], columns: int = 0, white: float = 0.0) -> Images:
    """The images of some files, one after the other, all of one size.

    `columns` is how many each has where a file holds (N, R * C), 0 for a square; `white` the largest value that there
    can be, 0 for what the kind of number says: 255 of bytes, 1 of others.

    >>> read_images([EMBEDDED]).values.shape
    (1797, 8, 8)
    """
    images = [_check(_read(name, whole("data.columns", columns, least=0)), name) for name in names]
    sizes = sorted({image.values.shape[1:] for image in images})
    if len(sizes) > 1:
        listed = ", ".join(f"{r} x {c}" for r, c in sizes)
        raise InputError(f"{', '.join(names)} hold images of {listed} pixels; all must have one size")
    values = np.concatenate([image.values for image in images])
    top = white or max(image.white for image in images)
    says = "" if white else ", as its kind of number says"
    _refuse(values, values > top, ", ".join(names), f"the largest is {top:g}{says}. Set data.white to that of white.")
    return Images(values, float(top))


def fingerprint(images: Images) -> str:
    """sha256 of the values, and of their shape."""
    values = np.ascontiguousarray(images.values, np.float32)
    return splits.fingerprint([f"{values.shape} ".encode(), values.tobytes()])


def is_binary(images: Images) -> bool:
    """Whether every value is 0 or 1."""
    return bool(((images.values == 0) | (images.values == 1)).all())


def levels_of(images: Images, where: str) -> NDArray[np.int64]:
    """The values as levels 0 to white, which they must be."""
    levels = images.values.astype(np.int64)
    _refuse(
        images.values, levels != images.values, where, f"levels are whole numbers from 0 to {images.white:g}. Multiply "
        "and round them, or set data.binarise to threshold or sampled.",
    )  # fmt: skip
    return levels


def check_fixed(images: Images, where: str) -> None:
    """Raise an InputError unless every value is 0 or 1."""
    _refuse(
        images.values, (images.values != 0) & (images.values != 1), where, "with data.binarise fixed every value is 0 "
        "or 1. Set data.binarise to threshold or sampled, or to none for grey.",
    )  # fmt: skip


def _refuse(values: Array, wrong: NDArray[np.bool_], where: str, why: str) -> None:
    """Raise an InputError that names the first value that is wrong, if any is."""
    if wrong.any():
        at = np.unravel_index(int(wrong.argmax()), wrong.shape)
        raise InputError(f"image {at[0]} of {where} has the value {values[at]:g} in row {at[1]}, column {at[2]}; {why}")


def _read(name: str, columns: int) -> Images:
    if name.startswith("embedded:"):
        return _embedded(name)
    array, _ = read_array(name, lambda key, array: array.ndim > 1, " with more than one axis")
    return _reshape(array, columns, name)


def _reshape(array: Array, columns: int, name: str) -> Images:
    shape = f"{array.dtype}{list(array.shape)}"
    if not (np.issubdtype(array.dtype, np.number) or array.dtype == bool):
        raise InputError(f"{name} is {shape}; images are numbers")
    if array.ndim == 4 and array.shape[-1] == 1:
        array = array[..., 0]
    if array.ndim == 2:
        array = array.reshape(len(array), -1, _columns(array.shape[1], columns, name))
    if array.ndim != 3 or not array.shape[1] or not array.shape[2]:
        raise InputError(f"{name} is {shape}; it must be (N, R, C), N images of R rows and C columns, or (N, R * C)")
    return Images(array, 255.0 if array.dtype == np.uint8 else 1.0)


def _columns(pixels: int, columns: int, name: str) -> int:
    """How many columns images of so many pixels have; square unless it is set."""
    width = columns or math.isqrt(pixels)
    if not pixels or pixels % width or not (columns or width * width == pixels):
        wanted = f"rows of {columns}" if columns else "a square"
        raise InputError(f"{name} holds {pixels} pixels for each image, which do not make {wanted}: set data.columns")
    return width


def _check(images: Images, name: str) -> Images:
    values = images.values
    if not len(values):
        raise InputError(f"{name} holds no image; a model needs some to read")
    _refuse(values, ~np.isfinite(values), name, "fill it in")
    _refuse(values, values < 0, name, "black is 0")
    return images


def _embedded(name: str) -> Images:
    choice("embedded images", name, (EMBEDDED,))
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise MissingExtraError("scikit-learn", "sklearn") from error
    return Images(load_digits().images.astype(np.uint8), 16.0)

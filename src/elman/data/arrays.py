"""Arrays in files: `.npz`, MATLAB and IDX, detected by their content, plain or compressed by gzip.

FILE:KEY names one of the arrays of a file. Sequences of unequal length are rows (N, T, ...) with an array `lengths`
(N,), or, in MATLAB's files, a cell array of (T, C).
"""

from __future__ import annotations

import gzip
import io
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from elman.data.text import Document, on_disk
from elman.errors import FileError, InputError, MissingExtraError

Numbers = NDArray[np.float64]
Array = NDArray[np.generic]

KINDS = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}  # the third byte of an IDX file


def read_array(name: str, accepted: Callable[[str, Array], bool], what: str = "") -> tuple[Array, dict[str, Array]]:
    """The array that FILE:KEY names, or the only one of those `accepted`, by name and content; and all of the file.

    `what` says what is accepted, in messages.
    """
    whole = isinstance(name, Document) or os.path.exists(name)
    file, _, key = ("", "", "") if whole else name.rpartition(":")
    if not file:
        file, key = name, ""
    arrays = open_arrays(file)
    usable = [own for own, array in arrays.items() if accepted(own, array)]
    if not key and len(usable) == 1:
        key = usable[0]
    if key not in usable:
        raise InputError(f"{file} has the arrays {', '.join(usable) or '(none)'}{what}; name one of them as {file}:KEY")
    return arrays[key], arrays


def open_arrays(name: str) -> dict[str, Array]:
    """The arrays of a file, by name; that of IDX is called `x`."""
    path = on_disk(name)
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            return _arrays(io.BytesIO(gzip.decompress(file.read())) if packed else file, name)
    except (OSError, EOFError, zlib.error) as error:
        raise FileError(f"cannot read {name}: {error}") from error


def _arrays(file: IO[bytes], name: str) -> dict[str, Array]:
    head = file.read(10)
    file.seek(0)
    if head.startswith(b"PK"):
        return _npz(file, name)
    if head.startswith(b"MATLAB") or Path(name).suffix == ".mat":  # the oldest have no mark
        return _mat(file, name)
    if head[:2] == b"\0\0":
        return {"x": _idx(file.read(), name)}
    raise FileError(f"{name} is not an .npz, IDX or MATLAB file: it begins with {head!r}")


def _npz(file: IO[bytes], name: str) -> dict[str, Array]:
    try:
        with np.load(file, allow_pickle=False) as content:
            return {key: content[key] for key in content.files}
    except (ValueError, BadZipFile) as error:
        raise FileError(f"cannot read {name}: {error}") from error


def _mat(file: IO[bytes], name: str) -> dict[str, Array]:
    try:
        from scipy.io import loadmat
    except ImportError as error:
        raise MissingExtraError("scipy", "mat") from error
    try:
        content = loadmat(file)
    except Exception as error:  # of a damaged file scipy raises whatever comes of it, an IndexError too
        raise FileError(f"cannot read {name}: {error}") from error
    arrays = {key: value for key, value in content.items() if not key.startswith("__")}
    if "lengths" in arrays:
        arrays["lengths"] = _from_matlab(arrays["lengths"])
    return arrays


def _from_matlab(lengths: Array) -> Array:
    """A vector as MATLAB writes it: (1, N) or (N, 1), and of doubles by default."""
    flat = lengths.reshape(-1)
    if not np.issubdtype(flat.dtype, np.floating):
        return flat
    numbers = flat.astype(np.float64)
    return numbers.astype(np.int64) if (numbers % 1 == 0).all() else numbers


def _idx(content: bytes, name: str) -> Array:
    """The IDX format: two zero bytes, the kind of number, how many axes, their lengths, the numbers; big end first."""
    if len(content) < 4 or content[2] not in KINDS or not content[3]:
        raise FileError(f"{name} is not an IDX file")
    start = 4 + 4 * content[3]
    shape = np.frombuffer(content[4:start], ">i4")
    kind = np.dtype(KINDS[content[2]])
    if len(content) != start + int(np.prod(shape)) * kind.itemsize:
        raise FileError(f"{name} has {len(content)} bytes, not what its header says; it may be truncated")
    numbers: Array = np.frombuffer(content, kind, offset=start).reshape(shape)
    return numbers.astype(kind.newbyteorder("="))


def read_sequences(name: str) -> list[Numbers]:
    """The sequences (T, C) of a file, all of as many columns."""
    array, arrays = read_array(name, lambda key, array: key != "lengths")
    if array.dtype == object:  # cells of a .mat file
        rows = [np.asarray(cell, np.float64) for cell in array.reshape(-1)]
    else:
        rows = [row.astype(np.float64) for row in cut_rows(array, arrays.get("lengths"), name)]
    if not rows or any(row.ndim != 2 for row in rows):
        raise InputError(f"{name} holds no sequences (T, C)")
    width = {row.shape[1] for row in rows}
    if len(width) > 1:
        raise InputError(f"{name} has sequences of {sorted(width)} columns; all need as many")
    return rows


def cut_rows(array: Array, lengths: Array | None, name: str) -> list[Array]:
    """The rows of numbers (N, T, C), or (N, T) of single numbers, each as long as `lengths` (N,) say: views (T, C).

    Lengths are whole numbers: a mask of the steps, and shares of them, are not.
    """
    if array.ndim not in (2, 3) or not np.issubdtype(array.dtype, np.number):
        raise InputError(f"{name} is {array.dtype}{list(array.shape)}; it must be numbers (N, T) or (N, T, C)")
    rows, (N, T) = array if array.ndim == 3 else array[..., None], array.shape[:2]
    if lengths is None:
        return list(rows)
    if lengths.ndim != 1 or not np.issubdtype(lengths.dtype, np.integer):
        raise InputError(
            f"lengths of {name} are {lengths.dtype}{list(lengths.shape)}; they must be {N} whole numbers (an array "
            "of integers), how many steps each row has"
        )
    ends: list[int] = lengths.tolist()
    if len(ends) != N or any(not 0 <= end <= T for end in ends):
        raise InputError(
            f"{name} has {N} rows of {T} steps and {len(ends)} lengths from {min(ends, default=0)} to "
            f"{max(ends, default=0)}; each row needs its own, {T} at most"
        )
    return [row[:end] for row, end in zip(rows, ends, strict=True)]

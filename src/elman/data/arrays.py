"""Sequences of vectors in `.npz` and `.mat` files: many arrays (T, C), as music is stored."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from elman.data.text import on_disk
from elman.errors import FileError, InputError, MissingExtraError

Numbers = NDArray[np.float64]
Array = NDArray[np.generic]

KINDS = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}  # the third byte of an IDX file


def read_arrays(name: str) -> list[tuple[str, Numbers]]:
    """The sequences (T, C) of a file, each with a name. FILE:KEY names the array where there are several.

    An array is (N, T, C), or (N, T) of single numbers, with an array `lengths` (N,) where rows differ; or, in a .mat
    file, a cell array of (T, C).
    """
    on_disk(name)
    file, _, key = name.rpartition(":")
    if not file or Path(name).exists():
        file, key = name, ""
    arrays = open_mat(Path(file)) if Path(file).suffix == ".mat" else open_npz(Path(file))
    usable = [each for each in arrays if each != "lengths"]
    if not key and len(usable) == 1:
        key = usable[0]
    if key not in usable:
        raise InputError(f"{file} has the arrays {', '.join(usable) or '(none)'}; name one of them as {file}:KEY")
    lengths = arrays.get("lengths")
    if lengths is not None and Path(file).suffix == ".mat":
        lengths = _from_matlab(lengths)
    rows = _rows(arrays[key], lengths, name)
    width = {row.shape[1] for row in rows}
    if len(width) > 1:
        raise InputError(f"{name} has sequences of {sorted(width)} columns; all need as many")
    return [(str(i), row) for i, row in enumerate(rows)]


def checked_lengths(lengths: NDArray[Any], rows: int, name: str) -> NDArray[np.integer[Any]]:
    """`lengths`, if they are whole numbers: a mask of the steps, and shares of them, are not."""
    if lengths.ndim != 1 or not np.issubdtype(lengths.dtype, np.integer):
        raise InputError(
            f"lengths of {name} are {lengths.dtype}{list(lengths.shape)}; they must be {rows} whole numbers (an array "
            "of integers), how many steps each row has"
        )
    return lengths


def _from_matlab(lengths: NDArray[Any]) -> NDArray[Any]:
    """A vector as MATLAB writes it: (1, N) or (N, 1), and of doubles where nobody asked for another type."""
    flat = lengths.reshape(-1)
    return flat.astype(np.int64) if flat.dtype.kind == "f" and (flat % 1 == 0).all() else flat


def _rows(array: Any, lengths: Any, name: str) -> list[Numbers]:
    if array.dtype == object:  # cells of a .mat file
        rows = [np.asarray(cell, np.float64) for cell in array.reshape(-1)]
    elif array.ndim in (2, 3) and np.issubdtype(array.dtype, np.number):
        wide = array if array.ndim == 3 else array[..., None]
        ends = np.full(len(wide), wide.shape[1]) if lengths is None else checked_lengths(lengths, len(wide), name)
        if len(ends) != len(wide) or (len(ends) and not 0 <= ends.min() <= ends.max() <= wide.shape[1]):
            raise InputError(f"lengths of {name} do not fit its {len(wide)} rows of {wide.shape[1]} steps")
        rows = [wide[i, :end].astype(np.float64) for i, end in enumerate(ends.tolist())]
    else:
        raise InputError(f"{name} is {array.dtype}{list(array.shape)}; it must be numbers (N, T) or (N, T, C)")
    if not rows or any(row.ndim != 2 for row in rows):
        raise InputError(f"{name} holds no sequences (T, C)")
    return rows


def open_npz(path: Path) -> dict[str, Any]:
    try:
        with np.load(path, allow_pickle=False) as content:
            return {key: content[key] for key in content.files}
    except (OSError, ValueError, BadZipFile, EOFError) as error:
        raise FileError(f"cannot read {path}: {error}") from error


def open_mat(path: Path) -> dict[str, Any]:
    try:
        from scipy.io import loadmat
    except ImportError as error:
        raise MissingExtraError("scipy", "mat") from error
    try:
        content = loadmat(str(path))
    except Exception as error:  # of a damaged file scipy raises whatever comes of it, an IndexError too
        raise FileError(f"cannot read {path}: {error}") from error
    return {key: value for key, value in content.items() if not key.startswith("__")}


def open_idx(path: Path) -> Array:
    """The IDX format: two zero bytes, the kind of number, how many axes, their lengths, the numbers; big end first."""
    try:
        content = path.read_bytes()
        content = gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content
    except (OSError, EOFError, zlib.error) as error:
        raise FileError(f"cannot read {path}: {error}") from error
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in KINDS or not content[3]:
        raise FileError(f"{path} is not an IDX file")
    start = 4 + 4 * content[3]
    shape = np.frombuffer(content[4:start], ">i4")
    kind = np.dtype(KINDS[content[2]])
    if len(content) != start + int(np.prod(shape)) * kind.itemsize:
        raise FileError(f"{path} has {len(content)} bytes, not what its header says; it may be truncated")
    numbers = np.frombuffer(content, kind, offset=start).reshape(shape)
    return numbers.astype(kind.newbyteorder("="))

"""What a tape computes with, while it is written: arrays, and values, which are arrays as one sees them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from elman import _native

Code, Type = _native.TapeCode, _native.TapeType
TYPES = {
    torch.float32: Type.f32, torch.float64: Type.f64, torch.complex64: Type.c64, torch.complex128: Type.c128,
    torch.int64: Type.i64, torch.bool: Type.u8,
}  # fmt: skip
REAL = (torch.float32, torch.float64)
ARITHMETIC = (Code.add, Code.sub, Code.mul, Code.div)
COMPLEX = (Code.neg, Code.conj, Code.exp, Code.expm1, Code.sign)
COMPARISONS = (Code.eq, Code.ne, Code.lt, Code.le, Code.gt, Code.ge)


class Unlisted(Exception):
    """An operation that a tape does not have, or not of such arguments."""


@dataclass(eq=False)
class Array:
    """Memory that one instruction or several fill, or that is there beforehand."""

    shape: torch.Size
    dtype: torch.dtype
    place: int = 0  # as in csrc/tape.h
    at: int = 0  # bytes from the beginning of that place
    constant: Tensor | None = None
    outer: tuple[Value, Value] | None = None  # what it is the outer product of: (B, M) and (B, N)


@dataclass(frozen=True, eq=False)
class Value:
    """An array as one sees it: the strides and the beginning are those of a tensor without memory."""

    array: Array
    view: Tensor  # on the device "meta"

    @property
    def shape(self) -> torch.Size:
        return self.view.shape

    @property
    def dtype(self) -> torch.dtype:
        return self.view.dtype

    @property
    def key(self) -> tuple[object, ...]:
        view = self.view
        return id(self.array), view.dtype, view.shape, view.stride(), view.storage_offset()


def meta(x: Any) -> Any:
    return x.view if isinstance(x, Value) else x


def metas(x: Any) -> Any:
    return torch.utils._pytree.tree_map(meta, x)


def is_all(x: Any, number: int | None) -> bool:
    """Whether it is this number, wherever it is looked at."""
    if not isinstance(x, Value):
        return not isinstance(x, bool) and bool(x == number)
    constant = x.array.constant
    return (
        constant is not None
        and number is not None
        and constant.dtype != torch.bool
        and bool((constant == number).all())
    )

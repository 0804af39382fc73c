"""The words of counter-based random streams, and numbers of them, on csrc/philox.cpp."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elman import _native
from elman.errors import KernelError
from elman.kernels.native.op import define
from elman.kernels.reference.choice import Choice, Numbers, Symbols


def philox(draws: Tensor, n: int, first: int = 0) -> Tensor:
    """`draws` (B, 2) int64: seed and draw of each row -> (B, n) int64, two words of each block from `first` on."""
    words: Tensor = _philox(draws, n, first)
    return words


def _run(draws: Tensor, n: int, first: int) -> Tensor:
    if draws.ndim != 2 or draws.shape[1] != 2 or draws.dtype != torch.int64 or n < 0:
        raise KernelError(f"native kernel: `draws` is {draws.dtype} {tuple(draws.shape)}, but must be int64 (B, 2)")
    draws = draws.contiguous()
    words = draws.new_empty((len(draws), n))
    _native.philox(len(draws), n, first, draws.data_ptr(), words.data_ptr(), torch.get_num_threads())
    return words


def student_t(draws: Tensor, df: Tensor) -> Tensor:
    """`draws` (B, 2) int64 and degrees of freedom (B, D) float64 -> (B, D): an event of D numbers for each row."""
    t: Tensor = _student_t(draws, df)
    return t


def _draw(draws: Tensor, df: Tensor) -> Tensor:
    fits = draws.ndim == 2 and draws.shape[1] == 2 and draws.dtype == torch.int64
    if not fits or df.ndim != 2 or len(df) != len(draws) or df.dtype != torch.float64:
        given = f"{draws.dtype} {tuple(draws.shape)} and {df.dtype} {tuple(df.shape)}"
        raise KernelError(f"native kernel: `draws` and `df` are {given}, but must be int64 (B, 2) and float64 (B, D)")
    draws, df = draws.contiguous(), df.contiguous()
    t = torch.empty_like(df)
    _native.student_t(*df.shape, draws.data_ptr(), df.data_ptr(), t.data_ptr(), torch.get_num_threads())
    return t


def digest(x: Tensor) -> int:
    """Of a contiguous tensor."""
    found: int = _native.digest(x.data_ptr(), x.numel() * x.element_size())
    return found


CHOOSE = {np.dtype(np.float32): _native.choose_symbols_f32, np.dtype(np.float64): _native.choose_symbols_f64}


def choose(choice: Choice, logits: NDArray[np.floating], seen: NDArray[np.bool_], u: Numbers) -> Symbols:
    """`logits` (B, V) float32 or float64, `seen` (B, V) and u (B, 1) -> a symbol for each row (B,)."""
    B, V = logits.shape
    if logits.dtype not in CHOOSE or seen.shape != (B, V) or seen.dtype != np.bool_ or u.shape != (B, 1):
        given = f"{logits.dtype}{list(logits.shape)}, {seen.dtype}{list(seen.shape)}, {u.dtype}{list(u.shape)}"
        raise KernelError(f"native kernel: `logits`, `seen` and `u` are {given}, but must be (B, V), (B, V) and (B, 1)")
    logits, seen, u = np.ascontiguousarray(logits), np.ascontiguousarray(seen), np.ascontiguousarray(u, np.float64)
    symbols = np.empty(B, np.int64)
    CHOOSE[logits.dtype](choice.fields(), B, V, *(array.ctypes.data for array in (logits, seen, u, symbols)))
    return symbols


_student_t = define("student_t(Tensor draws, Tensor df) -> Tensor", _draw, lambda draws, df: torch.empty_like(df))
_philox = define(
    "philox(Tensor draws, int n, int first) -> Tensor", _run, lambda draws, n, first: draws.new_empty((len(draws), n))
)

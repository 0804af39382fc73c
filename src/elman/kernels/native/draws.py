"""The words of counter-based random streams, and numbers of them, on csrc/philox.cpp."""

import torch
from torch import Tensor

from elman import _native
from elman.errors import KernelError
from elman.kernels.native.op import define


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


_student_t = define("student_t(Tensor draws, Tensor df) -> Tensor", _draw, lambda draws, df: torch.empty_like(df))
_philox = define(
    "philox(Tensor draws, int n, int first) -> Tensor", _run, lambda draws, n, first: draws.new_empty((len(draws), n))
)

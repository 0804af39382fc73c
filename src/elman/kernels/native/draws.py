"""The words of counter-based random streams, on csrc/philox.cpp."""

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


_philox = define(
    "philox(Tensor draws, int n, int first) -> Tensor", _run, lambda draws, n, first: draws.new_empty((len(draws), n))
)

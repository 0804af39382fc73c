"""Rows of different lengths in one batch: which time steps are valid, and what is zero because they are not."""

from __future__ import annotations

import torch
from torch import Tensor

from elman import state as states
from elman.errors import InputError

FEW = 128  # rows


def valid(lengths: Tensor, T: int) -> Tensor:
    """lengths (B,) -> (B, T): True where t < lengths.

    >>> valid(torch.tensor([0, 2]), 3).tolist()
    [[False, False, False], [True, True, False]]
    """
    return torch.arange(T, device=lengths.device) < lengths[:, None]


def masked(x: Tensor, lengths: Tensor) -> Tensor:
    """x (B, T, ...) with zeros past lengths: chosen, not multiplied, for zero times NaN is NaN.

    >>> masked(torch.full((1, 3), torch.inf), torch.tensor([1])).tolist()
    [[inf, 0.0, 0.0]]
    """
    mask = valid(lengths, x.shape[1])
    return torch.where(mask.reshape(*mask.shape, *(1,) * (x.dim() - 2)), x, x.new_zeros(()))


def last_of_episodes(reset: Tensor, lengths: Tensor) -> Tensor:
    """reset (B, T), True where an episode begins -> True where another one begins right after: there it ends, and a
    scan that reads backwards begins it. The end of a row is not among them.

    >>> last_of_episodes(torch.tensor([[True, False, True, True]]), torch.tensor([3])).tolist()
    [[False, True, False, False]]
    """
    return reset.roll(-1, 1) & valid(lengths - 1, reset.shape[1])


def zero_past(y: Tensor, lengths: Tensor) -> Tensor:
    """The same, but y itself where every row is whole: one look at the lengths costs less than a copy of y.

    >>> zero_past(torch.ones(1, 3, 1), torch.tensor([2])).flatten().tolist()
    [1.0, 1.0, 0.0]
    """
    return y if looks(lengths) and shortest(lengths) == y.shape[1] else masked(y, lengths)


def looks(values: Tensor) -> bool:
    """Whether code may branch on values: a compiled graph cannot, and a GPU would have to be waited for."""
    return values.device.type == "cpu" and not torch.compiler.is_compiling()


def shortest(lengths: Tensor) -> int:
    """The least of lengths (B,); 0 where there is none.

    >>> shortest(torch.tensor([3, 2]))
    2
    """
    few = len(lengths) <= FEW  # in a list they are found faster
    return min(lengths.tolist(), default=0) if few else int(lengths.min())


def checked(lengths: Tensor, x: Tensor) -> Tensor:
    """`lengths` as int64, if it has one whole number in [0, T] for each row of x (B, T, ...)."""
    B, T = x.shape[:2]
    lengths = torch.as_tensor(lengths, device=None if isinstance(lengths, Tensor) else x.device)
    if lengths.shape != (B,) or lengths.is_floating_point() or lengths.is_complex() or lengths.dtype == torch.bool:
        raise InputError(f"lengths is {states.describe(lengths)}; expected {B} whole numbers, one per row of x")
    if lengths.device != x.device:
        raise InputError(f"lengths is on {lengths.device}, x on {x.device}; move one with .to(device)")
    # A compiled graph cannot branch on values: there the caller vouches for them.
    if not torch.compiler.is_compiling() and B and (int(lengths.min()) < 0 or int(lengths.max()) > T):
        raise InputError(f"lengths are {lengths.tolist()}; each must be in [0, {T}], for x has {T} time steps")
    return lengths.long()

"""Which transitions a hidden Markov model may make: masks (K, K), True where a step is allowed. A zero stays
zero in every fit."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from elman.errors import InputError


def left_to_right(n_components: int, *, skip: int = 0) -> NDArray[np.bool_]:
    """Stay, go on to the next state, or over at most `skip` states; never back.

    >>> left_to_right(3).astype(int).tolist()
    [[1, 1, 0], [0, 1, 1], [0, 0, 1]]
    """
    step = np.arange(n_components) - np.arange(n_components)[:, None]
    return (step >= 0) & (step <= 1 + skip)


def banded(n_components: int, width: int = 1) -> NDArray[np.bool_]:
    """Move by at most `width` states, in both directions.

    >>> banded(3).astype(int).tolist()
    [[1, 1, 0], [1, 1, 1], [0, 1, 1]]
    """
    step = np.arange(n_components) - np.arange(n_components)[:, None]
    return np.abs(step) <= width


def checked_mask(name: str, mask: ArrayLike | None, shape: tuple[int, ...]) -> Tensor:
    """A mask as a tensor; None allows everything. Every state must have somewhere to go."""
    if mask is None:
        return torch.ones(shape, dtype=torch.bool)
    array = np.asarray(mask)
    if array.shape != shape or array.dtype.kind not in "b":
        raise InputError(f"{name} is {array.dtype} {array.shape}; expected bool {shape}, True where a step is allowed")
    if not array.any(-1).all():
        raise InputError(f"{name} leaves nothing allowed in a row; every row needs at least one True")
    return torch.as_tensor(array)

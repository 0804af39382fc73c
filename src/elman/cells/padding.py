"""Past its length a row puts out zeros, whatever a cell adds to what it reads from its state."""

from __future__ import annotations

import torch
from torch import Tensor


def zero_past(y: Tensor, lengths: Tensor) -> Tensor:
    """y (B, T, H) with zeros past lengths (B,); y itself where every row is whole.

    >>> zero_past(torch.ones(1, 3, 1), torch.tensor([2])).flatten().tolist()
    [1.0, 1.0, 0.0]
    """
    T = y.shape[1]
    # One look at the lengths costs less than a copy of y; a compiled graph cannot branch, and a GPU would wait.
    if lengths.device.type == "cpu" and not torch.compiler.is_compiling() and bool((lengths == T).all()):
        return y
    valid = torch.arange(T, device=y.device) < lengths[:, None]
    return torch.where(valid[..., None], y, torch.zeros_like(y))

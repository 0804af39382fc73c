"""Dropout: each number is zero with probability p, the others are divided by 1 - p.

Torch draws a random number for each (16 ns); of 64 random bits, four numbers are decided here, so that p is rounded to
a multiple of 2^-16. The bits are those of Torch's generator: a seed, or a generator that was saved, gives the same
numbers again.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

LEVELS = 1 << 16
FEW = 1024  # numbers for which it is not worth it


def dropout(x: Tensor, p: float, training: bool) -> Tensor:
    """x with some of its numbers zero in training; x itself otherwise.

    >>> bool((dropout(torch.ones(4, 1000), 0.5, True).unique() == torch.tensor([0.0, 2.0])).all())
    True
    """
    if not training or p == 0:
        return x
    cut = round(p * LEVELS)
    if x.device.type != "cpu" or x.numel() < FEW or cut == LEVELS or torch.compiler.is_compiling():
        return F.dropout(x, p, training)
    words = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(1 << 63), None)
    kept = words.view(torch.int16)[: x.numel()].view(x.shape) >= cut - LEVELS // 2
    return x * kept.to(x.dtype).mul_(1 / (1 - p))

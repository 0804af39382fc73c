"""Random numbers that are a function of a row's seed and of the number of its draw."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor


def philox(draws: Tensor, n: int, first: int = 0) -> Tensor:
    """draws (B, 2): seed and draw of each row -> (B, n), two words of each block of Philox4x32-10 from `first` on.

    Products of two words have 64 bits; that int64 is signed shows in the shift alone, and the mask removes it.
    """
    word = 0xFFFFFFFF
    block = first + torch.arange((n + 1) // 2, device=draws.device)
    k0, k1 = (draws[:, :1] & word), (draws[:, :1] >> 32 & word)
    c0, c1 = (block & word).expand(len(draws), -1), (block >> 32 & word).expand(len(draws), -1)
    c2, c3 = (draws[:, 1:] & word).expand_as(c0), (draws[:, 1:] >> 32 & word).expand_as(c0)
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1 = (p1 >> 32 & word) ^ c1 ^ k0, p1 & word
        c2, c3 = (p0 >> 32 & word) ^ c3 ^ k1, p0 & word
        k0, k1 = (k0 + 0x9E3779B9) & word, (k1 + 0xBB67AE85) & word
    return torch.stack([c0 | c1 << 32, c2 | c3 << 32], -1).flatten(1)[:, :n]


def student_t(draws: Tensor, df: Tensor) -> Tensor:
    """sqrt(df (u^(-2/df) - 1)) cos(2 pi v), u and v the first and the last D uniform numbers of each row's draw.

    By the C library, number by number, as csrc/philox.h does: Torch's and Numpy's own functions may round otherwise.
    """
    u, v = ((philox(draws, 2 * df.shape[1]) >> 12 & (1 << 52) - 1).double() + 0.5).mul(2.0**-52).chunk(2, 1)
    power = _each(_expm1, -2 / df * _each(math.log, u))
    return _each(math.sqrt, df * power) * _each(math.cos, 2 * math.pi * v)


def _each(f: Callable[[float], float], x: Tensor) -> Tensor:
    return x.new_tensor([f(value) for value in x.flatten().tolist()]).reshape(x.shape)


def _expm1(x: float) -> float:
    try:
        return math.expm1(x)
    except OverflowError:
        return math.inf

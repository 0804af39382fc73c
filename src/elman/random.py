"""Random numbers as a value. `draws` (B, 2) int64 holds, for each row, its seed and its number of draws so far.

One draw is one event: a symbol, or a vector of D numbers. It opens a stream of uniform numbers
    u[i] = (floor(w[i] / 2^12) + 1/2) / 2^52,
w the 64-bit words of Philox(key = seed, counter = (i, draw)), two of each block; strictly between 0 and 1. Afterwards
the number of draws is one higher. So what a row draws depends on its seed, its number and its own parameters, and on no
other row: it is the same alone, in any batch, and after a save and load.

The rest of this file makes other numbers of uniform ones, in float64 and in Numpy, whose functions give the same bits
wherever an element is; Student's t in `kernels`, by the C library, so that native paths have the same bits. They
take parameters (B, D), one event for each row of `draws`. Where numbers are rejected, trial j of an event of D numbers
reads u[2 D j] to u[2 D j + 2 D - 1], whatever became of the other rows.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elman import kernels
from elman.errors import InputError
from elman.kernels.reference.choice import place as place

Array = NDArray[np.float64]

STAGE = 1 << 32  # where an event that needs numbers of several kinds finds the next kind: past all rejections


def after(draws: Tensor, times: int = 1) -> Tensor:
    """The draws of each row when `times` more events have been drawn.

    >>> after(torch.tensor([[7, 0]]))
    tensor([[7, 1]])
    """
    return draws + torch.tensor([0, times], device=draws.device)


def uniform(draws: Tensor, n: int, first: int = 0) -> Tensor:
    """u[first] to u[first + n - 1] of each row's draw: (B, n) float64, above 0 and below 1.

    >>> u = uniform(torch.tensor([[7, 0], [8, 0]]), 3)
    >>> bool((u[1:] == uniform(torch.tensor([[8, 0]]), 3)).all())
    True
    """
    words = kernels.philox(_check(draws), n + first % 2, first // 2)[:, first % 2 :]
    return ((words >> 12 & (1 << 52) - 1).double() + 0.5) * 2.0**-52


def ahead(draws: Tensor, times: int) -> Tensor:
    """u[0] of each row's next `times` draws (B, times): what as many steps of one symbol each will read."""
    rows = draws.repeat_interleave(times, 0)
    rows[:, 1] += torch.arange(times, device=draws.device).repeat(len(draws))
    return uniform(rows, 1).reshape(len(draws), times)


def symbols(draws: Tensor, logits: Tensor, first: int = 0) -> Tensor:
    """One of V symbols (B,), with probabilities in proportion to exp(logits), logits (B, V)."""
    scores, u = _array(logits), _array(uniform(draws, 1, first))
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return torch.from_numpy(place(weights.cumsum(axis=1), u)).to(logits.device)


def bits(draws: Tensor, logits: Tensor, first: int = 0) -> Tensor:
    """1 with probability 1 / (1 + exp(-logits)), else 0: (B, D)."""
    u = _array(uniform(draws, logits.shape[1], first))
    return _like(np.log(u) - np.log1p(-u) < _array(logits), logits)


def normal(draws: Tensor, n: int, first: int = 0) -> Tensor:
    """Normally distributed numbers (B, n): the inverse of the distribution function."""
    return torch.special.ndtri(uniform(draws, n, first))


def student_t(draws: Tensor, df: Tensor) -> Tensor:
    """Student's t with df (B, D) degrees of freedom: sqrt(df (u^(-2/df) - 1)) cos(2 pi v) (Bailey, 1994)."""
    return kernels.student_t(_check(draws), df.detach().double().to(draws.device)).to(df.device)


def gamma(draws: Tensor, shape: Tensor, first: int = 0) -> Tensor:
    """Gamma-distributed numbers of the given shape (B, D) and of scale 1 (Marsaglia and Tsang, 2000).

    With d = shape - 1/3, z normal and w = (1 + z / sqrt(9 d))^3, the number is d w. A shape below 1 is replaced by
    shape + 1, and the number multiplied by u^(1/shape).
    """
    a = _array(shape)
    d = np.where(a < 1, a + 1, a) - 1 / 3

    def propose(rows: NDArray[np.int64], u: Array, v: Array) -> tuple[Array, NDArray[np.bool_]]:
        z = torch.special.ndtri(torch.from_numpy(u)).numpy()
        w = (1 + z / np.sqrt(9 * d[rows])) ** 3
        likely = np.log(v) < 0.5 * z * z + d[rows] * (1 - w + np.log(np.maximum(w, np.finfo(float).tiny)))
        return d[rows] * w, (w > 0) & likely

    small = _array(uniform(draws, a.shape[1], first + STAGE))
    with np.errstate(divide="ignore"):  # of a shape of zero the number is zero
        factor = np.where(a < 1, np.exp(np.log(small) / a), 1.0)
    return _like(factor * _sample_by_rejection(draws, a, first, propose), shape)


def poisson(draws: Tensor, rate: Tensor, first: int = 0) -> Tensor:
    """Counts with the given rates (B, D): below 10 by adding up probabilities, above by rejection (Hörmann, 1993)."""
    rates = _array(rate)
    m = np.where(np.isfinite(rates), rates, 0.0)

    def propose(rows: NDArray[np.int64], u: Array, v: Array) -> tuple[Array, NDArray[np.bool_]]:
        few = m[rows] < 10
        counts, good = _transform(np.where(few, 10.0, m[rows]), u, v)
        return np.where(few, _added_up(np.where(few, m[rows], 0.0), u), counts), few | good

    return _like(_sample_by_rejection(draws, rates, first, propose), rate)


def _added_up(rate: Array, u: Array) -> Array:
    """The first count whose probability, with those of all smaller counts, reaches u."""
    p = np.exp(-rate)
    total, count = p.copy(), np.zeros_like(rate)
    for k in range(1, 80):  # the rate is below 10: no float64 is left above the sum of so many
        beyond = u > total
        if not beyond.any():
            break
        count += beyond
        p = p * rate / k
        total += p
    return count


def _transform(rate: Array, u: Array, v: Array) -> tuple[Array, NDArray[np.bool_]]:
    """Transformed rejection, algorithm PTRS: a count for each u, and whether v accepts it."""
    b = 0.931 + 2.53 * np.sqrt(rate)
    a = -0.059 + 0.02483 * b
    U = u - 0.5
    edge = 0.5 - np.abs(U)
    k = np.floor((2 * a / edge + b) * U + rate + 0.43)
    surely = (edge >= 0.07) & (v <= 0.9277 - 3.6224 / (b - 2))
    count = np.maximum(k, 0.0)
    density = count * np.log(rate) - rate - _log_factorial(count)
    likely = np.log(v * (1.1239 + 1.1328 / (b - 3.4)) / (a / (edge * edge) + b)) <= density
    return count, surely | ((k >= 0) & ((edge >= 0.013) | (v <= edge)) & likely)


_FEW = np.cumsum(np.log(np.maximum(np.arange(16.0), 1)))


def _log_factorial(k: Array) -> Array:
    """log k! of whole numbers: from 16 on by Stirling's series, whose first term left out is 2e-12 there."""
    n = np.maximum(k, 1.0)
    series = (1 / 12 - (1 / 360 - 1 / (1260 * n * n)) / (n * n)) / n
    stirling = (n + 0.5) * np.log(n) - n + 0.5 * np.log(2 * np.pi) + series
    return np.where(k < 16, _FEW[np.minimum(k, 15.0).astype(np.int64)], stirling)


def _sample_by_rejection(
    draws: Tensor,
    parameter: Array,
    first: int,
    propose: Callable[[NDArray[np.int64], Array, Array], tuple[Array, NDArray[np.bool_]]],
) -> Array:
    """Numbers (B, D), each the first that `propose(rows, u, v)` accepts; NaN where the parameter is not finite."""
    B, D = parameter.shape
    numbers = np.full((B, D), np.nan)
    wanted = np.isfinite(parameter)
    rows, trial = np.flatnonzero(wanted.any(axis=1)), 0
    with np.errstate(invalid="ignore"):  # of what is not wanted
        while len(rows):
            given = draws[torch.from_numpy(rows).to(draws.device)]
            u, v = np.split(_array(uniform(given, 2 * D, first + 2 * D * trial)), 2, axis=1)
            value, good = propose(rows, u, v)
            numbers[rows] = np.where(wanted[rows] & good, value, numbers[rows])
            wanted[rows] &= ~good
            rows, trial = rows[wanted[rows].any(axis=1)], trial + 1
    return numbers


def _check(draws: Tensor) -> Tensor:
    if draws.dim() != 2 or draws.shape[1] != 2 or draws.dtype != torch.int64:
        actual = f"{str(draws.dtype).removeprefix('torch.')}{list(draws.shape)}"
        raise InputError(f"draws is {actual}; it must be int64[B, 2], the seed and the number of draws of each row")
    return draws


def _array(x: Tensor) -> Array:
    return x.detach().double().cpu().numpy()


def _like(values: NDArray[np.float64] | NDArray[np.bool_], parameter: Tensor) -> Tensor:
    return torch.from_numpy(np.asarray(values, np.float64)).to(parameter.device)

"""How good forecasts are. Sums run over all series and windows at once, so batches do not matter.

With the truth y, the median m, quantiles q_p and N paths x_i of each target, and the seasonal error e of its series,
the mean of |y[t] - y[t-season]| over what came before its origin:

    mase      mean over series and windows of mean |y - m| / e          (without those whose e is zero or unknown)
    smape     mean of 2 |y - m| / (|y| + |m|), zero where both are zero
    nd        sum |y - m| / sum |y|
    wql       mean over p = 0.1 ... 0.9 of 2 sum max(p (y - q_p), (p - 1) (y - q_p)) / sum |y|
    crps      mean of (sum_i |x_i - y|) / N - (sum_ij |x_i - x_j|) / (2 N^2), in the units of the data
    coverage  share of y in [q_0.1, q_0.9], of those that are there

and beside it what the naive forecast has, the value one season before: naive_mase and naive_nd.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from elman.nn.quantiles import LEVELS

Numbers = NDArray[np.float64]


class Judged(NamedTuple):
    """Forecasts beside what came: N series-windows of H steps and C targets; truth is NaN where it is missing."""

    truth: Numbers  # (N, H, C)
    paths: Numbers  # (N, S, H, C)
    quantiles: Numbers  # (N, H, C, 9), at LEVELS
    error: Numbers  # (N,): the mean seasonal error before the origin, NaN if unknown
    naive: Numbers  # (N, H, C): the values one season before, again and again


def measure(found: Judged) -> dict[str, float]:
    """The numbers by name.

    >>> one = np.array([[[1.0]]])
    >>> found = measure(Judged(one, one[:, None], np.repeat(one[..., None], 9, -1), np.array([2.0]), one + 1))
    >>> found["mase"], found["naive_mase"]
    (0.0, 0.5)
    """
    known = ~np.isnan(found.truth)
    y = np.where(known, found.truth, 0.0)
    median = found.quantiles[..., LEVELS.index(0.5)]
    error = np.where(known, np.abs(y - median), 0.0)
    size = np.abs(y) + np.abs(median)
    share = np.divide(2 * error, size, out=np.zeros_like(size), where=known & (size > 0))
    total, count = float(np.abs(y).sum()), max(1, int(known.sum()))
    naive = np.where(known, np.abs(y - found.naive), 0.0)
    inside = (y >= found.quantiles[..., 0]) & (y <= found.quantiles[..., -1]) & known
    return {
        "mase": _mase(error, known, found.error),
        "smape": float(share.sum()) / count,
        "nd": _over(float(error.sum()), total),
        "wql": _over(float(np.mean([pinball(y, found.quantiles, known, i) for i in range(len(LEVELS))])), total),
        "crps": float(np.where(known, crps(y, found.paths), 0.0).sum()) / count,
        "coverage": float(inside.sum()) / count,
        "naive_mase": _mase(naive, known, found.error),
        "naive_nd": _over(float(naive.sum()), total),
    }


def pinball(y: Numbers, quantiles: Numbers, known: NDArray[np.bool_], level: int) -> float:
    """2 sum max(p (y - q), (p - 1) (y - q)) of one of LEVELS."""
    p, error = LEVELS[level], y - quantiles[..., level]
    return float(2 * np.where(known, np.maximum(p * error, (p - 1) * error), 0.0).sum())


def crps(y: Numbers, paths: Numbers) -> Numbers:
    """The continuous ranked probability score of samples (N, S, ...) of y (N, ...): with x sorted,
    sum_ij |x_i - x_j| = 2 sum_i (2 i - S + 1) x_i.

    >>> float(crps(np.array([0.0]), np.array([[-1.0, 1.0]]))[0])
    0.5
    """
    S = paths.shape[1]
    ordered = np.sort(paths, 1)
    weights = (2 * np.arange(S) - S + 1).reshape(1, S, *(1,) * (y.ndim - 1))
    return np.abs(paths - y[:, None]).mean(1) - (weights * ordered).sum(1) / S**2


def _mase(error: Numbers, known: NDArray[np.bool_], scale: Numbers) -> float:
    each = error.sum((1, 2)) / np.maximum(known.sum((1, 2)), 1)
    usable = (scale > 0) & known.any((1, 2))
    return float((each[usable] / scale[usable]).mean()) if usable.any() else float("nan")


def _over(sum: float, total: float) -> float:
    return sum / total if total > 0 else float("nan")

"""Standardise: numbers brought to mean 0 and variance 1 by what has come so far, as a Core whose state is saved.

    w = g w' + 1        m = m' + (x - m') / w        v = v' + ((x - m') (x - m) - v') / w        (West, 1979)
    y = (x - m) / sqrt(v)                                                     0 where nothing has varied yet

With a `forget` g below 1 what came k steps ago counts g^k, so that it follows a drift. A NaN is a number that is
missing: it counts for nothing, and y is 0 there.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from elman.core import Core
from elman.options import number


class StandardiseState(NamedTuple):
    mean: Tensor  # (B, D) float64
    variance: Tensor  # (B, D) float64
    weight: Tensor  # (B, D) float64, how many numbers that is


class Standardise(Core):
    """x (B, D) with the running mean of each column subtracted, divided by its running standard deviation.

    >>> core = Standardise(1)
    >>> core.scan(torch.tensor([[[1.0], [3.0]]]))[0].flatten().tolist()
    [0.0, 1.0]
    """

    def __init__(self, size: int, *, forget: float = 1.0) -> None:
        super().__init__(size, size)
        self.forget = number("forget", forget, 0, 1)

    def init_state(self, batch_size: int) -> StandardiseState:
        zeros = self.zeros(batch_size, self.output_size, dtype=torch.float64)
        return StandardiseState(zeros, zeros, zeros)

    def step(self, x: Tensor, state: StandardiseState) -> tuple[Tensor, StandardiseState]:
        state = self.seen(x, state)
        return self.scaled(x, state), state

    def seen(self, x: Tensor, state: StandardiseState) -> StandardiseState:
        """The statistics with x among them."""
        there = ~x.isnan()
        value = torch.where(there, x, 0.0).double()
        weight = torch.where(there, self.forget * state.weight + 1, state.weight)
        off = value - state.mean
        mean = state.mean + off / weight.clamp(min=1.0)
        variance = state.variance + (off * (value - mean) - state.variance) / weight.clamp(min=1.0)
        mean, variance = (torch.where(there, new, old) for new, old in ((mean, state.mean), (variance, state.variance)))
        return StandardiseState(mean, variance, weight)

    def scaled(self, x: Tensor, state: StandardiseState) -> Tensor:
        """x by statistics that may not know it."""
        scale = spread(state)
        y = torch.where((scale > 0) & ~x.isnan(), (x - state.mean) / torch.where(scale > 0, scale, 1.0), 0.0)
        return y.to(x.dtype)


def spread(state: StandardiseState) -> Tensor:
    """The standard deviation of each column (B, D), 0 where nothing has varied yet."""
    return state.variance.clamp(min=0.0).sqrt()

"""A distribution that is a grid of quantiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from elman import random
from elman.errors import InputError
from elman.nn.distributions.distribution import Numeric, checked_levels, one_event_per_row

GRID = (0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)


@dataclass(frozen=True)
class QuantileGrid(Numeric):
    """D independent numbers, each by its quantiles at `levels`: values (..., D, Q), which rise.

    Between them the distribution function is a line; below the first and above the last, an exponential tail that
    continues the density of the outermost piece.

    >>> grid = QuantileGrid(torch.tensor([[[0.0, 1.0, 3.0]]]), (0.25, 0.5, 0.75))
    >>> grid.quantile([0.5, 0.625]).flatten().tolist()
    [1.0, 2.0]
    """

    values: Tensor
    levels: tuple[float, ...] = GRID

    def __post_init__(self) -> None:
        if len(self.levels) < 2 or self.values.shape[-1] != len(self.levels):
            raise InputError(
                f"a grid of quantiles was given the levels {self.levels} and {self.values.shape[-1]} values; it needs "
                "two or more levels, and a value for each"
            )

    def log_prob(self, value: Tensor) -> Tensor:
        """The log-density (...) at value (..., D)."""
        p, q = self._levels(), self.values.double()
        x = value.double()[..., None]
        width = (q[..., 1:] - q[..., :-1]).clamp(min=1e-12)
        inner = (p[1:] - p[:-1]).log() - width.log()
        place = (x >= q).sum(-1)  # 0 below all, Q above all
        inside = inner.gather(-1, (place - 1).clamp(0, len(self.levels) - 2)[..., None])[..., 0]
        # A tail of mass m whose density begins with that of its neighbour, f: f exp(-f d / m), d the distance.
        below, above = (q[..., 0] - x[..., 0]).clamp(min=0), (x[..., 0] - q[..., -1]).clamp(min=0)
        low, high = inner[..., 0], inner[..., -1]
        tail_low, tail_high = low - low.exp() * below / p[0], high - high.exp() * above / (1 - p[-1])
        each = torch.where(place == 0, tail_low, torch.where(place == len(self.levels), tail_high, inside))
        return each.sum(-1).to(self.values.dtype)

    def loss(self, value: Tensor, unit: Tensor) -> Tensor:
        """The pinball loss in units: 2 * mean over levels of max(p (x - q), (p - 1) (x - q)), about the CRPS."""
        error = (value / unit)[..., None] - self.values / unit[..., None]
        p = self._levels().to(error.dtype)
        return 2 * torch.maximum(p * error, (p - 1) * error).mean(-1).sum(-1)

    def sample(self, draws: Tensor) -> Tensor:
        """Numbers (B, D): the inverse of the distribution function."""
        B, D = len(self.values), self.values.shape[-2]
        one_event_per_row(self.values[..., 0], draws)
        u = random.uniform(draws, D).to(self.values.device)
        return self._at(u.reshape(B, D, 1))[..., 0].to(self.values.dtype)

    @property
    def mode(self) -> Tensor:
        """The median (..., D)."""
        return self.quantile([0.5])[..., 0]

    @property
    def mean(self) -> Tensor:
        """(..., D), in float64."""
        p, q = self._levels(), self.values.double()
        pieces = ((p[1:] - p[:-1]) * (q[..., 1:] + q[..., :-1]) / 2).sum(-1)
        low = (q[..., 1] - q[..., 0]) / (p[1] - p[0]) * p[0]  # the mean distance in an exponential tail
        high = (q[..., -1] - q[..., -2]) / (p[-1] - p[-2]) * (1 - p[-1])
        return pieces + p[0] * (q[..., 0] - low) + (1 - p[-1]) * (q[..., -1] + high)

    def quantile(self, levels: Sequence[float]) -> Tensor:
        p = checked_levels(levels)
        return self._at(p.expand(*self.values.shape[:-1], len(p)))

    def rescaled(self, shift: Tensor, scale: Tensor) -> QuantileGrid:
        return replace(self, values=shift[..., None] + scale[..., None] * self.values)

    def elementwise(self) -> QuantileGrid:
        return replace(self, values=self.values.unsqueeze(-2))

    def _at(self, u: Tensor) -> Tensor:
        """The quantiles at u (..., D, n), in float64."""
        p, q = self._levels(), self.values.detach().double()
        place = (u[..., None] >= p).sum(-1)
        left = (place - 1).clamp(0, len(self.levels) - 2)
        a, b = q.gather(-1, left), q.gather(-1, left + 1)
        inside = a + (b - a) * (u - p[left]) / (p[left + 1] - p[left])
        low = (q[..., 1:2] - q[..., :1]).clamp(min=1e-12) / (p[1] - p[0])  # 1 / density
        high = (q[..., -1:] - q[..., -2:-1]).clamp(min=1e-12) / (p[-1] - p[-2])
        below = q[..., :1] + low * p[0] * torch.log(u / p[0])
        above = q[..., -1:] - high * (1 - p[-1]) * torch.log((1 - u) / (1 - p[-1]))
        return torch.where(place == 0, below, torch.where(place == len(self.levels), above, inside))

    def _levels(self) -> Tensor:
        return torch.tensor(self.levels, dtype=torch.float64, device=self.values.device)

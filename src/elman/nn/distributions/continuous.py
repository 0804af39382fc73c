"""Distributions over real numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from elman import kernels, random
from elman.nn.distributions.distribution import Numeric, checked_levels, one_event_per_row
from elman.nn.distributions.special import student_t_quantile


@dataclass(frozen=True)
class Gaussian(Numeric):
    """D independent numbers x_d = mean_d + std_d z, z standard normal; mean and std (..., D).

    >>> Gaussian(torch.zeros(1, 2), torch.ones(1, 2)).sample(torch.tensor([[7, 0]])).shape
    torch.Size([1, 2])
    """

    mean: Tensor
    std: Tensor

    def log_prob(self, value: Tensor) -> Tensor:
        """The log-density (...) at value (..., D)."""
        return log_normal((value - self.mean) / self.std, self.std.log())

    def sample(self, draws: Tensor) -> Tensor:
        """Numbers (B, D)."""
        mean = one_event_per_row(self.mean, draws)
        z = random.normal(draws, mean.shape[-1]).to(mean.device)
        return (mean.double() + self.std.detach().double() * z).to(mean.dtype)

    @property
    def mode(self) -> Tensor:
        """The mean (..., D)."""
        return self.mean

    def quantile(self, levels: Sequence[float]) -> Tensor:
        """
        >>> Gaussian(torch.zeros(1, 1), torch.ones(1, 1)).quantile([0.5]).item()
        0.0
        """
        z = torch.special.ndtri(checked_levels(levels))
        return self.mean.double()[..., None] + self.std.double()[..., None] * z

    def rescaled(self, shift: Tensor, scale: Tensor) -> Gaussian:
        return Gaussian(shift + scale * self.mean, scale * self.std)

    def values(self) -> Tensor:
        """What it says in float64: means and standard deviations (..., 2 D)."""
        return torch.cat([self.mean, self.std], -1).double()


@dataclass(frozen=True)
class StudentT(Numeric):
    """D independent numbers x_d = mean_d + scale_d t, t of Student's distribution with df_d degrees of freedom:

    log p(t) = log G((df + 1) / 2) - log G(df / 2) - log(df pi) / 2 - (df + 1) / 2 log(1 + t^2 / df),
    G the gamma function; df, mean and scale (..., D). The fewer degrees of freedom, the heavier the tails.

    >>> one = torch.ones(1, 2)
    >>> StudentT(3 * one, 0 * one, one).mode
    tensor([[0., 0.]])
    """

    df: Tensor
    mean: Tensor
    scale: Tensor

    def log_prob(self, value: Tensor) -> Tensor:
        """The log-density (...) at value (..., D)."""
        terms = kernels.student_t_log_prob(value, self.df, self.mean, self.scale)
        return terms.sum(-1).to(self.mean.dtype)

    def sample(self, draws: Tensor) -> Tensor:
        """Numbers (B, D)."""
        mean = one_event_per_row(self.mean, draws)
        t = random.student_t(draws, self.df.expand_as(mean))
        return (mean.double() + self.scale.detach().double() * t).to(mean.dtype)

    @property
    def mode(self) -> Tensor:
        """The centre (..., D)."""
        return self.mean

    def quantile(self, levels: Sequence[float]) -> Tensor:
        df = self.df.detach().double().cpu().numpy()[..., None]
        t = torch.from_numpy(student_t_quantile(df, checked_levels(levels).numpy()))
        return self.mean.double()[..., None] + self.scale.double()[..., None] * t

    def rescaled(self, shift: Tensor, scale: Tensor) -> StudentT:
        return StudentT(self.df, shift + scale * self.mean, scale * self.scale)


def log_normal(z: Tensor, log_std: Tensor) -> Tensor:
    """The log-density of numbers that lie z (..., D) standard deviations from their means, summed over D."""
    return -0.5 * z.square().sum(-1) - (log_std + 0.5 * math.log(2 * math.pi)).sum(-1)

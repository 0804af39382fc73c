"""Distributions over counts. Their probabilities are computed in float64: logarithms of gamma functions cancel in all
but a few digits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from elman import kernels, random
from elman.kernels import softplus
from elman.kernels.reference.densities import log_softplus
from elman.nn.distributions.distribution import Numeric, checked_levels, one_event_per_row
from elman.nn.distributions.special import negative_binomial_cdf, smallest_count


@dataclass(frozen=True)
class Poisson(Numeric):
    """D independent counts with the rates m = softplus(logits): log P(n) = n log m - m - log n!, logits (..., D).

    >>> Poisson(torch.zeros(1, 1)).log_prob(torch.tensor([[0.0]])).exp().item()  # exp(-log 2)
    0.5
    """

    logits: Tensor

    @property
    def mean(self) -> Tensor:
        """The rates m (..., D)."""
        return softplus(self.logits)

    def log_prob(self, value: Tensor) -> Tensor:
        """The log-probability (...) of the counts value (..., D)."""
        n, logits = value.double(), self.logits.double()
        return (n * log_softplus(logits) - softplus(logits) - torch.lgamma(n + 1)).sum(-1).to(self.logits.dtype)

    def sample(self, draws: Tensor) -> Tensor:
        """Counts (B, D), as floating-point numbers."""
        return random.poisson(draws, one_event_per_row(self.mean, draws)).to(self.logits.dtype)

    @property
    def mode(self) -> Tensor:
        """The most probable counts (..., D)."""
        return self.mean.floor()

    def quantile(self, levels: Sequence[float]) -> Tensor:
        m = self.mean.double()[..., None]
        p = checked_levels(levels)
        return smallest_count(lambda n: torch.special.gammaincc(n + 1, m.expand_as(n)), m, m.sqrt(), p)

    def rescaled(self, shift: Tensor, scale: Tensor) -> Poisson:
        return Poisson(_inverse_softplus(scale * self.mean))


@dataclass(frozen=True)
class NegativeBinomial(Numeric):
    """D independent counts of mean m = softplus(logits) and variance m + m^2 / r, r = shape:

    log P(n) = log G(n + r) - log G(r) - log n! + r log(r / (r + m)) + n log(m / (r + m)),   G the gamma function;
    logits and shape (..., D). They are Poisson counts whose rate is m / r times a gamma variable of shape r.

    >>> NegativeBinomial(torch.zeros(1, 1), torch.ones(1, 1)).sample(torch.tensor([[7, 0]])).shape
    torch.Size([1, 1])
    """

    logits: Tensor
    shape: Tensor

    @property
    def mean(self) -> Tensor:
        """(..., D)."""
        return softplus(self.logits)

    def log_prob(self, value: Tensor) -> Tensor:
        """The log-probability (...) of the counts value (..., D)."""
        terms = kernels.negative_binomial_log_prob(value, self.logits, self.shape)
        return terms.sum(-1).to(self.logits.dtype)

    def sample(self, draws: Tensor) -> Tensor:
        """Counts (B, D), as floating-point numbers."""
        mean = one_event_per_row(self.mean, draws).double()
        r = self.shape.detach().double().expand_as(mean)
        rate = mean / r * random.gamma(draws, r)
        return random.poisson(draws, rate, first=2 * random.STAGE).to(self.logits.dtype)

    @property
    def mode(self) -> Tensor:
        """The most probable counts (..., D)."""
        return (self.mean * (1 - 1 / self.shape)).floor().clamp(min=0)

    def quantile(self, levels: Sequence[float]) -> Tensor:
        m, r = self.mean.double()[..., None], self.shape.double()[..., None]
        deviation = (m + m * m / r).sqrt()
        return smallest_count(lambda n: negative_binomial_cdf(n, m, r), m, deviation, checked_levels(levels))

    def rescaled(self, shift: Tensor, scale: Tensor) -> NegativeBinomial:
        return NegativeBinomial(_inverse_softplus(scale * self.mean), self.shape)


def _inverse_softplus(m: Tensor) -> Tensor:
    """x with log(1 + exp(x)) = m, by m + log(1 - exp(-m)); in float64, so that the bits of a row are its own."""
    wide = m.double().clamp(min=1e-30)
    return (wide + torch.log(-torch.expm1(-wide))).to(m.dtype)

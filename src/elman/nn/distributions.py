"""What a model predicts with: a distribution, with `log_prob`, `sample` and `mode`.

Batch axes stand in front. A distribution's own event axes are summed, so `log_prob` is one number per target. `sample`
takes the draws (B, 2) of B rows, one event each (elman.random). Densities of counts and of Student's t are computed in
float64: their logarithms of gamma functions cancel in all but a few digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from elman import random
from elman.errors import InputError
from elman.kernels import softplus
from elman.nn import softmax_loss
from elman.nn.softmax_loss import Product


class Distribution(Protocol):
    """What models predict with. Batch and time axes stand in front."""

    def log_prob(self, value: Tensor) -> Tensor: ...
    def sample(self, draws: Tensor) -> Tensor: ...
    @property
    def mode(self) -> Tensor: ...


class Discrete(Distribution, Protocol):
    """A distribution over V symbols, all of whose log-probabilities can be had at once: what decoding needs."""

    def log_probs(self) -> Tensor: ...


@dataclass(frozen=True)
class Categorical:
    """log P(v) = logits[v] - logsumexp(logits), logits (..., V).

    >>> Categorical(torch.zeros(1, 4)).log_prob(torch.tensor([2])).exp().item()
    0.25
    >>> Categorical(torch.tensor([[0.0, 99.0]])).sample(torch.tensor([[7, 0]]))
    tensor([1])
    """

    logits: Tensor
    product: Product | None = field(default=None, repr=False)  # what the logits are, for the gradient

    def log_prob(self, value: Tensor) -> Tensor:
        """The log-probability (...) of the symbols value (...)."""
        return softmax_loss.log_prob(self.logits, value, self.product)

    def log_probs(self) -> Tensor:
        """The log-probabilities (..., V) of all symbols."""
        return torch.log_softmax(self.logits, -1)

    def sample(self, draws: Tensor) -> Tensor:
        """A symbol (B,) for each row."""
        return random.symbols(draws, _one_event_per_row(self.logits, draws))

    @property
    def mode(self) -> Tensor:
        """The most probable symbol (...)."""
        return self.logits.argmax(-1)


@dataclass(frozen=True)
class AdaptiveCategorical:
    """P(v) = P(cluster of v) P(v | cluster): the symbols from bounds[i - 1] to bounds[i] are those of tail i.

    `head` (..., bounds[0] + number of tails) are the logits of the first bounds[0] symbols and of the tails; a tail
    maps h (N, H) to the logits of its symbols, and is computed for the places that need it.
    """

    head: Tensor
    h: Tensor
    tails: Sequence[Callable[[Tensor], Tensor]]
    bounds: Sequence[int]

    def log_prob(self, value: Tensor) -> Tensor:
        """The log-probability (...) of the symbols value (...)."""
        first = self.bounds[0]
        h, symbols = self.h.reshape(-1, self.h.shape[-1]), value.reshape(-1).contiguous()
        head = torch.log_softmax(self.head, -1).reshape(len(h), -1)
        cluster = torch.bucketize(symbols, torch.tensor(self.bounds, device=symbols.device), right=True)
        result = head.gather(1, torch.where(cluster == 0, symbols, first + cluster - 1)[:, None])[:, 0]
        for i, tail in enumerate(self.tails, 1):
            rows = (cluster == i).nonzero()[:, 0]
            inside = torch.log_softmax(tail(h[rows]), -1).gather(1, (symbols[rows] - self.bounds[i - 1])[:, None])
            result = result.index_add(0, rows, inside[:, 0])
        return result.reshape(value.shape)

    def log_probs(self) -> Tensor:
        """The log-probabilities (..., V) of all symbols."""
        first = self.bounds[0]
        head = torch.log_softmax(self.head, -1)
        tails = [head[..., first + i, None] + torch.log_softmax(tail(self.h), -1) for i, tail in enumerate(self.tails)]
        return torch.cat([head[..., :first], *tails], -1)

    def sample(self, draws: Tensor) -> Tensor:
        """A symbol (B,) for each row."""
        return Categorical(self.log_probs()).sample(draws)

    @property
    def mode(self) -> Tensor:
        """The most probable symbol (...)."""
        return self.log_probs().argmax(-1)


@dataclass(frozen=True)
class Bernoulli:
    """D independent bits: P(x_d = 1) = 1 / (1 + exp(-logits_d)), logits (..., D).

    >>> Bernoulli(torch.zeros(1, 2)).log_prob(torch.tensor([[0.0, 1.0]])).exp().item()
    0.25
    """

    logits: Tensor

    def log_prob(self, value: Tensor) -> Tensor:
        """The log-probability (...) of the bits value (..., D)."""
        each = F.binary_cross_entropy_with_logits(self.logits, value.to(self.logits.dtype), reduction="none")
        return -each.sum(-1)

    def sample(self, draws: Tensor) -> Tensor:
        """Bits (B, D), as floating-point numbers."""
        return random.bits(draws, _one_event_per_row(self.logits, draws)).to(self.logits.dtype)

    @property
    def mode(self) -> Tensor:
        """The more probable of the two (..., D)."""
        return (self.logits > 0).to(self.logits.dtype)


@dataclass(frozen=True)
class Gaussian:
    """D independent numbers x_d = mean_d + std_d z, z standard normal; mean and std (..., D)."""

    mean: Tensor
    std: Tensor

    def log_prob(self, value: Tensor) -> Tensor:
        """The log-density (...) at value (..., D)."""
        return log_normal((value - self.mean) / self.std, self.std.log())

    def sample(self, draws: Tensor) -> Tensor:
        """Numbers (B, D)."""
        mean = _one_event_per_row(self.mean, draws)
        z = random.normal(draws, mean.shape[-1]).to(mean.device)
        return (mean.double() + self.std.detach().double() * z).to(mean.dtype)

    @property
    def mode(self) -> Tensor:
        """The mean (..., D)."""
        return self.mean


@dataclass(frozen=True)
class StudentT:
    """D independent numbers x_d = mean_d + scale_d t, t of Student's distribution with df_d degrees of freedom:

    log p(t) = log G((df + 1) / 2) - log G(df / 2) - log(df pi) / 2 - (df + 1) / 2 log(1 + t^2 / df),
    G the gamma function; df, mean and scale (..., D). The fewer degrees of freedom, the heavier the tails.
    """

    df: Tensor
    mean: Tensor
    scale: Tensor

    def log_prob(self, value: Tensor) -> Tensor:
        """The log-density (...) at value (..., D)."""
        df, mean, scale = self.df.double(), self.mean.double(), self.scale.double()
        t = (value - mean) / scale
        constant = log_rising(df / 2, torch.full_like(df, 0.5)) - 0.5 * torch.log(df * math.pi) - scale.log()
        far = t.abs() > 1e100  # where 1 + t^2 / df is t^2 / df to the last digit, and t^2 may be infinite
        near, size = torch.where(far, 0.0, t), torch.where(far, t.abs(), 1.0)
        more = torch.where(far, 2 * size.log() - df.log(), torch.log1p(near * near / df))
        return (constant - (df + 1) / 2 * more).sum(-1).to(self.mean.dtype)

    def sample(self, draws: Tensor) -> Tensor:
        """Numbers (B, D)."""
        mean = _one_event_per_row(self.mean, draws)
        t = random.student_t(draws, self.df.expand_as(mean))
        return (mean.double() + self.scale.detach().double() * t).to(mean.dtype)

    @property
    def mode(self) -> Tensor:
        """The centre (..., D)."""
        return self.mean


@dataclass(frozen=True)
class Poisson:
    """D independent counts with the rates m = softplus(logits): log P(n) = n log m - m - log n!, logits (..., D)."""

    logits: Tensor

    @property
    def rate(self) -> Tensor:
        """(..., D)."""
        return softplus(self.logits)

    def log_prob(self, value: Tensor) -> Tensor:
        """The log-probability (...) of the counts value (..., D)."""
        n, logits = value.double(), self.logits.double()
        return (n * _log_softplus(logits) - softplus(logits) - torch.lgamma(n + 1)).sum(-1).to(self.logits.dtype)

    def sample(self, draws: Tensor) -> Tensor:
        """Counts (B, D), as floating-point numbers."""
        return random.poisson(draws, _one_event_per_row(self.rate, draws)).to(self.logits.dtype)

    @property
    def mode(self) -> Tensor:
        """The most probable counts (..., D)."""
        return self.rate.floor()


@dataclass(frozen=True)
class NegativeBinomial:
    """D independent counts of mean m = softplus(logits) and variance m + m^2 / r, r = shape:

    log P(n) = log G(n + r) - log G(r) - log n! + r log(r / (r + m)) + n log(m / (r + m)),   G the gamma function;
    logits and shape (..., D). They are Poisson counts whose rate is m / r times a gamma variable of shape r.
    """

    logits: Tensor
    shape: Tensor

    @property
    def mean(self) -> Tensor:
        """(..., D)."""
        return softplus(self.logits)

    def log_prob(self, value: Tensor) -> Tensor:
        """The log-probability (...) of the counts value (..., D)."""
        n, logits, r = value.double(), self.logits.double(), self.shape.double()
        more = torch.log1p(softplus(logits) / r)  # log((r + m) / r)
        ways = log_rising(r, n) - torch.lgamma(n + 1)
        each = ways - r * more + n * (_log_softplus(logits) - r.log() - more)
        return each.sum(-1).to(self.logits.dtype)

    def sample(self, draws: Tensor) -> Tensor:
        """Counts (B, D), as floating-point numbers."""
        mean = _one_event_per_row(self.mean, draws).double()
        r = self.shape.detach().double().expand_as(mean)
        rate = mean / r * random.gamma(draws, r)
        return random.poisson(draws, rate, first=2 * random.STAGE).to(self.logits.dtype)

    @property
    def mode(self) -> Tensor:
        """The most probable counts (..., D)."""
        return (self.mean * (1 - 1 / self.shape)).floor().clamp(min=0)


def log_rising(z: Tensor, by: Tensor) -> Tensor:
    """log G(z + by) - log G(z), float64. Of a large z by Stirling's series, in which what is large cancels beforehand:
    at 1e12 the difference of two logarithms has no digit left.

    >>> z, half = torch.tensor([1e12, 0.5], dtype=torch.float64)
    >>> abs(log_rising(z, half).item() - 6 * math.log(10)) < 1e-12
    True
    """
    large = (z > 1e3) & (z + by > 1e3)
    small, some = torch.where(large, 1.0, z), torch.where(large, 0.0, by)
    z, by = torch.where(large, z, 2e3), torch.where(large, by, 0.0)
    main = (z + by - 0.5) * torch.log1p(by / z) + by * (z.log() - 1)
    rest = [(1 / (v * 12)) * (1 - 1 / (30 * v * v)) for v in (z + by, z)]  # the next term is 1 / (1260 v^5)
    return torch.where(large, main + rest[0] - rest[1], torch.lgamma(small + some) - torch.lgamma(small))


def log_normal(z: Tensor, log_std: Tensor) -> Tensor:
    """The log-density of numbers that lie z (..., D) standard deviations from their means, summed over D."""
    return -0.5 * z.square().sum(-1) - (log_std + 0.5 * math.log(2 * math.pi)).sum(-1)


def _log_softplus(x: Tensor) -> Tensor:
    """log(log(1 + exp(x))), x in float64. Below -37 it is x to the last digit, where exp(x) would end in log 0."""
    low = x < -37
    return torch.where(low, x, softplus(torch.where(low, 0.0, x)).log())


def _one_event_per_row(parameter: Tensor, draws: Tensor) -> Tensor:
    """The parameter (B, D), without its graph; an InputError if it is not of one event for each row of draws."""
    if parameter.dim() != 2 or len(parameter) != len(draws):
        raise InputError(
            f"sample was given the draws of {len(draws)} rows, and the parameters are {list(parameter.shape)}: it "
            f"draws one event for each row, from parameters ({len(draws)}, D). Predict step by step."
        )
    return parameter.detach()

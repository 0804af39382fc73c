"""What a read-out gives: a distribution of the next symbol, with `log_prob`, `sample` and `mode`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from elman.kernels import sigmoid, softplus


class Distribution(Protocol):
    """What models predict with. Batch and time axes stand in front."""

    def log_prob(self, value: Tensor) -> Tensor: ...
    def sample(self, generator: torch.Generator | None = None) -> Tensor: ...
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
    """

    logits: Tensor

    def log_prob(self, value: Tensor) -> Tensor:
        """The log-probability (...) of the symbols value (...)."""
        flat = self.logits.reshape(-1, self.logits.shape[-1])
        return -F.cross_entropy(flat, value.reshape(-1), reduction="none").reshape(value.shape)

    def log_probs(self) -> Tensor:
        """The log-probabilities (..., V) of all symbols."""
        return torch.log_softmax(self.logits, -1)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """A symbol (...) for each place."""
        return _draw(self.log_probs(), generator)

    @property
    def mode(self) -> Tensor:
        """The most probable symbol (...)."""
        return self.logits.argmax(-1)


def _draw(log_probs: Tensor, generator: torch.Generator | None) -> Tensor:
    flat = log_probs.reshape(-1, log_probs.shape[-1]).exp()
    return torch.multinomial(flat, 1, generator=generator).reshape(log_probs.shape[:-1])


@dataclass(frozen=True)
class Bernoulli:
    """P(1) = s(logits)."""

    logits: Tensor

    def log_prob(self, value: Tensor) -> Tensor:
        return -F.binary_cross_entropy_with_logits(self.logits, value.to(self.logits.dtype), reduction="none")

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        return torch.bernoulli(sigmoid(self.logits), generator=generator)

    @property
    def mode(self) -> Tensor:
        return (self.logits > 0).to(self.logits.dtype)


@dataclass(frozen=True)
class Gaussian:
    """Mean and standard deviation for each number."""

    mean: Tensor
    std: Tensor

    def log_prob(self, value: Tensor) -> Tensor:
        z = (value - self.mean) / self.std
        return -0.5 * z * z - self.std.log() - 0.5 * math.log(2 * math.pi)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        noise = torch.randn(self.mean.shape, dtype=self.mean.dtype, device=self.mean.device, generator=generator)
        return self.mean + self.std * noise

    @property
    def mode(self) -> Tensor:
        return self.mean


@dataclass(frozen=True)
class Poisson:
    """Counts with the rate softplus(logits)."""

    logits: Tensor

    @property
    def rate(self) -> Tensor:
        return softplus(self.logits)

    def log_prob(self, value: Tensor) -> Tensor:
        rate = self.rate
        return torch.xlogy(value, rate) - rate - torch.lgamma(value + 1)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        return torch.poisson(self.rate, generator=generator)

    @property
    def mode(self) -> Tensor:
        return self.rate.floor()

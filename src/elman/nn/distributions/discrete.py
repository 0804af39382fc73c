"""Distributions over symbols, and over bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from elman import kernels, random
from elman.errors import InputError
from elman.lengths import valid
from elman.nn.distributions.distribution import Distribution, Numeric, checked_levels, one_event_per_row


class Discrete(Distribution):
    """One of the symbols 0 to V - 1. What a subclass does not say is computed of all log-probabilities."""

    def log_probs(self) -> Tensor:
        """The log-probabilities (..., V) of all symbols."""
        raise NotImplementedError(f"{type(self).__name__} must define log_probs()")

    def scores(self) -> Tensor:
        """The log-probabilities (..., V) but for a number of each row: what sampling and search compare."""
        return self.log_probs()

    def sample(self, draws: Tensor) -> Tensor:
        """A symbol (B,) for each row."""
        return random.symbols(draws, one_event_per_row(self.scores(), draws))

    @property
    def mode(self) -> Tensor:
        """The most probable symbol (...)."""
        return self.scores().argmax(-1)

    @property
    def mean(self) -> Tensor:
        """The mean number of the symbol (..., 1), in float64."""
        p = self.log_probs().double().exp()
        return (p * torch.arange(p.shape[-1])).sum(-1, keepdim=True)

    def quantile(self, levels: Sequence[float]) -> Tensor:
        """The smallest symbol with P(X <= x) >= level (..., 1, Q), in float64."""
        total = self.log_probs().double().exp().cumsum(-1)
        below = total[..., None, :, None] < checked_levels(levels)
        return below.sum(-2).clamp(max=total.shape[-1] - 1).double()


class Product(NamedTuple):
    """What logits (..., V) are: h W^T + b. They must be asked for before the weights change."""

    h: Tensor  # (..., H)
    weight: Tensor  # (V, H)
    bias: Tensor | None  # (V,)


class Categorical(Discrete):
    """log P(v) = logits[v] - logsumexp(logits), logits (..., V).

    Of a `Product` they are computed when somebody asks for them. Training does not: a batch of word models has more of
    them than fit any cache.

    >>> Categorical(torch.zeros(1, 4)).log_prob(torch.tensor([2])).exp().item()
    0.25
    >>> Categorical(torch.tensor([[0.0, 99.0]])).sample(torch.tensor([[7, 0]]))
    tensor([1])
    """

    def __init__(self, logits: Tensor | Product) -> None:
        self._logits = logits if isinstance(logits, Tensor) else None
        self.product = logits if isinstance(logits, Product) else None
        if self.product is not None and not torch.is_grad_enabled():  # nor shall what is computed later have a graph
            h, weight, bias = self.product
            self.product = Product(h, weight.detach(), None if bias is None else bias.detach())
        self._versions = self._count_changes()

    @property
    def logits(self) -> Tensor:
        if self._logits is None:
            self._logits = kernels.linear(*self._unchanged())
        return self._logits

    def log_prob(self, value: Tensor) -> Tensor:
        """The log-probability (...) of the symbols value (...)."""
        if self.product is None:
            flat = self.logits.reshape(-1, self.logits.shape[-1])
            return -F.cross_entropy(flat, value.reshape(-1), reduction="none").reshape(value.shape)
        return kernels.softmax_log_prob(*self._unchanged(), value)

    def log_prob_sum(self, value: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, int]:
        if self.product is None:
            return super().log_prob_sum(value, lengths)
        h, weight, bias = self._unchanged()
        if lengths is not None and value.dim() > 1 and min(lengths.tolist(), default=0) < value.shape[1]:
            counted = valid(lengths, value.shape[1])
            h, value = h[counted], value[counted]
        return kernels.softmax_log_prob_sum(h, weight, bias, value), value.numel()

    def log_probs(self) -> Tensor:
        """The log-probabilities (..., V) of all symbols."""
        return torch.log_softmax(self.logits, -1)

    def scores(self) -> Tensor:
        return self.logits

    def values(self) -> Tensor:
        """What it says in float64: the log-probabilities (..., V)."""
        return torch.log_softmax(self.logits.double(), -1)

    def _unchanged(self) -> Product:
        assert self.product is not None
        if self._count_changes() != self._versions:
            raise InputError(
                "the weights of this distribution's read-out have changed since it was made, so that what it said then "
                "cannot be computed now. Ask for `logits` or `log_prob` before the weights are changed."
            )
        return self.product

    def _count_changes(self) -> list[int]:
        """How often each parameter was changed in place, where that can be known."""
        weights = [part for part in (self.product or ())[1:] if part is not None]
        counted = not torch.compiler.is_compiling() and not any(weight.is_inference() for weight in weights)
        return [weight._version for weight in weights] if counted else []


@dataclass(frozen=True)
class AdaptiveCategorical(Discrete):
    """P(v) = P(cluster of v) P(v | cluster): the symbols from bounds[i - 1] to bounds[i] are those of tail i.

    `head` (..., bounds[0] + number of tails) are the logits of the first bounds[0] symbols and of the tails; a tail
    maps h (N, H) to the logits of its symbols, and is computed for the places that need it.

    >>> tail = torch.nn.Linear(4, 2)
    >>> predicted = AdaptiveCategorical(torch.zeros(1, 3), torch.zeros(1, 4), [tail], [2, 4])
    >>> predicted.log_probs().exp().sum(-1).allclose(torch.ones(1))
    True
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


@dataclass(frozen=True)
class Bernoulli(Numeric):
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
        return random.bits(draws, one_event_per_row(self.logits, draws)).to(self.logits.dtype)

    @property
    def mode(self) -> Tensor:
        """The more probable of the two (..., D)."""
        return (self.logits > 0).to(self.logits.dtype)

    @property
    def mean(self) -> Tensor:
        """P(x_d = 1) (..., D), in float64."""
        return self.logits.double().sigmoid()

    def quantile(self, levels: Sequence[float]) -> Tensor:
        return (checked_levels(levels) > 1 - self.mean[..., None]).double()

    def values(self) -> Tensor:
        """What it says in float64: the logits (..., D)."""
        return self.logits.double()

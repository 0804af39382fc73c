"""Emissions: what a hidden state says of an observation. Each is an embed, observations (..., D) -> log p(o | z = k)
(..., K), whose parameters are unconstrained (for gradient steps) and have a closed-form maximum under weights (for EM).

A NaN is a value that was not observed, and is integrated out. Letters: N observations, D their width, K hidden states,
V symbols. `weight` (N, K) is the posterior of each state; a state without weight keeps its parameters.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from elman import random
from elman.errors import InputError
from elman.kernels.builder import Builder, Slot, Unstreamable

LARGE = 1e6  # counts from here on: count * log(rate) and log(count!) are so large that their difference has few digits


class Emission(nn.Module):
    """What all emissions offer."""

    parts: ClassVar[dict[str, str]]  # what a fit may change, by the name that `freeze` knows: the parameter it is in
    frozen: frozenset[str] = frozenset()

    def freeze(self, names: frozenset[str]) -> None:
        """Leave some parts alone, in `maximise` and in gradient steps."""
        self.frozen = names
        for part, parameter in self.parts.items():
            getattr(self, parameter).requires_grad_(part not in names)

    def begin(self, o: Tensor) -> None:
        """Look at all observations (N, D) once, before a fit."""

    @property
    def width(self) -> int | None:
        """D; None where an emission takes any."""
        raise NotImplementedError

    def forward(self, o: Tensor) -> Tensor:
        """log p(o | z = k): (..., D) -> (..., K)."""
        raise NotImplementedError

    def describe_step(self, builder: Builder) -> Slot:
        """Append log p(o | z) of a complete observation, but for a number of the observation alone, which a filter
        divides out: its slot."""
        raise Unstreamable(f"the emission {type(self).__name__} does not describe its densities")

    def maximise(self, o: Tensor, weight: Tensor) -> None:
        """Set the parameters to the maximum of sum weight * log p(o | z) + log prior: o (N, D), weight (N, K)."""
        raise NotImplementedError

    def log_prior(self) -> Tensor:
        """The log of the prior, up to a constant: what EM climbs is the log-likelihood plus this."""
        raise NotImplementedError

    def sample(self, z: Tensor, draws: Tensor, first: int = 0) -> Tensor:
        """One observation (N, D) from each of the states z (N,), each with its own draw (N, 2), from number `first` of
        it on."""
        raise NotImplementedError

    def modes(self) -> Tensor:
        """What each state emits at its most probable: observations (C, D), some state's or some symbol's each."""
        raise NotImplementedError


class Categorical(Emission):
    """p(o = v | z = k) = softmax(logits[k])[v], for one symbol per step, o (..., 1) in 0 ... V - 1; Dirichlet `prior`
    (1 is flat)."""

    parts: ClassVar[dict[str, str]] = {"emission": "logits"}

    def __init__(self, p: Tensor, *, prior: float | Tensor = 1.0) -> None:
        super().__init__()
        self.logits = nn.Parameter(p.log())
        self.prior = prior

    @property
    def p(self) -> Tensor:
        """(K, V)."""
        return torch.softmax(self.logits, -1)

    @property
    def width(self) -> int:
        return 1

    def forward(self, o: Tensor) -> Tensor:
        seen = ~o.isnan()
        symbol = torch.where(seen, o, 0.0)[..., 0].long()
        return torch.where(seen, torch.log_softmax(self.logits, -1).T[symbol], 0.0)

    def describe_step(self, builder: Builder) -> Slot:
        return builder.lookup(torch.log_softmax(self.logits, -1).T)

    @torch.no_grad()
    def maximise(self, o: Tensor, weight: Tensor) -> None:
        if "emission" in self.frozen:
            return
        seen = ~o[:, 0].isnan()
        counts = torch.zeros_like(self.logits.T).index_add_(0, o[seen, 0].long(), weight[seen]).T
        _set_probabilities(self.logits, counts + self.prior - 1)

    def log_prior(self) -> Tensor:
        return dirichlet(self.p, self.prior)

    def sample(self, z: Tensor, draws: Tensor, first: int = 0) -> Tensor:
        return random.symbols(draws, self.logits[z], first)[:, None].to(self.logits.dtype)

    def modes(self) -> Tensor:
        return torch.arange(self.logits.shape[1])[:, None].to(self.logits.dtype)


class Bernoulli(Emission):
    """p(o_d = 1 | z = k) = sigmoid(logits[k, d]), D independent bits; `prior` pseudo-counts plus one on each side
    (1 is flat)."""

    parts: ClassVar[dict[str, str]] = {"emission": "logits"}

    def __init__(self, p: Tensor, *, prior: float = 1.0) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.logit(p))
        self.prior = prior

    @property
    def p(self) -> Tensor:
        """(K, D)."""
        return torch.sigmoid(self.logits)

    @property
    def width(self) -> int:
        return self.logits.shape[1]

    def forward(self, o: Tensor) -> Tensor:
        seen = ~o.isnan()
        bit = torch.where(seen, o, 0.0)
        # A logit of infinity is a certainty: 0 * infinity must be 0.
        on, off = nn.functional.logsigmoid(self.logits), nn.functional.logsigmoid(-self.logits)
        zero, one = seen & (bit == 0), seen & (bit == 1)
        certain = -torch.inf
        impossible = _count(one, on == certain) + _count(zero, off == certain)
        value = _times(one, on) + _times(zero, off)
        return torch.where(impossible > 0, certain, value)

    def describe_step(self, builder: Builder) -> Slot:
        _refuse_certain(self.logits)
        off = nn.functional.logsigmoid(-self.logits)  # log p(1) - log p(0) is the logit
        return builder.linear(builder.input(self.width), self.logits, off.sum(-1))

    @torch.no_grad()
    def maximise(self, o: Tensor, weight: Tensor) -> None:
        if "emission" in self.frozen:
            return
        seen = ~o.isnan()
        total = weight.T @ seen.to(weight) + 2 * (self.prior - 1)
        ones = weight.T @ torch.where(seen, o, 0.0) + self.prior - 1
        p = (ones / total).clamp(0, 1)
        self.logits.copy_(torch.where(total > 0, torch.logit(p), self.logits))

    def log_prior(self) -> Tensor:
        return dirichlet(torch.stack([self.p, 1 - self.p], -1), self.prior)

    def sample(self, z: Tensor, draws: Tensor, first: int = 0) -> Tensor:
        return random.bits(draws, self.logits[z], first).to(self.logits.dtype)

    def modes(self) -> Tensor:
        return (self.logits > 0).to(self.logits.dtype)


class Poisson(Emission):
    """o_d ~ Poisson(exp(log_rate[k, d])), D independent counts; Gamma prior: mode (prior + sum) / (weight + n)."""

    parts: ClassVar[dict[str, str]] = {"emission": "log_rate"}

    def __init__(self, rate: Tensor, *, prior: float = 0.0, prior_weight: float = 0.0) -> None:
        super().__init__()
        self.log_rate = nn.Parameter(rate.log())
        self.prior = prior
        self.prior_weight = prior_weight

    @property
    def rate(self) -> Tensor:
        """(K, D)."""
        return self.log_rate.exp()

    @property
    def width(self) -> int:
        return self.log_rate.shape[1]

    def forward(self, o: Tensor) -> Tensor:
        seen = ~o.isnan()
        count = torch.where(seen, o, 0.0)
        impossible = _count(count > 0, self.log_rate == -torch.inf)
        if bool((count > LARGE).any()):
            value = _log_poisson(count, seen, self.log_rate)
        else:
            factorials = torch.lgamma(count + 1).sum(-1, keepdim=True)
            value = _times(count, self.log_rate) - _times(seen, self.rate) - factorials
        return torch.where(impossible > 0, -torch.inf, value)

    def describe_step(self, builder: Builder) -> Slot:
        _refuse_certain(self.log_rate)
        return builder.linear(builder.input(self.width), self.log_rate, -self.rate.sum(-1))

    @torch.no_grad()
    def maximise(self, o: Tensor, weight: Tensor) -> None:
        if "emission" in self.frozen:
            return
        seen = ~o.isnan()
        total = weight.T @ seen.to(weight) + self.prior_weight
        rate = (weight.T @ torch.where(seen, o, 0.0) + self.prior) / total
        self.log_rate.copy_(torch.where(total > 0, rate.log(), self.log_rate))

    def log_prior(self) -> Tensor:
        return (
            self.prior * torch.where(self.log_rate > -torch.inf, self.log_rate, 0.0).sum()
            - self.prior_weight * self.rate.sum()
        )

    def sample(self, z: Tensor, draws: Tensor, first: int = 0) -> Tensor:
        return random.poisson(draws, self.rate[z], first).to(self.log_rate.dtype)

    def modes(self) -> Tensor:
        return self.rate.floor()


def _log_poisson(count: Tensor, seen: Tensor, log_rate: Tensor) -> Tensor:
    """log p of counts (..., D) at rates (K, D) -> (..., K). For the large, what cancels is left out on paper: log
    count! by Stirling, count log(count / rate) + rate - count by Loader (2000), a series in v where they are close."""
    k, rate = count[..., None, :], log_rate.exp()
    log_rate = torch.where(log_rate.isfinite(), log_rate, 0.0)
    small = k * log_rate - rate - torch.lgamma(k + 1)
    large = k.clamp_min(LARGE)
    v = (large - rate) / (large + rate)
    odd = sum(v ** (2 * j + 1) / (2 * j + 1) for j in range(1, 8))
    deviance = torch.where(
        v.abs() < 0.1, (large - rate) * v + 2 * large * odd, large * (large.log() - log_rate) + rate - large
    )
    value = torch.where(k > LARGE, -deviance - 0.5 * (2 * torch.pi * large).log() - 1 / (12 * large), small)
    return torch.where(seen[..., None, :], value, 0.0).sum(-1)


def _refuse_certain(parameter: Tensor) -> None:
    if not bool(parameter.isfinite().all()):
        raise Unstreamable("an emission with a probability or a rate of zero, whose logarithm is infinite")


def dirichlet(p: Tensor, prior: float | Tensor) -> Tensor:
    """sum (prior - 1) log p, where an event that is excluded (p = 0) has no say."""
    if _flat(prior):
        return p.new_zeros(())
    excess = torch.as_tensor(prior, dtype=p.dtype, device=p.device) - 1
    return torch.where((p > 0) & (excess != 0), excess * torch.where(p > 0, p, 1.0).log(), 0.0).sum()


def probabilities(counts: Tensor, otherwise: Tensor) -> Tensor:
    """Rows of counts (after a prior, so perhaps below zero) as probabilities; `otherwise` where a row has none."""
    counts = counts.clamp_min(0)
    total = counts.sum(-1, keepdim=True)
    return torch.where(total > 0, counts / total, otherwise)


def with_prior(counts: Tensor, p: Tensor, prior: float | Tensor) -> Tensor:
    """Expected counts of events of probability p with those of a Dirichlet prior; what is excluded (p = 0) stays so."""
    return counts if _flat(prior) else torch.where(p > 0, counts + prior - 1, 0.0)


def _flat(prior: float | Tensor) -> bool:
    return isinstance(prior, int | float) and prior == 1


def check_symbols(o: Tensor, V: int) -> None:
    """Raise an InputError unless every observed symbol is a whole number in [0, V)."""
    seen = o[~o.isnan()]
    if seen.numel() and (bool((seen != seen.round()).any()) or float(seen.min()) < 0 or float(seen.max()) >= V):
        raise InputError(
            f"the symbols go from {float(seen.min()):g} to {float(seen.max()):g}; this model knows the whole numbers 0 "
            f"to {V - 1}. Number your symbols from 0, or set n_features to the size of the alphabet before fitting."
        )


@torch.no_grad()
def _set_probabilities(logits: nn.Parameter, counts: Tensor) -> None:
    logits.copy_(probabilities(counts, torch.softmax(logits, -1)).log())


def _count(a: Tensor, b: Tensor) -> Tensor:
    """How many d have both a[..., d] and b[k, d]: (..., D), (K, D) -> (..., K)."""
    return a.to(torch.float32) @ b.to(torch.float32).T


def _times(a: Tensor, b: Tensor) -> Tensor:
    """sum_d a[..., d] b[k, d], infinities of b left out: what they meet is counted apart."""
    return a.to(b.dtype) @ torch.where(b.isfinite(), b, 0.0).T

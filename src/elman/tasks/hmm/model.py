"""A hidden Markov model as every model is: embed -> core -> read-out -> distribution.

The embed is the emission, observations to log p(o | z); the core the filter of the chain; the read-out the mixture of
emissions under the filter's prediction, which is the distribution of the next observation. The log-likelihood of a
sequence is what the filter normalises by: `log_prob`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from elman import random
from elman.cells.hmm import HMM
from elman.kernels.builder import Builder, Slot
from elman.kernels.reference import log, log_sum_exp
from elman.model import SequenceModel
from elman.nn.distributions import Distribution
from elman.tasks.hmm.emissions import Emission, dirichlet
from elman.tasks.hmm.sequences import Rows


@dataclass(frozen=True)
class Priors:
    """Dirichlet parameters of the start and the transitions; 1 is flat."""

    start: float | Tensor = 1.0
    transition: float | Tensor = 1.0

    def of(self, start: Tensor, transition: Tensor) -> Tensor:
        """The log of the prior of a chain, up to a constant."""
        return dirichlet(start, self.start) + dirichlet(transition, self.transition)


class Lengths(Protocol):
    """How much of each row is valid, and where sequences begin."""

    @property
    def lengths(self) -> Tensor: ...  # (R,)
    @property
    def reset(self) -> Tensor: ...  # (R, L)


class Chain(HMM):
    """The filter with pi = softmax(log_pi) and P = softmax(log_P): gradient steps keep them probabilities, and a
    logit of -inf stays a zero."""

    def __init__(self, start: Tensor, transition: Tensor) -> None:
        super().__init__(len(start), len(start))
        self.to(start.dtype)
        self.set(start, transition)

    @torch.no_grad()
    def reset_parameters(self) -> None:  # without a draw: a fit has random numbers of its own
        nn.init.zeros_(self.log_pi)
        nn.init.zeros_(self.log_P)

    @torch.no_grad()
    def set(self, start: Tensor, transition: Tensor) -> None:
        self.log_pi.copy_(start.log())
        self.log_P.copy_(transition.log())

    @property
    def start(self) -> Tensor:
        return torch.softmax(self.log_pi, -1)

    @property
    def transition(self) -> Tensor:
        return torch.softmax(self.log_P, -1)


@dataclass(frozen=True)
class Emitted(Distribution):
    """An observation of a state that is drawn from p (..., K): p(o) = sum_k p_k p(o | z = k)."""

    emission: Emission
    p: Tensor

    def log_prob(self, value: Tensor) -> Tensor:
        """The log-probability, or log-density, (...) of the observations value (..., D)."""
        return log_sum_exp(log(self.p) + self.emission(value))

    def sample(self, draws: Tensor) -> Tensor:
        """An observation (B, D) for each row."""
        z = random.symbols(draws, log(self.p.detach()))
        return self.emission.sample(z, draws, random.STAGE).detach()

    @property
    def mode(self) -> Tensor:
        """The most probable of what single states emit at their most probable (..., D); of symbols it is the mode.

        The mode of a mixture of densities has no closed form; this is close to it where the states are apart.
        """
        modes = self.emission.modes().detach()
        score = log_sum_exp(log(self.p)[..., None, :] + self.emission(modes))  # (..., C)
        return modes[score.argmax(-1)]


class Mixture(nn.Module):
    """The read-out: predictions y (..., K) to the distribution of what is observed next."""

    def __init__(self, emission: Emission) -> None:
        super().__init__()
        self.emission = emission

    def forward(self, y: Tensor, lengths: Tensor | None = None) -> Emitted:
        return Emitted(self.emission, y)

    def describe_step(self, builder: Builder, y: Slot) -> Slot:
        """The parameters of the distribution are the filter's predictions themselves."""
        return y

    def distribution(self, values: Tensor) -> Emitted:
        """What the predictions (..., K) are the parameters of."""
        return Emitted(self.emission, values)


class HiddenMarkov(SequenceModel):
    """An emission and a chain.

    >>> from elman.tasks.hmm.emissions import Categorical
    >>> half = torch.full((2,), 0.5)
    >>> model = HiddenMarkov(Categorical(torch.tensor([[0.9, 0.1], [0.2, 0.8]])), half, torch.eye(2))
    >>> predicted, state = model.scan(torch.tensor([[[0.0], [0.0]]]))     # (B, T, D): the symbol 0, twice
    >>> [round(p, 3) for p in predicted.log_prob(torch.tensor([[[0.0], [0.0]]])).exp()[0].tolist()]
    [0.773, 0.867]
    """

    core: Chain

    def __init__(self, emission: Emission, start: Tensor, transition: Tensor) -> None:
        super().__init__(emission, Chain(start, transition), Mixture(emission))

    @property
    def emission(self) -> Emission:
        """The embed."""
        assert isinstance(self.embed, Emission)
        return self.embed

    @property
    def start(self) -> Tensor:
        """p(z(1)) (K,)."""
        return self.core.start

    @property
    def transition(self) -> Tensor:
        """p(z(t+1) = column | z(t) = row) (K, K)."""
        return self.core.transition

    def freeze(self, names: frozenset[str]) -> None:
        """Leave some parts alone in a fit: start, transition, and what the emission has."""
        self.core.log_pi.requires_grad_("start" not in names)
        self.core.log_P.requires_grad_("transition" not in names)
        self.emission.freeze(names)

    def log_prob(self, o: Tensor, where: Lengths) -> Tensor:
        """log p(o[t] | o[<t]) (R, L) of observations (R, L, D), as long as they are valid."""
        return self.core.log_prob(self.emission(o), lengths=where.lengths, reset=where.reset)

    def log_prior(self, priors: Priors) -> Tensor:
        """Up to a constant."""
        return priors.of(self.start, self.transition) + self.emission.log_prior()

    @torch.no_grad()
    def score(self, o: Tensor, where: Rows) -> float:
        """log p of all sequences together, o (N, D) end to end."""
        x = where.pack(self.emission(o))
        return float(self.core.log_prob(x, lengths=where.lengths, reset=where.reset).sum())

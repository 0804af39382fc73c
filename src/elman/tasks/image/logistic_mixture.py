"""A mixture of logistic distributions over the levels of a number that was rounded: grey values, say.

Level v of V is the interval x_v - d to x_v + d, x_v = 2 v / (V - 1) - 1 and d = 1 / (V - 1); the first and the last
have no end. With F the logistic distribution function, 1 / (1 + exp(-x)),

    P(v) = sum_k w_k (F((x_v + d - m_k) / s_k) - F((x_v - d - m_k) / s_k)),    w = softmax(logits)

T. Salimans et al., PixelCNN++ (2017), arXiv 1701.05517, section 2.1. The difference is computed as it is, where they
take the density where it is small: F(a) - F(b) = F(a) F(-b) (1 - exp(b - a)), which loses no digits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from elman import random
from elman.nn.distributions import Discrete
from elman.nn.distributions.distribution import one_event_per_row
from elman.nn.readout import Affine
from elman.options import whole


@dataclass(frozen=True)
class LogisticMixture(Discrete):
    """One of `levels` levels, from K components: logits, centre and log_scale (..., K).

    >>> flat = LogisticMixture(torch.zeros(1, 1), torch.zeros(1, 1), torch.zeros(1, 1), 4)
    >>> round(flat.log_probs().exp().sum().item(), 6)
    1.0
    """

    logits: Tensor
    centre: Tensor
    log_scale: Tensor
    levels: int

    def log_prob(self, value: Tensor) -> Tensor:
        """The log-probability (...) of the levels value (...)."""
        half = 1 / (self.levels - 1)
        x = (2 * half * value.to(self.centre.dtype) - 1)[..., None]
        inverse = torch.exp(-self.log_scale)
        upper, lower = (x + half - self.centre) * inverse, (x - half - self.centre) * inverse
        first, last = (value == 0)[..., None], (value == self.levels - 1)[..., None]
        below_upper = torch.where(last, 0.0, F.logsigmoid(torch.where(last, 0.0, upper)))
        above_lower = torch.where(first, 0.0, F.logsigmoid(-torch.where(first, 0.0, lower)))
        # log(1 - exp(-w)), w = 2 half / s. Of a wide component it is log w: w has no digits there, or is zero.
        log_w = math.log(2 * half) - self.log_scale
        wide, ends = log_w < -60, first | last
        exact = torch.log(-torch.expm1(-2 * half * torch.where(wide | ends, 1.0, inverse)))
        width = torch.where(ends, 0.0, torch.where(wide, log_w, exact))
        terms = below_upper + above_lower + width
        return torch.logsumexp(torch.log_softmax(self.logits, -1) + terms, -1)

    def log_probs(self) -> Tensor:
        """The log-probabilities (..., V) of all levels."""
        every = torch.arange(self.levels, device=self.centre.device)
        logits, centre, log_scale = (part[..., None, :] for part in (self.logits, self.centre, self.log_scale))
        return LogisticMixture(logits, centre, log_scale, self.levels).log_prob(every)

    def sample(self, draws: Tensor) -> Tensor:
        """A level (B,) for each row: a component, then a number of it, rounded."""
        component = random.symbols(draws, one_event_per_row(self.logits, draws))[:, None]
        parts = self.centre, self.log_scale
        centre, log_scale = (part.detach().gather(1, component)[:, 0].double() for part in parts)
        u = random.uniform(draws, 1, 1)[:, 0].to(centre.device)
        x = centre + log_scale.exp() * (u.log() - (-u).log1p())
        return ((x + 1) * ((self.levels - 1) / 2)).round().clamp(0, self.levels - 1).long()


class LogisticMixtureReadout(Affine[LogisticMixture]):
    """Weights, means and scales of `components` logistic distributions, for one of `levels` levels.

    >>> LogisticMixtureReadout(8, 256)(torch.zeros(2, 8)).log_prob(torch.tensor([0, 255])).shape
    torch.Size([2])
    """

    SMALLEST = -7.0  # of log_scale, as in the paper: e^-7 is a quarter of a level of 256

    def __init__(self, input_size: int, levels: int, *, components: int = 10, dropout: float = 0.0) -> None:
        self.levels, self.components = whole("levels", levels, least=2), whole("components", components)
        super().__init__(input_size, 3 * components, dropout=dropout)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        _, mean, log_scale = self.linear.bias.chunk(3)  # type: ignore[union-attr]
        mean.copy_(torch.linspace(-1, 1, self.components))  # spread over all levels, each as wide as its share
        log_scale.fill_(-math.log(self.components))

    def distribution(self, values: Tensor) -> LogisticMixture:
        logits, mean, log_scale = values.chunk(3, -1)
        return LogisticMixture(logits, mean, log_scale.clamp(min=self.SMALLEST), self.levels)

"""Emissions that are mixtures of Gaussians."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from elman import random
from elman.kernels.reference import log_sum_exp
from elman.tasks.hmm.emissions import Emission, dirichlet, probabilities
from elman.tasks.hmm.gaussian import Gaussian


class Mixture(Emission):
    """A mixture of M Gaussians in each of K states: p(o | z = k) = sum_m softmax(logits[k])[m] Normal(o; component
    k * M + m)."""

    parts: ClassVar[dict[str, str]] = {"weights": "logits"}

    def __init__(self, weights: Tensor, components: Gaussian, *, prior: float | Tensor = 1.0) -> None:
        """weights (K, M); components K * M of them, those of one state side by side."""
        super().__init__()
        self.logits = nn.Parameter(weights.log())
        self.components = components
        self.prior = prior

    def freeze(self, names: frozenset[str]) -> None:
        super().freeze(names)
        self.components.freeze(names)

    def begin(self, o: Tensor) -> None:
        self.components.begin(o)

    @property
    def width(self) -> int:
        return self.components.width

    @property
    def weights(self) -> Tensor:
        """(K, M)."""
        return torch.softmax(self.logits, -1)

    def forward(self, o: Tensor) -> Tensor:
        return log_sum_exp(self._joint(o))

    @torch.no_grad()
    def maximise(self, o: Tensor, weight: Tensor) -> None:
        share = weight[..., None] * torch.softmax(self._joint(o), -1)  # (N, K, M)
        self.components.maximise(o, share.flatten(1))
        if "weights" not in self.frozen:
            self.logits.copy_(probabilities(share.sum(0) + self.prior - 1, self.weights).log())

    def log_prior(self) -> Tensor:
        return dirichlet(self.weights, self.prior) + self.components.log_prior()

    def sample(self, z: Tensor, draws: Tensor, first: int = 0) -> Tensor:
        m = random.symbols(draws, self.logits[z], first)
        return self.components.sample(z * self.logits.shape[1] + m, draws, first + random.STAGE)

    def modes(self) -> Tensor:
        return self.components.mean

    def _joint(self, o: Tensor) -> Tensor:
        return self.components(o).unflatten(-1, self.logits.shape) + torch.log_softmax(self.logits, -1)

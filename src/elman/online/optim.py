"""How a learner changes weights after every step. All weights are one vector.

Of the gradient g of step number t, counted from 1:

    sgd     m = momentum m' + g             w = w' - lr m
    adam    m = b1 m' + (1 - b1) g          w = w' - lr m^ / (sqrt(v^) + eps)
            v = b2 v' + (1 - b2) g^2        m^ = m / (1 - b1^t), v^ = v / (1 - b2^t)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from elman.files.config import one_of
from elman.options import choice, fraction, number, positive, whole

OPTIMISERS = ("adam", "sgd")
SCHEDULES = ("constant", "inverse", "root")
EPS = 1e-8


@dataclass(frozen=True)
class Optim:
    """How weights are changed by what each step says.

    Args:
        name: adam or sgd
        lr: the learning rate after the warm-up; 0 leaves the weights as they are
        momentum: the momentum of sgd
        betas: the decay rates of the moments of adam
        schedule: constant, inverse (lr / (1 + t / halve)) or root (lr / sqrt(1 + t / halve)), at step t
        halve: the steps after which an inverse schedule has halved the learning rate
        warmup: steps over which the learning rate rises from zero
        clip_norm: the largest norm of the gradient of a step; 0 for none
        weight_decay: what is taken of a weight at each step, times the learning rate

    >>> Optim("sgd", lr=0.1).lr
    0.1
    """

    name: str = one_of("adam", OPTIMISERS)
    lr: float = 0.001
    momentum: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    schedule: str = one_of("constant", SCHEDULES)
    halve: int = 1000
    warmup: int = 0
    clip_norm: float = 1.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        choice("optim.name", self.name, OPTIMISERS)
        choice("optim.schedule", self.schedule, SCHEDULES)
        fraction("optim.momentum", self.momentum)
        for beta in self.betas:
            fraction("one of optim.betas", beta)
        positive("optim.halve", self.halve)
        whole("optim.warmup", self.warmup, least=0)
        for name in ("lr", "clip_norm", "weight_decay"):
            number(f"optim.{name}", getattr(self, name), 0)

    def init(self, weights: Tensor) -> Tensor:
        """Moments (M, P) of P weights before the first step: m, and of adam v."""
        return weights.new_zeros(2 if self.name == "adam" else 1 if self.momentum else 0, len(weights))

    def update(self, weights: Tensor, gradient: Tensor, moments: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        """The weights (P,) and moments after step number t (1,), counted from 0."""
        if self.clip_norm:
            norm = (gradient * gradient).sum().sqrt()
            gradient = gradient * (self.clip_norm / (norm + 1e-6)).clamp(max=1.0)
        change, lr = gradient, self.rate(t)
        if self.name == "adam":
            m, v = moments.unbind()
            m = m + (1 - self.betas[0]) * (gradient - m)
            v = v + (1 - self.betas[1]) * (gradient * gradient - v)
            moments = torch.stack([m, v])
            first, second = ((1 / (1 - torch.pow(beta, t.double() + 1))).to(m.dtype) for beta in self.betas)
            change = m * first / ((v * second).sqrt() + EPS)
        elif self.momentum:
            moments = self.momentum * moments + gradient
            change = moments[0]
        if self.weight_decay:
            change = change + self.weight_decay * weights
        return weights - lr.to(weights.dtype) * change, moments

    def rate(self, t: Tensor) -> Tensor:
        """The learning rate at step t, float64."""
        t = t.double()
        rate = torch.full_like(t, self.lr)
        if self.schedule != "constant":
            fall = 1 + t / self.halve
            rate = rate / (fall if self.schedule == "inverse" else fall.sqrt())
        return rate * ((t + 1) / self.warmup).clamp(max=1.0) if self.warmup else rate

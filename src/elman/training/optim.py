"""Optimisers, schedules and clipping."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from elman.errors import InputError, UnknownNameError

OPTIMISERS = ("adamw", "sgd")
SCHEDULES = ("constant", "cosine", "plateau")
NOT_NEGATIVE = ("weight_decay", "warmup", "final_lr", "factor", "patience", "clip_norm", "clip_value")


@dataclass(frozen=True)
class OptimConfig:
    """How weights are changed.

    Args:
        name: adamw or sgd
        lr: the learning rate after the warm-up
        weight_decay: shrinks matrices, never biases
        momentum: of sgd
        betas: of adamw
        schedule: constant, cosine (down to final_lr at the end) or plateau (times factor after bad evaluations)
        warmup: steps over which the learning rate rises from zero
        final_lr: where cosine ends, as a fraction of lr
        factor: what plateau multiplies the learning rate by
        patience: how many evaluations without improvement plateau waits
        clip_norm: the largest norm of the whole gradient; 0 for none
        clip_value: the largest element of the gradient; 0 for none
    """

    name: str = "adamw"
    lr: float = 0.002
    weight_decay: float = 0.01
    momentum: float = 0.9
    betas: tuple[float, float] = (0.9, 0.99)
    schedule: str = "cosine"
    warmup: int = 50
    final_lr: float = 0.01
    factor: float = 0.5
    patience: int = 2
    clip_norm: float = 1.0
    clip_value: float = 0.0


def check(config: OptimConfig) -> None:
    """Raise an error that names the first setting that is out of its range."""
    if config.name not in OPTIMISERS:
        raise UnknownNameError("optimiser", config.name, OPTIMISERS)
    if config.schedule not in SCHEDULES:
        raise UnknownNameError("schedule", config.schedule, SCHEDULES)
    if not 0 < config.lr < math.inf:
        raise InputError(f"optim.lr is {config.lr}; it must be positive")
    if not 0 <= config.momentum < 1 or not all(0 <= beta < 1 for beta in config.betas):
        raise InputError(
            f"optim.momentum is {config.momentum}, optim.betas are {config.betas}; each must be at least 0 and below 1"
        )
    at_least("optim", config, dict.fromkeys(NOT_NEGATIVE, 0))


def at_least(section: str, config: object, lowest: dict[str, int]) -> None:
    """Raise an InputError unless the settings of a config are at least as large as `lowest` says."""
    for name, low in lowest.items():
        if not low <= getattr(config, name) < math.inf:
            raise InputError(f"{section}.{name} is {getattr(config, name)}; it must be at least {low}")


def optimiser(config: OptimConfig, model: nn.Module) -> torch.optim.Optimizer:
    """The optimiser of a model's parameters."""
    check(config)
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    if config.name == "sgd":
        return torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum)
    return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, fused=True)


class Schedule:
    """The learning rate of each step. Only plateau remembers anything, and that is in `memory`, ready for JSON."""

    def __init__(self, config: OptimConfig, steps: int) -> None:
        self.config, self.steps = config, steps
        self.memory: dict[str, float] = {"scale": 1.0, "bad": 0}

    def lr(self, step: int) -> float:
        """The learning rate of update number `step`, counted from 0."""
        config = self.config
        if step < config.warmup:
            return config.lr * (step + 1) / config.warmup
        if config.schedule != "cosine":
            return config.lr * self.memory["scale"]
        done = (step - config.warmup) / max(1, self.steps - config.warmup)
        return config.lr * (config.final_lr + (1 - config.final_lr) * 0.5 * (1 + math.cos(math.pi * min(1.0, done))))

    def observe(self, improved: bool) -> None:
        """Take note of an evaluation."""
        if self.config.schedule != "plateau":
            return
        self.memory["bad"] = 0 if improved else self.memory["bad"] + 1
        if self.memory["bad"] > self.config.patience:
            self.memory = {"scale": self.memory["scale"] * self.config.factor, "bad": 0}


def clip(config: OptimConfig, parameters: list[Tensor]) -> float:
    """Clip the gradients, by element and then by norm; the norm that they had."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    if config.clip_value:
        torch.nn.utils.clip_grad_value_(parameters, config.clip_value)
    if config.clip_norm:
        torch.nn.utils.clip_grad_norm_(parameters, config.clip_norm)
    return float(norm)


def tensors(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """What the optimiser remembers of each parameter, by number and name."""
    state: dict[int, dict[str, Any]] = optimiser.state_dict()["state"]
    return {f"{i}.{name}": value for i, parts in state.items() for name, value in parts.items() if value is not None}


def restore(optimiser: torch.optim.Optimizer, stored: dict[str, Tensor]) -> None:
    """Give back what `tensors` returned."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in stored.items():
        number, _, name = key.partition(".")
        state.setdefault(int(number), {})[name] = value
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})

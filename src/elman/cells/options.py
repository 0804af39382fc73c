"""The activations that cells accept by name; how options are checked stands in elman.options."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from elman import kernels
from elman.options import choice, flag, number, whole

__all__ = ["PHI", "Activation", "choice", "flag", "number", "whole"]

Activation = Callable[[Tensor], Tensor]


def identity(v: Tensor) -> Tensor:
    """v itself."""
    return v


PHI: dict[str, Activation] = {"tanh": kernels.tanh, "relu": torch.relu}

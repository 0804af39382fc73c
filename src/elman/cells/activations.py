"""The activations that cells accept by name."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from elman import kernels

Activation = Callable[[Tensor], Tensor]


def identity(v: Tensor) -> Tensor:
    """v itself."""
    return v


PHI: dict[str, Activation] = {"tanh": kernels.tanh, "relu": torch.relu}

"""The functions inside cells: the activations that they accept by name, and layer normalisation."""

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


def layer_norm(v: Tensor, gain: Tensor | None, bias: Tensor | None = None) -> Tensor:
    """LN(v) = gain * (v - mean v) / std v + bias, over the last axis of v (..., H); v itself if gain is None.

    J. L. Ba, J. R. Kiros, G. E. Hinton (2016).

    >>> layer_norm(torch.tensor([[-1.0, 1.0]]), torch.ones(2)).round().tolist()
    [[-1.0, 1.0]]
    """
    if gain is None:
        return v
    return kernels.layer_norm(v, gain.to(v.dtype), None if bias is None else bias.to(v.dtype), 1e-5)

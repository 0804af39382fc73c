"""The functions inside cells: the activations that they accept by name, gelu, and layer normalisation."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from elman import kernels

Activation = Callable[[Tensor], Tensor]


def identity(v: Tensor) -> Tensor:
    """v itself."""
    return v


PHI: dict[str, Activation] = {"tanh": kernels.tanh, "relu": torch.relu}


def gelu(v: Tensor) -> Tensor:
    """The gelu of tanh: v (1 + tanh w) / 2 = v s(2 w), w = sqrt(2 / pi) (v + 0.044715 v^3).

    >>> gelu(torch.tensor([0.0, 1.0])).round(decimals=3).tolist()
    [0.0, 0.8410000205039978]
    """
    return v * kernels.sigmoid((v + 0.044715 * v * v * v) * (8 / math.pi) ** 0.5)


def layer_norm(v: Tensor, gain: Tensor | None, bias: Tensor | None = None) -> Tensor:
    """LN(v) = gain * (v - mean v) / std v + bias, over the last axis of v (..., H); v itself if gain is None.

    J. L. Ba, J. R. Kiros, G. E. Hinton (2016).

    >>> layer_norm(torch.tensor([[-1.0, 1.0]]), torch.ones(2)).round().tolist()
    [[-1.0, 1.0]]
    """
    if gain is None:
        return v
    return kernels.layer_norm(v, gain.to(v.dtype), None if bias is None else bias.to(v.dtype), 1e-5)

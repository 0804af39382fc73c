"""Initial values that several cells share, and why."""

from __future__ import annotations

import torch
from torch import Tensor, nn


@torch.no_grad()
def recurrent(W: Tensor, gates: int = 1) -> None:
    """W (gates * N, M): orthogonal gate by gate, so that at the start no direction of the state grows or dies.

    Saxe, McClelland and Ganguli (2014). Orthogonal as one tall matrix, each gate's block would shrink by sqrt(gates).
    """
    for block in W.chunk(gates):
        nn.init.orthogonal_(block)


@torch.no_grad()
def input(U: Tensor, gates: int = 1) -> None:
    """U (gates * H, D): Glorot and Bengio (2010) for each gate by itself.

    Gates start in the part of their range that learns, whatever D, H and the number of gates are.
    """
    for block in U.chunk(gates):
        nn.init.xavier_uniform_(block)

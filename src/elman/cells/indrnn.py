"""The independently recurrent network: each unit sees its own past and no other's.

    h = phi(u * h' + W x + b)        y = h

The letters are the paper's: W reads the input, u (H,) the past.
S. Li, W. Li, C. Cook, C. Zhu, Y. Gao, Independently recurrent neural network (IndRNN), CVPR (2018).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from elman import kernels
from elman.cells import initial
from elman.cells.functions import PHI
from elman.cells.gated import Gated, Gates, Loop
from elman.options import choice, number


class IndRNNState(NamedTuple):
    h: Tensor  # (B, H)


class IndRNN(Gated[IndRNNState]):
    """h = phi(u * h' + W x + b), with phi "relu" (the paper's choice) or "tanh".

    `t_max` is the longest dependency that is expected; without it, none is too long. It changes the initial u only.

    >>> y, state = IndRNN(3, 4, t_max=100).scan(torch.zeros(2, 5, 3))
    >>> y.shape, state.h.shape
    (torch.Size([2, 5, 4]), torch.Size([2, 4]))
    """

    variants = ({}, {"phi": "tanh"}, {"t_max": 50})

    def __init__(self, input_size: int, size: int, *, phi: str = "relu", t_max: float | None = None) -> None:
        super().__init__(input_size, size)
        self.phi = choice("phi", phi, PHI)
        self.t_max = math.inf if t_max is None else number("t_max", t_max, 1, math.inf)
        self.u = nn.Parameter(torch.empty(size))
        self.W = nn.Parameter(torch.empty(size, input_size))
        self.b = nn.Parameter(torch.empty(size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        # Section 3: over T steps a unit multiplies its gradient by u^T, which stays below 2 for u < 2^(1/T), and units
        # spread over the whole range remember for different times.
        nn.init.uniform_(self.u, 0.0, 2.0 ** (1.0 / self.t_max))
        initial.input(self.W)
        nn.init.zeros_(self.b)

    def init_state(self, batch_size: int) -> IndRNNState:
        return IndRNNState(self.zeros(batch_size, self.output_size))

    def recurrent(self) -> dict[str, Tensor]:
        return {"u": torch.diag(self.u)}

    def loop(self) -> Loop:
        return Loop(f"indrnn_{self.phi}", self.W, self.b, (self.u,))

    def project(self, x: Tensor) -> Tensor:
        return kernels.linear(x, self.W, self.b)

    def gates(self, u: Tensor, state: IndRNNState) -> Gates:
        return {"h": PHI[self.phi](u + self.u * state.h)}

    def update(self, gates: Gates, state: IndRNNState) -> IndRNNState:
        return IndRNNState(gates["h"])

"""The simple recurrent network.

    h = phi(W h' + U x + b)        y = h

J. L. Elman, Finding structure in time, Cognitive Science 14 (1990).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from elman import kernels
from elman.cells import initial
from elman.cells.functions import PHI
from elman.cells.gated import Gated, Gates, Loop
from elman.options import choice


class ElmanState(NamedTuple):
    h: Tensor  # (B, H)


class Elman(Gated[ElmanState]):
    """h = phi(W h' + U x + b), with phi "tanh" or "relu".

    >>> y, state = Elman(3, 4).scan(torch.zeros(2, 5, 3))
    >>> y.shape, state.h.shape
    (torch.Size([2, 5, 4]), torch.Size([2, 4]))
    """

    state_weights = ("W",)
    variants = ({}, {"phi": "relu"})

    def __init__(self, input_size: int, size: int, *, phi: str = "tanh") -> None:
        super().__init__(input_size, size)
        self.phi = choice("phi", phi, PHI)
        self.W = nn.Parameter(torch.empty(size, size))
        self.U = nn.Parameter(torch.empty(size, input_size))
        self.b = nn.Parameter(torch.empty(size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        initial.recurrent(self.W)  # for relu too: neither W nor relu can then lengthen h
        initial.input(self.U)
        nn.init.zeros_(self.b)  # no unit prefers a sign before it has seen data

    def init_state(self, batch_size: int) -> ElmanState:
        return ElmanState(self.zeros(batch_size, self.output_size))

    def recurrent(self) -> dict[str, Tensor]:
        return {"W": self.W}

    def loop(self) -> Loop:
        return Loop(f"elman_{self.phi}", self.U, self.b, (self.W,))

    def project(self, x: Tensor) -> Tensor:
        return kernels.linear(x, self.U, self.b)

    def gates(self, u: Tensor, state: ElmanState) -> Gates:
        return {"h": PHI[self.phi](u + kernels.linear(state.h, self.W))}

    def update(self, gates: Gates, state: ElmanState) -> ElmanState:
        return ElmanState(gates["h"])

    def gate_factors(self, gates: Gates) -> tuple[float, ...]:
        return (1.0,)

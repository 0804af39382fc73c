"""The simple recurrent network.

    h = phi(W h' + U x + b)        y = h

J. L. Elman, Finding structure in time, Cognitive Science 14 (1990).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from elman import kernels
from elman.cells import initial
from elman.cells.options import PHI, choice
from elman.core import Core

if TYPE_CHECKING:
    from elman.kernels.stream import Program, Slot


class ElmanState(NamedTuple):
    h: Tensor  # (B, H)


class Elman(Core):
    """h = phi(W h' + U x + b), with phi "tanh" or "relu".

    >>> y, state = Elman(3, 4).scan(torch.zeros(2, 5, 3))
    >>> y.shape, state.h.shape
    (torch.Size([2, 5, 4]), torch.Size([2, 4]))
    """

    emits_state = True
    variants: ClassVar[tuple[dict[str, Any], ...]] = ({}, {"phi": "relu"})

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

    def recur(self, u: Tensor, state: ElmanState) -> tuple[Tensor, ElmanState]:
        """u = U x + b (B, H)."""
        h = PHI[self.phi](u + kernels.linear(state.h, self.W))
        return h, ElmanState(h)

    def step(self, x: Tensor, state: ElmanState) -> tuple[Tensor, ElmanState]:
        h, state = self.recur(kernels.linear(x, self.U, self.b), state)
        return h.to(x.dtype), state

    def _scan(
        self, x: Tensor, state: ElmanState, lengths: Tensor, reset: Tensor, every: int | None = None
    ) -> tuple[Tensor, ElmanState]:
        y, last = kernels.gated(
            f"elman_{self.phi}", x, (self.W,), state, lengths, reset, self.recur, self.U, self.b, every=every
        )
        return y.to(x.dtype), ElmanState(*last)

    def _stream(self, program: Program, x: Slot, state: Any) -> Slot:
        return program.gated(f"elman_{self.phi}", x, self.U, self.b, (self.W,), state)

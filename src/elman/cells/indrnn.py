"""The independently recurrent network: each unit sees its own past and no other's.

    h = phi(u * h' + W x + b)        y = h

The letters are the paper's: W reads the input, u (H,) the past.
S. Li, W. Li, C. Cook, C. Zhu, Y. Gao, Independently recurrent neural network (IndRNN), CVPR (2018).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from elman import kernels
from elman.cells import initial
from elman.cells.options import PHI, choice, number
from elman.core import Core

if TYPE_CHECKING:
    from elman.kernels.stream import Program, Slot


class IndRNNState(NamedTuple):
    h: Tensor  # (B, H)


class IndRNN(Core):
    """h = phi(u * h' + W x + b), with phi "relu" (the paper's choice) or "tanh".

    `t_max` is the longest dependency that is expected; without it, none is too long. It changes the initial u only.

    >>> y, state = IndRNN(3, 4, t_max=100).scan(torch.zeros(2, 5, 3))
    >>> y.shape, state.h.shape
    (torch.Size([2, 5, 4]), torch.Size([2, 4]))
    """

    emits_state = True
    variants: ClassVar[tuple[dict[str, Any], ...]] = ({}, {"phi": "tanh"}, {"t_max": 50})

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

    def recur(self, v: Tensor, state: IndRNNState) -> tuple[Tensor, IndRNNState]:
        """v = W x + b (B, H)."""
        h = PHI[self.phi](v + self.u * state.h)
        return h, IndRNNState(h)

    def step(self, x: Tensor, state: IndRNNState) -> tuple[Tensor, IndRNNState]:
        h, state = self.recur(kernels.linear(x, self.W, self.b), state)
        return h.to(x.dtype), state

    def _scan(
        self, x: Tensor, state: IndRNNState, lengths: Tensor, reset: Tensor, every: int | None = None
    ) -> tuple[Tensor, IndRNNState]:
        y, last = kernels.gated(
            f"indrnn_{self.phi}", x, (self.u,), state, lengths, reset, self.recur, self.W, self.b, every=every
        )
        return y.to(x.dtype), IndRNNState(*last)

    def _stream(self, program: Program, x: Slot, state: Any) -> Slot:
        return program.gated(f"indrnn_{self.phi}", x, self.W, self.b, (self.u,), state)

"""The minimal gated unit: one gate both forgets and resets.

    f = s(W_f h' + U_f x + b_f)        n = tanh(W_n (f * h') + U_n x + b_n)        h = (1 - f) * h' + f * n        y = h

G.-B. Zhou, J. Wu, C.-L. Zhang, Z.-H. Zhou, Minimal gated unit for recurrent neural networks, IJAC 13 (2016).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from elman import kernels
from elman.cells import initial
from elman.core import Core

if TYPE_CHECKING:
    from elman.kernels.stream import Program, Slot


class MGUState(NamedTuple):
    h: Tensor  # (B, H)


class MGU(Core):
    """h = (1 - f) * h' + f * n. W (2H, H), U (2H, D) and b (2H,) hold f, then n.

    >>> y, state = MGU(3, 4).scan(torch.zeros(2, 5, 3))
    >>> y.shape, state.h.shape
    (torch.Size([2, 5, 4]), torch.Size([2, 4]))
    """

    emits_state = True
    variants: ClassVar[tuple[dict[str, Any], ...]] = ({},)

    def __init__(self, input_size: int, size: int) -> None:
        super().__init__(input_size, size)
        self.W = nn.Parameter(torch.empty(2 * size, size))
        self.U = nn.Parameter(torch.empty(2 * size, input_size))
        self.b = nn.Parameter(torch.empty(2 * size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        initial.recurrent(self.W, gates=2)
        initial.input(self.U, gates=2)
        # f both forgets the past and shows it to n, so neither side of 1/2 favours memory: it starts in the middle.
        nn.init.zeros_(self.b)

    def init_state(self, batch_size: int) -> MGUState:
        return MGUState(self.zeros(batch_size, self.output_size))

    def recur(self, u: Tensor, state: MGUState) -> tuple[Tensor, MGUState]:
        """u = U x + b (B, 2H)."""
        h = state.h
        u_f, u_n = u.chunk(2, -1)
        W_f, W_n = self.W.chunk(2)
        f = kernels.sigmoid(u_f + kernels.linear(h, W_f))
        n = kernels.tanh(u_n + kernels.linear(f * h, W_n))
        h = (1 - f) * h + f * n
        return h, MGUState(h)

    def step(self, x: Tensor, state: MGUState) -> tuple[Tensor, MGUState]:
        h, state = self.recur(kernels.linear(x, self.U, self.b), state)
        return h.to(x.dtype), state

    def _scan(
        self, x: Tensor, state: MGUState, lengths: Tensor, reset: Tensor, every: int | None = None
    ) -> tuple[Tensor, MGUState]:
        y, last = kernels.gated("mgu", x, (self.W,), state, lengths, reset, self.recur, self.U, self.b, every=every)
        return y.to(x.dtype), MGUState(*last)

    def _stream(self, program: Program, x: Slot, state: Any) -> Slot:
        return program.gated("mgu", x, self.U, self.b, (self.W,), state)

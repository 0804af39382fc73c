"""The deep transition network: from one state to the next lies an MLP of `depth` layers.

    g_1 = tanh(W_1 h' + U x + b_1)        g_k = tanh(W_k g_(k-1) + b_k)        h = g_depth        y = h

R. Pascanu, C. Gulcehre, K. Cho, Y. Bengio, How to construct deep recurrent neural networks, ICLR (2014).
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from elman import kernels
from elman.cells import initial
from elman.cells.options import whole
from elman.core import Core


class DeepTransitionState(NamedTuple):
    h: Tensor  # (B, H)


class DeepTransition(Core):
    """h = g_depth, where g_1 = tanh(W_1 h' + U x + b_1) and g_k = tanh(W_k g_(k-1) + b_k). Depth 1 is Elman's network.

    >>> y, state = DeepTransition(3, 4, depth=3).scan(torch.zeros(2, 5, 3))
    >>> y.shape, state.h.shape
    (torch.Size([2, 5, 4]), torch.Size([2, 4]))
    """

    emits_state = True
    undecayed: ClassVar[tuple[str, ...]] = ("b",)
    variants: ClassVar[tuple[dict[str, Any], ...]] = ({}, {"depth": 1}, {"depth": 3})

    def __init__(self, input_size: int, size: int, *, depth: int = 2) -> None:
        super().__init__(input_size, size)
        self.depth = whole("depth", depth)
        self.W = nn.Parameter(torch.empty(depth, size, size))
        self.U = nn.Parameter(torch.empty(size, input_size))
        self.b = nn.Parameter(torch.empty(depth, size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        # Every layer of the transition is on the way from h' to h, so every one keeps lengths.
        initial.recurrent(self.W.view(-1, self.output_size), gates=self.depth)
        initial.input(self.U)
        nn.init.zeros_(self.b)

    def init_state(self, batch_size: int) -> DeepTransitionState:
        return DeepTransitionState(self.zeros(batch_size, self.output_size))

    def recur(self, u: Tensor, state: DeepTransitionState) -> tuple[Tensor, DeepTransitionState]:
        """u = U x + b_1 (B, H)."""
        g = kernels.tanh(u + kernels.linear(state.h, self.W[0]))
        for k in range(1, self.depth):
            g = kernels.tanh(kernels.linear(g, self.W[k], self.b[k]))
        return g, DeepTransitionState(g)

    def step(self, x: Tensor, state: DeepTransitionState) -> tuple[Tensor, DeepTransitionState]:
        h, state = self.recur(kernels.linear(x, self.U, self.b[0]), state)
        return h.to(x.dtype), state

    def _scan(
        self, x: Tensor, state: DeepTransitionState, lengths: Tensor, reset: Tensor
    ) -> tuple[Tensor, DeepTransitionState]:
        y, last = kernels.gated(None, x, (), state, lengths, reset, self.recur, self.U, self.b[0])
        return y.to(x.dtype), DeepTransitionState(*last)

"""The deep transition network: from one state to the next lies an MLP of `depth` layers.

    g_1 = tanh(W_1 h' + U x + b_1)        g_k = tanh(W_k g_(k-1) + b_k)        h = g_depth        y = h

R. Pascanu, C. Gulcehre, K. Cho, Y. Bengio, How to construct deep recurrent neural networks, ICLR (2014).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from elman import kernels
from elman.cells import initial
from elman.cells.gated import Gated, Gates
from elman.options import whole


class DeepTransitionState(NamedTuple):
    h: Tensor  # (B, H)


class DeepTransition(Gated[DeepTransitionState]):
    """h = g_depth, where g_1 = tanh(W_1 h' + U x + b_1) and g_k = tanh(W_k g_(k-1) + b_k). Depth 1 is Elman's network.

    >>> y, state = DeepTransition(3, 4, depth=3).scan(torch.zeros(2, 5, 3))
    >>> y.shape, state.h.shape
    (torch.Size([2, 5, 4]), torch.Size([2, 4]))
    """

    variants = ({}, {"depth": 1}, {"depth": 3})
    no_weight_decay = ("b",)

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

    def recurrent(self) -> dict[str, Tensor]:
        product = self.W[0]
        for W in self.W[1:]:
            product = W @ product
        return {"W": product}

    def project(self, x: Tensor) -> Tensor:
        return kernels.linear(x, self.U, self.b[0])

    def gates(self, u: Tensor, state: DeepTransitionState) -> Gates:
        g = {"g1": kernels.tanh(u + kernels.linear(state.h, self.W[0]))}
        for k in range(1, self.depth):
            g[f"g{k + 1}"] = kernels.tanh(kernels.linear(g[f"g{k}"], self.W[k], self.b[k]))
        return g

    def update(self, gates: Gates, state: DeepTransitionState) -> DeepTransitionState:
        return DeepTransitionState(gates[f"g{self.depth}"])

"""The minimal gated unit: one gate both forgets and resets.

    f = s(W_f h' + U_f x + b_f)        n = tanh(W_n (f * h') + U_n x + b_n)        h = (1 - f) * h' + f * n        y = h

G.-B. Zhou, J. Wu, C.-L. Zhang, Z.-H. Zhou, Minimal gated unit for recurrent neural networks, IJAC 13 (2016).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from elman import kernels
from elman.cells import initial
from elman.cells.gated import Gated, Gates, Loop


class MGUState(NamedTuple):
    h: Tensor  # (B, H)


class MGU(Gated[MGUState]):
    """h = (1 - f) * h' + f * n. W (2H, H), U (2H, D) and b (2H,) have f, then n.

    >>> y, state = MGU(3, 4).scan(torch.zeros(2, 5, 3))
    >>> y.shape, state.h.shape
    (torch.Size([2, 5, 4]), torch.Size([2, 4]))
    """

    sigmoid_gates = ("f",)
    state_weights = ("W",)

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

    def recurrent(self) -> dict[str, Tensor]:
        return {f"W_{gate}": block for gate, block in zip("fn", self.W.chunk(2), strict=True)}

    def loop(self) -> Loop:
        return Loop("mgu", self.U, self.b, (self.W,))

    def project(self, x: Tensor) -> Tensor:
        return kernels.linear(x, self.U, self.b)

    def gates(self, u: Tensor, state: MGUState) -> Gates:
        u_f, u_n = u.chunk(2, -1)
        W_f, W_n = self.W.chunk(2)
        f = kernels.sigmoid(u_f + kernels.linear(state.h, W_f))
        return {"f": f, "n": kernels.tanh(u_n + kernels.linear(f * state.h, W_n))}

    def update(self, gates: Gates, state: MGUState) -> MGUState:
        f, n = gates["f"], gates["n"]
        return MGUState((1 - f) * state.h + f * n)

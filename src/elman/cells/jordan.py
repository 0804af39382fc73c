"""Jordan's network: what is remembered is what was last said.

    h = tanh(R y' + U x + b)        y = psi(V h + c)

M. I. Jordan, Attractor dynamics and parallelism in a connectionist sequential machine, CogSci (1986).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from elman import kernels
from elman.cells import initial
from elman.cells.functions import Activation, identity
from elman.cells.gated import Gated, Gates
from elman.options import choice, whole

PSI: dict[str, Activation] = {"tanh": kernels.tanh, "logistic": kernels.sigmoid, "identity": identity}


class JordanState(NamedTuple):
    y: Tensor  # (B, H)


class Jordan(Gated[JordanState]):
    """y = psi(V tanh(R y' + U x + b) + c), with psi "tanh", "logistic" or "identity".

    `hidden` is the width of h; None means that of y.

    >>> y, state = Jordan(3, 4, hidden=8).scan(torch.zeros(2, 5, 3))
    >>> y.shape, state.y.shape
    (torch.Size([2, 5, 4]), torch.Size([2, 4]))
    """

    variants = ({}, {"psi": "logistic"}, {"psi": "identity", "hidden": 7})

    def __init__(self, input_size: int, size: int, *, hidden: int | None = None, psi: str = "tanh") -> None:
        super().__init__(input_size, size)
        self.hidden = size if hidden is None else whole("hidden", hidden)
        self.psi = choice("psi", psi, PSI)
        self.R = nn.Parameter(torch.empty(self.hidden, size))
        self.U = nn.Parameter(torch.empty(self.hidden, input_size))
        self.b = nn.Parameter(torch.empty(self.hidden))
        self.V = nn.Parameter(torch.empty(size, self.hidden))
        self.c = nn.Parameter(torch.empty(size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        # The way from y' to y passes through both R and V: both keep lengths, so that their product does.
        initial.recurrent(self.R)
        initial.recurrent(self.V)
        initial.input(self.U)
        nn.init.zeros_(self.b)
        nn.init.zeros_(self.c)

    def init_state(self, batch_size: int) -> JordanState:
        return JordanState(self.zeros(batch_size, self.output_size))

    def recurrent(self) -> dict[str, Tensor]:
        return {"V R": self.V @ self.R}

    def project(self, x: Tensor) -> Tensor:
        return kernels.linear(x, self.U, self.b)

    def gates(self, u: Tensor, state: JordanState) -> Gates:
        return {"h": kernels.tanh(u + kernels.linear(state.y, self.R))}

    def update(self, gates: Gates, state: JordanState) -> JordanState:
        return JordanState(PSI[self.psi](kernels.linear(gates["h"], self.V, self.c)))

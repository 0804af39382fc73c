"""S5, one state space with many inputs and many outputs (Smith et al., 2023, "Simplified State Space Layers for
Sequence Modeling").

    dh/dt = A h + B x          y = 2 Re(C h) + D x          A diagonal, N / 2 complex states

With x held constant over steps of length dt, one dt for each state (zero-order hold), this is exactly

    h = exp(dt A) * h' + (exp(dt A) - 1) / A * (B x)
    y = 2 Re(C h) + D x

The N / 2 states stand for N: the other half are their conjugates, hence the 2 Re. D is a matrix, since the widths of x
and y may differ; the paper restricts it to a diagonal.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from elman import kernels
from elman.cells.diagonal import Diagonal, wide
from elman.cells.poles import (
    checked_pairs,
    checked_steps,
    hippo_normal,
    linear_normal,
    spread_steps,
    zero_order_hold,
)
from elman.options import choice

INITIAL = {"hippo": hippo_normal, "lin": linear_normal}


class S5State(NamedTuple):
    h: Tensor  # (B, N / 2) complex


class S5(Diagonal[S5State]):
    """h = exp(dt A) * h' + (exp(dt A) - 1) / A * (B x), y = 2 Re(C h) + D x.

    `state_size` is N, conjugates included; `init` says where A starts, "hippo" or "lin"; `dt_min` and
    `dt_max` bound the steps at first.

    >>> y, state = S5(3, 4, state_size=8).scan(torch.zeros(2, 5, 3))
    >>> y.shape, state.h.shape
    (torch.Size([2, 5, 4]), torch.Size([2, 4]))
    """

    is_complex = True
    variants = ({}, {"init": "lin", "state_size": 6, "dt_min": 0.01, "dt_max": 0.5})
    no_weight_decay = ("D",)
    poles = ("log_dt", "A_log", "A_im")

    def __init__(
        self,
        input_size: int,
        size: int,
        *,
        state_size: int = 64,  # N, conjugates included
        init: str = "hippo",
        dt_min: float = 0.001,
        dt_max: float = 0.1,
    ) -> None:
        super().__init__(input_size, size)
        self.state_size = checked_pairs(state_size)
        self.init = choice("init", init, INITIAL)
        self.dt_min, self.dt_max = checked_steps(dt_min, dt_max)
        pairs = state_size // 2
        self.log_dt = nn.Parameter(torch.empty(pairs))
        self.A_log = nn.Parameter(torch.empty(pairs))
        self.A_im = nn.Parameter(torch.empty(pairs))
        self.B = nn.Parameter(torch.empty(pairs, input_size, 2))  # real and imaginary part on axis 2, as in C
        self.C = nn.Parameter(torch.empty(size, pairs, 2))
        self.D = nn.Parameter(torch.empty(size, input_size))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        N = self.state_size
        A, V = INITIAL[self.init](N)
        self.A_log.copy_(torch.log(-A.real))  # a logarithm: the real part stays negative, h stable
        self.A_im.copy_(A.imag)
        spread_steps(self.log_dt, self.dt_min, self.dt_max)
        # Section 4.2: drawn for the system before its diagonalisation, then B -> V^-1 B and C -> C V (V is unitary).
        B = torch.randn(N, self.input_size, dtype=torch.float64) * self.input_size**-0.5
        C = torch.randn(self.output_size, N, dtype=torch.float64) * N**-0.5
        self.B.copy_(torch.view_as_real((V.mH @ B.to(V.dtype)).resolve_conj()))
        self.C.copy_(torch.view_as_real(C.to(V.dtype) @ V))
        nn.init.normal_(self.D, std=self.input_size**-0.5)

    def init_state(self, batch_size: int) -> S5State:
        return S5State(self.zeros(batch_size, self.state_size // 2, dtype=torch.complex64))

    def coefficients(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        a, gain = zero_order_hold(self.A_log, self.A_im, self.log_dt)
        b = gain[:, None] * torch.complex(*wide(self.B).unbind(-1))  # (N / 2, D)
        rows = torch.view_as_real(b).transpose(1, 2).flatten(0, 1)  # (N, D) real: the parts of a pair below each other
        return a, kernels.linear(x, rows), x

    def read(self, h: Tensor, x: Tensor) -> Tensor:
        real = (self.C * self.C.new_tensor([2.0, -2.0])).flatten(1)  # 2 Re(c h) = 2 Re c Re h - 2 Im c Im h
        return kernels.linear(h, real) + kernels.linear(x, self.D)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, state_size={self.state_size}, init={self.init!r}"

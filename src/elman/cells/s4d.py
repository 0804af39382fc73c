"""The diagonal state space model, one for each channel (Gu et al., 2022, "On the Parameterization and Initialization of
Diagonal State Space Models").

    dh/dt = A h + u          y = 2 Re(C h) + D u          for each of H channels u, with N / 2 complex states

With u held constant over steps of length dt (zero-order hold) this is exactly

    h = exp(dt A) * h' + (exp(dt A) - 1) / A * u
    y = 2 Re(sum_n C_n h_n) + D u

The N / 2 states stand for N: the other half are their conjugates, hence the 2 Re. The paper's B is 1 here, for only the
product of B and C matters. There are as many channels as inputs: u = x; if input_size is not size, u = U x.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from elman import kernels
from elman.cells import initial
from elman.cells.bank import Bank
from elman.cells.poles import checked_pairs, checked_steps, inverse_poles, linear_poles, spread_steps, zero_order_hold
from elman.options import choice

INITIAL = {"lin": linear_poles, "inv": inverse_poles}


class S4DState(NamedTuple):
    h: Tensor  # (B, H, N / 2) complex


class S4D(Bank[S4DState]):
    """h = exp(dt A) * h' + (exp(dt A) - 1) / A * u, y = 2 Re(sum_n C_n h_n) + D u.

    `state_size` is N of each channel, conjugates included; `init` says where A starts, "lin" or "inv"; `dt_min`
    and `dt_max` bound the steps at first.

    >>> y, state = S4D(4, 4, state_size=8).scan(torch.zeros(2, 5, 4))
    >>> y.shape, state.h.shape
    (torch.Size([2, 5, 4]), torch.Size([2, 4, 4]))
    """

    variants = ({}, {"init": "inv", "state_size": 6, "dt_min": 0.01, "dt_max": 0.5})
    no_weight_decay = ("A_log", "A_im")
    poles = ("log_dt", "A_log", "A_im")

    def __init__(
        self,
        input_size: int,
        size: int,
        *,
        state_size: int = 64,  # N of each channel
        init: str = "lin",
        dt_min: float = 0.001,
        dt_max: float = 0.1,
    ) -> None:
        super().__init__(input_size, size)
        self.state_size = checked_pairs(state_size)
        self.init = choice("init", init, INITIAL)
        self.dt_min, self.dt_max = checked_steps(dt_min, dt_max)
        pairs = state_size // 2
        self.U = None if input_size == size else nn.Parameter(torch.empty(size, input_size))
        self.log_dt = nn.Parameter(torch.empty(size))
        self.A_log = nn.Parameter(torch.empty(size, pairs))
        self.A_im = nn.Parameter(torch.empty(size, pairs))
        self.C = nn.Parameter(torch.empty(size, pairs, 2))  # real and imaginary part on axis 2
        self.D = nn.Parameter(torch.empty(size))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        A = INITIAL[self.init](self.state_size)
        self.A_log.copy_(torch.log(-A.real).expand_as(self.A_log))  # a logarithm: Re A stays negative, h stable
        self.A_im.copy_(A.imag.expand_as(self.A_im))
        spread_steps(self.log_dt, self.dt_min, self.dt_max)
        nn.init.normal_(self.C, std=0.5**0.5)  # a complex number of variance 1 (section 4.3)
        nn.init.ones_(self.D)  # at first the input comes through as it is
        if self.U is not None:
            initial.input(self.U)

    def init_state(self, batch_size: int) -> S4DState:
        return S4DState(self.zeros(batch_size, self.output_size, self.state_size // 2, dtype=torch.complex64))

    def project(self, x: Tensor) -> Tensor:
        return x if self.U is None else kernels.linear(x, self.U)

    def bank(self) -> tuple[Tensor, Tensor, Tensor]:
        a, b = zero_order_hold(self.A_log, self.A_im, self.log_dt[:, None])
        return torch.view_as_real(a), torch.view_as_real(b), 2 * self.C

    def read(self, s: Tensor, u: Tensor) -> Tensor:
        return s + self.D * u

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, state_size={self.state_size}, init={self.init!r}"

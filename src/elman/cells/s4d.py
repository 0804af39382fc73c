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

import math
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from elman import kernels
from elman.cells import initial
from elman.cells.options import choice, whole
from elman.core import Core
from elman.errors import InputError
from elman.state import REAL


def linear_poles(N: int) -> Tensor:
    """S4D-Lin: A_n = -1/2 + i pi n, (N / 2,) complex: equal steps of frequency."""
    n = torch.arange(N // 2, dtype=torch.float64)
    return torch.complex(torch.full_like(n, -0.5), math.pi * n)


def inverse_poles(N: int) -> Tensor:
    """S4D-Inv: A_n = -1/2 + i N / pi (N / (2 n + 1) - 1), (N / 2,) complex: what HiPPO-LegS tends to as N grows."""
    n = torch.arange(N // 2, dtype=torch.float64)
    return torch.complex(torch.full_like(n, -0.5), N / math.pi * (N / (2 * n + 1) - 1))


INITIAL = {"lin": linear_poles, "inv": inverse_poles}


def zero_order_hold(A_log: Tensor, A_im: Tensor, log_dt: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """exp(dt A) and (exp(dt A) - 1) / A for A = -exp(A_log) + i A_im, in the complex dtype; log_dt broadcasts."""
    real = REAL[dtype]
    A = torch.complex(-torch.exp(A_log.to(real)), A_im.to(real))
    dt = torch.exp(log_dt.to(real))
    # expm1: dt A may be 1e-3, where float32 would lose three digits in exp(dt A) - 1.
    return torch.exp(dt * A), torch.expm1(dt * A) / A


@torch.no_grad()
def spread_steps(log_dt: Tensor, dt_min: float, dt_max: float) -> None:
    """log dt uniform between the logarithms, so that every time scale between them has a share of the states."""
    log_dt.uniform_(math.log(dt_min), math.log(dt_max))


def checked_steps(dt_min: float, dt_max: float) -> tuple[float, float]:
    if not 0 < dt_min <= dt_max < math.inf:
        raise InputError(f"dt_min is {dt_min}, dt_max {dt_max}; step lengths need 0 < dt_min <= dt_max")
    return dt_min, dt_max


def checked_pairs(state_size: int) -> int:
    """`state_size`, if it can be cut into conjugate pairs."""
    if whole("state_size", state_size) % 2:
        raise InputError(f"state_size is {state_size}; it must be even, for the states come in conjugate pairs")
    return state_size


class S4DState(NamedTuple):
    h: Tensor  # (B, H, N / 2) complex


class S4D(Core):
    """h = exp(dt A) * h' + (exp(dt A) - 1) / A * u, y = 2 Re(sum_n C_n h_n) + D u.

    >>> y, state = S4D(4, 4, state_size=8).scan(torch.zeros(2, 5, 4))
    >>> y.shape, state.h.shape
    (torch.Size([2, 5, 4]), torch.Size([2, 4, 4]))
    """

    undecayed: ClassVar[tuple[str, ...]] = ("A_log", "A_im")
    variants: ClassVar[tuple[dict[str, Any], ...]] = (
        {},
        {"init": "inv", "state_size": 6, "dt_min": 0.01, "dt_max": 0.5},
    )

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

    def step(self, x: Tensor, state: S4DState) -> tuple[Tensor, S4DState]:
        a, b = self.discrete(state.h.dtype)
        u = self.channels(x)
        h = a * state.h + self.drive(b, u)
        return self.read(h, u).to(x.dtype), S4DState(h)

    def _scan(self, x: Tensor, state: S4DState, lengths: Tensor, reset: Tensor) -> tuple[Tensor, S4DState]:
        a, b = self.discrete(state.h.dtype)
        u = self.channels(x)
        h, last = kernels.linear_scan(a.flatten(), self.drive(b, u).flatten(2), state.h.flatten(1), lengths, reset)
        return self.read(h.unflatten(2, a.shape), u).to(x.dtype), S4DState(last.unflatten(1, a.shape))

    def discrete(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """exp(dt A) and (exp(dt A) - 1) / A, each (H, N / 2) complex."""
        return zero_order_hold(self.A_log, self.A_im, self.log_dt[:, None], dtype)

    def channels(self, x: Tensor) -> Tensor:
        """x (..., D) -> u (..., H)."""
        return x if self.U is None else kernels.linear(x, self.U)

    def drive(self, b: Tensor, u: Tensor) -> Tensor:
        """b u: b (H, N / 2) complex, u (..., H) -> (..., H, N / 2) complex, as real products."""
        return torch.view_as_complex(torch.view_as_real(b) * u[..., None, None])

    def read(self, h: Tensor, u: Tensor) -> Tensor:
        """2 Re(sum_n C_n h_n) + D u: h (..., H, N / 2) complex, u (..., H) -> (..., H)."""
        conjugate = self.C * self.C.new_tensor([1.0, -1.0])  # Re(c h) = Re c Re h - Im c Im h
        return 2 * (conjugate * torch.view_as_real(h)).flatten(-2).sum(-1) + self.D * u

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, state_size={self.state_size}, init={self.init!r}"

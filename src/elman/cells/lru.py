"""The linear recurrent unit (Orvieto et al., 2023, "Resurrecting Recurrent Neural Networks for Long Sequences").

    lambda = exp(-exp(nu) + i exp(theta))       gamma = exp(gamma_log)
    h = lambda * h' + gamma * (B x)             complex, N wide
    y = Re(C h) + D x

|lambda| < 1 whatever nu is, so the recurrence is always stable. The complex B and C are kept as pairs of reals: a
module's `.to(dtype)` would drop an imaginary part, and real products give a row the same bits in any batch.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from elman import kernels
from elman.cells.diagonal import Diagonal, wide
from elman.errors import InputError
from elman.options import number, whole


class LRUState(NamedTuple):
    h: Tensor  # (B, N) complex


class LRU(Diagonal[LRUState]):
    """h = lambda * h' + gamma * (B x), y = Re(C h) + D x.

    `state_size` is N, None for as many as `size`. At first |lambda| is between `r_min` and `r_max`, and its phase
    between 0 and `max_phase`.

    >>> y, state = LRU(3, 4, state_size=8).scan(torch.zeros(2, 5, 3))
    >>> y.shape, state.h.shape, state.h.dtype
    (torch.Size([2, 5, 4]), torch.Size([2, 8]), torch.complex64)
    """

    is_complex = True
    variants = ({}, {"state_size": 3, "r_min": 0.4, "r_max": 0.9, "max_phase": 0.5})
    no_weight_decay = ("D",)
    poles = ("nu", "theta")

    def __init__(
        self,
        input_size: int,
        size: int,
        *,
        state_size: int | None = None,  # N; None means size
        r_min: float = 0.0,
        r_max: float = 1.0,
        max_phase: float = 2 * math.pi,
    ) -> None:
        super().__init__(input_size, size)
        self.state_size = N = whole("state_size", size if state_size is None else state_size)
        self.r_min, self.r_max = number("r_min", r_min, 0, 1), number("r_max", r_max, 0, 1)
        self.max_phase = number("max_phase", max_phase, 1e-6, 2 * math.pi)
        if r_min > r_max:
            raise InputError(f"r_min is {r_min}, r_max {r_max}; the ring needs r_min <= r_max")
        self.nu = nn.Parameter(torch.empty(N))
        self.theta = nn.Parameter(torch.empty(N))
        self.gamma_log = nn.Parameter(torch.empty(N))
        self.B = nn.Parameter(torch.empty(N, 2, input_size))  # real and imaginary part on axis 1
        self.C = nn.Parameter(torch.empty(size, N, 2))  # real and imaginary part on axis 2
        self.D = nn.Parameter(torch.empty(size, input_size))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        # Lemma 3.2: uniform on the ring between r_min and r_max, for the radius that is uniform in its square.
        # Doubles kept off 0 and 1, where the logarithms have no value.
        share, turn = torch.rand(2, self.state_size, dtype=torch.float64).clamp_(1e-12, 1 - 1e-12)
        square = (self.r_min**2 + share * (self.r_max**2 - self.r_min**2)).clamp(1e-12, 1 - 1e-7)
        self.nu.copy_(torch.log(-torch.log(square) / 2))
        self.theta.copy_(torch.log(self.max_phase * turn))
        # Section 3.4: with gamma = sqrt(1 - |lambda|^2), white noise of variance 1 gives a state of variance 1.
        self.gamma_log.copy_(torch.log1p(-square) / 2)
        nn.init.normal_(self.B, std=(2 * self.input_size) ** -0.5)
        nn.init.normal_(self.C, std=self.state_size**-0.5)
        nn.init.normal_(self.D, std=self.input_size**-0.5)

    def init_state(self, batch_size: int) -> LRUState:
        return LRUState(self.zeros(batch_size, self.state_size, dtype=torch.complex64))

    def eigenvalues(self) -> Tensor:
        """lambda = exp(-exp(nu) + i exp(theta)), (N,) complex."""
        return torch.polar(torch.exp(-torch.exp(wide(self.nu))), torch.exp(wide(self.theta)))

    def coefficients(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        gamma = torch.exp(self.gamma_log)[:, None, None]
        return self.eigenvalues(), kernels.linear(x, (gamma * self.B).flatten(0, 1)), x

    def read(self, h: Tensor, x: Tensor) -> Tensor:
        real = (self.C * self.C.new_tensor([1.0, -1.0])).flatten(1)  # Re(c h) = Re c Re h - Im c Im h
        return kernels.linear(h, real) + kernels.linear(x, self.D)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, state_size={self.state_size}"

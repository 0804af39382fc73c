"""The linear recurrent unit (Orvieto et al., 2023, "Resurrecting Recurrent Neural Networks for Long Sequences").

    lambda = exp(-exp(nu) + i exp(theta))       gamma = exp(gamma_log)
    h = lambda * h' + gamma * (B x)             complex, N wide
    y = Re(C h) + D x

|lambda| < 1 whatever nu is, so the recurrence is always stable. The complex B and C are kept as pairs of reals: a
module's `.to(dtype)` would drop an imaginary part, and real products give a row the same bits in any batch.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from elman import kernels
from elman.cells.options import number, whole
from elman.core import Core
from elman.errors import InputError
from elman.state import REAL

if TYPE_CHECKING:
    from elman.kernels.stream import Program, Slot


class LRUState(NamedTuple):
    h: Tensor  # (B, N) complex


class LRU(Core):
    """h = lambda * h' + gamma * (B x), y = Re(C h) + D x.

    >>> y, state = LRU(3, 4, state_size=8).scan(torch.zeros(2, 5, 3))
    >>> y.shape, state.h.shape, state.h.dtype
    (torch.Size([2, 5, 4]), torch.Size([2, 8]), torch.complex64)
    """

    undecayed: ClassVar[tuple[str, ...]] = ("D",)
    variants: ClassVar[tuple[dict[str, Any], ...]] = (
        {},
        {"state_size": 3, "r_min": 0.4, "r_max": 0.9, "max_phase": 0.5},
    )

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

    def step(self, x: Tensor, state: LRUState) -> tuple[Tensor, LRUState]:
        h = self.eigenvalues(state.h.dtype) * state.h + self.drive(x, state.h.dtype)
        return self.read(h, x), LRUState(h)

    def _scan(self, x: Tensor, state: LRUState, lengths: Tensor, reset: Tensor) -> tuple[Tensor, LRUState]:
        dtype = state.h.dtype
        h, last = kernels.linear_scan(self.eigenvalues(dtype), self.drive(x, dtype), state.h, lengths, reset)
        return self.read(h, x), LRUState(last)

    def _stream(self, program: Program, x: Slot, state: Any) -> Slot:
        a = program.constant(
            torch.view_as_real(self.eigenvalues(torch.promote_types(self.C.dtype, torch.complex64))).flatten()
        )
        h = program.scan(a, program.linear(x, self.driving()), state.h, is_complex=True)
        return program.add(program.linear(h, self.reading()), program.linear(x, self.D))

    def eigenvalues(self, dtype: torch.dtype) -> Tensor:
        """lambda = exp(-exp(nu) + i exp(theta)), (N,) complex."""
        nu, theta = self.nu.to(REAL[dtype]), self.theta.to(REAL[dtype])
        return torch.polar(torch.exp(-torch.exp(nu)), torch.exp(theta))

    def drive(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """gamma * (B x): x (..., D) -> (..., N) complex."""
        Bx = kernels.linear(x, self.driving()).to(REAL[dtype])
        return torch.view_as_complex(Bx.unflatten(-1, (-1, 2)))

    def read(self, h: Tensor, x: Tensor) -> Tensor:
        """Re(C h) + D x: h (..., N) complex, x (..., D) -> (..., H)."""
        y = kernels.linear(torch.view_as_real(h).flatten(-2), self.reading()) + kernels.linear(x, self.D)
        return y.to(x.dtype)

    def driving(self) -> Tensor:
        """gamma * B as a real matrix (2N, D): real, imaginary, real, ..."""
        return (torch.exp(self.gamma_log)[:, None, None] * self.B).flatten(0, 1)

    def reading(self) -> Tensor:
        """Re(C h) as a real matrix (H, 2N): Re(c h) = Re c Re h - Im c Im h."""
        return (self.C * self.C.new_tensor([1.0, -1.0])).flatten(1)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, state_size={self.state_size}"

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

from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from elman import kernels
from elman.cells.options import choice
from elman.cells.s4d import checked_pairs, checked_steps, linear_poles, spread_steps, zero_order_hold
from elman.core import Core
from elman.state import REAL

if TYPE_CHECKING:
    from elman.kernels.stream import Program, Slot


def hippo_normal(N: int) -> tuple[Tensor, Tensor]:
    """The normal part of HiPPO-LegS as A V = V diag(poles): the poles (N / 2,) above the axis and V (N, N / 2).

    A_nk = -1/2 on the diagonal, -sqrt((n + 1/2)(k + 1/2)) below and + above it (section 4.1 and appendix B.1.1).
    """
    root = torch.sqrt(torch.arange(N, dtype=torch.float64) + 0.5)
    lower = torch.tril(torch.outer(root, root), -1)
    # A + 1/2 = lower^T - lower is skew-symmetric, so -i times it is Hermitian, and its eigenvalues are the frequencies.
    frequencies, V = torch.linalg.eigh(1j * (lower - lower.T).to(torch.complex128))
    poles = torch.complex(torch.full_like(frequencies, -0.5), frequencies)
    return poles[N // 2 :], V[:, N // 2 :]


def linear_normal(N: int) -> tuple[Tensor, Tensor]:
    """The same for N / 2 damped rotations of the plane, whose poles are those of S4D-Lin."""
    V = torch.kron(torch.eye(N // 2, dtype=torch.complex128), torch.tensor([[1.0], [-1j]], dtype=torch.complex128))
    return linear_poles(N), V / 2**0.5


INITIAL = {"hippo": hippo_normal, "lin": linear_normal}


class S5State(NamedTuple):
    h: Tensor  # (B, N / 2) complex


class S5(Core):
    """h = exp(dt A) * h' + (exp(dt A) - 1) / A * (B x), y = 2 Re(C h) + D x.

    >>> y, state = S5(3, 4, state_size=8).scan(torch.zeros(2, 5, 3))
    >>> y.shape, state.h.shape
    (torch.Size([2, 5, 4]), torch.Size([2, 4]))
    """

    undecayed: ClassVar[tuple[str, ...]] = ("D",)
    variants: ClassVar[tuple[dict[str, Any], ...]] = (
        {},
        {"init": "lin", "state_size": 6, "dt_min": 0.01, "dt_max": 0.5},
    )

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

    def step(self, x: Tensor, state: S5State) -> tuple[Tensor, S5State]:
        a, b = self.discrete(state.h.dtype)
        h = a * state.h + self.drive(b, x)
        return self.read(h, x), S5State(h)

    def _scan(self, x: Tensor, state: S5State, lengths: Tensor, reset: Tensor) -> tuple[Tensor, S5State]:
        a, b = self.discrete(state.h.dtype)
        h, last = kernels.linear_scan(a, self.drive(b, x), state.h, lengths, reset)
        return self.read(h, x), S5State(last)

    def _stream(self, program: Program, x: Slot, state: Any) -> Slot:
        a, b = self.discrete(torch.promote_types(self.C.dtype, torch.complex64))
        h = program.scan(
            program.constant(torch.view_as_real(a).flatten()),
            program.linear(x, self.driving(b)),
            state.h,
            is_complex=True,
        )
        return program.add(program.linear(h, self.reading()), program.linear(x, self.D))

    def discrete(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """exp(dt A), (N / 2,) complex, and (exp(dt A) - 1) / A * B, (N / 2, D) complex."""
        a, held = zero_order_hold(self.A_log, self.A_im, self.log_dt, dtype)
        return a, held[:, None] * torch.view_as_complex(self.B.to(REAL[dtype]))

    def drive(self, b: Tensor, x: Tensor) -> Tensor:
        """b x: b (N / 2, D) complex, x (..., D) -> (..., N / 2) complex, as one real product."""
        return torch.view_as_complex(kernels.linear(x, self.driving(b)).unflatten(-1, (-1, 2)))

    def read(self, h: Tensor, x: Tensor) -> Tensor:
        """2 Re(C h) + D x: h (..., N / 2) complex, x (..., D) -> (..., H)."""
        y = kernels.linear(torch.view_as_real(h).flatten(-2), self.reading()) + kernels.linear(x, self.D)
        return y.to(x.dtype)

    def driving(self, b: Tensor) -> Tensor:
        """b (N / 2, D) complex as a real matrix (N, D): real, imaginary, real, ..."""
        return torch.view_as_real(b).transpose(1, 2).flatten(0, 1)

    def reading(self) -> Tensor:
        """2 Re(C h) as a real matrix (H, N): 2 Re(c h) = 2 Re c Re h - 2 Im c Im h."""
        return (self.C * self.C.new_tensor([2.0, -2.0])).flatten(1)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, state_size={self.state_size}, init={self.init!r}"

"""What the state space models share: where their poles start, and how continuous time becomes steps."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from elman.cells.diagonal import wide
from elman.errors import InputError
from elman.options import whole


def linear_poles(N: int) -> Tensor:
    """S4D-Lin: A_n = -1/2 + i pi n, (N / 2,) complex: equal steps of frequency."""
    n = torch.arange(N // 2, dtype=torch.float64)
    return torch.complex(torch.full_like(n, -0.5), math.pi * n)


def inverse_poles(N: int) -> Tensor:
    """S4D-Inv: A_n = -1/2 + i N / pi (N / (2 n + 1) - 1), (N / 2,) complex: what HiPPO-LegS tends to as N grows."""
    n = torch.arange(N // 2, dtype=torch.float64)
    return torch.complex(torch.full_like(n, -0.5), N / math.pi * (N / (2 * n + 1) - 1))


def hippo_normal(N: int) -> tuple[Tensor, Tensor]:
    """The normal part of HiPPO-LegS as A V = V diag(poles): the poles (N / 2,) above the axis and V (N, N / 2).

    A_nk = -1/2 on the diagonal, -sqrt((n + 1/2)(k + 1/2)) below and + above it (S5, section 4.1 and appendix B.1.1).
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


def zero_order_hold(A_log: Tensor, A_im: Tensor, log_dt: Tensor) -> tuple[Tensor, Tensor]:
    """exp(dt A) and (exp(dt A) - 1) / A for A = -exp(A_log) + i A_im, complex; log_dt broadcasts."""
    A = torch.complex(-torch.exp(wide(A_log)), wide(A_im))
    dt = torch.exp(wide(log_dt))
    # expm1: dt A may be 1e-3, where float32 would lose three digits in exp(dt A) - 1.
    return torch.exp(dt * A), torch.expm1(dt * A) / A


@torch.no_grad()
def spread_steps(log_dt: Tensor, dt_min: float, dt_max: float) -> None:
    """log dt uniform between the logarithms, so that every time scale between them has a share of the states."""
    log_dt.uniform_(math.log(dt_min), math.log(dt_max))


def checked_steps(dt_min: float, dt_max: float) -> tuple[float, float]:
    """The range of step lengths, if it is one."""
    if not 0 < dt_min <= dt_max < math.inf:
        raise InputError(f"dt_min is {dt_min}, dt_max {dt_max}; step lengths need 0 < dt_min <= dt_max")
    return dt_min, dt_max


def checked_pairs(state_size: int) -> int:
    """`state_size`, if it can be cut into conjugate pairs."""
    if whole("state_size", state_size) % 2:
        raise InputError(f"state_size is {state_size}; it must be even, since the states come in conjugate pairs")
    return state_size

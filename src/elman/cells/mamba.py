"""Mamba (Gu and Dao, 2023, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces").

    u, z = U x                                        each I = expand * size wide
    v = silu(c + sum_k w_k u(t - K + 1 + k))          causal convolution, channel by channel
    r, B, C = S v                                     R, N and N wide: what is written and read depends on the input
    dt = softplus(W r + b)
    h = exp(dt A) * h' + dt B v                       for each of I channels, N states; A = -exp(A_log)
    y = V ((sum_n C_n h_n + D v) * silu(z))

With `norm` (Falcon Mamba, Zuo et al., 2024) r, B and C are each divided by their root mean square before they are used:
it kept the training of large models stable. The last K - 1 values of u are part of the state, so that a step sees what
the scan sees. As in the authors' implementation, the step takes A exactly (zero-order hold) and B to first order.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from elman import kernels
from elman.cells import initial
from elman.core import Block, Core
from elman.errors import InputError
from elman.kernels.builder import Builder, Slot
from elman.kernels.trace import slot_of, traced
from elman.options import whole

DT_MIN, DT_MAX = 0.001, 0.1  # section 3.6: the first steps are drawn between these
NORM_EPS = 1e-6  # of the norm of r, B and C


class MambaState(NamedTuple):
    window: Tensor  # (B, K - 1, I), the latest last
    h: Tensor  # (B, I, N)


class Mamba(Core):
    """h = exp(dt A) * h' + dt B v, with dt, B and C functions of the input; see the top of the file.

    `state_size` is N, the states of each channel; `expand` makes expand * size channels; `conv` is K, the taps of the
    convolution; `dt_rank` is R, the width that dt is made of, "auto" for size / 16; `norm` brings r, B and C to one
    scale.

    >>> y, state = Mamba(3, 4, state_size=8).scan(torch.zeros(2, 5, 3))
    >>> y.shape, state.window.shape, state.h.shape
    (torch.Size([2, 5, 4]), torch.Size([2, 3, 8]), torch.Size([2, 8, 8]))
    """

    variants = ({}, {"state_size": 3, "expand": 1, "conv": 1, "dt_rank": 2}, {"state_size": 2, "norm": True})
    no_weight_decay = ("A_log",)
    block = Block("rms", mixes=False)

    def __init__(
        self,
        input_size: int,
        size: int,
        *,
        state_size: int = 16,  # N
        expand: int = 2,
        conv: int = 4,  # K, the taps of the convolution
        dt_rank: int | str = "auto",  # R; "auto" means size / 16, rounded up
        norm: bool = False,  # of r, B and C
    ) -> None:
        super().__init__(input_size, size)
        self.norm = norm
        self.state_size = N = whole("state_size", state_size)
        self.inner = inner = whole("expand", expand) * size
        self.conv = whole("conv", conv)
        self.dt_rank = R = _rank(dt_rank, size)
        self.U = nn.Parameter(torch.empty(2 * inner, input_size))  # rows u, z
        self.w = nn.Parameter(torch.empty(conv, inner))  # the tap of the newest input last
        self.c = nn.Parameter(torch.empty(inner))
        self.S = nn.Parameter(torch.empty(R + 2 * N, inner))  # rows r, B, C
        self.W = nn.Parameter(torch.empty(inner, R))
        self.b = nn.Parameter(torch.empty(inner))
        self.A_log = nn.Parameter(torch.empty(inner, N))
        self.D = nn.Parameter(torch.empty(inner))
        self.V = nn.Parameter(torch.empty(size, inner))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        for weight in (self.U, self.S, self.V, self.W):
            nn.init.uniform_(weight, -(weight.shape[1] ** -0.5), weight.shape[1] ** -0.5)
        initial.convolution(self.w)
        nn.init.zeros_(self.c)
        # S4D-Real (section 3.6): A_n = -n, so that each channel has time scales from dt to dt / N.
        self.A_log.copy_(torch.log(torch.arange(1, self.state_size + 1)).expand_as(self.A_log))
        initial.step_lengths(self.b, DT_MIN, DT_MAX)  # softplus(b) is the step where r = 0
        nn.init.ones_(self.D)

    def init_state(self, batch_size: int) -> MambaState:
        window = self.zeros(batch_size, self.conv - 1, self.inner)
        return MambaState(window, self.zeros(batch_size, self.inner, self.state_size))

    def step(self, x: Tensor, state: MambaState) -> tuple[Tensor, MambaState]:
        u, z = self.project(x, state.window.dtype)
        seen = torch.cat([state.window, u[:, None]], 1)  # (B, K, I)
        v = kernels.silu(self.convolve(seen))
        dt, B, C = self.select(v)
        h = torch.exp(dt[..., None] * self.A(v.dtype)) * state.h + (dt * v)[..., None] * B[:, None]
        s = (h * C[:, None]).sum(-1)
        return self.read(s, v, z).to(x.dtype), MambaState(seen[:, 1:], h)

    def _scan(self, x: Tensor, state: MambaState, lengths: Tensor, reset: Tensor) -> tuple[Tensor, MambaState]:
        u, z = self.project(x, state.window.dtype)
        convolved, window = kernels.convolution(u, self.w, self.c, state.window, lengths, reset)
        v = kernels.silu(convolved)
        dt, B, C = self.select(v)
        s, h = kernels.selective_scan(v, dt, self.A(v.dtype), B, C, state.h, lengths, reset)
        return self.read(s, v, z).to(x.dtype), MambaState(window, h)

    def describe_step(self, builder: Builder, x: Slot, state: tuple[Slot, Slot]) -> Slot:
        window, h = state
        u, z = self.project(traced(builder, x), builder.dtype)
        v = kernels.silu(traced(builder, builder.convolution(slot_of(builder, u), self.w, self.c, window)))
        driving, dt, B, C = (slot_of(builder, value) for value in (v, *self.select(v)))
        s = builder.selective(driving, dt, self.A(builder.dtype), B, C, h)
        return slot_of(builder, self.read(traced(builder, s), v, z))

    def project(self, x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """x (..., D) -> u and z, each (..., I)."""
        u, z = kernels.linear(x, self.U).to(dtype).chunk(2, -1)
        return u, z

    def convolve(self, seen: Tensor) -> Tensor:
        """c + sum_k w_k seen_k: the last K inputs (B, K, I) -> (B, I)."""
        return self.c + (self.w * seen).sum(1)

    def select(self, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """v (..., I) -> dt (..., I), B and C (..., N)."""
        r, B, C = kernels.linear(v, self.S).split([self.dt_rank, self.state_size, self.state_size], -1)
        if self.norm:
            r, B, C = (kernels.rms_norm(p, self.D.new_ones(p.shape[-1]), NORM_EPS) for p in (r, B, C))
        return kernels.softplus(kernels.linear(r, self.W, self.b)), B, C

    def A(self, dtype: torch.dtype) -> Tensor:
        """-exp(A_log), (I, N): negative, so that h is stable."""
        return -torch.exp(self.A_log.to(dtype))

    def read(self, s: Tensor, v: Tensor, z: Tensor) -> Tensor:
        """V ((s + D v) * silu(z)), where s is sum_n C_n h_n: each (..., I) -> (..., H)."""
        return kernels.linear((s + self.D * v) * kernels.silu(z), self.V)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, state_size={self.state_size}, inner={self.inner}, conv={self.conv}"


def _rank(dt_rank: int | str, size: int) -> int:
    if dt_rank == "auto":
        return math.ceil(size / 16)
    if isinstance(dt_rank, str):
        raise InputError(f"dt_rank is {dt_rank!r}; it must be a whole number of at least 1, or 'auto' for size / 16")
    return whole("dt_rank", dt_rank)

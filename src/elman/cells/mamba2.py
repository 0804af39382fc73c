"""Mamba-2 (Dao and Gu, 2024, "Transformers are SSMs: Generalized Models and Efficient Algorithms Through Structured
State Space Duality").

    z, u, r = U x                                   u has the rows v, B and C
    v, B, C = silu(c + sum_k w_k u(t - K + 1 + k))  causal convolution, channel by channel
    dt = softplus(r + b)                            one for each head
    S = exp(-dt A) S' + B (dt v)^T                  for each head; A = exp(A_log); B and C are those of its group
    y = O (g * rms((S^T C + D v) * silu(z)))        the gate comes before the norm, which is that of a group of heads

The last K - 1 values of u are part of the state. In the letters of cells/matrix.py: q = C, k = B, and N is the width of
a key.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from elman import kernels
from elman.cells import initial
from elman.cells.mamba import DT_MAX, DT_MIN
from elman.cells.matrix import EPS, Matrix, Terms, divides, head_count
from elman.cells.past import Past
from elman.options import whole


class Mamba2State(NamedTuple):
    S: Tensor  # (B, H, N, V)
    window: Tensor  # (B, K - 1, C), the latest last


class Mamba2(Matrix[Mamba2State]):
    """S = exp(-dt A) S' + B (dt v)^T, with dt, B and C functions of the input; see the top of the file.

    `state_size` is N, the width of B and C; `expand` makes values of expand * size in all; `heads` is H, by default one
    for each 64 of them; `groups` of heads share B and C; `conv` is the number of taps of the convolution.

    >>> y, state = Mamba2(3, 4, state_size=8, heads=2).scan(torch.zeros(2, 5, 3))
    >>> y.shape, state.S.shape, state.window.shape
    (torch.Size([2, 5, 4]), torch.Size([2, 2, 8, 4]), torch.Size([2, 3, 24]))
    """

    variants = ({"state_size": 4}, {"state_size": 3, "expand": 1, "heads": 4, "groups": 2, "conv": 1})

    def __init__(
        self,
        input_size: int,
        size: int,
        *,
        state_size: int = 128,  # N
        expand: int = 2,
        heads: int | None = None,  # H; None means one for each 64 of expand * size
        groups: int = 1,  # of heads that share B and C
        conv: int = 4,  # the taps of the convolution
    ) -> None:
        inner = whole("expand", expand) * whole("size", size)
        H = head_count(inner, heads)
        N, G = whole("state_size", state_size), divides("groups", groups, H)
        super().__init__(input_size, size, heads=H, key_size=N, value_size=math.ceil(inner / H), groups=G)
        self.conv = whole("conv", conv)
        self.inner = inner = H * self.value_size
        self.U = nn.Parameter(torch.empty(2 * inner + 2 * G * N + H, input_size))  # rows z, v, B, C, r
        self.w = nn.Parameter(torch.empty(conv, inner + 2 * G * N))  # the tap of the newest input last
        self.c = nn.Parameter(torch.empty(inner + 2 * G * N))
        self.b = nn.Parameter(torch.empty(H))
        self.A_log = nn.Parameter(torch.empty(H))
        self.D = nn.Parameter(torch.empty(H))
        self.g = nn.Parameter(torch.empty(inner))
        self.O = nn.Parameter(torch.empty(size, inner))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        GN = self.groups * self.key_size
        for matrix in (*self.U.split([self.inner, self.inner, GN, GN, self.heads]), self.O):
            initial.input(matrix)
        initial.convolution(self.w)
        initial.zeros(self.c)
        initial.step_lengths(self.b, DT_MIN, DT_MAX)
        initial.rates(self.A_log)
        initial.ones(self.D, self.g)

    def init_state(self, batch_size: int) -> Mamba2State:
        S = self.zeros(batch_size, self.heads, self.key_size, self.value_size)
        return Mamba2State(S, self.zeros(batch_size, self.conv - 1, self.w.shape[1]))

    def terms(self, x: Tensor, past: Past) -> Terms:
        GN, V = self.groups * self.key_size, self.value_size
        z, u, r = kernels.linear(x, self.U).split([self.inner, self.inner + 2 * GN, self.heads], -1)
        v, B, C = kernels.silu(past.convolve("window", u, self.w, self.c)).split([self.inner, GN, GN], -1)
        dt = kernels.softplus(r + self.b)
        a = kernels.exp(dt * -torch.exp(self.A_log))
        return Terms(C, B, dt.repeat_interleave(V, -1) * v, a, rest=(v, z))

    def read(self, s: Tensor, terms: Terms) -> Tensor:
        v, z = terms.rest
        y = (s + self.D.repeat_interleave(self.value_size) * v) * kernels.silu(z)
        return kernels.linear(kernels.rms_norm(y, self.g.to(s.dtype), EPS, self.groups), self.O)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, groups={self.groups}, conv={self.conv}"

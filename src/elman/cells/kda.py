"""Kimi delta attention (Kimi Team, 2025, "Kimi Linear: An Expressive, Efficient Attention Architecture").

    u, r = U x                                      u has the rows q, k and v
    q, k, v = silu(sum_j w_j u(t - J + 1 + j))      causal convolution of J taps, channel by channel
    q, k = q / |q| / sqrt(K), k / |k|               for each head
    a = exp(-exp(A_log) softplus(W_2 W_1 x + dt))   one for each key; A_log is one for each head
    b = s(r)                                        one for each head
    S = diag(a) S' + k (b (v - (a * k)^T S'))^T     Gated DeltaNet, but each key forgets at its own rate
    y = O (g * rms(S^T q) * s(Z_2 Z_1 x))           rms for each head by itself

The last J - 1 values of u are part of the state.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from elman import kernels
from elman.cells import initial
from elman.cells.mamba import DT_MAX, DT_MIN
from elman.cells.matrix import EPS, Convolved, Terms, head_sizes
from elman.cells.past import Past
from elman.options import whole


class KDAState(NamedTuple):
    S: Tensor  # (B, H, K, V)
    window: Tensor  # (B, J - 1, H (2 K + V)), the latest last


class KDA(Convolved[KDAState]):
    """S = diag(a) S' + k (b (v - (a * k)^T S'))^T, with keys of length one; see the top of the file.

    `heads` is H, by default one for each 64 of size; `key_size` is K of each and `value_size` V, by default
    size / heads; `rank` is the width of W_1 x and of Z_1 x, by default V; `conv` is J, the taps of the convolution.

    >>> y, state = KDA(3, 8, heads=2).scan(torch.zeros(2, 5, 3))
    >>> y.shape, state.S.shape, state.window.shape
    (torch.Size([2, 5, 8]), torch.Size([2, 2, 4, 4]), torch.Size([2, 3, 24]))
    """

    decays_keys = True
    variants = ({}, {"heads": 2, "key_size": 3, "value_size": 2, "rank": 1, "conv": 1})

    def __init__(
        self,
        input_size: int,
        size: int,
        *,
        heads: int | None = None,  # H; None means one for each 64 of size
        key_size: int | None = None,  # K; None means size / heads
        value_size: int | None = None,  # V; None means size / heads
        rank: int | None = None,  # of the maps from x to a and to the gate of y; None means V
        conv: int = 4,  # J, the taps of the convolution
    ) -> None:
        H, K, V = sizes = head_sizes(size, heads, key_size, value_size)
        super().__init__(input_size, size, sizes, conv, rows=H)  # of U: q, k, v, r
        self.rank = R = V if rank is None else whole("rank", rank)
        self.W_1 = nn.Parameter(torch.empty(R, input_size))
        self.W_2 = nn.Parameter(torch.empty(H * K, R))
        self.Z_1 = nn.Parameter(torch.empty(R, input_size))
        self.Z_2 = nn.Parameter(torch.empty(H * V, R))
        self.A_log = nn.Parameter(torch.empty(H))
        self.dt = nn.Parameter(torch.empty(H * K))
        self.g = nn.Parameter(torch.empty(V))
        self.O = nn.Parameter(torch.empty(size, H * V))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for matrix in (*self.U.split([*self.widths, self.heads]), self.W_1, self.W_2, self.Z_1, self.Z_2, self.O):
            initial.input(matrix)  # b starts around 1/2
        initial.convolution(self.w)
        initial.rates(self.A_log)
        initial.step_lengths(self.dt, DT_MIN, DT_MAX)
        initial.ones(self.g)

    def init_state(self, batch_size: int) -> KDAState:
        S = self.zeros(batch_size, self.heads, self.key_size, self.value_size)
        return KDAState(S, self.zeros(batch_size, self.conv - 1, self.w.shape[1]))

    def terms(self, x: Tensor, past: Past) -> Terms:
        u, r = kernels.linear(x, self.U).split([sum(self.widths), self.heads], -1)
        dt = kernels.softplus(kernels.linear(kernels.linear(x, self.W_1), self.W_2, self.dt))
        a = kernels.exp(dt * -torch.exp(self.A_log).repeat_interleave(self.key_size))
        z = kernels.linear(kernels.linear(x, self.Z_1), self.Z_2)
        return Terms(*self.convolved(u, past), a, kernels.sigmoid(r), rest=(z,))

    def read(self, s: Tensor, terms: Terms) -> Tensor:
        (z,) = terms.rest
        y = kernels.rms_norm(s, self.g.to(s.dtype), EPS, self.heads)
        return kernels.linear(y * kernels.sigmoid(z), self.O)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, rank={self.rank}"

"""Gated DeltaNet (Yang, Kautz and Hatamizadeh, 2024, "Gated Delta Networks: Improving Mamba2 with Delta Rule").

    u, z, r, p = U x                                u has the rows q, k and v
    q, k, v = silu(sum_j w_j u(t - J + 1 + j))      causal convolution of J taps, channel by channel
    q, k = q / |q| / sqrt(K), k / |k|               for each group of heads
    a = exp(-exp(A_log) softplus(p + dt))           one for each head, as b is
    b = s(r)
    S = a S' + k (b (v - a S'^T k))^T               the decay of Mamba-2, then the delta rule
    y = O (g * rms(S^T q) * silu(z))                rms for each head by itself, before the gate

The last J - 1 values of u are part of the state.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from elman import kernels
from elman.cells import initial
from elman.cells.mamba import DT_MAX, DT_MIN
from elman.cells.matrix import EPS, Convolved, Terms, divides, head_sizes
from elman.cells.past import Past


class GatedDeltaNetState(NamedTuple):
    S: Tensor  # (B, H, K, V)
    window: Tensor  # (B, J - 1, 2 G K + H V), the latest last


class GatedDeltaNet(Convolved[GatedDeltaNetState]):
    """S = a S' + k (b (v - a S'^T k))^T, with keys of length one; see the top of the file.

    `heads` is H, by default one for each 64 of size; `groups` of heads have a key and a query in common, by default
    each its own; `key_size` is K of each and `value_size` V, by default size / heads; `conv` is J, the taps of the
    convolution; `eps` stands under the root of rms.

    >>> y, state = GatedDeltaNet(3, 8, heads=2, groups=1).scan(torch.zeros(2, 5, 3))
    >>> y.shape, state.S.shape, state.window.shape
    (torch.Size([2, 5, 8]), torch.Size([2, 2, 4, 4]), torch.Size([2, 3, 16]))
    """

    variants = ({}, {"heads": 4, "groups": 2, "key_size": 2, "value_size": 3, "conv": 1})

    def __init__(
        self,
        input_size: int,
        size: int,
        *,
        heads: int | None = None,  # H; None means one for each 64 of size
        groups: int | None = None,  # G of heads that share q and k; None means as many as heads
        key_size: int | None = None,  # K; None means size / heads
        value_size: int | None = None,  # V; None means size / heads
        conv: int = 4,  # J, the taps of the convolution
        eps: float = EPS,  # of the norm after the read
    ) -> None:
        H, _, V = sizes = head_sizes(size, heads, key_size, value_size)
        G = divides("groups", groups, H)
        super().__init__(input_size, size, sizes, conv, rows=H * V + 2 * H, groups=G)  # of U: q, k, v, z, r, p
        self.eps = eps
        self.A_log = nn.Parameter(torch.empty(H))
        self.dt = nn.Parameter(torch.empty(H))
        self.g = nn.Parameter(torch.empty(V))
        self.O = nn.Parameter(torch.empty(size, H * V))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for matrix in (*self.U.split([*self.widths, self.widths[-1], self.heads, self.heads]), self.O):
            initial.input(matrix)  # b starts around 1/2
        initial.convolution(self.w)
        initial.rates(self.A_log)
        initial.step_lengths(self.dt, DT_MIN, DT_MAX)
        initial.ones(self.g)

    def init_state(self, batch_size: int) -> GatedDeltaNetState:
        S = self.zeros(batch_size, self.heads, self.key_size, self.value_size)
        return GatedDeltaNetState(S, self.zeros(batch_size, self.conv - 1, self.w.shape[1]))

    def terms(self, x: Tensor, past: Past) -> Terms:
        H, V = self.heads, self.heads * self.value_size
        u, z, r, p = kernels.linear(x, self.U).split([sum(self.widths), V, H, H], -1)
        a = kernels.exp(kernels.softplus(p + self.dt) * -torch.exp(self.A_log))
        return Terms(*self.convolved(u, past), a, kernels.sigmoid(r), rest=(z,))

    def read(self, s: Tensor, terms: Terms) -> Tensor:
        (z,) = terms.rest
        y = kernels.rms_norm(s, self.g.to(s.dtype), self.eps, self.heads)
        return kernels.linear(y * kernels.silu(z), self.O)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, groups={self.groups}"

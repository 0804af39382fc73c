"""DeltaNet (Yang et al., 2024, "Parallelizing Linear Transformers with the Delta Rule over Sequence Length"; the delta
rule is that of Widrow and Hoff, 1960).

    u, r = U x                                      u has the rows q, k and v
    q, k, v = silu(sum_j w_j u(t - J + 1 + j))      causal convolution of J taps, channel by channel
    q, k = q / |q| / sqrt(K), k / |k|               for each head
    b = s(r)                                        one for each head
    S = S' + k (b (v - S'^T k))^T                   what stands under k is moved towards v, by b of the way
    y = O (g * rms(S^T q))                          rms for each head by itself

The last J - 1 values of u are part of the state.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from elman import kernels
from elman.cells import initial
from elman.cells.matrix import EPS, Convolved, Terms, head_sizes
from elman.cells.past import Past


class DeltaNetState(NamedTuple):
    S: Tensor  # (B, H, K, V)
    window: Tensor  # (B, J - 1, H (2 K + V)), the latest last


class DeltaNet(Convolved[DeltaNetState]):
    """S = S' + k (b (v - S'^T k))^T, with keys of length one; see the top of the file.

    `heads` is H, by default one for each 64 of size; `key_size` is K of each and `value_size` V, by default
    size / heads; `conv` is J, the taps of the convolution; `eps` stands under the root
    of rms.

    >>> y, state = DeltaNet(3, 8, heads=2).scan(torch.zeros(2, 5, 3))
    >>> y.shape, state.S.shape, state.window.shape
    (torch.Size([2, 5, 8]), torch.Size([2, 2, 4, 4]), torch.Size([2, 3, 24]))
    """

    keep_gate = ""  # nothing decays by itself
    variants = ({}, {"heads": 2, "key_size": 3, "value_size": 2, "conv": 1})

    def __init__(
        self,
        input_size: int,
        size: int,
        *,
        heads: int | None = None,  # H; None means one for each 64 of size
        key_size: int | None = None,  # K; None means size / heads
        value_size: int | None = None,  # V; None means size / heads
        conv: int = 4,  # J, the taps of the convolution
        eps: float = EPS,  # of the norm after the read
    ) -> None:
        H, _, V = sizes = head_sizes(size, heads, key_size, value_size)
        super().__init__(input_size, size, sizes, conv, rows=H)  # of U: q, k, v, r
        self.eps = eps
        self.g = nn.Parameter(torch.empty(V))
        self.O = nn.Parameter(torch.empty(size, H * V))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for matrix in (*self.U.split([*self.widths, self.heads]), self.O):
            initial.input(matrix)  # b starts around 1/2
        initial.convolution(self.w)
        initial.ones(self.g)

    def init_state(self, batch_size: int) -> DeltaNetState:
        S = self.zeros(batch_size, self.heads, self.key_size, self.value_size)
        return DeltaNetState(S, self.zeros(batch_size, self.conv - 1, self.w.shape[1]))

    def terms(self, x: Tensor, past: Past) -> Terms:
        u, r = kernels.linear(x, self.U).split([sum(self.widths), self.heads], -1)
        return Terms(*self.convolved(u, past), b=kernels.sigmoid(r))

    def read(self, s: Tensor, terms: Terms) -> Tensor:
        return kernels.linear(kernels.rms_norm(s, self.g.to(s.dtype), self.eps, self.heads), self.O)

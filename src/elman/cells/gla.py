"""Gated linear attention (Yang et al., 2023, "Gated Linear Attention Transformers with Hardware-Efficient Training").

q, k, v, z = U x
a = s(W_2 W_1 x + b)^(1 / 16)               one for each key: near 1, so that memories are long from the start
S = diag(a) S' + k v^T                      for each head
y = O (g * rms(S^T q / sqrt(K)) * silu(z))  rms for each head by itself
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from elman import kernels
from elman.cells import initial
from elman.cells.matrix import EPS, Matrix, Terms, head_count, width_of_head
from elman.cells.past import Past
from elman.options import whole

TEMPERATURE = 16  # tau, equation 12


class GLAState(NamedTuple):
    S: Tensor  # (B, H, K, V)


class GLA(Matrix[GLAState]):
    """S = diag(a) S' + k v^T, a = s(W_2 W_1 x + b)^(1 / 16).

    `heads` is H, by default one for each 64 of size; `value_size` is V of each, by default size / heads, and `key_size`
    is K, by default half of that; `rank` is the width of W_1 x; `eps` stands under the root of rms.

    >>> y, state = GLA(3, 8, heads=2).scan(torch.zeros(2, 5, 3))
    >>> y.shape, state.S.shape
    (torch.Size([2, 5, 8]), torch.Size([2, 2, 2, 4]))
    """

    decays_keys = True
    variants = ({}, {"heads": 2, "key_size": 3, "value_size": 2, "rank": 2})

    def __init__(
        self,
        input_size: int,
        size: int,
        *,
        heads: int | None = None,  # H; None means one for each 64 of size
        key_size: int | None = None,  # K; None means half of value_size
        value_size: int | None = None,  # V; None means size / heads
        rank: int = 16,  # of the map from x to a
        eps: float = EPS,  # of the norm after the read
    ) -> None:
        H = head_count(size, heads)
        V = width_of_head("value_size", value_size, size, H)
        K = width_of_head("key_size", key_size, -(-V // 2), 1)
        super().__init__(input_size, size, heads=H, key_size=K, value_size=V)
        self.eps = eps
        self.rank = whole("rank", rank)
        self.U = nn.Parameter(torch.empty(2 * H * (K + V), input_size))  # rows q, k, v, z
        self.W_1 = nn.Parameter(torch.empty(rank, input_size))
        self.W_2 = nn.Parameter(torch.empty(H * K, rank))
        self.b = nn.Parameter(torch.empty(H * K))
        self.g = nn.Parameter(torch.empty(V))
        self.O = nn.Parameter(torch.empty(size, H * V))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        K, V = self.heads * self.key_size, self.heads * self.value_size
        for matrix in (*self.U.split([K, K, V, V]), self.W_1, self.W_2, self.O):
            initial.input(matrix)
        initial.zeros(self.b)  # a starts around (1/2)^(1/16) = 0.96: a memory of 23 steps
        initial.ones(self.g)

    def init_state(self, batch_size: int) -> GLAState:
        return GLAState(self.zeros(batch_size, self.heads, self.key_size, self.value_size))

    def terms(self, x: Tensor, past: Past) -> Terms:
        K, V = self.heads * self.key_size, self.heads * self.value_size
        q, k, v, z = kernels.linear(x, self.U).split([K, K, V, V], -1)
        u = kernels.linear(kernels.linear(x, self.W_1), self.W_2, self.b)
        a = kernels.exp(kernels.softplus(-u) * (-1 / TEMPERATURE))  # log s(u) = -softplus(-u)
        return Terms(q * self.key_size**-0.5, k, v, a, rest=(z,))

    def read(self, s: Tensor, terms: Terms) -> Tensor:
        (z,) = terms.rest
        y = kernels.rms_norm(s, self.g.to(s.dtype), self.eps, self.heads)
        return kernels.linear(y * kernels.silu(z), self.O)

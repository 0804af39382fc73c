"""Retention (Sun et al., 2023, "Retentive Network: A Successor to Transformer for Large Language Models").

    q, k, v, z = U x
    q, k = R(t) q, R(t) k / sqrt(K)             at the t-th input: pairs of columns are turned by t theta_i
    S = gamma S' + k v^T                        for each head h = 0, 1, ...: gamma = 1 - 2^(-5 - h), fixed
    y = O (g * rms(S^T q) * silu(z))            rms for each head by itself

theta_i = 10000^(-2 i / K): column i is turned with column i + K / 2, as in rotary embeddings. How far they are turned
is part of the state, h = exp(i t theta) - 1, and a reset begins anew; products of keys and queries depend on
differences of t alone.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from elman import kernels
from elman.cells import initial
from elman.cells.matrix import EPS, Matrix, Terms, head_count, width_of_head
from elman.cells.past import Past
from elman.errors import InputError

BASE = 10000.0  # of theta


class RetNetState(NamedTuple):
    S: Tensor  # (B, H, K, V)
    h: Tensor  # (B, K / 2) complex, exp(i t theta) - 1 after t inputs

    @property
    def fixed_start(self) -> tuple[str, ...]:
        return ("h",)


class RetNet(Matrix[RetNetState]):
    """S = gamma S' + k v^T with keys and queries turned by their position; see the top of the file.

    `heads` is H, by default one for each 64 of size; `key_size` is K of each, even, by default about size / heads;
    `value_size` is V, by default 2 K, as in the paper; `eps` stands under the root of rms.

    >>> y, state = RetNet(3, 8, heads=2).scan(torch.zeros(2, 5, 3))
    >>> y.shape, state.S.shape, state.h.shape
    (torch.Size([2, 5, 8]), torch.Size([2, 2, 4, 8]), torch.Size([2, 2]))
    """

    variants = ({}, {"heads": 2, "key_size": 2, "value_size": 3})

    def __init__(
        self,
        input_size: int,
        size: int,
        *,
        heads: int | None = None,  # H; None means one for each 64 of size
        key_size: int | None = None,  # K, even; None means size / heads
        value_size: int | None = None,  # V; None means 2 K
        eps: float = EPS,  # of the norm after the read
    ) -> None:
        H = head_count(size, heads)
        K = 2 * -(-size // (2 * H)) if key_size is None else width_of_head("key_size", key_size, size, H)
        if K % 2:
            raise InputError(f"key_size is {K}; it must be even, since pairs of columns are turned")
        V = 2 * K if value_size is None else width_of_head("value_size", value_size, size, H)
        super().__init__(input_size, size, heads=H, key_size=K, value_size=V)
        self.eps = eps
        self.U = nn.Parameter(torch.empty(2 * H * (K + V), input_size))  # rows q, k, v, z
        self.g = nn.Parameter(torch.empty(V))
        self.O = nn.Parameter(torch.empty(size, H * V))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        K, V = self.heads * self.key_size, self.heads * self.value_size
        for rows in self.U.split([K, K, V, V]):
            initial.input(rows)
        initial.ones(self.g)
        initial.input(self.O)

    def init_state(self, batch_size: int) -> RetNetState:
        S = self.zeros(batch_size, self.heads, self.key_size, self.value_size)
        return RetNetState(S, self.zeros(batch_size, self.key_size // 2, dtype=torch.complex64))

    def terms(self, x: Tensor, past: Past) -> Terms:
        K, V = self.heads * self.key_size, self.heads * self.value_size
        q, k, v, z = kernels.linear(x, self.U).split([K, K, V, V], -1)
        half = self.key_size // 2
        turned = past.turn("h", BASE ** (-torch.arange(half, dtype=torch.float64, device=self.U.device) / half))
        cos, sin = torch.cat([turned[..., ::2]] * 2 * self.heads, -1), turned[..., 1::2]
        sin = torch.cat([-sin, sin] * self.heads, -1)
        q, k = (p * cos + self.swap(p) * sin for p in (q, k))
        gamma = 1 - torch.exp2(-5 - torch.arange(self.heads, dtype=q.dtype, device=self.U.device))
        return Terms(q, k * self.key_size**-0.5, v, gamma, rest=(z,))

    def swap(self, x: Tensor) -> Tensor:
        """The halves of the columns of each head exchanged: x (..., H * K)."""
        halves = x.split([self.key_size // 2] * 2 * self.heads, -1)
        return torch.cat([halves[i ^ 1] for i in range(len(halves))], -1)

    def read(self, s: Tensor, terms: Terms) -> Tensor:
        (z,) = terms.rest
        y = kernels.rms_norm(s, self.g.to(s.dtype), self.eps, self.heads)
        return kernels.linear(y * kernels.silu(z), self.O)

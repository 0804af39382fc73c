"""HGRN2 (Qin et al., 2024, "HGRN2: Gated Linear RNNs with State Expansion").

    q = silu(U_q x)         v = U_v x
    f = l + (1 - l) s(U_f x)                    forget gates, one for each key, not below l
    S = diag(f) S' + (1 - f) v^T                for each head: what is forgotten under a key makes room for what is new
    y = O (g * rms(S^T q))                      rms over all heads

In the paper l is learned, larger from layer to layer; a cell knows no other layers, so here it is a number.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from elman import kernels
from elman.cells import initial
from elman.cells.matrix import EPS, Matrix, Terms, head_sizes
from elman.cells.past import Past
from elman.options import number


class HGRN2State(NamedTuple):
    S: Tensor  # (B, H, K, V)


class HGRN2(Matrix[HGRN2State]):
    """S = diag(f) S' + (1 - f) v^T, f = l + (1 - l) s(U_f x).

    `heads` is H, by default one for each 64 of size; `key_size` is K of each and `value_size` V, by default
    size / heads; `lower` is l, the least share of the state that stays.

    >>> y, state = HGRN2(3, 8, heads=2).scan(torch.zeros(2, 5, 3))
    >>> y.shape, state.S.shape
    (torch.Size([2, 5, 8]), torch.Size([2, 2, 4, 4]))
    """

    decays_keys = True
    variants = ({}, {"heads": 2, "key_size": 3, "value_size": 2, "lower": 0.5})

    def __init__(
        self,
        input_size: int,
        size: int,
        *,
        heads: int | None = None,  # H; None means one for each 64 of size
        key_size: int | None = None,  # K; None means size / heads
        value_size: int | None = None,  # V; None means size / heads
        lower: float = 0.0,  # l
    ) -> None:
        H, K, V = head_sizes(size, heads, key_size, value_size)
        super().__init__(input_size, size, heads=H, key_size=K, value_size=V)
        self.lower = number("lower", lower, 0, 1)
        self.U = nn.Parameter(torch.empty(H * (2 * K + V), input_size))  # rows q, f, v
        self.g = nn.Parameter(torch.empty(H * V))
        self.O = nn.Parameter(torch.empty(size, H * V))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        K, V = self.heads * self.key_size, self.heads * self.value_size
        for matrix in (*self.U.split([K, K, V]), self.O):
            initial.input(matrix)
        initial.ones(self.g)

    def init_state(self, batch_size: int) -> HGRN2State:
        return HGRN2State(self.zeros(batch_size, self.heads, self.key_size, self.value_size))

    def terms(self, x: Tensor, past: Past) -> Terms:
        K, V = self.heads * self.key_size, self.heads * self.value_size
        q, u, v = kernels.linear(x, self.U).split([K, K, V], -1)
        f = self.lower + (1 - self.lower) * kernels.sigmoid(u)
        new = (1 - self.lower) * kernels.sigmoid(-u)  # not 1 - f: the difference is 0 in float32 from u = 17 on
        return Terms(kernels.silu(q), new, v, f)

    def read(self, s: Tensor, terms: Terms) -> Tensor:
        return kernels.linear(kernels.rms_norm(s, self.g.to(s.dtype), EPS), self.O)

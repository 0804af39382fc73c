"""The matrix LSTM of xLSTM (Beck et al., 2024, "xLSTM: Extended Long Short-Term Memory"), as in the 7B model.

    q, k, v, o = U x            i, f = 15 tanh((W x + b) / 15)      i and f are one for each head
    m = max(log s(f) + m', i)                                       keeps the exponentials below 1
    F = exp(log s(f) + m' - m)          I = exp(i - m)
    C = F C' + I k v^T                                              for each head
    n = F n' + I k
    h = C^T q / max(|n^T q|, exp(-m))                               q divided by sqrt(K)
    y = O (g * norm(h) * s(o))                                      norm for each head by itself

m cancels out of h: C and n are stored divided by exp(m), which would overflow.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from elman import kernels
from elman.cells import initial
from elman.cells.matrix import Matrix, Terms, head_count, width_of_head
from elman.cells.past import Past

CAP = 15.0  # of the gates before their exponentials
EPS = 1e-6  # of the quotient and of the norm


class MLSTMState(NamedTuple):
    C: Tensor  # (B, H, K, V)
    n: Tensor  # (B, H, K)
    m: Tensor  # (B, H)

    @property
    def fixed_start(self) -> tuple[str, ...]:
        return ("m",)


class MLSTM(Matrix[MLSTMState]):
    """C = F C' + I k v^T, n = F n' + I k, h = C^T q / max(|n^T q|, exp(-m)); see the top of the file.

    `heads` is H, by default one for each 64 of size; `value_size` is V of each, by default size / heads, and `key_size`
    is K, by default half of that.

    >>> y, state = MLSTM(3, 8, heads=2).scan(torch.zeros(2, 5, 3))
    >>> y.shape, state.C.shape, state.n.shape, state.m.shape
    (torch.Size([2, 5, 8]), torch.Size([2, 2, 2, 4]), torch.Size([2, 2, 2]), torch.Size([2, 2]))
    """

    normalises = True
    variants = ({}, {"heads": 2, "key_size": 3, "value_size": 2})

    def __init__(
        self,
        input_size: int,
        size: int,
        *,
        heads: int | None = None,  # H; None means one for each 64 of size
        key_size: int | None = None,  # K; None means half of value_size
        value_size: int | None = None,  # V; None means size / heads
    ) -> None:
        H = head_count(size, heads)
        V = width_of_head("value_size", value_size, size, H)
        K = width_of_head("key_size", key_size, -(-V // 2), 1)
        super().__init__(input_size, size, heads=H, key_size=K, value_size=V)
        self.U = nn.Parameter(torch.empty(2 * H * (K + V), input_size))  # rows q, k, v, o
        self.W = nn.Parameter(torch.empty(2 * H, input_size))  # rows i, f
        self.b = nn.Parameter(torch.empty(2 * H))
        self.g = nn.Parameter(torch.empty(H * V))
        self.O = nn.Parameter(torch.empty(size, H * V))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        K, V = self.heads * self.key_size, self.heads * self.value_size
        for matrix in (*self.U.split([K, K, V, V]), self.W, self.O):
            initial.input(matrix)
        self.W.mul_(0.1)  # the gates start as their biases have them
        i, f = self.b.chunk(2)
        initial.zeros(i)
        f.copy_(torch.linspace(3.0, 6.0, self.heads))  # memories of 20 to 400 steps, as in the authors' code
        initial.ones(self.g)

    def init_state(self, batch_size: int) -> MLSTMState:
        H, K, V = self.heads, self.key_size, self.value_size
        return MLSTMState(self.zeros(batch_size, H, K, V), self.zeros(batch_size, H, K), self.zeros(batch_size, H))

    def terms(self, x: Tensor, past: Past) -> Terms:
        K, V = self.heads * self.key_size, self.heads * self.value_size
        q, k, v, o = kernels.linear(x, self.U).split([K, K, V, V], -1)
        i, f = (kernels.tanh(kernels.linear(x, self.W, self.b) / CAP) * CAP).chunk(2, -1)
        kept = past.maximum("m", -kernels.softplus(-f), i)  # log s(f) + m'
        # Again, though the state has it: gradients are then added in the same order wherever time is cut.
        m = torch.maximum(kept, i)
        F, I = kernels.exp(kept - m), kernels.exp(i - m)  # noqa: E741
        return Terms(q * self.key_size**-0.5, k * I.repeat_interleave(self.key_size, -1), v, F, rest=(m, o))

    def normalise(self, s: Tensor, z: Tensor, terms: Terms) -> Tensor:
        m, _ = terms.rest
        size = torch.maximum(z.abs(), kernels.exp(-m)) + EPS
        return s / size.repeat_interleave(self.value_size, -1)

    def read(self, s: Tensor, terms: Terms) -> Tensor:
        _, o = terms.rest
        return kernels.linear(
            kernels.layer_norm(s, self.g.to(s.dtype), None, EPS, self.heads) * kernels.sigmoid(o), self.O
        )

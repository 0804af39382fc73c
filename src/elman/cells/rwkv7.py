"""The time mixing of RWKV-7 (Peng et al., 2025, 'RWKV-7 "Goose" with Expressive Dynamic State Evolution').

    x_j = x + mu_j (x' - x)                         for j = r, w, k, v, a, g: a mixture of the input and the one before
    r = W_r x_r    k = W_k x_k    v = W_v x_v
    w = exp(-e^(-1/2) s(w_0 + D_2 tanh(D_1 x_w)))   how much of each key stays
    a = s(a_0 + A_2 A_1 x_a)                        how much of what stands under a key is taken out
    p = k * k_k / |k * k_k|                         for each head: the key under which it is taken out
    k = k * (1 + (a - 1) k_a)
    S = diag(w) S' - (p * a) (p^T S') + k v^T       for each head
    y = O ((norm(S^T r) + (r^T (r_k * k)) v) * G_2 s(G_1 x_g))     norm for each head by itself, with gain and bias

The input before is part of the state. From the second layer on the paper mixes the v of the first layer into v; a cell
knows no other layers, and has that of its own alone (compose/value_residual.py has the rest). The channel mixing that
the paper puts after it is not part of the cell either: compose/feedforward.py has it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from elman import kernels
from elman.cells import initial
from elman.cells.matrix import Matrix, Terms, head_count, width_of_head
from elman.cells.past import Past
from elman.options import whole

GROUP_EPS = 64e-5  # of the norm after the read: 1e-5 times the width of a head in the paper
ZERO = 1e-24  # under the root of |k * k_k|: only a key of zeros meets it
FASTEST = -math.exp(-0.5)  # log of the least that stays of a key


class RWKV7State(NamedTuple):
    S: Tensor  # (B, H, K, K)
    last: Tensor  # (B, D), the input before


class RWKV7(Matrix[RWKV7State]):
    """S = diag(w) S' - (p * a) (p^T S') + k v^T; see the top of the file.

    `heads` is H, by default one for each 64 of size; `head_size` is the width of keys and values, by default
    size / heads; `rank` is the width of D_1 x_w, `a_rank` that of A_1 x_a and `gate_rank` that of G_1 x_g, by default
    about those of the paper; `eps` stands under the root of the norm.

    >>> y, state = RWKV7(3, 8, heads=2).scan(torch.zeros(2, 5, 3))
    >>> y.shape, state.S.shape, state.last.shape
    (torch.Size([2, 5, 8]), torch.Size([2, 2, 4, 4]), torch.Size([2, 3]))
    """

    decays_keys = True
    no_weight_decay = ("mu",)
    block = Matrix.block._replace(norm="layer")
    variants = ({"rank": 2, "gate_rank": 2}, {"heads": 2, "head_size": 3, "rank": 3, "gate_rank": 1})

    def __init__(
        self,
        input_size: int,
        size: int,
        *,
        heads: int | None = None,  # H; None means one for each 64 of size
        head_size: int | None = None,  # the width of a key and of a value; None means size / heads
        rank: int | None = None,  # of the map to w; None means 1.8 sqrt(size), in steps of 32
        a_rank: int | None = None,  # of the map to a; None means that of w
        gate_rank: int | None = None,  # of the map to the gate of y; None means 0.6 size^0.8, in steps of 32
        eps: float = GROUP_EPS,  # of the norm after the read
    ) -> None:
        H = head_count(size, heads)
        K = width_of_head("head_size", head_size, size, H)
        super().__init__(input_size, size, heads=H, key_size=K, value_size=K)
        self.rank = R = _in_steps(1.8 * size**0.5) if rank is None else whole("rank", rank)
        self.gate_rank = _in_steps(0.6 * size**0.8) if gate_rank is None else whole("gate_rank", gate_rank)
        A = R if a_rank is None else whole("a_rank", a_rank)
        self.eps = eps
        D, N = input_size, H * K
        self.mu = nn.Parameter(torch.empty(6, D))  # rows r, w, k, v, a, g
        self.W_r, self.W_k, self.W_v = (nn.Parameter(torch.empty(N, D)) for _ in "rkv")
        self.D_1, self.D_2 = nn.Parameter(torch.empty(R, D)), nn.Parameter(torch.empty(N, R))
        self.A_1, self.A_2 = nn.Parameter(torch.empty(A, D)), nn.Parameter(torch.empty(N, A))
        self.G_1 = nn.Parameter(torch.empty(self.gate_rank, D))
        self.G_2 = nn.Parameter(torch.empty(N, self.gate_rank))
        self.w_0, self.a_0, self.k_k, self.k_a, self.r_k = (nn.Parameter(torch.empty(N)) for _ in range(5))
        self.g, self.c = nn.Parameter(torch.empty(N)), nn.Parameter(torch.empty(N))  # gain and bias of the norm
        self.O = nn.Parameter(torch.empty(size, N))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        for name, matrix in self.named_parameters():
            if matrix.dim() > 1 and name != "mu":
                initial.input(matrix)
        self.D_2.mul_(0.1)  # w and a start as their biases have them
        self.A_2.mul_(0.1)
        self.mu.copy_(torch.linspace(0.0, 1.0, self.mu.shape[1]))  # from the input alone to the one before alone
        # From memories of 400 steps to memories of a few, spread over the keys of each head.
        self.w_0.copy_(torch.linspace(-5.5, -0.5, self.key_size).repeat(self.heads))
        initial.zeros(self.a_0, self.c, self.r_k)
        nn.init.constant_(self.k_k, 0.85)  # as in the authors' code
        initial.ones(self.k_a, self.g)

    def init_state(self, batch_size: int) -> RWKV7State:
        S = self.zeros(batch_size, self.heads, self.key_size, self.value_size)
        return RWKV7State(S, self.zeros(batch_size, self.mu.shape[1]))

    def terms(self, x: Tensor, past: Past) -> Terms:
        change = past.shift("last", x) - x
        x_r, x_w, x_k, x_v, x_a, x_g = (x + change * mu for mu in self.mu)
        r, k, v = kernels.linear(x_r, self.W_r), kernels.linear(x_k, self.W_k), kernels.linear(x_v, self.W_v)
        d = kernels.linear(kernels.tanh(kernels.linear(x_w, self.D_1)), self.D_2, self.w_0)
        w = kernels.exp(kernels.sigmoid(d) * FASTEST)
        a = kernels.sigmoid(kernels.linear(kernels.linear(x_a, self.A_1), self.A_2, self.a_0))
        p = kernels.l2_norm(k * self.k_k, ZERO, self.heads)
        k = k * ((a - 1) * self.k_a + 1)
        g = kernels.linear(kernels.sigmoid(kernels.linear(x_g, self.G_1)), self.G_2)
        return Terms(r, k, v, w, alpha=-p, beta=p * a, rest=(g, x_v))

    def read(self, s: Tensor, terms: Terms) -> Tensor:
        g = terms.rest[0]
        y = kernels.layer_norm(s, self.g.to(s.dtype), self.c.to(s.dtype), self.eps, self.heads)
        # As a product, r^T (r_k * k) is summed in the same order in every batch.
        r_k = torch.block_diag(*self.r_k.view(self.heads, 1, -1))
        bonus = kernels.linear(terms.q * terms.k, r_k).repeat_interleave(self.value_size, -1)
        return kernels.linear((y + bonus * terms.v) * g, self.O)


def _in_steps(width: float) -> int:
    """A width in whole steps of 32, at least one."""
    return max(32, round(width / 32) * 32)

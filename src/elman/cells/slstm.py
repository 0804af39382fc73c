"""The scalar LSTM of xLSTM (Beck et al., 2024, "xLSTM: Extended Long Short-Term Memory"): exponential gates, and a
memory that is a weighted mean.

    i, f, z, o = U x + R h' + b                     R is block-diagonal: the units of a head see each other
    m = max(log s(f) + m', i)                       m = i at the first input of an episode
    c = exp(log s(f) + m' - m) c' + exp(i - m) tanh(z)
    n = exp(log s(f) + m' - m) n' + exp(i - m)      the sum of the weights that c has
    h = s(o) c / n
    y = g * norm(h)                                 norm for each head by itself

m cancels out of h; it keeps the exponentials at most 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from elman import kernels
from elman.cells import initial
from elman.cells.gated import Gated, Gates
from elman.cells.matrix import EPS, head_count
from elman.core import Block
from elman.errors import InputError


class SLSTMState(NamedTuple):
    h: Tensor  # (B, H)
    c: Tensor  # (B, H)
    n: Tensor  # (B, H), zero before the first input alone
    m: Tensor  # (B, H)

    @property
    def fixed_start(self) -> tuple[str, ...]:
        return ("n", "m")


class SLSTM(Gated[SLSTMState]):
    """c = F c' + I tanh(z), n = F n' + I, h = s(o) c / n, with F and I exponentials; see the top of the file.

    `heads` are blocks of units that see each other's h, by default one for each 64 of size.

    >>> y, state = SLSTM(3, 8, heads=2).scan(torch.zeros(2, 5, 3))
    >>> y.shape, state.c.shape
    (torch.Size([2, 5, 8]), torch.Size([2, 8]))
    """

    output_is_state = False
    sigmoid_gates = ("f", "o")
    keep_gate = "f"
    block = Block("layer", mixes=True)

    def __init__(
        self,
        input_size: int,
        size: int,
        *,
        heads: int | None = None,  # blocks of R; None means one for each 64 of size
    ) -> None:
        super().__init__(input_size, size)
        self.heads = N = math.gcd(size, head_count(size, None)) if heads is None else head_count(size, heads)
        if size % N:
            raise InputError(f"heads is {N}, and the size {size}; it must divide it")
        self.U = nn.Parameter(torch.empty(4 * size, input_size))  # rows i, f, z, o
        self.R = nn.Parameter(torch.empty(4, N, size // N, size // N))
        self.b = nn.Parameter(torch.empty(4 * size))
        self.g = nn.Parameter(torch.empty(size))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        initial.input(self.U, gates=4)
        for block in self.R.flatten(0, 1):
            initial.input(block)
        initial.zeros(self.b)
        f = self.b.chunk(4)[1]
        f.copy_(torch.linspace(3.0, 6.0, self.output_size))  # memories of 20 to 400 steps, as in the authors' code
        initial.ones(self.g)

    def init_state(self, batch_size: int) -> SLSTMState:
        return SLSTMState(*(self.zeros(batch_size, self.output_size) for _ in SLSTMState._fields))

    def project(self, x: Tensor) -> Tensor:
        return kernels.linear(x, self.U, self.b)

    def gates(self, u: Tensor, state: SLSTMState) -> Gates:
        return self.prepare()(u, state)

    def prepare(self) -> Callable[[Tensor, SLSTMState], Gates]:
        R = torch.cat(list(self.recurrent().values()))

        def gates(u: Tensor, state: SLSTMState) -> Gates:
            i, f, z, o = (u + kernels.linear(state.h, R)).chunk(4, -1)
            log_f = -kernels.softplus(-f)
            return {"i": i, "f": kernels.sigmoid(f), "log_f": log_f, "z": kernels.tanh(z), "o": kernels.sigmoid(o)}

        return gates

    def recurrent(self) -> dict[str, Tensor]:
        return {f"R_{gate}": torch.block_diag(*blocks) for gate, blocks in zip("ifzo", self.R, strict=True)}

    def update(self, gates: Gates, state: SLSTMState) -> SLSTMState:
        i, kept = gates["i"], gates["log_f"] + state.m
        m = torch.where(state.n > 0, torch.maximum(kept, i), i)
        # At the first input kept - m may be large; c' and n' are zero, and infinity times zero would be NaN.
        F, I = kernels.exp(-torch.relu(m - kept)), kernels.exp(i - m)  # noqa: E741
        c, n = F * state.c + I * gates["z"], F * state.n + I
        return SLSTMState(gates["o"] * c / n, c, n, m)

    def read(self, h: Tensor) -> Tensor:
        return kernels.layer_norm(h, self.g.to(h.dtype), None, EPS, self.heads)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, heads={self.heads}"

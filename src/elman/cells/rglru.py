"""The real-gated linear recurrent unit in its block (De et al., 2024, "Griffin: Mixing Gated Linear Recurrences with
Local Attention for Efficient Language Models").

    u, z = U x + b
    v = c + sum_k w_k u(t - K + 1 + k)              causal convolution, channel by channel
    r = s(W_a v + b_a)      i = s(W_x v + b_x)      block-diagonal: each head of channels sees itself
    a = exp(-8 r softplus(L))
    h = a * h' + sqrt(1 - a^2) * (i * v)            h = i * v at the first input of an episode
    y = O (h * gelu(z)) + o

The last K - 1 values of u are part of the state, and so is t, how many inputs came before: at the first one there is no
h' to make room for, and the root is left out.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from elman import kernels
from elman.cells import initial
from elman.cells.functions import gelu
from elman.cells.matrix import head_count
from elman.cells.past import Past, ScanPast, StepPast, StreamPast
from elman.core import Block, Core
from elman.errors import InputError
from elman.kernels.builder import Builder, Slot
from elman.kernels.trace import slot_of, traced
from elman.lengths import zero_past
from elman.options import whole

C = 8.0  # equation 4
A_MIN, A_MAX = 0.9, 0.999  # section 2.4: where a is at first, if r = 1


class RGLRUState(NamedTuple):
    h: Tensor  # (B, W)
    window: Tensor  # (B, K - 1, W), the latest last
    t: Tensor  # (B, 1), how many inputs came before

    @property
    def fixed_start(self) -> tuple[str, ...]:
        return ("t",)


class RGLRU(Core):
    """h = a * h' + sqrt(1 - a^2) * (i * v), with a and i functions of the input; see the top of the file.

    `width` is W, the number of channels, by default size; `heads` divides them into blocks for W_a and W_x, by default
    one for each 64; `conv` is K, the taps of the convolution.

    >>> y, state = RGLRU(3, 8, heads=2).scan(torch.zeros(2, 5, 3))
    >>> y.shape, state.h.shape, state.window.shape
    (torch.Size([2, 5, 8]), torch.Size([2, 8]), torch.Size([2, 3, 8]))
    """

    variants = ({}, {"width": 4, "heads": 2, "conv": 1})
    block = Block("rms", mixes=False)
    keep_gate = "a"

    def __init__(
        self,
        input_size: int,
        size: int,
        *,
        width: int | None = None,  # W; None means size
        heads: int | None = None,  # blocks of W_a and W_x; None means one for each 64 channels
        conv: int = 4,  # K, the taps of the convolution
    ) -> None:
        super().__init__(input_size, size)
        self.width = W = size if width is None else whole("width", width)
        self.heads = H = math.gcd(W, head_count(W, None)) if heads is None else head_count(W, heads)
        if W % H:
            raise InputError(f"heads is {H}, and there are {W} channels (width); it must divide them")
        self.conv = whole("conv", conv)
        self.U, self.b = nn.Parameter(torch.empty(2 * W, input_size)), nn.Parameter(torch.empty(2 * W))  # rows u, z
        self.w = nn.Parameter(torch.empty(conv, W))  # the tap of the newest input last
        self.c = nn.Parameter(torch.empty(W))
        self.W_a, self.b_a = nn.Parameter(torch.empty(H, W // H, W // H)), nn.Parameter(torch.empty(W))
        self.W_x, self.b_x = nn.Parameter(torch.empty(H, W // H, W // H)), nn.Parameter(torch.empty(W))
        self.L = nn.Parameter(torch.empty(W))
        self.O, self.o = nn.Parameter(torch.empty(size, W)), nn.Parameter(torch.empty(size))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        initial.input(self.U, gates=2)
        initial.convolution(self.w)
        for block in (*self.W_a, *self.W_x, self.O):
            initial.input(block)
        initial.zeros(self.b, self.c, self.b_a, self.b_x, self.o)
        # a^C uniform between the two squared, with r = 1: memories of 10 to 1000 steps, and longer where r is small.
        square = torch.empty_like(self.L, dtype=torch.float64).uniform_(A_MIN**2, A_MAX**2)
        self.L.copy_(torch.log(torch.expm1(-torch.log(square) / (2 * C))))

    def init_state(self, batch_size: int) -> RGLRUState:
        W = self.width
        window = self.zeros(batch_size, self.conv - 1, W)
        return RGLRUState(self.zeros(batch_size, W), window, self.zeros(batch_size, 1))

    def step(self, x: Tensor, state: RGLRUState) -> tuple[Tensor, RGLRUState]:
        past = StepPast(state._asdict())
        a, b, z = self.coefficients(x.to(state.h.dtype), past)
        h = a * state.h + b
        return self.read(h, z).to(x.dtype), RGLRUState(h, **past.after)

    def _scan(self, x: Tensor, state: RGLRUState, lengths: Tensor, reset: Tensor) -> tuple[Tensor, RGLRUState]:
        past = ScanPast(state._asdict(), lengths, reset)
        a, b, z = self.coefficients(x.to(state.h.dtype), past)
        h, last = kernels.linear_scan(a, b, state.h, lengths, reset)
        return zero_past(self.read(h, z), lengths).to(x.dtype), RGLRUState(last, **past.after)

    def describe_step(self, builder: Builder, x: Slot, state: tuple[Slot, ...]) -> Slot:
        past = StreamPast(builder, dict(zip(RGLRUState._fields, state, strict=True)))
        a, b, z = self.coefficients(traced(builder, x), past)
        h = builder.scan(slot_of(builder, a), slot_of(builder, b), state[0])
        return slot_of(builder, self.read(traced(builder, h), z))

    def coefficients(self, x: Tensor, past: Past) -> tuple[Tensor, Tensor, Tensor]:
        """x (..., D) -> a and b of h = a * h' + b, and z, each (..., W)."""
        u, z = kernels.linear(x, self.U, self.b).chunk(2, -1)
        v = past.convolve("window", u, self.w, self.c)
        r = kernels.sigmoid(kernels.linear(v, torch.block_diag(*self.W_a), self.b_a))
        i = kernels.sigmoid(kernels.linear(v, torch.block_diag(*self.W_x), self.b_x))
        rate = r * (C * torch.nn.functional.softplus(self.L))  # -log a
        tanh = kernels.tanh(rate)
        square = 2 * tanh / (tanh + 1)  # 1 - a^2, which would be rounded away where a is almost 1
        root = kernels.exp(0.5 * kernels.log(square))  # a square root, in operations that streams have
        later = past.count("t", x).repeat_interleave(self.width, -1) > 0
        return kernels.exp(-rate), i * v * torch.where(later, root, 1.0), z

    def read(self, h: Tensor, z: Tensor) -> Tensor:
        """O (h * gelu(z)) + o: each (..., W) -> (..., size)."""
        return kernels.linear(h * gelu(z), self.O, self.o)

    def named_gates(self, x: Tensor, state: RGLRUState) -> dict[str, Tensor]:
        return {"a": self.coefficients(x.to(state.h.dtype), StepPast(state._asdict()))[0]}

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, width={self.width}, heads={self.heads}, conv={self.conv}"

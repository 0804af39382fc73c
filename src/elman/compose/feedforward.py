"""What papers put behind a recurrence to mix its channels: FeedForward and ChannelMixing.

    FeedForward     y = V phi(U x)                    or, gated, V (phi(G x) * U x)      (Shazeer, 2020)
    ChannelMixing   y = V relu(U (x + mu (x' - x)))^2                                    of RWKV (Peng et al., 2023)

x' is the input before x, and the state of ChannelMixing; the squares are those of Primer (So et al., 2021).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from elman import kernels
from elman.cells import initial
from elman.cells.functions import gelu
from elman.cells.past import Past, ScanPast, StepPast, StreamPast
from elman.compose.pointwise import Pointwise
from elman.core import Core
from elman.errors import UnknownNameError
from elman.kernels.builder import Builder, Slot, Slots
from elman.kernels.trace import slot_of, traced
from elman.lengths import zero_past
from elman.options import whole

PHI = {"gelu": gelu, "relu": torch.relu, "silu": kernels.silu}


class FeedForward(Pointwise):
    """y = V (phi(G x) * U x), or V phi(U x) where it is not `gated`; biases if `bias`. `width` is that of U x.

    >>> FeedForward(3, 8, activation="silu").scan(torch.ones(1, 5, 3))[0].shape
    torch.Size([1, 5, 3])
    """

    def __init__(
        self, size: int, width: int, *, activation: str = "silu", gated: bool = True, bias: bool = False
    ) -> None:
        super().__init__(size, size)
        if activation not in PHI:
            raise UnknownNameError("activation", activation, PHI)
        self.width, self.activation, self.gated = whole("width", width), activation, gated
        rows = 2 * width if gated else width
        self.U = nn.Parameter(torch.empty(rows, size))  # rows G, U
        self.V = nn.Parameter(torch.empty(size, width))
        self.b = nn.Parameter(torch.empty(rows)) if bias else None
        self.c = nn.Parameter(torch.empty(size)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for matrix in (*self.U.split(self.width), self.V):
            initial.input(matrix)
        for bias in (self.b, self.c):
            if bias is not None:
                initial.zeros(bias)

    def pointwise(self, x: Tensor) -> Tensor:
        u = kernels.linear(x, self.U, self.b)
        phi = PHI[self.activation]
        if not self.gated:
            return kernels.linear(phi(u), self.V, self.c)
        gate, value = u.split([self.width, self.width], -1)
        return kernels.linear(phi(gate) * value, self.V, self.c)

    def describe_step(self, builder: Builder, x: Slot, state: Slots) -> Slot:
        return slot_of(builder, self.pointwise(traced(builder, x)))

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.width}, activation={self.activation!r}, gated={self.gated}"


class ChannelMixingState(NamedTuple):
    last: Tensor  # (B, D), the input before


class ChannelMixing(Core):
    """y = V relu(U (x + mu (x' - x)))^2, x' the input before. `width` is that of U x.

    >>> y, state = ChannelMixing(3, 8).scan(torch.ones(1, 5, 3))
    >>> y.shape, state.last.tolist()
    (torch.Size([1, 5, 3]), [[1.0, 1.0, 1.0]])
    """

    no_weight_decay = ("mu",)

    def __init__(self, size: int, width: int) -> None:
        super().__init__(size, size)
        self.width = whole("width", width)
        self.mu = nn.Parameter(torch.empty(size))
        self.U = nn.Parameter(torch.empty(width, size))
        self.V = nn.Parameter(torch.empty(size, width))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        initial.input(self.U)
        initial.input(self.V)
        self.mu.copy_(torch.linspace(0.0, 1.0, len(self.mu)))  # from the input alone to the one before alone

    def init_state(self, batch_size: int) -> ChannelMixingState:
        return ChannelMixingState(self.zeros(batch_size, self.input_size))

    def step(self, x: Tensor, state: ChannelMixingState) -> tuple[Tensor, ChannelMixingState]:
        past = StepPast(state._asdict())
        y = self.mix(x.to(state.last.dtype), past)
        return y.to(x.dtype), ChannelMixingState(**past.after)

    def _scan(
        self, x: Tensor, state: ChannelMixingState, lengths: Tensor, reset: Tensor
    ) -> tuple[Tensor, ChannelMixingState]:
        past = ScanPast(state._asdict(), lengths, reset)
        y = self.mix(x.to(state.last.dtype), past)
        return zero_past(y, lengths).to(x.dtype), ChannelMixingState(**past.after)

    def describe_step(self, builder: Builder, x: Slot, state: tuple[Slot]) -> Slot:
        return slot_of(builder, self.mix(traced(builder, x), StreamPast(builder, {"last": state[0]})))

    def mix(self, x: Tensor, past: Past) -> Tensor:
        u = torch.relu(kernels.linear(x + (past.shift("last", x) - x) * self.mu, self.U))
        return kernels.linear(u * u, self.V)

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.width}"

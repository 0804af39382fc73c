"""Attention to a window of the last inputs, whose state has a fixed size (De et al., 2024, "Griffin").

    q, k, v = U x
    q, k = R(t) q, R(t) k                      at the t-th input the first R columns of a head are turned by t theta_i
    a = softmax over the last W inputs of q k / sqrt(K)
    y = O (sum a v) + c                        for each head; heads of a group share keys and values

theta_i = 10000^(-2 i / R): column i is turned with column i + R / 2. The last W keys and values are in a ring, the t-th
at t mod W: each step writes one of them, and reads all in the order in which they lie there. How many inputs came is
part of the state, and so is how far they are turned, h = exp(i t theta) - 1. Float32 cannot count beyond 2^24, where
the ring would stand still: a count that comes near it goes back by whole rounds.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from elman import kernels
from elman.cells import initial
from elman.cells.matrix import divides
from elman.cells.past import Past, ScanPast, StepPast
from elman.core import Core
from elman.errors import InputError
from elman.lengths import zero_past
from elman.options import whole

MOST = 1 << 23  # inputs; a count that would be larger goes back by half of that, in whole rounds


class LocalAttentionState(NamedTuple):
    keys: Tensor  # (B, G, W, K), a ring
    values: Tensor  # (B, G, W, K)
    t: Tensor  # (B, 1), how many inputs came before, up to MOST
    h: Tensor  # (B, R / 2) complex, exp(i t theta) - 1 after t inputs

    @property
    def fixed_start(self) -> tuple[str, ...]:
        return ("keys", "values", "t", "h")  # before the first input nothing in the ring counts


class _Ring(NamedTuple):
    """What changes from one step to the next."""

    keys: Tensor
    values: Tensor
    t: Tensor


class LocalAttention(Core):
    """Attention to the last `window` inputs, this one among them; see the top of the file.

    `heads` divide `size` among them, unless `head_size` is given; `groups` of heads share keys and values, by default
    each has its own; `rotary` columns of each head are turned, by default all, with `base` as that of theta.

    >>> y, state = LocalAttention(8, 8, heads=2, window=4).scan(torch.zeros(2, 5, 8))
    >>> y.shape, state.keys.shape, state.t.flatten().tolist()
    (torch.Size([2, 5, 8]), torch.Size([2, 2, 4, 4]), [5.0, 5.0])
    """

    def __init__(
        self,
        input_size: int,
        size: int,
        *,
        heads: int,
        window: int,  # W
        head_size: int | None = None,  # K; None means size / heads
        groups: int | None = None,  # G; None means one for each head
        rotary: int | None = None,  # R, even; None means head_size
        base: float = 10000.0,
    ) -> None:
        super().__init__(input_size, size)
        self.heads, self.window = whole("heads", heads), whole("window", window)
        self.groups = divides("groups", groups, heads)
        self.head_size = K = -(-size // heads) if head_size is None else whole("head_size", head_size)
        self.rotary = K if rotary is None else whole("rotary", rotary, most=K)
        if self.rotary % 2:
            raise InputError(f"rotary is {self.rotary}; it must be even, since pairs of columns are turned")
        self.base = base
        self.U = nn.Parameter(torch.empty((heads + 2 * self.groups) * K, input_size))  # rows q, k, v
        self.O, self.c = nn.Parameter(torch.empty(size, heads * K)), nn.Parameter(torch.empty(size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for matrix in (*self.U.split(self.head_size), self.O):
            initial.input(matrix)
        initial.zeros(self.c)

    def init_state(self, batch_size: int) -> LocalAttentionState:
        shape = (self.groups, self.window, self.head_size)
        turned = self.zeros(batch_size, self.rotary // 2, dtype=torch.complex64)
        keys, values = self.zeros(batch_size, *shape), self.zeros(batch_size, *shape)
        return LocalAttentionState(keys, values, self.zeros(batch_size, 1), turned)

    def step(self, x: Tensor, state: LocalAttentionState) -> tuple[Tensor, LocalAttentionState]:
        past = StepPast({"h": state.h})
        y, ring = self.attend(self.project(x.to(state.t.dtype), past), _Ring(*state[:3]))
        return kernels.linear(y, self.O, self.c).to(x.dtype), LocalAttentionState(*ring, past.after["h"])

    def _scan(
        self, x: Tensor, state: LocalAttentionState, lengths: Tensor, reset: Tensor
    ) -> tuple[Tensor, LocalAttentionState]:
        past = ScanPast({"h": state.h}, lengths, reset)
        projected = self.project(x.to(state.t.dtype), past)
        begun, width = _Ring(*self.init_state(len(x))[:3]), self.heads * self.head_size
        y, ring = kernels.loop(self.attend, projected, _Ring(*state[:3]), begun, lengths, reset, width)
        y = zero_past(kernels.linear(y, self.O, self.c), lengths)
        return y.to(x.dtype), LocalAttentionState(*cast(_Ring, ring), past.after["h"])

    def project(self, x: Tensor, past: Past) -> Tensor:
        """x (..., D) -> q, k and v side by side, q divided by sqrt(K), q and k turned."""
        K, G, H, half = self.head_size, self.groups, self.heads, self.rotary // 2
        theta = self.base ** (-torch.arange(half, dtype=torch.float64, device=x.device) / half)
        turned = past.turn("h", theta)
        cos, sin = turned[..., None, ::2], turned[..., None, 1::2]
        q, k, v = kernels.linear(x, self.U).split([H * K, G * K, G * K], -1)
        parts = []
        for part in (q * K**-0.5, k):
            a, b, rest = part.unflatten(-1, (-1, K)).split([half, half, K - 2 * half], -1)
            parts.append(torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1).flatten(-2))
        return torch.cat([*parts, v], -1)

    def attend(self, projected: Tensor, ring: _Ring) -> tuple[Tensor, _Ring]:
        """One step: q, k and v (B, (H + 2 G) K) and the ring before it -> what the heads read (B, H K), the ring."""
        (B, _), K, G, H, W = projected.shape, self.head_size, self.groups, self.heads, self.window
        q, k, v = (part.unflatten(-1, (G, -1, K)) for part in projected.split([H * K, G * K, G * K], -1))
        here = torch.arange(W, device=projected.device) == (ring.t % W)  # (B, W)
        here = here[:, None, :, None]
        keys, values = torch.where(here, k, ring.keys), torch.where(here, v, ring.values)
        seen = (ring.t[:, 0] + 1).clamp(max=W).long().repeat_interleave(G)
        read, _ = kernels.attend(q.flatten(0, 1), keys.flatten(0, 1), values.flatten(0, 1), seen, None)
        t = ring.t + 1
        t = torch.where(t > max(MOST, 2 * W), t - max(MOST // 2 // W, 1) * W, t)
        return read.reshape(B, H * K), _Ring(keys, values, t)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, heads={self.heads}, groups={self.groups}, window={self.window}"

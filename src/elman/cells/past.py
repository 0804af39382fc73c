"""What a cell remembers beside its main state: the last inputs of a convolution, the input before, a count, angles, a
maximum.

A cell writes its equation once, with a `Past` that gives it these by the names of their leaves. In a step they come of
the state, in a scan of the inputs before, in a stream of slots; `after` has the leaves after the step or the scan.

    v = kernels.silu(past.convolve("window", u, self.w, self.c))
    before = past.shift("last", x)
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from elman import kernels
from elman.kernels.builder import Builder, Slot
from elman.kernels.trace import slot_of, traced


class Past(ABC):
    """What came before each input; every method gives it as wide as what it is given, and renews the leaf `name`."""

    def __init__(self, leaves: dict[str, Tensor]) -> None:
        self.before = leaves
        self.after: dict[str, Tensor] = {}

    @abstractmethod
    def convolve(self, name: str, u: Tensor, w: Tensor, c: Tensor | None = None) -> Tensor:
        """c + sum_k w_k u(t - K + 1 + k), channel by channel: u (..., C), w (K, C), c (C,); a leaf (B, K - 1, C)."""

    @abstractmethod
    def shift(self, name: str, x: Tensor) -> Tensor:
        """The input before x (..., C), zeros before the first; a leaf (B, C)."""

    @abstractmethod
    def count(self, name: str, x: Tensor) -> Tensor:
        """How many inputs of the episode came before x (..., C), (..., 1); a leaf (B, 1)."""

    @abstractmethod
    def turn(self, name: str, theta: Tensor) -> Tensor:
        """cos and sin, side by side, of angles that grow with each input by theta, (N,) or (..., N): (..., 2 N); a leaf
        (B, N).

        It is exp(i phi) - 1, complex, of the angles phi so far: it starts at zero, and goes on by a linear scan.
        """

    @abstractmethod
    def maximum(self, name: str, f: Tensor, i: Tensor) -> Tensor:
        """f + m' of m = max(f + m', i), all (..., C); a leaf m (B, C)."""


class StepPast(Past):
    """Of one step, x (B, C)."""

    def convolve(self, name: str, u: Tensor, w: Tensor, c: Tensor | None = None) -> Tensor:
        seen = torch.cat([self.before[name], u[:, None]], 1)  # (B, K, C)
        self.after[name] = seen[:, 1:]
        total = (w * seen).sum(1)
        return total if c is None else c + total

    def shift(self, name: str, x: Tensor) -> Tensor:
        self.after[name] = x.clone()  # whoever gave x may write to it again
        return self.before[name]

    def count(self, name: str, x: Tensor) -> Tensor:
        self.after[name] = self.before[name] + 1
        return self.before[name]

    def turn(self, name: str, theta: Tensor) -> Tensor:
        a, b = _turns(theta, self.before[name].dtype)
        self.after[name] = h = a * self.before[name] + b
        return _unit(torch.view_as_real(h).flatten(-2))

    def maximum(self, name: str, f: Tensor, i: Tensor) -> Tensor:
        kept = f + self.before[name]
        self.after[name] = torch.maximum(kept, i)
        return kept


class ScanPast(Past):
    """Of a whole scan, x (B, T, C)."""

    def __init__(self, leaves: dict[str, Tensor], lengths: Tensor, reset: Tensor) -> None:
        super().__init__(leaves)
        self.lengths, self.reset = lengths, reset

    def convolve(self, name: str, u: Tensor, w: Tensor, c: Tensor | None = None) -> Tensor:
        w, c = w.to(u.dtype), w.new_zeros(w.shape[1], dtype=u.dtype) if c is None else c.to(u.dtype)
        y, self.after[name] = kernels.convolution(u, w, c, self.before[name], self.lengths, self.reset)
        return y

    def shift(self, name: str, x: Tensor) -> Tensor:
        self.after[name] = self._last(x, self.before[name])
        return self._previous(x, self.before[name])

    def count(self, name: str, x: Tensor) -> Tensor:
        t = torch.arange(x.shape[1], device=x.device)
        start = torch.where(self.reset, t, -1)  # of the episode; -1 if it began before the scan
        start = (start.cummax(1).values if x.shape[1] else start)[..., None]
        t = t[:, None].to(x.dtype)
        counts = torch.where(start < 0, self.before[name][:, None] + t, t - start)
        self.after[name] = self._last(counts + 1, self.before[name])
        return counts

    def turn(self, name: str, theta: Tensor) -> Tensor:
        a, b = _turns(theta, self.before[name].dtype)
        every = b.expand(*self.reset.shape, -1)
        h, self.after[name] = kernels.linear_scan(a, every, self.before[name], self.lengths, self.reset)
        return _unit(torch.view_as_real(h).flatten(-2))

    def maximum(self, name: str, f: Tensor, i: Tensor) -> Tensor:
        before = self.before[name]
        m, self.after[name] = kernels.max_scan(f, i, before, self.lengths, self.reset)
        return f + self._previous(m, before)

    def _previous(self, x: Tensor, first: Tensor) -> Tensor:
        """x (B, T, C) one step later, `first` at t = 0, and zeros where an episode begins."""
        before = torch.cat([first[:, None], x], 1)[:, : x.shape[1]]
        return torch.where(self.reset[..., None], x.new_zeros(()), before)

    def _last(self, x: Tensor, before: Tensor) -> Tensor:
        """x at each row's last valid step; `before` where there is none."""
        if x.shape[1] == 0:
            return before
        rows = torch.arange(len(x), device=x.device)
        return torch.where((self.lengths > 0)[:, None], x[rows, (self.lengths - 1).clamp(min=0)], before)


class StreamPast(Past):
    """Of one step as it is described to a builder: leaves are slots, which change in place."""

    def __init__(self, builder: Builder, slots: dict[str, Slot]) -> None:
        super().__init__({})
        self.builder, self.slots = builder, slots

    def convolve(self, name: str, u: Tensor, w: Tensor, c: Tensor | None = None) -> Tensor:
        c = w.new_zeros(w.shape[1]) if c is None else c
        return traced(self.builder, self.builder.convolution(slot_of(self.builder, u), w, c, self.slots[name]))

    def shift(self, name: str, x: Tensor) -> Tensor:
        return traced(self.builder, self.builder.lags(slot_of(self.builder, x), (1,), self.slots[name]))

    def count(self, name: str, x: Tensor) -> Tensor:
        slot = self.slots[name]
        before = traced(self.builder, self.builder.cut(slot, 0, slot.width))
        self.builder.assign(slot, slot_of(self.builder, before + 1))
        return before

    def turn(self, name: str, theta: Tensor) -> Tensor:
        N = theta.shape[-1]
        sides = torch.cat([kernels.cos(theta), kernels.sin(theta)], -1).to(self.builder.dtype)
        a = sides[..., [n + part for n in range(N) for part in (0, N)]]
        slots = slot_of(self.builder, a), slot_of(self.builder, a - _ones(a))
        return _unit(traced(self.builder, self.builder.scan(*slots, self.slots[name], is_complex=True)))

    def maximum(self, name: str, f: Tensor, i: Tensor) -> Tensor:
        kept = f + traced(self.builder, self.slots[name])
        self.builder.assign(self.slots[name], slot_of(self.builder, torch.maximum(kept, i)))
        return kept


def _turns(theta: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """a and b of h = a h' + b, where h + 1 turns by theta: exp(i theta), and what it differs from 1."""
    a = torch.complex(kernels.cos(theta), kernels.sin(theta)).to(dtype)
    return a, a - 1


def _unit(pairs: Tensor) -> Tensor:
    """h + 1 of parts (..., 2 N) of h, each of length one: what rounding adds to lengths in a million steps goes."""
    return kernels.l2_norm(pairs + _ones(pairs), 0.0, pairs.shape[-1] // 2)


def _ones(pairs: Tensor) -> Tensor:
    """1 of each of so many pairs (..., 2 N), as a complex number."""
    device = pairs.device if isinstance(pairs, Tensor) else None
    return torch.tensor([1.0, 0.0], dtype=pairs.dtype, device=device).repeat(pairs.shape[-1] // 2)

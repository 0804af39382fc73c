"""Cells whose state goes on by itself, number by number: a linear scan. One writes down its coefficients.

    a, b, rest = coefficients(x)        for all time steps at once: neither sees the state
    h = a * h' + b                      elementwise, real or complex
    y = read(h, rest)

Complex numbers are pairs (real, imaginary) here, side by side, so that `coefficients` and `read` are operations on
real arrays: products of a matrix, sums, activations. (Only an `a` that does not depend on x may be complex as it is.)
From operations of that kind, which kernels/trace.py lists, the scan, the step and the stream all follow.
"""

from __future__ import annotations

from typing import ClassVar, Generic, TypeVar, cast

import torch
from torch import Tensor

from elman import kernels
from elman import state as states
from elman.core import Block, Core
from elman.kernels.builder import Builder, Slot
from elman.kernels.trace import slot_of, traced
from elman.lengths import zero_past
from elman.state import REAL

S = TypeVar("S", bound=tuple[Tensor, ...])


def wide(v: Tensor) -> Tensor:
    """v, at least in float32: what a state is made from does not forget in bfloat16."""
    return v.to(torch.promote_types(v.dtype, torch.float32))


class Diagonal(Core, Generic[S]):
    """A linear recurrence with a state of one leaf. Give it `init_state`, `coefficients` and, if y is not h, `read`.

    >>> class Decay(Diagonal[tuple[Tensor]]):
    ...     def init_state(self, batch_size):
    ...         return (self.zeros(batch_size, self.output_size),)
    ...     def coefficients(self, x):
    ...         return torch.full((self.output_size,), 0.5), x, x
    >>> y, state = Decay(1, 1).scan(torch.ones(1, 3, 1))
    >>> y.flatten().tolist()
    [1.0, 1.5, 1.75]
    """

    is_complex: ClassVar[bool] = False
    block = Block("layer", mixes=True)

    def coefficients(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x (..., D) -> a (..., N), or (N,) where it does not depend on x; b (..., N); and what else `read` needs."""
        raise NotImplementedError(f"{type(self).__name__} must define coefficients(x)")

    def read(self, h: Tensor, rest: Tensor) -> Tensor:
        """h (..., N) -> y (..., H)."""
        return h

    def step(self, x: Tensor, state: S) -> tuple[Tensor, S]:
        a, b, rest = self.coefficients(x)
        h = self._numbers(a, state) * state[0] + self._numbers(b, state)
        return self.read(self._parts(h), rest).to(x.dtype), _rebuild(h, state)

    def _scan(self, x: Tensor, state: S, lengths: Tensor, reset: Tensor) -> tuple[Tensor, S]:
        a, b, rest = self.coefficients(x)
        h, last = kernels.linear_scan(self._numbers(a, state), self._numbers(b, state), state[0], lengths, reset)
        y = self.read(self._parts(h), rest).to(x.dtype)
        return y if self.output_is_state else zero_past(y, lengths), _rebuild(last, state)

    def describe_step(self, builder: Builder, x: Slot, state: tuple[Slot, ...]) -> Slot:
        a, b, rest = self.coefficients(traced(builder, x))
        a = self._parts(a) if a.is_complex() else a
        h = builder.scan(slot_of(builder, a), slot_of(builder, b), state[0], is_complex=self.is_complex)
        return slot_of(builder, self.read(traced(builder, h), rest))

    def decays(self, x: Tensor) -> Tensor:
        """a as numbers, (..., N), or (N,) where it does not depend on x: how the state goes on by itself."""
        return self._numbers(self.coefficients(x)[0], self.init_state(0))

    def _numbers(self, v: Tensor, state: S) -> Tensor:
        """Parts side by side as numbers, of the dtype of the state."""
        dtype = state[0].dtype
        if not self.is_complex or v.is_complex():
            return v.to(dtype)
        return torch.view_as_complex(v.to(REAL[dtype]).unflatten(-1, (-1, 2)))

    def _parts(self, h: Tensor) -> Tensor:
        return torch.view_as_real(h).flatten(-2) if self.is_complex else h


def _rebuild(h: Tensor, state: S) -> S:
    return cast(S, states.map(lambda _: h, state))

"""Cells in which each channel drives numbers of its own: a bank of diagonal recurrences. One writes down the bank.

    u = project(x)                      one input for each of H channels
    a, b, c = bank()                    complex, N for each channel; they do not depend on x
    h = a * h' + b u                    for each channel
    y = read(Re(sum_n c_n h_n), u)

One linear scan could do it (cells/diagonal.py), but h is N times as large as x: the scan of banks never holds it for
more than a few time steps. Complex numbers are pairs (real, imaginary) on the last axis.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar, cast

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


class Bank(Core, Generic[S]):
    """Banks of complex numbers with a state of one leaf (B, H, N). Give it `init_state`, `project`, `bank` and `read`.

    >>> class Average(Bank[tuple[Tensor]]):
    ...     def init_state(self, batch_size):
    ...         return (self.zeros(batch_size, self.output_size, 1, dtype=torch.complex64),)
    ...     def bank(self):
    ...         half = torch.tensor([0.5, 0.0]).expand(self.output_size, 1, 2)
    ...         return half, half, 2 * half
    >>> y, state = Average(1, 1).scan(torch.ones(1, 3, 1))
    >>> y.flatten().tolist()
    [0.5, 0.75, 0.875]
    """

    block = Block("layer", mixes=True)

    def project(self, x: Tensor) -> Tensor:
        """x (..., D) -> u (..., H), the input of each channel."""
        return x

    def bank(self) -> tuple[Tensor, Tensor, Tensor]:
        """a, b and c, each (H, N, 2)."""
        raise NotImplementedError(f"{type(self).__name__} must define bank()")

    def read(self, s: Tensor, u: Tensor) -> Tensor:
        """s = Re(sum_n c_n h_n) and u, both (..., H) -> y (..., H)."""
        return s

    def step(self, x: Tensor, state: S) -> tuple[Tensor, S]:
        u = self.project(x)
        a, b, c = (torch.view_as_complex(part) for part in self._bank(state))
        h = a * state[0] + b * u[..., None]
        return self.read((c * h).real.sum(-1), u).to(x.dtype), _rebuild(h, state)

    def _scan(self, x: Tensor, state: S, lengths: Tensor, reset: Tensor) -> tuple[Tensor, S]:
        u, before = self.project(x), torch.view_as_real(state[0])
        a, b, c = self._bank(state)
        s, last = kernels.bank_scan(u.to(before.dtype), a, b, c, before, lengths, reset)
        y = zero_past(self.read(s, u), lengths)
        return y.to(x.dtype), _rebuild(torch.view_as_complex(last), state)

    def describe_step(self, builder: Builder, x: Slot, state: tuple[Slot, ...]) -> Slot:
        u = self.project(traced(builder, x))
        s = builder.bank(slot_of(builder, u), *self.bank(), state[0])
        return slot_of(builder, self.read(traced(builder, s), u))

    def decays(self, x: Tensor) -> Tensor:
        """a as numbers, (H, N), whatever x is: how the state goes on by itself."""
        return torch.view_as_complex(self.bank()[0].contiguous())

    def _bank(self, state: S) -> Iterator[Tensor]:
        """The bank, in the dtype of the parts of the state."""
        return (part.to(REAL[state[0].dtype]) for part in self.bank())


def _rebuild(h: Tensor, state: S) -> S:
    return cast(S, states.map(lambda _: h, state))

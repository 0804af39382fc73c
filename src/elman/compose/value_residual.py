"""The values of the first layer, mixed into those of every later one, as in RWKV-7 (Peng et al., 2025).

    FirstTimeMixing   y = [rwkv7(x), v]
    LaterTimeMixing   x = [h, v_1]: rwkv7(h), where v = v + (v_1 - v) s(v_0 + V_2 V_1 x_v)
    Carry(core, D)    x = [h, c] -> [h + core(x), c]: a residual of D columns, beside which the others pass

What a layer knows of another goes through its input, so each is a Core, and a stack of them too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from elman import kernels
from elman.cells import initial
from elman.cells.matrix import Terms
from elman.cells.past import Past
from elman.cells.rwkv7 import RWKV7
from elman.compose.structure import Wrapper, name_of
from elman.core import Core
from elman.errors import InputError
from elman.kernels.builder import Builder, Slot, Slots
from elman.options import whole
from elman.state import State


class FirstTimeMixing(RWKV7):
    """The time mixing of a first layer: its values stand beside what it puts out. Options are those of RWKV7.

    >>> FirstTimeMixing(3, 8, heads=2).scan(torch.zeros(2, 5, 3))[0].shape
    torch.Size([2, 5, 16])
    """

    def __init__(self, input_size: int, size: int, **options: Any) -> None:
        super().__init__(input_size, size, **options)
        self.output_size = size + self.heads * self.value_size

    def read(self, s: Tensor, terms: Terms) -> Tensor:
        return torch.cat([super().read(s, terms), terms.v], -1)


class LaterTimeMixing(RWKV7):
    """The time mixing of a later layer: it reads [h, v_1]. `value_rank` is the width of V_1 x_v.

    >>> LaterTimeMixing(3, 8, heads=2, value_rank=2).scan(torch.zeros(2, 5, 3 + 8))[0].shape
    torch.Size([2, 5, 8])
    """

    def __init__(self, input_size: int, size: int, *, value_rank: int, **options: Any) -> None:
        super().__init__(input_size, size, **options)
        D, N, R = input_size, self.heads * self.value_size, whole("value_rank", value_rank)
        self.input_size = D + N
        self.v_0 = nn.Parameter(torch.empty(N))
        self.V_1, self.V_2 = nn.Parameter(torch.empty(R, D)), nn.Parameter(torch.empty(N, R))
        initial.zeros(self.v_0)  # half of each at first
        initial.input(self.V_1)
        initial.input(self.V_2)

    def terms(self, x: Tensor, past: Past) -> Terms:
        h, first = x.split([self.mu.shape[1], len(self.v_0)], -1)
        terms = super().terms(h, past)
        g, x_v = terms.rest
        share = kernels.sigmoid(kernels.linear(kernels.linear(x_v, self.V_1), self.V_2, self.v_0))
        return terms._replace(v=terms.v + (first - terms.v) * share, rest=(g,))


class Carry(Wrapper):
    """x = [h, c] -> [h + core(x), c], where h has `size` columns; a core that puts out more of them renews c.

    >>> from elman.compose import Columns
    >>> Carry(Columns(3, 0, 2), 2).scan(torch.tensor([[[1.0, 2.0, 3.0]]]))[0].tolist()
    [[[2.0, 4.0, 3.0]]]
    """

    def __init__(self, core: Core, size: int) -> None:
        super().__init__(core)
        self.size = whole("size", size)
        passing, renewed = core.input_size - size, core.output_size - size
        if passing < 0 or renewed < 0:
            raise InputError(
                f"Carry was given {name_of(core)} and size {size}; the core must read and put out at least {size} "
                "columns"
            )
        self.output_size = size + (renewed or passing)

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        y, state = self.core.step(x, state)
        return self.add(x, y), state

    def _scan(self, x: Tensor, state: State, lengths: Tensor, reset: Tensor) -> tuple[Tensor, State]:
        y, state = self.core.scan_unchecked(x, state, lengths, reset)
        return self.add(x, y), state

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """[h + y, c]: x and y (..., N)."""
        D = self.size
        beside = y[..., D:] if y.shape[-1] > D else x[..., D:]
        return torch.cat([x[..., :D] + y[..., :D], beside], -1)

    def describe_step(self, builder: Builder, x: Slot, state: Slots) -> Slot:
        D, y = self.size, self.core.describe_step(builder, x, state)
        h = builder.add(_first(builder, x, D), _first(builder, y, D))
        beside = y if y.width > D else x
        if beside.width == D:
            return h
        return builder.concat([h, builder.cut(beside, D, beside.width - D)])


def _first(builder: Builder, x: Slot, columns: int) -> Slot:
    return x if x.width == columns else builder.cut(x, 0, columns)

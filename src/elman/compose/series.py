"""What a series needs of its own past before a cell reads it: Lags and Scale, and Columns to choose what goes where.

    Lags      y[t] = [x[t - d] for each delay d]                       zero where there was no such input yet
    Scale     y[t] = sum_k g^k w[t-k] |v[t-k]| / sum_k g^k w[t-k]      x = [v, w]; zero where no weight came yet
    Columns   y[t] = x[t, first : first + width]

All that they remember is their state, so a series continues from it without its history. None of them has parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from elman import kernels
from elman.compose.pool import Plain
from elman.core import Core
from elman.errors import InputError
from elman.kernels.builder import Builder, Slot, Slots
from elman.kernels.trace import slot_of, traced
from elman.lengths import looks, shortest, zero_past
from elman.options import number, whole


class LagsState(NamedTuple):
    past: Tensor  # (B, d, D): the last inputs, oldest first; zeros where there was none. d is the longest delay


class Lags(Plain):
    """The inputs of `delays` steps ago, side by side; 0 is the input itself.

    The state is a shift register, not a ring with a pointer: one batch can have rows of different ages.

    >>> Lags(1, [0, 2]).scan(torch.tensor([[[1.0], [2.0], [3.0]]]))[0].tolist()
    [[[1.0, 0.0], [2.0, 0.0], [3.0, 1.0]]]
    """

    def __init__(self, size: int, delays: Sequence[int]) -> None:
        if not delays:
            raise InputError("Lags was given no delays; it takes one or more, 0 for the input itself")
        super().__init__(size, size * len(delays))
        self.delays = [whole("delay", delay, least=0) for delay in delays]
        self.longest = max(self.delays)

    def init_state(self, batch_size: int) -> LagsState:
        return LagsState(self.filled(batch_size, self.longest * self.input_size, 0.0).unflatten(1, self._shape))

    def step(self, x: Tensor, state: LagsState) -> tuple[Tensor, LagsState]:
        window = torch.cat([state.past, x[:, None].to(state.past.dtype)], 1)
        y = torch.cat([window[:, self.longest - delay] for delay in self.delays], -1)
        return y.to(x.dtype), LagsState(window[:, 1:])

    def _scan(self, x: Tensor, state: LagsState, lengths: Tensor, reset: Tensor) -> tuple[Tensor, LagsState]:
        T, most = x.shape[1], self.longest
        # Most often an episode begins with the first input or not at all; and then nothing need be copied.
        begins = reset[:, :1].any(1) & (lengths > 0)
        none = looks(lengths) and not bool(begins.any())
        before = state.past if none else torch.where(begins[:, None, None], 0.0, state.past)
        inputs = torch.cat([before, x.to(before.dtype)], 1)  # x[:, t] is at t + longest
        y = torch.cat([inputs[:, most - delay : most - delay + T] for delay in self.delays], -1)
        if _plain(lengths, reset):
            return y.to(x.dtype), LagsState(inputs[:, T:])
        # How many inputs of its episode came before each step; all that the state holds, where none has begun.
        t = torch.arange(T, device=x.device)
        begun = torch.where(reset, t, -most - T).cummax(1).values
        known = (t - begun)[..., None] >= torch.tensor(self.delays, device=x.device)
        y = torch.where(known[..., None], y.unflatten(-1, (-1, self.input_size)), 0.0).flatten(2)
        at = lengths[:, None] + torch.arange(most, device=x.device)
        past = inputs.gather(1, at[..., None].expand(-1, -1, self.input_size))
        # When the episode of a row's last valid input began; before the first, that of the state.
        last = torch.cat([begun.new_full((len(x), 1), -most - T), begun], 1).gather(1, lengths[:, None])
        past = torch.where((at - most >= last)[..., None], past, 0.0)
        return zero_past(y, lengths).to(x.dtype), LagsState(past)

    def describe_step(self, builder: Builder, x: Slot, state: tuple[Slot]) -> Slot:
        return builder.lags(x, self.delays, *state)

    @property
    def _shape(self) -> tuple[int, int]:
        return self.longest, self.input_size

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.delays}"


class ScaleState(NamedTuple):
    sum: Tensor  # (B, C) float64: of weighted absolute values; in float32 it would stay where it is from 2^24 steps on
    weight: Tensor  # (B, C) float64

    @property
    def fixed_start(self) -> tuple[str, ...]:
        return ("sum", "weight")


class Scale(Plain):
    """The running mean of absolute values |v| under weights w, x = [v, w] of `size` columns each.

    What came k steps ago counts decay**k; with 1, all that ever came counts alike.

    >>> Scale(1).scan(torch.tensor([[[-1.0, 1.0], [9.0, 0.0], [3.0, 1.0]]]))[0].flatten().tolist()
    [1.0, 1.0, 2.0]
    """

    def __init__(self, size: int, *, decay: float = 1.0) -> None:
        super().__init__(2 * size, size)
        self.decay = number("decay", decay, 0, 1)

    def init_state(self, batch_size: int) -> ScaleState:
        zeros = self.filled(batch_size, self.output_size, 0.0).double()
        return ScaleState(zeros, zeros)

    def step(self, x: Tensor, state: ScaleState) -> tuple[Tensor, ScaleState]:
        term, w = _terms(x).double().chunk(2, -1)
        sum, weight = self.decay * state.sum + term, self.decay * state.weight + w
        return _quotient(sum, weight).to(x.dtype), ScaleState(sum, weight)

    def _scan(self, x: Tensor, state: ScaleState, lengths: Tensor, reset: Tensor) -> tuple[Tensor, ScaleState]:
        terms = _terms(x).double()
        decay = terms.new_full((terms.shape[2],), self.decay)
        sums, last = kernels.linear_scan(decay, terms, torch.cat([*state], -1), lengths, reset)
        return _quotient(*sums.chunk(2, -1)).to(x.dtype), ScaleState(*last.chunk(2, -1))

    def describe_step(self, builder: Builder, x: Slot, state: tuple[Slot, Slot]) -> Slot:
        v, w = traced(builder, x).chunk(2, -1)
        return builder.mean(self.decay, slot_of(builder, w * v.abs()), slot_of(builder, w), *state)


def _terms(x: Tensor) -> Tensor:
    """[w |v|, w] of x = [v, w], with the digits of x: a native step has no others."""
    v, w = x.chunk(2, -1)
    return torch.cat([w * v.abs(), w], -1)


class Columns(Core):
    """Some columns of the input: `width` of them from `first` on.

    >>> Columns(3, 1, 2).scan(torch.tensor([[[1.0, 2.0, 3.0]]]))[0].tolist()
    [[[2.0, 3.0]]]
    """

    def __init__(self, input_size: int, first: int, width: int) -> None:
        super().__init__(input_size, width)
        self.first = whole("first", first, least=0, most=input_size - width)

    def init_state(self, batch_size: int) -> tuple[()]:
        return ()

    def step(self, x: Tensor, state: tuple[()]) -> tuple[Tensor, tuple[()]]:
        return x[..., self.first : self.first + self.output_size], ()

    def _scan(self, x: Tensor, state: tuple[()], lengths: Tensor, reset: Tensor) -> tuple[Tensor, tuple[()]]:
        return x[..., self.first : self.first + self.output_size], ()

    def describe_step(self, builder: Builder, x: Slot, state: Slots) -> Slot:
        return builder.cut(x, self.first, self.output_size)


def _plain(lengths: Tensor, reset: Tensor) -> bool:
    """Whether every row is whole and no episode begins after the first input; not asked of a compiled graph."""
    return looks(lengths) and shortest(lengths) == reset.shape[1] and not bool(reset[:, 1:].any())


def _quotient(sum: Tensor, weight: Tensor) -> Tensor:
    return torch.where(weight > 0, sum / torch.where(weight > 0, weight, 1.0), 0.0)

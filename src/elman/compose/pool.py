"""Pooling is a Core: at every step it puts out the pool of all inputs so far, and carries what that takes.

    last        y[t] = x[t]
    mean        y[t] = (x[0] + ... + x[t]) / (t + 1)
    max         y[t] = max(x[0], ..., x[t]), element by element
    attention   y[t] = sum_i exp(e[i]) x[i] / sum_i exp(e[i]) over i <= t,   e[i] = q . tanh(U x[i] + b)

(attention: Yang et al. 2016, "Hierarchical attention networks"). So a causal classifier answers after each input; for
one answer per row, the read-out is in a `Pooled`, which takes y at lengths - 1.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from elman import kernels
from elman.compose.structure import Wrapper
from elman.core import Core
from elman.errors import UnknownNameError
from elman.kernels.builder import Builder, Slot, Slots
from elman.lengths import valid
from elman.state import State


class Pool(Wrapper):
    """The pool so far, at every step, of inputs of `size` features. `kind` is "last", "mean", "max" or "attention".

    >>> y, state = Pool("mean", 1).scan(torch.tensor([[[1.0], [3.0], [8.0]]]))
    >>> y.flatten().tolist()
    [1.0, 2.0, 4.0]
    """

    def __init__(self, kind: str, size: int) -> None:
        if kind not in POOLS:
            raise UnknownNameError("pool", kind, POOLS)
        super().__init__(POOLS[kind](size, size))
        self.kind = kind

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        return self.core.step(x, state)

    def _scan(self, x: Tensor, state: State, lengths: Tensor, reset: Tensor) -> tuple[Tensor, State]:
        return self.core.scan_unchecked(x, state, lengths, reset)

    def describe_step(self, builder: Builder, x: Slot, state: Slots) -> Slot:
        return self.core.describe_step(builder, x, state)

    def parts(self, state: State) -> list[tuple[Core, State]]:
        """None: what it remembers is not fed back."""
        return []

    def extra_repr(self) -> str:
        return f"{self.kind!r}, {self.input_size}"


class Last(Core):
    """y[t] = x[t]: it remembers nothing."""

    def init_state(self, batch_size: int) -> tuple[()]:
        return ()

    def step(self, x: Tensor, state: tuple[()]) -> tuple[Tensor, tuple[()]]:
        return x, ()

    def _scan(self, x: Tensor, state: tuple[()], lengths: Tensor, reset: Tensor) -> tuple[Tensor, tuple[()]]:
        return x, ()

    def describe_step(self, builder: Builder, x: Slot, state: Slots) -> Slot:
        return x


class Plain(Core):
    """A pool without parameters: an empty buffer follows `.to(...)` in their place, so that its state does too."""

    like: Tensor

    def __init__(self, input_size: int, size: int) -> None:
        super().__init__(input_size, size)
        self.register_buffer("like", torch.zeros(0), persistent=False)

    def filled(self, batch_size: int, width: int, value: float, dtype: torch.dtype = torch.float32) -> Tensor:
        """A leaf (batch_size, width), as wide as the network around it and at least `dtype`."""
        dtype = torch.promote_types(self.like.dtype, dtype)
        return self.like.new_full((batch_size, width), value, dtype=dtype)


class MeanState(NamedTuple):
    sum: Tensor  # (B, H) float64
    number: Tensor  # (B, 1) float64: how many inputs

    @property
    def fixed_start(self) -> tuple[str, ...]:
        return ("sum", "number")


class Mean(Plain):
    """y = sum / number, added up in float64: in float32 a sum loses digits as it grows, and stops at 2^24 inputs."""

    def init_state(self, batch_size: int) -> MeanState:
        sum, number = (self.filled(batch_size, n, 0.0, torch.float64) for n in (self.output_size, 1))
        return MeanState(sum, number)

    def step(self, x: Tensor, state: MeanState) -> tuple[Tensor, MeanState]:
        sum, number = state.sum + x, state.number + 1
        return (sum / number).to(x.dtype), MeanState(sum, number)

    def _scan(self, x: Tensor, state: MeanState, lengths: Tensor, reset: Tensor) -> tuple[Tensor, MeanState]:
        wide = x.to(state.sum.dtype)
        terms = torch.cat([wide, torch.ones_like(wide[..., :1])], -1)
        start = torch.cat([state.sum, state.number], -1)
        sums, last = kernels.linear_scan(terms.new_ones(terms.shape[2]), terms, start, lengths, reset)
        y = sums[..., :-1] / sums[..., -1:].clamp(min=1)  # in the padding there are none
        return y.to(x.dtype), MeanState(last[:, :-1], last[:, -1:])

    def describe_step(self, builder: Builder, x: Slot, state: tuple[Slot, Slot]) -> Slot:
        return builder.mean(1.0, x, builder.constant(torch.ones(1)), *state)


class Max(Plain):
    """y = max(y', x), element by element, from minus infinity on. Of equal ones the earliest gets the gradient."""

    def init_state(self, batch_size: int) -> Tensor:
        return self.filled(batch_size, self.output_size, -torch.inf)

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        most = torch.where(x > state, x, state)
        return most.to(x.dtype), most

    def describe_step(self, builder: Builder, x: Slot, state: Slot) -> Slot:
        larger = builder.add(x, builder.negative(state))  # not the maximum: what is not a number does not count here
        return builder.assign(state, builder.choose(larger, x, state))

    def _scan(self, x: Tensor, state: Tensor, lengths: Tensor, reset: Tensor) -> tuple[Tensor, Tensor]:
        most, last = _running_max(x.to(state.dtype), state, lengths, reset)
        return torch.where(_valid(x, lengths), most, 0.0).to(x.dtype), last


class AttentionState(NamedTuple):
    most: Tensor  # (B, 1): the largest logit so far, against which weights are measured; minus infinity at first
    weight: Tensor  # (B, 1) float64: the sum of the weights exp(e - most)
    sum: Tensor  # (B, H) float64: the sum of inputs by their weights

    @property
    def fixed_start(self) -> tuple[str, ...]:
        return ("most", "weight", "sum")


class Attention(Core):
    """most = max(most', e), a = exp(most' - most), p = exp(e - most); weight = a weight' + p, sum = a sum' + p x."""

    def __init__(self, input_size: int, size: int) -> None:
        super().__init__(input_size, size)
        self.U = nn.Parameter(torch.empty(size, size))
        self.b = nn.Parameter(torch.empty(size))
        self.q = nn.Parameter(torch.empty(1, size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.xavier_uniform_(self.U)
        nn.init.zeros_(self.b)
        nn.init.normal_(self.q, std=self.output_size**-0.5)  # logits of order one

    def init_state(self, batch_size: int) -> AttentionState:
        # Sums are in float64, as those of a mean are.
        one, wide = self.zeros(batch_size, 1), torch.float64
        return AttentionState(one - torch.inf, one.to(wide), self.zeros(batch_size, self.output_size, dtype=wide))

    def step(self, x: Tensor, state: AttentionState) -> tuple[Tensor, AttentionState]:
        e = self._logit(x)
        most = torch.where(e > state.most, e, state.most)
        a, p = _exp(state.most - most), _exp(e - most)
        weight, sum = a * state.weight + p, a * state.sum + p * x
        return (sum / weight).to(x.dtype), AttentionState(most, weight, sum)

    def _scan(self, x: Tensor, state: AttentionState, lengths: Tensor, reset: Tensor) -> tuple[Tensor, AttentionState]:
        e = self._logit(x)
        most, last_most = _running_max(e, state.most, lengths, reset)
        before = torch.cat([state.most[:, None], most[:, :-1]], 1)[:, : x.shape[1]]
        # What stood before a reset is not read; measured against another episode it could be infinite.
        a, p = _exp(torch.where(reset[..., None], most, before) - most), _exp(e - most)
        terms = torch.cat([p, p * x], -1).to(state.sum.dtype)
        start = torch.cat([state.weight, state.sum], -1)
        sums, last = kernels.linear_scan(a.to(terms.dtype).expand_as(terms), terms, start, lengths, reset)
        y = sums[..., 1:] / torch.where(_valid(x, lengths), sums[..., :1], 1.0)
        return y.to(x.dtype), AttentionState(last_most, last[:, :1], last[:, 1:])

    def _logit(self, x: Tensor) -> Tensor:
        """e (..., 1)."""
        return kernels.linear(kernels.tanh(kernels.linear(x, self.U, self.b)), self.q)


POOLS: dict[str, type[Core]] = {"last": Last, "mean": Mean, "max": Max, "attention": Attention}


def _exp(x: Tensor) -> Tensor:
    """exp(x) of x <= 0, by functions whose native bits do not depend on where an element is: Torch's may."""
    return kernels.sigmoid(x) / kernels.sigmoid(-x)


def _valid(x: Tensor, lengths: Tensor) -> Tensor:
    return valid(lengths, x.shape[1])[..., None]


def _running_max(x: Tensor, state: Tensor, lengths: Tensor, reset: Tensor) -> tuple[Tensor, Tensor]:
    """The largest x (B, T, C) so far in its episode, `state` (B, C) before it: (B, T, C), and at lengths (B, C)."""
    whole = torch.cat([state[:, None], x], 1)  # place 0 is the state, and begins an episode
    first = torch.cat([torch.ones_like(lengths[:, None], dtype=torch.bool), reset], 1)
    most = whole.gather(1, _running_argmax(whole.detach(), first))
    return most[:, 1:], most[torch.arange(len(x), device=x.device), lengths]


def _running_argmax(x: Tensor, first: Tensor) -> Tensor:
    """Where the largest x so far is, the earliest of equal ones, in log2(T) passes (Hillis and Steele, 1986).

    x (B, T, C); first (B, T): where an episode begins. After pass k, each place knows the last 2^k places.
    """
    T = x.shape[1]
    most, place = x, torch.arange(T, device=x.device)[:, None].expand_as(x)
    closed, distance = first, 1
    while distance < T:
        earlier = ~closed[:, distance:, None] & (most[:, :-distance] >= most[:, distance:])
        most = torch.cat([most[:, :distance], torch.where(earlier, most[:, :-distance], most[:, distance:])], 1)
        place = torch.cat([place[:, :distance], torch.where(earlier, place[:, :-distance], place[:, distance:])], 1)
        closed = torch.cat([closed[:, :distance], closed[:, distance:] | closed[:, :-distance]], 1)
        distance *= 2
    return place

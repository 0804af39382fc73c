"""What is bound to a memory: a decoder, given one, is a Core for as many rows as the memory has."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, nn

from elman import kernels
from elman import state as states
from elman.core import Core
from elman.errors import InputError
from elman.kernels.builder import Builder, Slot, Unstreamable
from elman.lengths import checked, masked
from elman.options import whole
from elman.state import AnyState, State


class Memory(NamedTuple):
    """What a decoder reads at every step, prepared once. Rows past their length are zero."""

    keys: Tensor  # (B, S, A): what a query is compared with
    values: Tensor  # (B, S, M)
    lengths: Tensor  # (B,) int64


class Bound(Core):
    """A decoder with a memory: a Core of as many rows as the memory has.

    >>> from elman.compose.attention import Additive
    >>> from elman.cells import cell
    >>> decoder = Additive(cell("gru", 3 + 5, 4), 5)
    >>> bound = decoder.given(torch.randn(2, 7, 5), torch.tensor([7, 2]))
    >>> y, state = bound.scan(torch.zeros(2, 6, 3))
    >>> bound.repeat(3).scan(torch.zeros(6, 1, 3), states.repeat(state, 3))[0].shape
    torch.Size([6, 1, 4])
    """

    def __init__(self, decoder: Decoder, held: Memory, times: int = 1) -> None:
        super().__init__(decoder.input_size, decoder.output_size)
        self.decoder, self.held, self.times = decoder, held, times  # each row of what is held is that of `times` rows
        self.training = decoder.training

    def __deepcopy__(self, memo: dict[int, object]) -> Bound:
        """With the memory's numbers: what it was computed from, which a graph of gradients holds, is not copied."""
        held = Memory(*(part.detach().clone() for part in self.held))
        return type(self)(copy.deepcopy(self.decoder, memo), held, self.times)

    @property
    def title(self) -> str:
        return type(self.decoder).__name__.lower()

    @cached_property
    def memory(self) -> Memory:
        """That of each row."""
        return Memory(*states.repeat(self.held, self.times)) if self.times > 1 else self.held

    def take(self, rows: Tensor | Sequence[int]) -> Bound:
        return Bound(self.decoder, Memory(*states.take(self.memory, rows)))

    def repeat(self, times: int) -> Bound:
        return Bound(self.decoder, self.held, times * self.times)

    def init_state(self, batch_size: int) -> State:
        return self.decoder.init_state(batch_size)

    def step(self, x: Tensor, state: AnyState) -> tuple[Tensor, AnyState]:
        return self.decoder.step(x, state, self.memory)

    def _scan(self, x: Tensor, state: State, lengths: Tensor, reset: Tensor) -> tuple[Tensor, State]:
        return self.decoder.scan(x, state, self.memory, lengths, reset)

    def describe_step(self, builder: Builder, x: Slot, state: AnyState) -> Slot:
        return self.decoder.describe_step(builder, x, state, self.held, self.times)[0]

    def parts(self, state: State) -> list[tuple[Core, State]] | None:
        """Where the recurrence reads what the attention finds, it is one with it."""
        return None if self.decoder.recurs else [(self.decoder.core, state)]

    def alignments(self, x: Tensor, state: State | None = None) -> Tensor:
        """Where each step of x (B, T, D) looks: the weights a (B, T, S), zero past the lengths of the memory."""
        before = self.init_state(len(x)) if state is None else state
        weights = [self.memory.keys.new_zeros(len(x), 0, self.memory.keys.shape[1])]
        for t in range(x.shape[1]):
            _, after = self.scan(x[:, t : t + 1], before)
            weights.append(self.decoder.weights(before, after, self.memory)[:, None])
            before = after
        return torch.cat(weights, 1)

    def _check_input(self, x: Tensor) -> None:
        super()._check_input(x)
        self._check_rows(x)

    def _check_step(self, x: Tensor, state: State) -> None:
        super()._check_step(x, state)
        self._check_rows(x)

    def _check_rows(self, x: Tensor) -> None:
        if len(x) != len(self.memory.lengths):
            raise InputError(
                f"x has {len(x)} rows, the memory {len(self.memory.lengths)}; each row needs its own memory: "
                "use bound.take(rows) or bound.repeat(times) for other rows"
            )


class Covered(NamedTuple):
    core: AnyState
    coverage: Tensor  # (B, S): the attention to each place of the memory, summed over the steps


class Covering(Bound):
    """A bound decoder that also carries its total attention to each place, for a search with a coverage penalty.

    >>> from elman.compose.attention import Luong
    >>> from elman.cells import cell
    >>> bound = Luong(cell("gru", 3, 4), 5).given(torch.randn(2, 7, 5))
    >>> Covering(bound.decoder, bound.held).scan(torch.zeros(2, 6, 3))[1].coverage.sum(1).round().tolist()
    [6.0, 6.0]
    """

    def init_state(self, batch_size: int) -> Covered:
        return Covered(
            super().init_state(batch_size), self.memory.keys.new_zeros(batch_size, self.memory.keys.shape[1])
        )

    def take(self, rows: Tensor | Sequence[int]) -> Covering:
        return Covering(self.decoder, super().take(rows).memory)

    def repeat(self, times: int) -> Covering:
        return Covering(self.decoder, self.held, times * self.times)

    def step(self, x: Tensor, state: Covered) -> tuple[Tensor, Covered]:
        y, core = super().step(x, state.core)
        return y, Covered(core, state.coverage + self.decoder.weights(state.core, core, self.memory))

    def describe_step(self, builder: Builder, x: Slot, state: AnyState) -> Slot:
        y, weights = self.decoder.describe_step(builder, x, state.core, self.held, self.times)
        builder.assign(state.coverage, builder.add(state.coverage, weights))
        return y

    _scan = Core._scan


class Decoder(nn.Module):
    """What becomes a Core once it is given a memory of vectors, `memory_size` wide."""

    core: Core  # the recurrence inside it
    recurs: bool = True  # whether that reads what is found in the memory, and so depends on it at every step

    def __init__(self, input_size: int, output_size: int, memory_size: int) -> None:
        super().__init__()
        self.input_size, self.output_size = whole("input_size", input_size), whole("size", output_size)
        self.memory_size = whole("memory_size", memory_size)

    def given(self, memory: Tensor, lengths: Tensor | None = None) -> Bound:
        """The Core that reads memory (B, S, M), of each row as much as `lengths` (B,) says."""
        if memory.dim() != 3 or memory.shape[2] != self.memory_size:
            raise InputError(f"the memory has shape {list(memory.shape)}; it must be (B, S, {self.memory_size})")
        if lengths is None:
            lengths = torch.full((len(memory),), memory.shape[1], device=memory.device)
        lengths = checked(lengths, memory)
        values = masked(memory, lengths)
        return Bound(self, Memory(masked(self.keys(values), lengths), values, lengths))

    def keys(self, values: Tensor) -> Tensor:
        """What a query is compared with: (B, S, M) -> (B, S, A)."""
        return values

    def init_state(self, batch_size: int) -> AnyState:
        raise NotImplementedError

    def step(self, x: Tensor, state: AnyState, memory: Memory) -> tuple[Tensor, AnyState]:
        """One input x (B, D), the state before it and the memory: the definition, as in Core."""
        raise NotImplementedError

    def scan(
        self, x: Tensor, state: AnyState, memory: Memory, lengths: Tensor, reset: Tensor
    ) -> tuple[Tensor, AnyState]:
        """The loop over `step`."""
        init = self.init_state(len(x))
        return kernels.loop(lambda x, s: self.step(x, s, memory), x, state, init, lengths, reset, self.output_size)

    def describe_step(
        self, builder: Builder, x: Slot, state: AnyState, memory: Memory, times: int
    ) -> tuple[Slot, Slot]:
        """As in Core, with a memory whose rows are those of `times` rows: the slots of y and of where it looked."""
        raise Unstreamable(f"{type(self).__name__} does not describe its step")

    def reads(self, x: Tensor, state: AnyState, memory: Memory) -> tuple[Tensor, AnyState]:
        """What the core inside is given at a step: its input (B, D') and its own part of the state before."""
        raise NotImplementedError

    def weights(self, before: AnyState, after: AnyState, memory: Memory) -> Tensor:
        """The attention weights of the step from one state to the next: (B, S)."""
        raise InputError(f"{type(self).__name__} does not attend: it has no alignments")

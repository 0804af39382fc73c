"""Depth, width, skips and direction: Stack, Parallel, Residual, Reverse, Bidirectional."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from elman import kernels
from elman.cells.gated import Gated
from elman.core import Core
from elman.errors import InputError
from elman.kernels.builder import Builder, Slot, Slots
from elman.lengths import last_of_episodes
from elman.options import choice
from elman.state import State, describe


class Stack(Core):
    """Cores on top of each other: each reads what the one below it puts out.

    With inputs="all", every layer but the first reads [output of the layer below, x]: skip connections from the input.

    >>> from elman.compose import Dense
    >>> Stack(Dense(3, 4), Dense(4 + 3, 2), inputs="all").scan(torch.ones(1, 5, 3))[0].shape
    torch.Size([1, 5, 2])
    """

    def __init__(self, *cores: Core, inputs: str = "previous") -> None:
        check_cores("Stack", cores)
        super().__init__(cores[0].input_size, cores[-1].output_size)
        skipped = self.input_size if inputs == "all" else 0
        for i in range(1, len(cores)):
            width = cores[i - 1].output_size + skipped
            if cores[i].input_size != width:
                raise InputError(
                    f"layer {i} of the Stack, {name_of(cores[i])}, reads {cores[i].input_size} features, "
                    f"but what reaches it has {width}: build it with input_size={width}"
                )
        self.cores = nn.ModuleList(cores)
        self.inputs = choice("inputs", inputs, ("previous", "all"))
        self.causal = all(core.causal for core in cores)
        self.output_is_state = len(cores) == 1 and cores[0].output_is_state

    def init_state(self, batch_size: int) -> tuple[State, ...]:
        return tuple(core.init_state(batch_size) for core in _cores(self))

    def parts(self, state: tuple[State, ...]) -> list[tuple[Core, State]]:
        return _with_parts(self, state)

    def skips_padding(self, x: Tensor) -> bool:
        return self.inputs == "previous" and _skips_padding(_cores(self)[0], x)

    def step(self, x: Tensor, state: tuple[State, ...]) -> tuple[Tensor, tuple[State, ...]]:
        return self._run_cores(x, state, lambda core, y, before: core.step(y, before))

    def _scan(
        self, x: Tensor, state: tuple[State, ...], lengths: Tensor, reset: Tensor
    ) -> tuple[Tensor, tuple[State, ...]]:
        return self._run_cores(x, state, lambda core, y, before: core.scan_unchecked(y, before, lengths, reset))

    def _run_cores(
        self, x: Tensor, state: tuple[State, ...], run: Callable[[Core, Tensor, State], tuple[Tensor, State]]
    ) -> tuple[Tensor, tuple[State, ...]]:
        after = []
        y = x
        for i, (core, before) in enumerate(_with_parts(self, state)):
            y, new = run(core, torch.cat([y, x], -1) if i and self.inputs == "all" else y, before)
            after.append(new)
        return y, tuple(after)

    def describe_step(self, builder: Builder, x: Slot, state: tuple[Slots, ...]) -> Slot:
        y = x
        for i, (core, part) in enumerate(zip(_cores(self), state, strict=True)):
            y = core.describe_step(builder, builder.concat([y, x]) if i and self.inputs == "all" else y, part)
        return y


class Parallel(Core):
    """Cores side by side: all read x, their outputs are concatenated.

    >>> from elman.compose import Dense
    >>> Parallel(Dense(3, 4), Dense(3, 2)).scan(torch.ones(1, 5, 3))[0].shape
    torch.Size([1, 5, 6])
    """

    def __init__(self, *cores: Core) -> None:
        check_cores("Parallel", cores)
        for i, core in enumerate(cores):
            if core.input_size != cores[0].input_size:
                raise InputError(
                    f"part {i} of the Parallel, {name_of(core)}, reads {core.input_size} features, part 0 reads "
                    f"{cores[0].input_size}; all parts read the same input: build them with one input_size"
                )
        super().__init__(cores[0].input_size, sum(core.output_size for core in cores))
        self.cores = nn.ModuleList(cores)
        self.causal = all(core.causal for core in cores)

    def init_state(self, batch_size: int) -> tuple[State, ...]:
        return tuple(core.init_state(batch_size) for core in _cores(self))

    def parts(self, state: tuple[State, ...]) -> list[tuple[Core, State]]:
        return _with_parts(self, state)

    def skips_padding(self, x: Tensor) -> bool:
        return all(_skips_padding(core, x) for core in _cores(self))

    def step(self, x: Tensor, state: tuple[State, ...]) -> tuple[Tensor, tuple[State, ...]]:
        return _side_by_side([core.step(x, part) for core, part in _with_parts(self, state)])

    def _scan(
        self, x: Tensor, state: tuple[State, ...], lengths: Tensor, reset: Tensor
    ) -> tuple[Tensor, tuple[State, ...]]:
        return _side_by_side([core.scan_unchecked(x, part, lengths, reset) for core, part in _with_parts(self, state)])

    def describe_step(self, builder: Builder, x: Slot, state: tuple[Slots, ...]) -> Slot:
        parts = zip(_cores(self), state, strict=True)
        return builder.concat([core.describe_step(builder, x, part) for core, part in parts])


class Wrapper(Core):
    """A combinator around one core, with the state of that core."""

    def __init__(self, core: Core) -> None:
        check_cores(type(self).__name__, [core])
        super().__init__(core.input_size, core.output_size)
        self.core = core
        self.causal = core.causal

    def init_state(self, batch_size: int) -> State:
        return self.core.init_state(batch_size)

    def parts(self, state: State) -> Sequence[tuple[Core, State]] | None:
        return [(self.core, state)]


class Residual(Wrapper):
    """y = x + core(x).

    >>> from elman.compose import Dense
    >>> Residual(Dense(3, 3, activation="relu")).scan(torch.ones(1, 5, 3))[0].shape
    torch.Size([1, 5, 3])
    """

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        if core.input_size != core.output_size:
            raise InputError(
                f"Residual was given {name_of(core)}, which reads {core.input_size} features and outputs "
                f"{core.output_size}; x + core(x) needs the two equal: choose equal sizes, or end the core with a Dense"
            )

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        y, state = self.core.step(x, state)
        return x + y, state

    def _scan(self, x: Tensor, state: State, lengths: Tensor, reset: Tensor) -> tuple[Tensor, State]:
        y, state = self.core.scan_unchecked(x, state, lengths, reset)
        return x + y, state

    def describe_step(self, builder: Builder, x: Slot, state: Slots) -> Slot:
        return builder.add(x, self.core.describe_step(builder, x, state))


class Reverse(Wrapper):
    """The core, reading each row from its last valid input to its first: y[t] knows x[t], x[t+1], ... and no more.

    The state passed in is the one after the row's end, and the state returned is the one after the row's first input.
    Episodes stay separate: the first input of an episode for `reset` is the last one for the core.

    >>> from elman.cells import cell
    >>> y, state = Reverse(cell("elman", 3, 4)).scan(torch.ones(1, 5, 3))
    >>> bool((y[:, 0] == state.h).all())
    True
    """

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self.causal = False

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        raise InputError(
            "Reverse reads the future, so it has no step: scan whole sequences, or stream a core without Reverse in it"
        )

    def skips_padding(self, x: Tensor) -> bool:
        return _skips_padding(self.core, x)

    def describe_step(self, builder: Builder, x: Slot, state: Slots) -> Slot:
        return builder.backwards(x, lambda inputs: self.core.describe_step(builder, inputs, state))

    def _scan(self, x: Tensor, state: State, lengths: Tensor, reset: Tensor) -> tuple[Tensor, State]:
        if (loop := _loop_of(self.core)) is not None:
            return loop.scan_backwards(x, state, lengths, reset)
        ends = kernels.reverse(last_of_episodes(reset, lengths), lengths)
        y, state = self.core.scan_unchecked(kernels.reverse(x, lengths), state, lengths, ends)
        return kernels.reverse(y, lengths), state


class Bidirectional(Parallel):
    """One core from the left, one from the right: Parallel(left, Reverse(right)).

    >>> from elman.cells import cell
    >>> Bidirectional(cell("gru", 3, 4), cell("gru", 3, 4)).output_size
    8
    """

    def __init__(self, left: Core, right: Core) -> None:
        super().__init__(left, Reverse(right))

    def _scan(
        self, x: Tensor, state: tuple[State, ...], lengths: Tensor, reset: Tensor
    ) -> tuple[Tensor, tuple[State, ...]]:
        (left, first), (reverse, second) = _with_parts(self, state)
        forth, back = _loop_of(left), _loop_of(cast(Reverse, reverse).core)
        if forth is None or back is None or reverse.has_hooks() or not (forth.output_is_state and back.output_is_state):
            return super()._scan(x, state, lengths, reset)
        y, last = kernels.gated_pair(x, (forth.loop_from(first, False), back.loop_from(second, True)), lengths, reset)
        return y.to(x.dtype), last


def _loop_of(core: Core) -> Gated[Any] | None:
    """The core, if a scan of it is one loop, to which no hook listens."""
    return core if isinstance(core, Gated) and core.has_loop() and not core.has_hooks() else None


def _skips_padding(core: Core, x: Tensor) -> bool:
    """Whether nothing in a combinator reads the padding of its inner core's x: hooks would be handed it."""
    return not core.has_hooks() and core.skips_padding(x)


def _cores(core: Stack | Parallel) -> Sequence[Core]:
    return cast(Sequence[Core], core.cores)


def _with_parts(core: Stack | Parallel, state: tuple[State, ...]) -> list[tuple[Core, State]]:
    """Each core with its part of the state."""
    parts = _cores(core)
    if not isinstance(state, tuple) or len(state) != len(parts):
        problem = f"has {len(state)} parts" if isinstance(state, tuple) else f"is {describe(state)}"
        raise InputError(
            f"the state {problem}; this {type(core).__name__} has {len(parts)} cores, and needs a tuple with a state "
            "for each. Pass what its init_state, or an earlier step or scan of it returned."
        )
    return list(zip(parts, state, strict=True))


def _side_by_side(results: Sequence[tuple[Tensor, State]]) -> tuple[Tensor, tuple[State, ...]]:
    return torch.cat([y for y, _ in results], -1), tuple(state for _, state in results)


def name_of(core: Core) -> str:
    return f"{type(core).__name__}({core.input_size}, {core.output_size})"


def check_cores(combinator: str, cores: Sequence[Core]) -> None:
    if not cores:
        raise InputError(f"{combinator} was given no core; it takes one or more")
    for i, core in enumerate(cores):
        if not isinstance(core, Core):
            raise InputError(
                f"argument {i} of {combinator} is a {type(core).__name__}; it takes Cores: "
                "a cell, another combinator, or your own subclass"
            )

"""The decoders: attention before the step and after it, a fixed vector, and layers above any of them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from elman import kernels
from elman import state as states
from elman.cells import initial
from elman.cells.gated import Gated
from elman.compose.attention.bound import Decoder, Memory
from elman.core import Core
from elman.errors import InputError
from elman.kernels import AttendedLoop
from elman.kernels.builder import Builder, Slot, Unstreamable
from elman.lengths import masked
from elman.options import choice, flag, whole
from elman.state import AnyState, State

SCORES = ("dot", "general")


class Remembered(NamedTuple):
    y: Tensor  # (B, H)
    core: AnyState


class Remember(Core):
    """A core with its last output as the first leaf of its state, for what asks for that.

    >>> from elman.cells import cell
    >>> y, state = Remember(cell("lru", 3, 4)).scan(torch.ones(1, 5, 3))
    >>> bool((state.y == y[:, -1]).all())
    True
    """

    output_is_state = True

    def __init__(self, core: Core) -> None:
        super().__init__(core.input_size, core.output_size)
        self.core = core

    def init_state(self, batch_size: int) -> Remembered:
        return Remembered(self.zeros(batch_size, self.output_size), self.core.init_state(batch_size))

    def step(self, x: Tensor, state: Remembered) -> tuple[Tensor, Remembered]:
        y, core = self.core.step(x, state.core)
        return y, Remembered(y, core)

    def _scan(self, x: Tensor, state: Remembered, lengths: Tensor, reset: Tensor) -> tuple[Tensor, Remembered]:
        y, core = self.core.scan_unchecked(x, state.core, lengths, reset)
        ys = torch.cat([state.y[:, None], y], 1)
        return y, Remembered(ys[torch.arange(len(x), device=x.device), lengths], core)

    def parts(self, state: Remembered) -> list[tuple[Core, AnyState]]:
        return [(self.core, state.core)]

    def describe_step(self, builder: Builder, x: Slot, state: AnyState) -> Slot:
        return builder.assign(state.y, self.core.describe_step(builder, x, state.core))


class Additive(Decoder):
    """Attention on the state before the step, and what it finds as an input of the core: [x, c], x first.

    `core` reads input_size + memory_size numbers; `size` is the width of y, by default the core's; `attention_size`
    that of the hidden layer that scores.

    >>> from elman.cells import cell
    >>> Additive(cell("lstm", 3 + 5, 4), 5).given(torch.randn(2, 7, 5)).scan(torch.zeros(2, 6, 3))[0].shape
    torch.Size([2, 6, 4])
    """

    def __init__(
        self, core: Core, memory_size: int, *, size: int | None = None, attention_size: int | None = None
    ) -> None:
        super().__init__(_left(core, memory_size), core.output_size if size is None else size, memory_size)
        H, A = core.output_size, core.output_size if attention_size is None else whole("attention_size", attention_size)
        self.core = core if core.output_is_state else Remember(core)
        self.Q, self.K = nn.Parameter(torch.empty(A, H)), nn.Parameter(torch.empty(A, memory_size))
        self.k, self.v = nn.Parameter(torch.empty(A)), nn.Parameter(torch.empty(A))
        self.O = nn.Parameter(torch.empty(self.output_size, H + memory_size + self.input_size))
        self.o = nn.Parameter(torch.empty(self.output_size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for matrix in (self.Q, self.K, self.O):
            initial.input(matrix)
        nn.init.uniform_(self.v, -(len(self.v) ** -0.5), len(self.v) ** -0.5)  # scores of order one, and of either sign
        initial.zeros(self.k, self.o)

    def keys(self, values: Tensor) -> Tensor:
        return kernels.linear(values, self.K, self.k)

    def init_state(self, batch_size: int) -> State:
        return self.core.init_state(batch_size)

    def step(self, x: Tensor, state: State, memory: Memory) -> tuple[Tensor, State]:
        found, state = self._recur(x, state, memory)
        return self._output(found, x), state

    def scan(self, x: Tensor, state: State, memory: Memory, lengths: Tensor, reset: Tensor) -> tuple[Tensor, State]:
        loop = _loop(self.core, self.input_size, memory, v=self.v, Q=self.Q)
        size, init = self.core.output_size + self.memory_size, self.init_state(len(x))
        found, state = kernels.attended(
            loop, self._project, x, state, init, lengths, reset, lambda x, s: self._recur(x, s, memory), size
        )
        return masked(self._output(found, x), lengths), state

    def describe_step(
        self, builder: Builder, x: Slot, state: AnyState, memory: Memory, times: int
    ) -> tuple[Slot, Slot]:
        query = builder.linear(state[0], self.Q)  # h is the first leaf
        c, weights = builder.attend(query, *memory, self.v, times)
        h = _describe_fed_step(self.core, builder, x, c, state)
        return builder.map("tanh", builder.linear(builder.concat([h, c, x]), self.O, self.o)), weights

    def _recur(self, x: Tensor, state: State, memory: Memory) -> tuple[Tensor, State]:
        """[h, c] and the state after the step."""
        inputs, state = self.reads(x, state, memory)
        h, state = self.core.step(inputs, state)
        return torch.cat([h, inputs[..., self.input_size :]], -1), state

    def reads(self, x: Tensor, state: State, memory: Memory) -> tuple[Tensor, State]:
        return torch.cat([x, self._attend(state, memory)[0]], -1), state

    def _project(self, x: Tensor) -> Tensor:
        return _projected(self.core, x)

    def weights(self, before: State, after: State, memory: Memory) -> Tensor:
        return self._attend(before, memory)[1]

    def _attend(self, state: State, memory: Memory) -> tuple[Tensor, Tensor]:
        query = kernels.linear(states.leaves(state)[0], self.Q)
        c, a = kernels.attend(query[:, None], *memory, self.v)
        return c[:, 0], a[:, 0]

    def _output(self, found: Tensor, x: Tensor) -> Tensor:
        return kernels.tanh(kernels.linear(torch.cat([found, x], -1), self.O, self.o))


class Fed(NamedTuple):
    core: AnyState
    y: Tensor  # (B, size): the output of the step before


class Luong(Decoder):
    """Attention on the state after the step. With `feeding`, the output is an input of the next step: [x, y'].

    Without it the recurrence knows nothing of the memory: it is one scan, and attention a few products over all steps.
    `core` reads as many numbers as x has, and with `feeding` `size` more.

    >>> from elman.cells import cell
    >>> Luong(cell("gru", 3, 4), 5).given(torch.randn(2, 7, 5)).scan(torch.zeros(2, 6, 3))[0].shape
    torch.Size([2, 6, 4])
    """

    def __init__(
        self, core: Core, memory_size: int, *, score: str = "general", feeding: bool = False, size: int | None = None
    ) -> None:
        H = core.output_size
        size = H if size is None else whole("size", size)
        super().__init__(_left(core, size) if flag("feeding", feeding) else core.input_size, size, memory_size)
        if choice("score", score, SCORES) == "dot" and memory_size != H:
            raise InputError(
                f"the score is dot, between an output {H} wide and a memory {memory_size} wide; they must be equal: "
                "choose other sizes, or general"
            )
        self.core, self.feeding, self.recurs = core if core.output_is_state else Remember(core), feeding, feeding
        self.K = nn.Parameter(torch.empty(H, memory_size)) if score == "general" else None
        self.O = nn.Parameter(torch.empty(size, H + memory_size))
        self.o = nn.Parameter(torch.empty(size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for matrix in (self.K, self.O):
            if matrix is not None:
                initial.input(matrix)
        initial.zeros(self.o)

    def keys(self, values: Tensor) -> Tensor:
        return values if self.K is None else kernels.linear(values, self.K)

    def init_state(self, batch_size: int) -> AnyState:
        core = self.core.init_state(batch_size)
        return Fed(core, self.core.zeros(batch_size, self.output_size)) if self.feeding else core

    def step(self, x: Tensor, state: AnyState, memory: Memory) -> tuple[Tensor, AnyState]:
        h, core = self.core.step(*self.reads(x, state, memory))
        y = self._output(h[:, None], memory)[:, 0]
        return y, Fed(core, y) if self.feeding else core

    def reads(self, x: Tensor, state: AnyState, memory: Memory) -> tuple[Tensor, AnyState]:
        return (torch.cat([x, state.y], -1), state.core) if self.feeding else (x, state)

    def scan(
        self, x: Tensor, state: AnyState, memory: Memory, lengths: Tensor, reset: Tensor
    ) -> tuple[Tensor, AnyState]:
        if self.feeding:
            loop = _loop(self.core, self.input_size, memory, O=self.O, o=self.o)
            return kernels.attended(
                loop, lambda x: _projected(self.core, x), x, state, self.init_state(len(x)), lengths, reset,
                lambda x, s: self.step(x, s, memory), self.output_size,
            )  # fmt: skip
        h, state = self.core.scan_unchecked(x, state, lengths, reset)
        return masked(self._output(h, memory), lengths), state

    def describe_step(
        self, builder: Builder, x: Slot, state: AnyState, memory: Memory, times: int
    ) -> tuple[Slot, Slot]:
        if self.feeding:
            h = _describe_fed_step(self.core, builder, x, state.y, state.core)
        else:
            h = self.core.describe_step(builder, x, state)
        c, weights = builder.attend(h, *memory, None, times)
        y = builder.map("tanh", builder.linear(builder.concat([h, c]), self.O, self.o))
        return builder.assign(state.y, y) if self.feeding else y, weights

    def weights(self, before: AnyState, after: AnyState, memory: Memory) -> Tensor:
        core = after.core if self.feeding else after
        return kernels.attend(states.leaves(core)[0][:, None], *memory, None)[1][:, 0]

    def _output(self, h: Tensor, memory: Memory) -> Tensor:
        """h (B, T, H) -> y (B, T, size)."""
        c, _ = kernels.attend(h, *memory, None)
        return kernels.tanh(kernels.linear(torch.cat([h, c], -1), self.O, self.o))


class Fixed(Decoder):
    """One vector, the first of the memory, as an input of every step: h = core([x, m[0]], h').

    >>> from elman.cells import cell
    >>> Fixed(cell("gru", 3 + 5, 4), 5).given(torch.randn(2, 1, 5)).scan(torch.zeros(2, 6, 3))[0].shape
    torch.Size([2, 6, 4])
    """

    recurs = False

    def __init__(self, core: Core, memory_size: int) -> None:
        super().__init__(_left(core, memory_size), core.output_size, memory_size)
        self.core = core

    def init_state(self, batch_size: int) -> State:
        return self.core.init_state(batch_size)

    def step(self, x: Tensor, state: State, memory: Memory) -> tuple[Tensor, State]:
        return self.core.step(*self.reads(x, state, memory))

    def reads(self, x: Tensor, state: State, memory: Memory) -> tuple[Tensor, State]:
        return torch.cat([x, memory.values[:, 0]], -1), state

    def scan(self, x: Tensor, state: State, memory: Memory, lengths: Tensor, reset: Tensor) -> tuple[Tensor, State]:
        vector = memory.values[:, :1].expand(-1, x.shape[1], -1)
        return self.core.scan_unchecked(masked(torch.cat([x, vector], -1), lengths), state, lengths, reset)

    def describe_step(
        self, builder: Builder, x: Slot, state: AnyState, memory: Memory, times: int
    ) -> tuple[Slot, Slot]:
        vector, weights = builder.first(memory.values, times)
        return self.core.describe_step(builder, builder.concat([x, vector]), state), weights


class Layers(Decoder):
    """A decoder with a core above it: what depends on the memory is in the decoder, and the rest one scan.

    >>> from elman.cells import cell
    >>> decoder = Layers(Additive(cell("gru", 3 + 5, 4), 5), cell("gru", 4, 6))
    >>> decoder.given(torch.randn(2, 7, 5)).scan(torch.zeros(2, 6, 3))[0].shape
    torch.Size([2, 6, 6])
    """

    def __init__(self, decoder: Decoder, above: Core) -> None:
        super().__init__(decoder.input_size, above.output_size, decoder.memory_size)
        if above.input_size != decoder.output_size:
            raise InputError(f"the core above reads {above.input_size} features; what reaches it is as wide as the "
                             f"decoder's output, {decoder.output_size}")  # fmt: skip
        self.decoder, self.above = decoder, above

    def keys(self, values: Tensor) -> Tensor:
        return self.decoder.keys(values)

    def init_state(self, batch_size: int) -> tuple[State, State]:
        return self.decoder.init_state(batch_size), self.above.init_state(batch_size)

    def step(self, x: Tensor, state: tuple[State, State], memory: Memory) -> tuple[Tensor, tuple[State, State]]:
        y, first = self.decoder.step(x, state[0], memory)
        y, second = self.above.step(y, state[1])
        return y, (first, second)

    def scan(
        self, x: Tensor, state: tuple[State, State], memory: Memory, lengths: Tensor, reset: Tensor
    ) -> tuple[Tensor, tuple[State, State]]:
        y, first = self.decoder.scan(x, state[0], memory, lengths, reset)
        y, second = self.above.scan_unchecked(y, state[1], lengths, reset)
        return y, (first, second)

    def describe_step(
        self, builder: Builder, x: Slot, state: AnyState, memory: Memory, times: int
    ) -> tuple[Slot, Slot]:
        y, weights = self.decoder.describe_step(builder, x, state[0], memory, times)
        return self.above.describe_step(builder, y, state[1]), weights

    def weights(self, before: tuple[State, State], after: tuple[State, State], memory: Memory) -> Tensor:
        return self.decoder.weights(before[0], after[0], memory)


def _loop(core: Core, inputs: int, memory: Memory, **weights: Tensor) -> AttendedLoop | None:
    """The native loop of a core whose first `inputs` features are x; None where the core has none."""
    own = core.loop() if isinstance(core, Gated) else None
    if own is None:
        return None
    return AttendedLoop(own.kind, own.U[:, inputs:], own.weights, own.options, *memory, **weights)


def _projected(core: Core, x: Tensor) -> Tensor:
    """What x says to the gates of a core, of whose features it is the first."""
    own = core.loop() if isinstance(core, Gated) else None
    assert own is not None  # or nobody asks
    return kernels.linear(x, own.U[:, : x.shape[-1]], own.b)


def _describe_fed_step(core: Core, builder: Builder, x: Slot, fed: Slot, state: AnyState) -> Slot:
    """The step of a core that reads [x, fed]: the same sums as the native loop's. Without one, a scan has others."""
    described = builder.fed(x, fed, lambda both: core.describe_step(builder, both, state))
    if described is not None:
        return described
    own = core.loop() if isinstance(core, Gated) else None
    if own is None:
        raise Unstreamable(f"{type(core).__name__} has no native loop with attention inside")
    return builder.gated(own.kind, x, own.U, own.b, own.weights, state, own.options, fed)


def _left(core: Core, used: int) -> int:
    """How many of a core's inputs are left for x."""
    if not core.causal:
        raise InputError(f"{type(core).__name__} reads the future, so it cannot decode: use a core without Reverse")
    if core.input_size <= used:
        raise InputError(
            f"the core reads {core.input_size} features, of which {used} come from the decoder itself; build it with "
            f"input_size = {used} + the width of x"
        )
    return core.input_size - used

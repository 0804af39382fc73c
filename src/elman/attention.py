"""Decoders that read a memory: attention, and a fixed vector at every step.

    a[j] = softmax over j < lengths of e[j],   c = sum over j of a[j] m[j]            m (S, M) the memory of a row

    Additive    e[j] = v . tanh(Q h' + K m[j] + k)     before the recurrence, on the state before (Bahdanau, 2015)
                h = core([x, c], h')                   y = tanh(O [h, c, x] + o)
    Luong       h = core(x, h'), or core([x, y'], h') with `feeding`                        (Luong et al., 2015)
                e[j] = h . m[j] (dot) or h . (K m[j]) (general)      y = tanh(O [h, c] + o)
    Fixed       h = core([x, m[0]], h')                y = h

The memory is bound, not carried: `decoder.given(memory, lengths)` is a Core like any other, for as many rows as the
memory has. `take` and `repeat` of it follow those of its state. A memory of length 0 gives c = 0.

D. Bahdanau, K. Cho, Y. Bengio, Neural machine translation by jointly learning to align and translate, ICLR (2015).
M.-T. Luong, H. Pham, C. D. Manning, Effective approaches to attention-based neural machine translation, EMNLP (2015).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from elman import kernels
from elman import state as states
from elman.cells import initial
from elman.cells.gated import Gated
from elman.core import Core
from elman.errors import InputError
from elman.kernels import AttendedLoop
from elman.lengths import checked, masked
from elman.options import choice, flag, whole
from elman.state import State

SCORES = ("dot", "general")


class Memory(NamedTuple):
    """What a decoder reads at every step, prepared once. Rows past their length are zero."""

    keys: Tensor  # (B, S, A): what a query is compared with
    values: Tensor  # (B, S, M)
    lengths: Tensor  # (B,) int64


class Bound(Core):
    """A decoder with a memory: a Core of as many rows as the memory has.

    >>> from elman.cells import cell
    >>> decoder = Additive(cell("gru", 3 + 5, 4), 5)
    >>> bound = decoder.given(torch.randn(2, 7, 5), torch.tensor([7, 2]))
    >>> y, state = bound.scan(torch.zeros(2, 6, 3))
    >>> bound.repeat(3).scan(torch.zeros(6, 1, 3), states.repeat(state, 3))[0].shape
    torch.Size([6, 1, 4])
    """

    def __init__(self, decoder: Decoder, memory: Memory) -> None:
        super().__init__(decoder.input_size, decoder.output_size)
        self.decoder, self.memory = decoder, memory

    def take(self, rows: Tensor | Sequence[int]) -> Bound:
        return Bound(self.decoder, Memory(*states.take(self.memory, rows)))

    def repeat(self, times: int) -> Bound:
        return Bound(self.decoder, Memory(*states.repeat(self.memory, times)))

    def init_state(self, batch_size: int) -> State:
        return self.decoder.init_state(batch_size)

    def step(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        return self.decoder.step(x, state, self.memory)

    def _scan(self, x: Tensor, state: State, lengths: Tensor, reset: Tensor) -> tuple[Tensor, State]:
        return self.decoder.scan(x, state, self.memory, lengths, reset)

    def alignments(self, x: Tensor, state: State | None = None) -> Tensor:
        """Where each step of x (B, T, D) looks: the weights a (B, T, S), zero past the lengths of the memory."""
        before = self.init_state(len(x)) if state is None else state
        found = [self.memory.keys.new_zeros(len(x), 0, self.memory.keys.shape[1])]
        for t in range(x.shape[1]):
            _, after = self.scan(x[:, t : t + 1], before)
            found.append(self.decoder.weights(before, after, self.memory)[:, None])
            before = after
        return torch.cat(found, 1)

    def _check_input(self, x: Tensor) -> None:
        super()._check_input(x)
        if len(x) != len(self.memory.lengths):
            raise InputError(
                f"x has {len(x)} rows, the memory {len(self.memory.lengths)}; each row has a memory of its own: "
                "bound.take(rows) or bound.repeat(times) gives one for others"
            )


class Covered(NamedTuple):
    core: Any
    coverage: Tensor  # (B, S): how much of each place of the memory has been looked at, summed over the steps


class Covering(Bound):
    """A bound decoder that also carries how often it has looked where, for a search that asks for that.

    >>> from elman.cells import cell
    >>> bound = Luong(cell("gru", 3, 4), 5).given(torch.randn(2, 7, 5))
    >>> Covering(bound.decoder, bound.memory).scan(torch.zeros(2, 6, 3))[1].coverage.sum(1).round().tolist()
    [6.0, 6.0]
    """

    def init_state(self, batch_size: int) -> Covered:
        return Covered(
            super().init_state(batch_size), self.memory.keys.new_zeros(batch_size, self.memory.keys.shape[1])
        )

    def take(self, rows: Tensor | Sequence[int]) -> Covering:
        return Covering(self.decoder, super().take(rows).memory)

    def repeat(self, times: int) -> Covering:
        return Covering(self.decoder, super().repeat(times).memory)

    def step(self, x: Tensor, state: Covered) -> tuple[Tensor, Covered]:
        y, core = super().step(x, state.core)
        return y, Covered(core, state.coverage + self.decoder.weights(state.core, core, self.memory))

    _scan = Core._scan


class Decoder(nn.Module):
    """What becomes a Core once it is given a memory of vectors, `memory_size` wide."""

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

    def init_state(self, batch_size: int) -> Any:
        raise NotImplementedError

    def step(self, x: Tensor, state: Any, memory: Memory) -> tuple[Tensor, Any]:
        """One input x (B, D), the state before it and the memory: the definition, as in Core."""
        raise NotImplementedError

    def scan(self, x: Tensor, state: Any, memory: Memory, lengths: Tensor, reset: Tensor) -> tuple[Tensor, Any]:
        """The loop over `step`."""
        init = self.init_state(len(x))
        return kernels.loop(lambda x, s: self.step(x, s, memory), x, state, init, lengths, reset, self.output_size)

    def weights(self, before: Any, after: Any, memory: Memory) -> Tensor:
        """Where the step from one state to the next has looked: (B, S)."""
        raise InputError(f"{type(self).__name__} does not attend: it has no alignments")


class Remembered(NamedTuple):
    y: Tensor  # (B, H)
    core: Any


class Remember(Core):
    """A core with its last output as the first leaf of its state, for what asks for that.

    >>> from elman.cells import cell
    >>> y, state = Remember(cell("lru", 3, 4)).scan(torch.ones(1, 5, 3))
    >>> bool((state.y == y[:, -1]).all())
    True
    """

    emits_state = True

    def __init__(self, core: Core) -> None:
        super().__init__(core.input_size, core.output_size)
        self.core = core

    def init_state(self, batch_size: int) -> Remembered:
        return Remembered(self.zeros(batch_size, self.output_size), self.core.init_state(batch_size))

    def step(self, x: Tensor, state: Remembered) -> tuple[Tensor, Remembered]:
        y, core = self.core.step(x, state.core)
        return y, Remembered(y, core)

    def _scan(self, x: Tensor, state: Remembered, lengths: Tensor, reset: Tensor) -> tuple[Tensor, Remembered]:
        y, core = self.core.inside(x, state.core, lengths, reset)
        ys = torch.cat([state.y[:, None], y], 1)
        return y, Remembered(ys[torch.arange(len(x), device=x.device), lengths], core)


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
        self.core = core if core.emits_state else Remember(core)
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

    def _recur(self, x: Tensor, state: State, memory: Memory) -> tuple[Tensor, State]:
        """[h, c] and the state after the step."""
        c = self._attend(state, memory)[0]
        h, state = self.core.step(torch.cat([x, c], -1), state)
        return torch.cat([h, c], -1), state

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
    core: Any
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
        self.core, self.feeding = core if core.emits_state else Remember(core), feeding
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

    def init_state(self, batch_size: int) -> Any:
        core = self.core.init_state(batch_size)
        return Fed(core, self.core.zeros(batch_size, self.output_size)) if self.feeding else core

    def step(self, x: Tensor, state: Any, memory: Memory) -> tuple[Tensor, Any]:
        if not self.feeding:
            h, state = self.core.step(x, state)
            return self._output(h[:, None], memory)[:, 0], state
        h, core = self.core.step(torch.cat([x, state.y], -1), state.core)
        y = self._output(h[:, None], memory)[:, 0]
        return y, Fed(core, y)

    def scan(self, x: Tensor, state: Any, memory: Memory, lengths: Tensor, reset: Tensor) -> tuple[Tensor, Any]:
        if self.feeding:
            loop = _loop(self.core, self.input_size, memory, O=self.O, o=self.o)
            return kernels.attended(
                loop, lambda x: _projected(self.core, x), x, state, self.init_state(len(x)), lengths, reset,
                lambda x, s: self.step(x, s, memory), self.output_size,
            )  # fmt: skip
        h, state = self.core.inside(x, state, lengths, reset)
        return masked(self._output(h, memory), lengths), state

    def weights(self, before: Any, after: Any, memory: Memory) -> Tensor:
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

    def __init__(self, core: Core, memory_size: int) -> None:
        super().__init__(_left(core, memory_size), core.output_size, memory_size)
        self.core = core

    def init_state(self, batch_size: int) -> State:
        return self.core.init_state(batch_size)

    def step(self, x: Tensor, state: State, memory: Memory) -> tuple[Tensor, State]:
        return self.core.step(torch.cat([x, memory.values[:, 0]], -1), state)

    def scan(self, x: Tensor, state: State, memory: Memory, lengths: Tensor, reset: Tensor) -> tuple[Tensor, State]:
        vector = memory.values[:, :1].expand(-1, x.shape[1], -1)
        return self.core.inside(masked(torch.cat([x, vector], -1), lengths), state, lengths, reset)


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
        y, second = self.above.inside(y, state[1], lengths, reset)
        return y, (first, second)

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


def _left(core: Core, used: int) -> int:
    """How many of a core's inputs are left for x."""
    if not core.causal:
        raise InputError(f"{type(core).__name__} reads the future, so it cannot decode: take a core without Reverse")
    if core.input_size <= used:
        raise InputError(
            f"the core reads {core.input_size} features, of which {used} come from the decoder itself; build it with "
            f"input_size = {used} + the width of x"
        )
    return core.input_size - used

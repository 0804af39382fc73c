"""Cells whose gates see the state. One writes down the equation; everything else comes from here.

    u = project(x)                      what the input says to every gate, for all time steps at once
    gates = gates(u, state)             the gates by name, and what else `update` needs
    state = update(gates, state)        h first
    y = read(h)                         h itself, unless the cell says otherwise

`loop` names the native loop that does the same in one call; without it the cell is stepped through by these equations,
and streams by them. Either way step, scan, recomputation and stream are one description.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Generic, NamedTuple, TypeVar, cast

from torch import Tensor

from elman import kernels
from elman.core import Core
from elman.kernels import GatedLoop, GatedOptions
from elman.kernels.builder import Builder, Slot
from elman.kernels.trace import slot_of, step_through, traced
from elman.lengths import zero_past

S = TypeVar("S", bound=tuple[Tensor, ...])
Gates = dict[str, Tensor]  # each (B, H)


class Loop(NamedTuple):
    """A native loop over U x + b; `kind`, `weights` and `options` as `kernels.gated` takes them."""

    kind: str
    U: Tensor
    b: Tensor
    weights: tuple[Tensor, ...]
    options: GatedOptions = GatedOptions()


class Gated(Core, Generic[S]):
    """A recurrence through gates. Give it `init_state`, `project`, `gates` and `update`.

    >>> class Leaky(Gated[tuple[Tensor]]):
    ...     def init_state(self, batch_size):
    ...         return (self.zeros(batch_size, self.output_size),)
    ...     def project(self, x):
    ...         return x
    ...     def gates(self, u, state):
    ...         return {"n": kernels.tanh(u)}
    ...     def update(self, gates, state):
    ...         return (0.5 * state[0] + 0.5 * gates["n"],)
    >>> y, state = Leaky(4, 4).scan(torch.ones(1, 3, 4))
    >>> Leaky(4, 4).gates(torch.ones(1, 4), state)["n"].shape
    torch.Size([1, 4])
    """

    output_is_state = True
    sigmoid_gates: ClassVar[tuple[str, ...]] = ()  # those between 0 and 1: the lens counts how often they shut
    saves_bfloat16 = False  # what the backward pass needs: compose.save_bfloat16 says what comes of it

    def project(self, x: Tensor) -> Tensor:
        """x (..., D) -> u, what the input says to every gate."""
        raise NotImplementedError(f"{type(self).__name__} must define project(x)")

    def gates(self, u: Tensor, state: S) -> Gates:
        """The gates by name, each (B, H), of one projected input u and the state before it."""
        raise NotImplementedError(f"{type(self).__name__} must define gates(u, state)")

    def update(self, gates: Gates, state: S) -> S:
        """The state after the step, h first."""
        raise NotImplementedError(f"{type(self).__name__} must define update(gates, state)")

    def named_gates(self, x: Tensor, state: S) -> dict[str, Tensor]:
        if not self.sigmoid_gates:
            return {}
        gates = self.gates(self.project(x), state)
        return {name: gates[name] for name in self.sigmoid_gates}

    def gate_factors(self, gates: Gates) -> tuple[Tensor | float, ...] | None:
        """By what W h' is multiplied before it meets u, gate by gate as u has them, if all else is unit by unit: then
        the lens has the Jacobian of a step at once. None where there is more to it (a norm, a second product)."""
        return None

    def read(self, h: Tensor) -> Tensor:
        """h (..., H) -> y (..., H); a cell that overrides it has output_is_state False."""
        return h

    def loop(self) -> Loop | None:
        """The native loop that computes these equations; None where there is none."""
        return None

    def prepare(self) -> Callable[[Tensor, S], Gates]:
        """`gates`, with what comes of the parameters alone computed once instead of in every step of a scan."""
        return self.gates

    def recurrence(self) -> Callable[[Tensor, S], tuple[Tensor, S]]:
        """u and the state before it -> h and the state after it."""
        gates = self.prepare()

        def recur(u: Tensor, state: S) -> tuple[Tensor, S]:
            state = self.update(gates(u, state), state)
            return state[0], state

        return recur

    def step(self, x: Tensor, state: S) -> tuple[Tensor, S]:
        h, state = self.recurrence()(self.project(x), state)
        return self.read(h).to(x.dtype), state

    def _scan(self, x: Tensor, state: S, lengths: Tensor, reset: Tensor) -> tuple[Tensor, S]:
        return self._run_loop(x, state, lengths, reset, None)

    def scan_backwards(self, x: Tensor, state: S, lengths: Tensor, reset: Tensor) -> tuple[Tensor, S]:
        """`_scan` of a cell with a loop, which reads each row from its last valid input to its first."""
        return self._run_loop(x, state, lengths, reset, None, backwards=True)

    def has_loop(self) -> bool:
        """Whether its scan is one native loop: it has one, and no subclass scans otherwise."""
        return getattr(self._scan, "__func__", None) is Gated._scan and self.loop() is not None

    def scan_recomputed(self, x: Tensor, state: S, lengths: Tensor, reset: Tensor, every: int) -> tuple[Tensor, S]:
        """`_scan`, which for the backward pass saves the state every `every` steps, and computes the rest again."""
        return self._run_loop(x, state, lengths, reset, every)

    def loop_from(self, state: S, backwards: bool) -> GatedLoop:
        """The loop as `kernels.gated_pair` takes it, of a cell that has one."""
        loop = self.loop()
        assert loop is not None
        return GatedLoop(
            loop.kind, loop.weights, state, self.recurrence(), loop.U, loop.b, loop.options, self.project, backwards,
            self.saves_bfloat16,
        )  # fmt: skip

    def skips_padding(self, x: Tensor) -> bool:
        return self.has_loop() and kernels.native_for(x, *self.parameters())

    def _run_loop(
        self, x: Tensor, state: S, lengths: Tensor, reset: Tensor, every: int | None, backwards: bool = False
    ) -> tuple[Tensor, S]:
        recur, loop = self.recurrence(), self.loop()
        if loop is None:
            init = self.init_state(len(x))
            h, last = kernels.loop(recur, self.project(x), state, init, lengths, reset, state[0].shape[-1])
        else:
            h, last = kernels.gated(
                loop.kind, x, loop.weights, state, lengths, reset, recur, loop.U, loop.b, loop.options, self.project,
                every, backwards, self.saves_bfloat16,
            )  # fmt: skip
        y = h if self.output_is_state else zero_past(self.read(h), lengths)
        return y.to(x.dtype), cast(S, last)

    def describe_step(self, builder: Builder, x: Slot, state: tuple[Slot, ...]) -> Slot:
        loop = self.loop()
        if loop is None or not builder.loops(loop.kind, loop.options):
            return step_through(builder, self.step, x, state, self.init_state(1))
        h = builder.gated(loop.kind, x, loop.U, loop.b, loop.weights, state, loop.options)
        return slot_of(builder, self.read(traced(builder, h)))

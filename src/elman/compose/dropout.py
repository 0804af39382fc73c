"""What a network goes without in training: outputs (Dropout), updates (Zoneout), weights (WeightDrop)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor, nn

from elman import kernels
from elman import state as states
from elman.compose.structure import Wrapper, name_of
from elman.core import Core
from elman.errors import InputError
from elman.kernels.builder import Builder, Slot, Slots
from elman.kernels.trace import step_through
from elman.options import choice, fraction
from elman.state import State


class Dropout(Wrapper):
    """In training, zeroes each output of the core with probability p and scales the others by 1 / (1 - p).

    per="element": every element on its own. per="row": one mask for each row and scan, the same at all its time steps
    (Gal and Ghahramani, 2016). A step in training is a scan of one input. The recurrence inside sees nothing of it.

    >>> from elman.compose import Dense
    >>> y, _ = Dropout(Dense(3, 4), 0.5).eval().scan(torch.ones(1, 5, 3))
    """

    def __init__(self, core: Core, p: float, *, per: str = "element") -> None:
        super().__init__(core)
        self.p = fraction("p", p)
        self.per = choice("per", per, ("element", "row"))

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        y, state = self.core.step(x, state)
        return kernels.dropout(y, self.p, self.training), state

    def _scan(self, x: Tensor, state: State, lengths: Tensor, reset: Tensor) -> tuple[Tensor, State]:
        y, state = self.core.scan_unchecked(x, state, lengths, reset)
        if self.per == "element" or not self.training:
            return kernels.dropout(y, self.p, self.training), state
        return y * _mask(y[:, :1], self.p), state

    def describe_step(self, builder: Builder, x: Slot, state: Slots) -> Slot:
        return self.core.describe_step(builder, x, state)  # a stream is evaluation

    def extra_repr(self) -> str:
        return f"p={self.p}, per={self.per!r}"


class Zoneout(Wrapper):
    """In training, each unit of the state keeps its value through a step with probability p (Krueger et al., 2017).

    state = d * state' + (1 - d) * new, d drawn afresh for each unit and step; in evaluation d is its mean, p.
    Where a core puts out the first leaf of its state, the output is that leaf after this.

    >>> from elman.cells import cell
    >>> y, state = Zoneout(cell("lstm", 3, 4), 0.1).scan(torch.ones(1, 5, 3))
    >>> bool((y[:, -1] == state.h).all())
    True
    """

    def __init__(self, core: Core, p: float) -> None:
        super().__init__(core)
        if not core.causal:
            raise InputError(
                f"Zoneout was given {name_of(core)}, which reads the future and has no step: "
                "put it inside, Reverse(Zoneout(core))"
            )
        self.p = fraction("p", p)
        self.output_is_state = core.output_is_state

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        y, new = self.core.step(x, state)
        state = states.map(self._zone, state, new)
        return (states.leaves(state)[0].to(x.dtype) if self.output_is_state else y), state

    def describe_step(self, builder: Builder, x: Slot, state: Slots) -> Slot:
        like = self.core.init_state(1)

        def step(x: Tensor, state: State) -> tuple[Tensor, State]:
            y, new = self.core.step(x, state)
            mixed = [self.p * old + (1 - self.p) * now for old, now in _pairs(like, state, new)]
            parts = iter(mixed)
            return (mixed[0] if self.output_is_state else y), states.map(lambda _: next(parts), like)

        return step_through(builder, step, x, state, like)

    def parts(self, state: State) -> None:
        """A step of it is not one of the core inside."""
        return None

    def _zone(self, old: Tensor, new: Tensor) -> Tensor:
        if self.training:
            return torch.where(torch.rand(new.shape, device=new.device) < self.p, old, new)
        return self.p * old + (1 - self.p) * new

    def extra_repr(self) -> str:
        return f"p={self.p}"


def _pairs(like: State, state: State, new: State) -> list[tuple[Tensor, Tensor]]:
    """The leaves of two states in the structure of `like`: values that are traced are no tensors."""
    found: list[tuple[Tensor, Tensor]] = []

    def pair(leaf: Tensor, old: Tensor, now: Tensor) -> Tensor:
        found.append((old, now))
        return leaf

    states.map(pair, like, state, new)
    return found


class WeightDrop(Wrapper):
    """In training, each scan runs with entries of the parameters called `names` zeroed, each with probability p.

    The others are scaled by 1 / (1 - p); the mask is the same at all time steps of a scan (Merity et al., 2018). The
    parameters themselves stay as they are, and get the gradient. Names may be dotted: "cores.0.W". A step in training
    is a scan of one input, so Zoneout, which steps, goes inside: WeightDrop(Zoneout(core), p, names=("core.W",)).

    >>> from elman.cells import cell
    >>> y, state = WeightDrop(cell("lstm", 3, 4), 0.5).scan(torch.ones(1, 5, 3))
    """

    def __init__(self, core: Core, p: float, *, names: Sequence[str] = ("W",)) -> None:
        super().__init__(core)
        self.p = fraction("p", p)
        known = [name for name, _ in core.named_parameters()]
        unknown = [name for name in names if name not in known]
        if unknown or isinstance(names, str) or not names:
            raise InputError(
                f"names is {names!r}; WeightDrop takes a tuple of parameters of the core: {', '.join(known)}"
            )
        self.names = tuple(names)
        self.output_is_state = core.output_is_state

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        return self._run_with_dropped(self.core.step, x, state)

    def _scan(self, x: Tensor, state: State, lengths: Tensor, reset: Tensor) -> tuple[Tensor, State]:
        return self._run_with_dropped(self.core.scan_unchecked, x, state, lengths, reset)

    def _run_with_dropped(self, run: Callable[..., tuple[Tensor, State]], *args: State) -> tuple[Tensor, State]:
        if not self.training:
            return run(*args)
        whole = dict(self.core.named_parameters(remove_duplicate=False))  # perhaps lent by a word around this one
        return lend(self.core, run, {name: whole[name] * _mask(whole[name], self.p) for name in self.names})(*args)

    def describe_step(self, builder: Builder, x: Slot, state: Slots) -> Slot:
        return self.core.describe_step(builder, x, state)  # a stream is evaluation

    def extra_repr(self) -> str:
        return f"p={self.p}, names={self.names}"


def lend(
    core: Core, run: Callable[..., tuple[Tensor, State]], parameters: dict[str, Tensor]
) -> Callable[..., tuple[Tensor, State]]:
    """`run`, a method of the core, with these tensors in the place of its parameters."""
    lent = {f"core.{name}": tensor for name, tensor in parameters.items()}
    return lambda *args: torch.func.functional_call(_Call(core, run), lent, args)


class _Call(nn.Module):
    """A method of a core as a module: what functional_call can lend other parameters to."""

    def __init__(self, core: Core, run: Callable[..., tuple[Tensor, State]]) -> None:
        super().__init__()
        self.core = core
        self.run = run

    def forward(self, *args: State) -> tuple[Tensor, State]:
        return self.run(*args)


# Where a scan runs in pieces, what is drawn once for the scan comes from this generator, which begins each piece anew.
_of_scan: ContextVar[torch.Generator | None] = ContextVar("_of_scan", default=None)


def seed_of_scan(device: torch.device) -> int:
    """The seed that makes the pieces of a scan draw the same; itself drawn once for the scan."""
    return int(torch.randint(2**62, (), device=device, generator=_of_scan.get()))


@contextmanager
def one_scan(seed: int | None, device: torch.device) -> Iterator[None]:
    """In here runs a piece of a scan; its pieces have one seed. None: nothing is drawn once for the scan."""
    token = _of_scan.set(None if seed is None else torch.Generator(device).manual_seed(seed))
    try:
        yield
    finally:
        _of_scan.reset(token)


def _mask(like: Tensor, p: float) -> Tensor:
    """Zeros with probability p, else 1 / (1 - p): drawn once for a scan, in however many pieces it runs."""
    return torch.empty_like(like).bernoulli_(1 - p, generator=_of_scan.get()).div_(1 - p)

"""What a model is inspected with: inputs, targets, and the names of the inputs.

The loss at a step is - log P(y[t]); for a model that predicts once per row, that of the row. For a bare core it is
|y[t] - target|^2 / 2, and without a target the sum of its outputs over the square root of their number: a gradient of
length one, whatever the outputs are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypedDict

import torch
from torch import Tensor, nn

from elman import state as states
from elman.core import Core
from elman.errors import InputError
from elman.lengths import checked, masked
from elman.model import SequenceModel
from elman.nn.distributions import Distribution
from elman.state import State

LogProb = Callable[[Distribution, State, Tensor], Tensor]


class Binding(TypedDict):
    """The fields of a sample that belong to its rows as a whole: a core bound to a memory, a first state."""

    core: Core | None
    state: State | None


def log_prob(predicted: Distribution, y: State, lengths: Tensor) -> Tensor:
    """log P of the targets: one a step (B, T), or one a row (B,)."""
    return predicted.log_prob(y)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Sample:
    """Rows of inputs x (B, T, ...) and targets y.

    >>> Sample(torch.zeros(2, 5, 3)).lengths.tolist()
    [5, 5]

    Args:
        x: a tensor or a tuple of tensors (B, T, ...)
        y: targets, (B, T, ...) or (B, ...); None for a bare core
        lengths: the valid part of each row; all of it by default
        reset: (B, T), where a sequence starts
        names: of the inputs, row by row: characters, words, or numbers as text
        labels: (B, T) numbers by name that units may follow
        log_prob: of targets, if a task has its own
        panels: further panels of the task, ready for JSON
        core: if the model's core is bound to a memory, that core for these rows
        state: before the first input, if it is not the initial state
        about: what a step is, if it is not an input
    """

    x: State
    y: State | None = None
    lengths: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    reset: Tensor = field(default_factory=lambda: torch.zeros(0, 0, dtype=torch.bool))
    names: Sequence[Sequence[str]] = ()
    labels: dict[str, Tensor] = field(default_factory=dict)
    log_prob: LogProb = log_prob
    panels: tuple[dict[str, object], ...] = ()
    core: Core | None = None
    state: State | None = None
    about: str = ""

    def __post_init__(self) -> None:
        B, T = states.leaves(self.x)[0].shape[:2]
        if B == 0 or T == 0:
            raise InputError(f"there are {B} rows of {T} inputs to inspect; the lens needs at least one input")
        if not self.lengths.numel():
            object.__setattr__(self, "lengths", torch.full((B,), T))
        if not self.reset.numel():
            object.__setattr__(self, "reset", torch.zeros(B, T, dtype=torch.bool))
        object.__setattr__(self, "lengths", checked(self.lengths, states.leaves(self.x)[0]))
        if int(self.lengths.max()) == 0:
            raise InputError("all rows have length 0; the lens needs at least one input")

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and steps."""
        B, T = states.leaves(self.x)[0].shape[:2]
        return B, T

    def take(self, rows: Tensor, lengths: Tensor | None = None) -> Sample:
        """Some rows, each as often as it is named, cut to `lengths` if they are given."""
        lengths = self.lengths[rows] if lengths is None else lengths
        T = int(lengths.max())

        def cut(leaf: Tensor) -> Tensor:
            return leaf[rows][:, :T] if leaf.dim() > 1 and leaf.shape[1] == self.shape[1] else leaf[rows]

        return replace(
            self, x=states.map(lambda leaf: leaf[rows][:, :T], self.x), y=None if self.y is None else states.map(
                cut, self.y), lengths=lengths, reset=self.reset[rows][:, :T],
            names=[self.names[int(row)] for row in rows] if self.names else (),
            labels={name: values[rows][:, :T] for name, values in self.labels.items()}, **self._bound(rows),
        )  # fmt: skip

    def windows(self, rows: Tensor, starts: Tensor, size: int) -> Sample:
        """Pieces of at most `size` inputs of some rows, from the positions `starts` on, as rows of their own."""
        at = (starts[:, None] + torch.arange(size)).clamp(max=self.shape[1] - 1)

        def cut(leaf: Tensor) -> Tensor:
            return leaf[rows[:, None], at] if leaf.dim() > 1 and leaf.shape[1] == self.shape[1] else leaf[rows]

        return replace(
            self, x=states.map(cut, self.x), y=None if self.y is None else states.map(cut, self.y),
            lengths=(self.lengths[rows] - starts).clamp(0, size), reset=self.reset[rows[:, None], at], names=(),
            labels={}, **self._bound(rows),
        )  # fmt: skip

    def _bound(self, rows: Tensor) -> Binding:
        """The bound core and the first state of some rows."""
        return {
            "core": None if self.core is None else self.core.take(rows),
            "state": None if self.state is None else states.take(self.state, rows),
        }

    @property
    def each(self) -> bool:
        """Whether there is a target for each step, or none at all."""
        if self.y is None:
            return True
        leaf = states.leaves(self.y)[0]
        return leaf.dim() > 1 and leaf.shape[1] == self.shape[1]


def features(model: nn.Module, sample: Sample) -> Tensor:
    """What the core reads (B, T, D), as the leaf of a graph."""
    if isinstance(model, SequenceModel):
        return model.embed(sample.x).detach().requires_grad_()
    core_of(model, sample)
    if not isinstance(sample.x, Tensor):
        raise InputError("a bare core reads one tensor (B, T, D); x is a tuple")
    return sample.x.detach().clone().requires_grad_()


def core_of(model: nn.Module, sample: Sample) -> Core:
    """The recurrence of a model for the rows of a sample, or the bare core itself."""
    own = model.core if isinstance(model, SequenceModel) else model
    if not isinstance(own, Core):
        raise InputError(f"the lens was given a {type(model).__name__}; it takes a Core or a SequenceModel")
    return own if sample.core is None else sample.core


def losses(model: nn.Module, x: Tensor, sample: Sample, state: State | None = None) -> Tensor:
    """The loss of each step (B, T), zero past the lengths; or of each row (B,). x are features."""
    state = sample.state if state is None else state
    y, _ = core_of(model, sample)(x, state, lengths=sample.lengths, reset=sample.reset)
    return losses_of(model, y, sample)


def losses_of(model: nn.Module, y: Tensor, sample: Sample) -> Tensor:
    """The same, given the outputs of the core (B, T, H)."""
    lengths = sample.lengths
    if not isinstance(model, SequenceModel):
        terms = _of_outputs(y, sample.y)
    elif sample.y is None:
        raise InputError("a model is inspected by its loss, which needs targets: pass y")
    else:
        terms = -sample.log_prob(model.readout(y, lengths), sample.y, lengths)
    if terms.dim() == 1:
        return terms
    return masked(terms, lengths)


def _of_outputs(y: Tensor, target: State | None) -> Tensor:
    if target is None:
        return y.sum(-1) / y.shape[-1] ** 0.5
    if not isinstance(target, Tensor) or target.shape != y.shape:
        raise InputError(f"y is {states.describe(target)}; the outputs of this core are {list(y.shape)}")
    return 0.5 * (y - target).square().sum(-1)


def causal(model: nn.Module) -> bool:
    """Whether each output depends on the past alone."""
    return bool(getattr(model.core if isinstance(model, SequenceModel) else model, "causal", True))

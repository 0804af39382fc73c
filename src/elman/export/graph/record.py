"""What a record of one step consists of: operations on numbered values, inputs of the graph, leaves of the state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from elman.export.graph.nodes import Array

Emit = Callable[..., str | list[str]]  # (graph, names of the inputs) -> names of the outputs


@dataclass
class Operation:
    """What makes values of others."""

    inputs: list[int]
    outputs: list[int]
    emit: Emit
    whole: bool = False  # of whole sequences only: it cannot be in a loop
    native: bool = False  # a node that goes through time, whose output is zero past the lengths


@dataclass(frozen=True)
class Input:
    """An input of the graph, (B, T, *shape): numbers, or whole numbers below `symbols`, which may differ by column."""

    name: str
    shape: tuple[int | None, ...] = ()  # None where it is free
    symbols: int | tuple[int, ...] | None = None


@dataclass(frozen=True)
class Source:
    """Inputs of the graph, and the value (B, T, width) that is made of them."""

    inputs: list[Input]
    value: int
    make: Emit


@dataclass
class Leaf:
    """A leaf of the state: `before` and `after` are the numbers of its values."""

    name: str  # "state.0.h"
    first: Array  # of the initial state, without the axis of rows; complex numbers as pairs
    before: int
    after: int
    backwards: bool = False  # its rows are read from their ends
    native: bool = False  # a node goes through whole sequences by itself

    @property
    def width(self) -> int:
        return int(self.first.size)

"""A recorded function as a tape of csrc/tape.h: one call instead of some hundred of Torch's, each of which costs more
to begin than what it computes on a few numbers.

`writer.py` reads the graph that `make_fx` wrote, operation by operation. Views are views here too, what does not
depend on the arguments is computed once, and what is computed twice is computed once. An operation that
`operations.py` does not list, or a product that is worth several threads, leaves the whole function to Torch.
`values.py` has what the other two speak of.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, fx

from elman import _native
from elman.kernels.native.op import define, expect, output
from elman.kernels.native.tape.values import TYPES, Code, Unlisted, Value
from elman.kernels.native.tape.writer import Writer


def trace_step(e: Tensor, factors: Tensor, share: Tensor, immediate: Tensor) -> tuple[Tensor, Tensor]:
    """e' = J e + I (B, C, R, W), and the sum over rows and colours of share e (R, W)."""
    after, gradient = _trace_op(e, factors, share, immediate)
    return after, gradient


def _run_trace(e: Tensor, factors: Tensor, share: Tensor, immediate: Tensor) -> tuple[Tensor, Tensor]:
    B, C, R, W = e.shape
    for name, x, shape in (
        ("factors", factors, (B, C, C, R)), ("share", share, (B, C, R)), ("immediate", immediate, (B, C, R, W)),
    ):  # fmt: skip
        expect(name, x, shape, e.dtype)
    given = [x.contiguous() for x in (e, factors, share, immediate)]
    made = [torch.empty_like(given[0]), e.new_empty(R, W)]
    tape = _native.Tape()
    tape.memory, tape.given, tape.made = 0, 4, 2
    operands = [[place, 0, 0] for place in (6, 7, 2, 3, 4, 5)]
    tape.append(Code.trace, TYPES[e.dtype], [1], [B, C, R, W, 0], operands)
    tape.run([x.data_ptr() for x in given], [x.data_ptr() for x in made], torch.get_num_threads())
    return made[0], made[1]


_trace_op = define(
    "trace_step(Tensor e, Tensor factors, Tensor share, Tensor immediate) -> (Tensor, Tensor)",
    _run_trace,
    lambda e, factors, share, immediate: (torch.empty_like(e), e.new_empty(e.shape[2:])),
)


class Tape:
    """The function, to be called with tensors of the shapes and types of those that it was recorded with."""

    def __init__(self, native: Any, given: Sequence[Value], made: Sequence[Value], graph: Callable[..., Any]) -> None:
        self._native, self._graph = native, graph
        self._given = [(value.shape, value.dtype) for value in given]
        self._made = [(torch.empty(0, dtype=value.dtype), value.shape) for value in made]

    def __call__(self, *arguments: Tensor) -> list[Tensor]:
        found = self.run(arguments)
        if found is None:  # also where a place is not there: Torch says which
            found = cast(list[Tensor], self._graph(*arguments))
        return found

    def run(self, arguments: Sequence[Tensor]) -> list[Tensor] | None:
        """What it makes of them; None if they are not what it was written for, or it does not come to its end."""
        given = []  # which must live as long as they are read
        for argument, (shape, dtype) in zip(arguments, self._given, strict=True):
            if argument.shape != shape or argument.dtype is not dtype or not argument.is_cpu:
                return None
            if argument.is_conj() or argument.is_neg():
                return None
            given.append(argument if argument.is_contiguous() else argument.contiguous())
        made = [output(like, shape) for like, shape in self._made]
        addresses = [tensor.data_ptr() for tensor in given], [tensor.data_ptr() for tensor in made]
        return made if self._native.run(*addresses, torch.get_num_threads()) else None

    def __deepcopy__(self, memo: object) -> Tape:
        return self  # nothing in it changes


def lower(graph: fx.GraphModule, arguments: Sequence[Tensor]) -> Callable[..., list[Tensor]]:
    """The tape of a graph; the graph itself where it has what a tape does not, or not of such numbers: it is tried."""
    try:
        writer = Writer(graph, arguments)
    except Unlisted:
        return graph
    tape = Tape(writer.native, writer.given, writer.made, graph)
    return graph if tape.run(arguments) is None else tape

"""From the record of one step to a graph of sequences: what must wait for the state becomes a Scan, and nothing else.

A leaf depends on another if what it becomes is computed from what the other was. Leaves that depend on each other, in
a circle, and all operations on the way round, are one loop: the body of a Scan. Everything else, such as the products
of the inputs before it and the read-out behind it, is computed for all time steps at once. A leaf on no circle is what
some value was one step before: the values moved by one place.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from graphlib import TopologicalSorter
from operator import or_

from onnx import TensorProto, ValueInfoProto, helper

from elman.export.graph.nodes import Graph
from elman.export.graph.record import Leaf, Operation
from elman.export.graph.recorder import Recorder
from elman.export.graph.sequences import Sequences

Sets = dict[int, int]  # a set of leaves for each value, as the bits of a number


@dataclass
class Loop:
    """Leaves on one circle, and the operations on it in their order."""

    leaves: list[Leaf]
    operations: list[Operation]


class Unroller:
    """What of a record is loops; `run` makes its values in a graph of sequences."""

    g: Sequences
    names: _Names  # of the values that are there

    def __init__(self, record: Recorder, wanted: Iterable[int]) -> None:
        self.record = record
        self.needed = _needed(record, wanted)
        self.operations = [op for op in record.operations if self.needed.intersection(op.outputs) - record.constants]
        self.wanted = set(wanted)
        moved = [leaf for leaf in record.leaves.values() if leaf.after != leaf.before and not leaf.native]
        self.loops = _loops(moved, self.operations, len(record.widths))
        self.delays = [leaf for leaf in moved if not any(leaf in loop.leaves for loop in self.loops)]

    def run(self, g: Sequences, names: dict[int, str]) -> None:
        """Append everything; what is there has `names`."""
        self.g, self.names = g, _Names(self.record, g)
        self.names |= names
        for leaf in self.record.leaves.values():
            if leaf.after == leaf.before:
                self.g.after[leaf.name] = self.g.before[leaf.name]
        for part in self._ordered():
            if isinstance(part, Loop):
                self._scan(part)
            elif isinstance(part, Leaf):
                self._delay(part)
            else:
                _emit(part, self.g, self.names)

    def _ordered(self) -> list[Loop | Leaf | Operation]:
        """Loops, delays and the other operations, each after those whose values it reads."""
        inside = {id(op) for loop in self.loops for op in loop.operations}
        parts: list[Loop | Leaf | Operation] = [*self.loops, *self.delays]
        parts += [op for op in self.operations if id(op) not in inside]
        makers = {number: i for i, part in enumerate(parts) for number in _made(part)}
        order = {i: [makers[n] for n in _read(part) if n in makers] for i, part in enumerate(parts)}
        return [parts[i] for i in TopologicalSorter(order).static_order()]

    def _delay(self, leaf: Leaf) -> None:
        """What a value was one step before: the state, then the values but the last."""
        g = self.g
        if leaf.after in self.record.constants:
            values = g.expand(self.names[leaf.after], g.valid, leaf.width)
        else:
            values = self.names[leaf.after]
        all_ = g.add("Concat", g.add("Unsqueeze", g.before[leaf.name], g.whole([1])), values, axis=1)
        before = g.cut(all_, 0, -1, axis=1)
        if g.reset is not None:
            before = g.add("Where", self._reset(leaf), _first(leaf, g), before)
        self.names[leaf.before] = before
        g.after[leaf.name] = g.at(all_, g.lengths)

    def _reset(self, leaf: Leaf) -> str:
        assert self.g.reset is not None
        return self.g.reset_backwards if leaf.backwards else self.g.reset

    def _scan(self, loop: Loop) -> None:
        """A Scan over the steps, whose body is the loop: it reads states before, flags and values, and gives states
        after and values."""
        g, body = self.g, Graph(self.g.store, 1)
        read = sorted({n for op in loop.operations for n in op.inputs} - set(_made(loop)) - self.record.constants)
        flags = {"valid": g.valid} if g.reset is None else {"valid": g.valid, "reset": self._reset(loop.leaves[0])}
        states, given_flags, given = (
            [g.store.name(of) for _ in range(len(part))]
            for of, part in (("before", loop.leaves), ("flag", flags), ("now", read))
        )
        names = _Names(self.record, body)
        names |= dict(zip(read, given, strict=True))
        for leaf, state in zip(loop.leaves, states, strict=True):
            fresh = g.reset is not None
            names[leaf.before] = body.add("Where", given_flags[1], _first(leaf, body), state) if fresh else state
        for op in loop.operations:
            _emit(op, body, names)
        after = [
            body.add("Where", given_flags[0], names[leaf.after], state)
            for leaf, state in zip(loop.leaves, states, strict=True)
        ]
        made = self._read_behind(loop)
        values = [body.add("Identity", names[number]) for number in made]
        number = helper.np_dtype_to_tensor_dtype(g.store.dtype)
        kinds = [helper.np_dtype_to_tensor_dtype(leaf.first.dtype) for leaf in loop.leaves]
        inputs = [*_infos(states, kinds), *_infos(given_flags, [TensorProto.BOOL] * len(flags))]
        graph = helper.make_graph(
            body.nodes, g.store.name("step"), [*inputs, *_infos(given, [number] * len(read))],
            [*_infos(after, kinds), *_infos(values, [number] * len(made))],
        )  # fmt: skip
        # Time comes first in what a Scan reads and gives: not every runtime takes another axis.
        scanned = [g.time_first(name) for name in (*flags.values(), *(self.names[number] for number in read))]
        results = g.add(
            "Scan", *(g.before[leaf.name] for leaf in loop.leaves), *scanned, outputs=len(after) + len(made),
            body=graph, num_scan_inputs=len(scanned),
        )  # fmt: skip
        results = [results] if isinstance(results, str) else results
        g.after |= {leaf.name: name for leaf, name in zip(loop.leaves, results, strict=False)}
        self.names |= {n: g.batch_first(name) for n, name in zip(made, results[len(after) :], strict=True)}

    def _read_behind(self, loop: Loop) -> list[int]:
        """The values of a loop that something outside it reads."""
        own = {id(op) for op in loop.operations}
        read = {n for op in self.operations if id(op) not in own for n in op.inputs}
        return sorted(set(_made(loop)) & (read | self.wanted | {leaf.after for leaf in self.delays}))


def _infos(names: Iterable[str], kinds: Iterable[int]) -> list[ValueInfoProto]:
    return [helper.make_tensor_value_info(name, kind, None) for name, kind in zip(names, kinds, strict=True)]


class _Names(dict[int, str]):
    """The names of values in a graph; constants are made in it when they are read."""

    def __init__(self, record: Recorder, g: Graph) -> None:
        super().__init__()
        self.g = g
        self.makers = {op.outputs[0]: op for op in record.operations if op.outputs[0] in record.constants}

    def __missing__(self, number: int) -> str:
        _emit(self.makers[number], self.g, self)
        return self[number]


def _emit(op: Operation, g: Graph, names: dict[int, str]) -> None:
    made = op.emit(g, *(names[number] for number in op.inputs))
    for number, name in zip(op.outputs, [made] if isinstance(made, str) else made, strict=True):
        names[number] = name


def _first(leaf: Leaf, g: Graph) -> str:
    """What a leaf is after a reset."""
    return g.store.array(leaf.first.reshape(*[1] * g.lead, -1))


def _needed(record: Recorder, wanted: Iterable[int]) -> set[int]:
    """The values from which the wanted ones are made, through the leaves too."""
    makers = {number: op for op in record.operations for number in op.outputs}
    needed: set[int] = set()
    waiting = [*wanted, *(leaf.after for leaf in record.leaves.values())]
    while waiting:
        number = waiting.pop()
        if number not in needed:
            needed.add(number)
            op = makers.get(number)
            waiting += [*op.inputs, *op.outputs] if op else []
    return needed


def _loops(leaves: list[Leaf], operations: list[Operation], values: int) -> list[Loop]:
    """The circles among the leaves."""
    bits = {leaf.before: 1 << i for i, leaf in enumerate(leaves)}
    of: Sets = {number: bits.get(number, 0) for number in range(values)}  # the leaves that a value is made of
    for op in operations:
        for number in op.outputs:
            of[number] |= reduce(or_, (of[n] for n in op.inputs), 0)
    into: Sets = dict.fromkeys(range(values), 0)  # the leaves that are made of a value
    for leaf in leaves:
        into[leaf.after] |= bits[leaf.before]
    for op in reversed(operations):
        for number in op.inputs:
            into[number] |= reduce(or_, (into[n] for n in op.outputs), 0)
    reach = [of[leaf.after] for leaf in leaves]  # on which a leaf depends, by now through any number of steps
    for k in range(len(leaves)):
        reach = [row | (reach[k] if row >> k & 1 else 0) for row in reach]
    circles = {
        reduce(or_, (1 << j for j in range(len(leaves)) if row >> j & 1 and reach[j] >> i & 1), 0)
        for i, row in enumerate(reach)
        if row >> i & 1
    }
    found = []
    for circle in sorted(circles):
        inner = [op for op in operations if any(of[n] & circle and into[n] & circle for n in op.outputs)]
        assert not any(op.whole for op in inner), "what needs whole sequences cannot be in a loop"
        found.append(Loop([leaf for i, leaf in enumerate(leaves) if circle >> i & 1], inner))
    return found


def _made(part: Loop | Leaf | Operation) -> list[int]:
    if isinstance(part, Leaf):
        return [part.before]
    if isinstance(part, Operation):
        return part.outputs
    return [leaf.before for leaf in part.leaves] + [n for op in part.operations for n in op.outputs]


def _read(part: Loop | Leaf | Operation) -> list[int]:
    if isinstance(part, Leaf):
        return [part.after]
    if isinstance(part, Operation):
        return part.inputs
    own = set(_made(part))
    return [n for op in part.operations for n in op.inputs if n not in own]

"""The builder of ONNX: it records the operations of one step; `loops.py` makes sequences of them.

Every value has a number: that of its slot. A leaf of the state has one before the step and another after every
operation that changes it, so that what depends on what can be read off the record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import torch
from torch import Tensor

from elman import state as states
from elman.core import Core
from elman.export.graph.linear_attention import LinearAttention
from elman.export.graph.memory import Memory
from elman.export.graph.nodes import Graph
from elman.export.graph.record import Emit, Input, Leaf, Operation, Source
from elman.export.graph.recurrent import NATIVE, Native
from elman.kernels.builder import Builder, Slot, Unstreamable
from elman.kernels.reference import GatedOptions
from elman.state import AnyState


@dataclass
class Recorder(Builder):
    """The operations of a step. With `native`, cells that ONNX has as nodes are left to those; so are matrix states, if
    there is a domain whose LinearAttention may be used."""

    dtype: torch.dtype
    native: bool = True
    domain: str | None = None
    operations: list[Operation] = field(default_factory=list)
    widths: list[int] = field(default_factory=list)  # of each value
    leaves: dict[int, Leaf] = field(default_factory=dict)  # by the number before
    constants: set[int] = field(default_factory=set)
    sources: list[Source] = field(default_factory=list)
    memory: Memory | None = None
    backward: bool = False
    mirrors: dict[int, int] = field(default_factory=dict)  # a value and the same from the ends of rows

    def leaf(self, name: str, first: Tensor) -> Slot:
        """A leaf of the state, (rows, width); `first` (1, ...) is what it starts at."""
        row = torch.view_as_real(first[0]) if first.is_complex() else first[0]
        slot = self._value(row.numel())
        self.leaves[slot.number] = Leaf(f"state{name}", row.detach().cpu().numpy(), slot.number, slot.number)
        return slot

    def loops(self, kind: str, options: GatedOptions) -> bool:
        return self.native and kind in NATIVE and all(option is None for option in options._replace(peephole=None))

    def backwards(self, x: Slot, describe: Callable[[Slot], Slot]) -> Slot:
        self.backward = not self.backward
        y = describe(self._mirror(x))
        self.backward = not self.backward
        return self._mirror(y)

    def input(self, width: int) -> Slot:
        return self.read([Input("x", (width,))], width, lambda g, x: x)

    def lookup(self, table: Tensor) -> Slot:
        return self.read_symbols("x", table)

    def read_symbols(self, name: str, table: Tensor) -> Slot:
        """The rows of `table` that the input `name` has the numbers of."""
        inputs = [Input(name, symbols=len(table))]
        return self.read(inputs, table.shape[1], lambda g, x: g.add("Gather", g.array(table), x, axis=0))

    def read(self, inputs: list[Input], width: int, make: Emit) -> Slot:
        """What `make` makes of inputs of the graph."""
        slot = self._value(width)
        self.sources.append(Source(inputs, slot.number, make))
        return slot

    def state(self, width: int) -> Slot:
        raise NotImplementedError("`leaf` makes the slots of a state, with its name and first value")

    def constant(self, values: Tensor) -> Slot:
        kept = values.detach().to(self.dtype).flatten()
        return self._record(kept.numel(), [], lambda g: g.constant(kept))

    def linear(self, x: Slot, weight: Tensor, bias: Tensor | None = None) -> Slot:
        return self._record(len(weight), [x], lambda g, x: g.linear(x, weight, bias))

    def gated(
        self, kind: str, x: Slot, U: Tensor, b: Tensor | None, weights: tuple[Tensor, ...], state: Sequence[Slot],
        options: GatedOptions = GatedOptions(),  # noqa: B008  (a value)
        fed: Slot | None = None,
    ) -> Slot:  # fmt: skip
        if fed is not None or not self.loops(kind, options):
            raise Unstreamable(f"the loop {kind} is not a node of ONNX")
        turned = self.backward and x.number in self.mirrors
        node = Native(kind, U, b, weights, options.peephole, backwards=turned)
        inputs = Slot(self.mirrors[x.number], x.width) if turned else x
        leaves = [self.leaves[slot.number] for slot in state]
        names = [leaf.name for leaf in leaves]
        y = self._record(state[0].width, [inputs], lambda g, x: node(g, x, names), whole=True)
        self.operations[-1].native = True
        y = self._mirror(y) if turned else y
        for leaf in leaves:
            leaf.native, leaf.after = True, y.number
        return y

    def fed(self, x: Slot, fed: Slot, describe: Callable[[Slot], Slot]) -> Slot:
        """By equations, for nodes go through whole sequences: what is fed is there step by step."""
        native, self.native = self.native, False
        y = describe(self.concat([x, fed]))
        self.native = native
        return y

    def attend(
        self, query: Slot, keys: Tensor, values: Tensor, lengths: Tensor, v: Tensor | None, each: int
    ) -> tuple[Slot, Slot]:
        """To a memory that is an input of the graph: the numbers of this one are no part of it."""
        memory = self._reads(Memory(keys.shape[2], values.shape[2]))
        return self._record(values.shape[2], [query], lambda g, q: memory.attend(g, q, v)), Slot(-1, 0)

    def first(self, values: Tensor, each: int) -> tuple[Slot, Slot]:
        memory = self._reads(Memory(None, values.shape[2]))
        return self.read([], values.shape[2], memory.first), Slot(-1, 0)

    def _reads(self, memory: Memory) -> Memory:
        if self.memory is not None:
            raise Unstreamable("attention to more than one memory")
        self.memory = memory
        return memory

    def scan(self, a: Slot, b: Slot, h: Slot, *, is_complex: bool = False) -> Slot:
        turned = self.mul(a, h) if not is_complex else self._complex(a, h)
        return self.assign(h, self.add(turned, b))

    def _complex(self, a: Slot, h: Slot) -> Slot:
        """Products of pairs: (ar hr - ai hi, ar hi + ai hr)."""
        pairs = range(0, h.width, 2)
        real = self.gather(a, [i for pair in pairs for i in (pair, pair)])
        signs = self.constant(torch.tensor([-1.0, 1.0]).repeat(len(pairs)))
        imaginary = self.mul(self.gather(a, [i for pair in pairs for i in (pair + 1, pair + 1)]), signs)
        swapped = self.gather(h, [i for pair in pairs for i in (pair + 1, pair)])
        return self.add(self.mul(real, h), self.mul(imaginary, swapped))

    def selective(self, x: Slot, delta: Slot, A: Tensor, B: Slot, C: Slot, h: Slot) -> Slot:
        D, N = A.shape

        def emit(g: Graph, x: str, delta: str, B: str, C: str, h: str) -> list[str]:
            dt = g.split(delta, D, 1)
            decay = g.add("Exp", g.add("Mul", dt, g.array(A)))
            written = g.add("Mul", g.add("Mul", dt, g.split(x, D, 1)), g.split(B, 1, N))
            new = g.add("Add", g.add("Mul", decay, g.split(h, D, N)), written)
            s = g.join(g.add("MatMul", new, g.split(C, N, 1)), D)
            return [s, g.join(new, D * N)]

        return self._change([D, h.width], [x, delta, B, C, h], emit, [h])

    def bank(self, x: Slot, a: Tensor, b: Tensor, c: Tensor, h: Slot) -> Slot:
        D, N, _ = a.shape
        each = [n for n in range(D) for _ in range(2 * N)]
        pushed = self.mul(self.gather(x, each), self.constant(b.reshape(-1)))
        after = self.scan(self.constant(a.reshape(-1)), pushed, h, is_complex=True)
        read = self.mul(after, self.constant((c * c.new_tensor([1.0, -1.0])).reshape(-1)))
        return self._record(D, [read], lambda g, v: g.total(g.split(v, D, 2 * N), -1, keepdims=0))

    def matrix(
        self, shape: tuple[int, int, int], q: Slot, k: Slot, v: Slot, a: Slot | None, S: Slot,
        b: Slot | None = None, alpha: Slot | None = None, beta: Slot | None = None,
    ) -> Slot:  # fmt: skip
        H, K, V = shape
        leaf = self.leaves[S.number]
        if self.native and self.domain is not None and alpha is None and leaf.after == leaf.before:
            node = LinearAttention(self.domain, shape, q.width // K, a is not None, b is not None, leaf.name)
            s = self._record(H * V, [slot for slot in (q, k, v, a, b) if slot is not None], node, whole=True)
            self.constants.discard(s.number)  # S goes on, whatever is written
            leaf.native, leaf.after = True, s.number
            return s

        def heads(slot: Slot) -> Slot:
            """One key for each head, where a group of them has one."""
            G = slot.width // K
            return slot if G == H else self.gather(
                slot, [head * G // H * K + i for head in range(H) for i in range(K)]
            )  # fmt: skip

        slots = {"q": heads(q), "k": heads(k), "v": v, "a": a, "b": b}
        slots |= {"alpha": alpha and heads(alpha), "beta": beta and heads(beta)}
        given = {name: slot for name, slot in slots.items() if slot is not None}

        def emit(g: Graph, *names: str) -> list[str]:
            *parts, S = names
            of = dict(zip(given, parts, strict=True))
            before = g.split(S, H, K, V)
            row = {name: g.split(of[name], H, 1, K) for name in ("q", "alpha") if name in of}
            column = {name: g.split(of[name], H, K, 1) for name in ("k", "beta") if name in of}
            kept = before
            if a is not None:
                kept = g.add("Mul", g.split(of["a"], H, a.width // H, 1), before)
            if "alpha" in of:
                kept = g.add("Add", kept, g.add("Mul", column["beta"], g.add("MatMul", row["alpha"], before)))
            value = g.split(of["v"], H, 1, V)
            if "b" in of:
                known = g.add("MatMul", g.split(of["k"], H, 1, K), kept)
                value = g.add("Mul", g.split(of["b"], H, 1, 1), g.add("Sub", value, known))
            new = g.add("Add", kept, g.add("Mul", column["k"], value))
            return [g.join(g.add("MatMul", row["q"], new), H * V), g.join(new, H * K * V)]

        return self._change([H * V, S.width], [*given.values(), S], emit, [S])

    def filter(self, x: Slot, transition: Tensor, p: Slot) -> Slot:
        def emit(g: Graph, x: str, p: str) -> list[str]:
            log_u = g.add("Add", g.add("Log", p), x)
            most = g.add("ReduceMax", log_u, g.whole([-1]), keepdims=1)
            # Where an observation has the probability zero, p is zero for good, and not NaN.
            most = g.add("Where", g.add("IsInf", most), g.array([0.0]), most)
            u = g.add("Exp", g.add("Sub", log_u, most))
            total = g.total(u)
            total = g.add("Where", g.above(total, 0.0), total, g.array([1.0]))
            new = g.linear(g.add("Div", u, total), transition.T, None)
            return [new, g.add("Identity", new)]

        return self._change([p.width, p.width], [x, p], emit, [p])

    def convolution(self, x: Slot, weight: Tensor, bias: Tensor, window: Slot) -> Slot:
        K, D = weight.shape
        seen = self._window(x, window)
        total = self.mul(seen, self.constant(weight.reshape(-1)))
        y = self._record(D, [total], lambda g, v: g.total(g.split(v, K, D), -2, keepdims=0))
        return self.add(y, self.constant(bias))

    def _window(self, x: Slot, past: Slot) -> Slot:
        """The past and x side by side; the past moves on."""
        if not past.width:
            return x
        leaf, shape = self.leaves[past.number], (past.width // x.width, x.width)
        if self.native and leaf.after == leaf.before and self.now(x) not in self.constants:  # for all steps at once
            seen = self._record(past.width + x.width, [x], lambda g, x: g.windows(x, leaf.name, *shape), whole=True)
            leaf.native, leaf.after = True, seen.number
            return seen
        seen = self.concat([past, x])
        self.assign(past, self.cut(seen, x.width, past.width))
        return seen

    def map(self, function: str, x: Slot) -> Slot:
        return self._record(x.width, [x], lambda g, x: g.map(function, x))

    def add(self, x: Slot, y: Slot) -> Slot:
        return self._record(x.width, [x, y], lambda g, x, y: g.add("Add", x, y))

    def mul(self, x: Slot, y: Slot) -> Slot:
        return self._record(x.width, [x, y], lambda g, x, y: g.add("Mul", x, y))

    def div(self, x: Slot, y: Slot) -> Slot:
        return self._record(x.width, [x, y], lambda g, x, y: g.add("Div", x, y))

    def maximum(self, x: Slot, y: Slot) -> Slot:
        return self._record(x.width, [x, y], lambda g, x, y: g.add("Max", x, y))

    def minimum(self, x: Slot, y: Slot) -> Slot:
        return self._record(x.width, [x, y], lambda g, x, y: g.add("Min", x, y))

    def choose(self, condition: Slot, x: Slot, y: Slot) -> Slot:
        return self._record(x.width, [condition, x, y], lambda g, c, x, y: g.add("Where", g.above(c, 0.0), x, y))

    def gather(self, x: Slot, columns: Sequence[int]) -> Slot:
        places = list(columns)
        return self._record(len(places), [x], lambda g, x: g.gather(x, places))

    def lags(self, x: Slot, delays: Sequence[int], past: Slot) -> Slot:
        D, most = x.width, past.width // x.width
        seen = self._window(x, past)
        return self.gather(seen, [(most - delay) * D + i for delay in delays for i in range(D)])

    def mean(self, decay: float, x: Slot, weight: Slot, sum: Slot, total: Slot) -> Slot:
        def emit(g: Graph, x: str, weight: str, sum: str, total: str) -> list[str]:
            rate = g.store.array(np.array([decay]))
            new = g.add("Add", g.add("Mul", sum, rate), g.cast(x, np.float64))
            count = g.add("Add", g.add("Mul", total, rate), g.cast(weight, np.float64))
            some = g.add("Greater", count, g.store.array(np.zeros(1)))
            quotient = g.add("Div", new, g.add("Where", some, count, g.store.array(np.ones(1))))
            y = g.add("Where", some, quotient, g.store.array(np.zeros(1)))
            return [g.cast(y, g.store.dtype), new, count]

        return self._change([x.width, sum.width, total.width], [x, weight, sum, total], emit, [sum, total])

    def layer_norm(self, x: Slot, gain: Tensor, bias: Tensor | None, eps: float, heads: int = 1) -> Slot:
        return self._record(x.width, [x], lambda g, v: g.norm(v, x.width, gain, bias, eps, heads, centred=True))

    def rms_norm(self, x: Slot, gain: Tensor, eps: float, heads: int = 1) -> Slot:
        return self._record(x.width, [x], lambda g, v: g.norm(v, x.width, gain, None, eps, heads, centred=False))

    def concat(self, parts: Sequence[Slot]) -> Slot:
        fixed = [self.now(part) in self.constants for part in parts]
        widths = [part.width for part in parts]

        def emit(g: Graph, *names: str) -> str:
            like = next((name for name, is_fixed in zip(names, fixed, strict=True) if not is_fixed), None)
            spread = [
                g.expand(name, like, width) if is_fixed and like else name
                for name, is_fixed, width in zip(names, fixed, widths, strict=True)
            ]
            return g.add("Concat", *spread, axis=-1)

        return self._record(sum(widths), list(parts), emit)

    def cut(self, x: Slot, first: int, width: int) -> Slot:
        return self._record(width, [x], lambda g, x: g.cut(x, first, first + width))

    def student_t(self, df: Slot, mean: Slot, scale: Slot) -> Slot:
        raise Unstreamable("a draw")

    def assign(self, state: Slot, x: Slot) -> Slot:
        self._set(state, self.now(x))
        return state

    def _value(self, width: int) -> Slot:
        self.widths.append(width)
        return Slot(len(self.widths) - 1, width)

    def now(self, slot: Slot) -> int:
        """The number of what a slot holds at this point."""
        leaf = self.leaves.get(slot.number)
        return slot.number if leaf is None else leaf.after

    def _set(self, slot: Slot, value: int) -> None:
        leaf = self.leaves[slot.number]
        leaf.after, leaf.backwards = value, self.backward

    def _record(self, width: int, inputs: Sequence[Slot], emit: Emit, *, whole: bool = False) -> Slot:
        y = self._value(width)
        numbers = [self.now(slot) for slot in inputs]
        self.operations.append(Operation(numbers, [y.number], emit, whole))
        if all(number in self.constants for number in numbers):
            self.constants.add(y.number)
        return y

    def _change(self, widths: Sequence[int], inputs: Sequence[Slot], emit: Emit, leaves: Sequence[Slot]) -> Slot:
        """An operation whose outputs are y and what the leaves become."""
        y, *after = [self._value(width) for width in widths]
        numbers = [self.now(slot) for slot in inputs]
        self.operations.append(Operation(numbers, [y.number, *(slot.number for slot in after)], emit))
        for leaf, new in zip(leaves, after, strict=True):
            self._set(leaf, new.number)
        return y

    def _mirror(self, x: Slot) -> Slot:
        """x from each row's last valid input to its first."""
        number = self.now(x)
        if number in self.constants:
            return x
        if number not in self.mirrors:
            y = self._record(x.width, [x], lambda g, x: g.reverse(x), whole=True)
            self.mirrors |= {number: y.number, y.number: number}
        return Slot(self.mirrors[number], x.width)


def leaves_of(record: Recorder, core: Core) -> AnyState:
    """The state of a core, with a slot in the place of each leaf."""
    like = core.init_state(1)
    names = iter(states.names(like))
    return states.map(lambda leaf: cast(Tensor, record.leaf(next(names), leaf)), like)

"""The native builder: a program of csrc/stream.cpp, weights packed, values in between in preallocated slots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from elman import _native
from elman.errors import InputError
from elman.kernels.builder import FUNCTIONS, Builder, Slot, Unstreamable
from elman.kernels.native.attention import memory_of
from elman.kernels.native.gated import KINDS, option_shapes, weights_of
from elman.kernels.reference import GatedOptions

PROGRAMS = {torch.float32: _native.program_f32, torch.float64: _native.program_f64}


class Program(Builder):
    """Steps on slots, which copy the weights that they are given. `finish` it; then it makes streams."""

    def __init__(self, dtype: torch.dtype) -> None:
        if dtype not in PROGRAMS:
            raise Unstreamable(f"a program in {dtype}")
        self.dtype = dtype
        self.native = PROGRAMS[dtype]()
        self.columns: list[slice] = []  # of each leaf in a row of the state
        self.looks_up = False  # whether a step is given symbols
        self.bound: int | None = None  # rows that a memory is there for

    def finish(self, x: Slot, y: Slot) -> None:
        """A step is given x, an `input` or a `lookup`, and gives y."""
        self.native.finish(x.number, y.number)
        self.input_size, self.output_size = x.width, y.width

    def stream(self, batch_size: int) -> Any:
        """So many rows of state, to be stepped: a Stream of csrc/bind.cpp."""
        if self.bound not in (None, batch_size):
            raise InputError(f"a stream of {batch_size} rows was asked for; the core has a memory for {self.bound}")
        return self.native.stream(batch_size)

    def input(self, width: int) -> Slot:
        return self._slot(width)

    def lookup(self, table: Tensor) -> Slot:
        """A product of the rows is made once for each symbol and remembered, unless that would take much memory."""
        if table.dtype != self.dtype:
            raise Unstreamable(f"a table of {table.dtype} beside {self.dtype}")
        rows = self._array(table, None)
        self.looks_up = True
        return Slot(self.native.lookup(*table.shape, _address(rows)), table.shape[1])

    def state(self, width: int) -> Slot:
        slot = Slot(self.native.state(width), width)
        begin = self.native.state_begin(slot.number)
        self.columns.append(slice(begin, begin + width))
        return slot

    def constant(self, values: Tensor) -> Slot:
        array = self._array(values, None)
        return Slot(self.native.constant(values.numel(), _address(array)), values.numel())

    def linear(self, x: Slot, weight: Tensor, bias: Tensor | None = None) -> Slot:
        w, b = self._array(weight, (len(weight), x.width)), self._array(bias, weight.shape[:1])
        return Slot(self.native.linear(x.number, len(weight), _address(w), _address(b)), len(weight))

    def gated(
        self, kind: str, x: Slot, U: Tensor, b: Tensor | None, weights: tuple[Tensor, ...], state: Sequence[Slot],
        options: GatedOptions = GatedOptions(),  # noqa: B008  (a value)
        fed: Slot | None = None,
    ) -> Slot:  # fmt: skip
        facts, R = KINDS[kind], state[0].width
        if fed is not None and not (facts.attends and all(option is None for option in options)):
            # A scan of it is a loop over its step, whose bits are others.
            raise Unstreamable(f"the gated cell {kind} with these options, fed")
        H = R if options.P is None else state[1].width
        N = facts.gates * H
        w = self._array(weights[0], (N, R)) if facts.matrix else None
        extra = self._array(weights[-1], None) if len(weights) > 1 or w is None else None
        arrays = GatedOptions(*map(self._array, options, option_shapes(kind, H, R)))
        further = self._array(U[:, x.width :], (N, fed.width if fed else 0))
        own = self._array(U[:, : x.width], (N, x.width))
        struct = weights_of(kind, x.width, H, R, own, self._array(b, (N,)), w, extra, arrays)
        c = state[1].number if len(state) > 1 else -1
        self.native.gated(struct, x.number, fed.number if fed else -1, _address(further), state[0].number, c)
        return state[0]

    def attend(
        self, query: Slot, keys: Tensor, values: Tensor, lengths: Tensor, v: Tensor | None, each: int
    ) -> tuple[Slot, Slot]:
        B, S, A = keys.shape
        _expect({"query": query}, A)
        self.bound = B * each
        weights = self._slot(S)
        k, m = (part.detach().to(self.dtype) for part in (keys, values))
        memory = memory_of(None, k, m, self._array(v, (A,)), lengths, B, 1, A)
        context = self.native.attend(query.number, weights.number, memory, each)
        return Slot(context, values.shape[2]), weights

    def scan(self, a: Slot, b: Slot, h: Slot, *, is_complex: bool = False) -> Slot:
        self.native.scan(is_complex, a.number, b.number, h.number)
        return h

    def selective(self, x: Slot, delta: Slot, A: Tensor, B: Slot, C: Slot, h: Slot) -> Slot:
        D, N = A.shape
        _expect({"x": x, "delta": delta}, D)
        _expect({"B": B, "C": C}, N)
        _expect({"h": h}, D * N)
        a = self._array(A, None)
        return Slot(self.native.selective(x.number, delta.number, N, _address(a), B.number, C.number, h.number), D)

    def bank(self, x: Slot, a: Tensor, b: Tensor, c: Tensor, h: Slot) -> Slot:
        D, N, _ = a.shape
        _expect({"x": x}, D)
        _expect({"h": h}, D * N * 2)
        arrays = [self._array(v, a.shape) for v in (a, b, c)]
        return Slot(self.native.bank(x.number, N, *map(_address, arrays), h.number), D)

    def filter(self, x: Slot, transition: Tensor, p: Slot) -> Slot:
        _expect({"x": x}, p.width)
        a = self._array(transition, (p.width, p.width))
        self.native.filter(x.number, _address(a), p.number)
        return p

    def convolution(self, x: Slot, weight: Tensor, bias: Tensor, window: Slot) -> Slot:
        K, D = weight.shape
        _expect({"x": x}, D)
        _expect({"window": window}, (K - 1) * D)
        w, b = self._array(weight, None), self._array(bias, (D,))
        return Slot(self.native.convolution(x.number, K, _address(w), _address(b), window.number), D)

    def map(self, function: str, x: Slot) -> Slot:
        return Slot(self.native.map(FUNCTIONS.index(function), x.number), x.width)

    def add(self, x: Slot, y: Slot) -> Slot:
        return self._combine(0, x, y)

    def mul(self, x: Slot, y: Slot) -> Slot:
        return self._combine(1, x, y)

    def div(self, x: Slot, y: Slot) -> Slot:
        return self._combine(2, x, y)

    def maximum(self, x: Slot, y: Slot) -> Slot:
        return self._combine(3, x, y)

    def minimum(self, x: Slot, y: Slot) -> Slot:
        return self._combine(4, x, y)

    def choose(self, condition: Slot, x: Slot, y: Slot) -> Slot:
        _expect({"x": x, "y": y}, condition.width)
        return Slot(self.native.choose(condition.number, x.number, y.number), x.width)

    def gather(self, x: Slot, columns: Sequence[int]) -> Slot:
        places = np.asarray(columns, np.int64)
        if len(places) and not 0 <= places.min() <= places.max() < x.width:
            raise InputError(f"the columns {list(columns)} of a slot of width {x.width} were asked for")
        return Slot(self.native.gather(x.number, places), len(places))

    def lags(self, x: Slot, delays: Sequence[int], past: Slot) -> Slot:
        ago = np.asarray(delays, np.int64)
        _expect({"past": past}, int(ago.max()) * x.width)
        return Slot(self.native.lags(x.number, ago, past.number), len(ago) * x.width)

    def mean(self, decay: float, x: Slot, weight: Slot, sum: Slot, total: Slot) -> Slot:
        each = torch.float64.itemsize // self.dtype.itemsize
        _expect({"sum": sum}, each * x.width)
        _expect({"total": total}, each * weight.width)
        if weight.width not in (1, x.width):
            raise InputError(f"weight is a slot of width {weight.width}; it must be 1 or {x.width} wide")
        return Slot(self.native.mean(decay, x.number, weight.number, sum.number, total.number), x.width)

    def layer_norm(self, x: Slot, gain: Tensor, bias: Tensor | None, eps: float) -> Slot:
        g, b = self._array(gain, (x.width,)), self._array(bias, (x.width,))
        return Slot(self.native.norm(True, x.number, _address(g), _address(b), eps), x.width)

    def rms_norm(self, x: Slot, gain: Tensor, eps: float) -> Slot:
        return Slot(self.native.norm(False, x.number, _address(self._array(gain, (x.width,))), 0, eps), x.width)

    def concat(self, parts: Sequence[Slot]) -> Slot:
        y = self._slot(sum(part.width for part in parts))
        at = 0
        for part in parts:
            self.native.copy(part.number, 0, part.width, y.number, at)
            at += part.width
        return y

    def cut(self, x: Slot, first: int, width: int) -> Slot:
        if not 0 <= first <= first + width <= x.width:
            raise InputError(f"the columns {first} to {first + width} of a slot of width {x.width} were asked for")
        return Slot(self.native.cut(x.number, first, width), width)

    def student_t(self, df: Slot, mean: Slot, scale: Slot) -> Slot:
        _expect({"mean": mean, "scale": scale}, df.width)
        return Slot(self.native.student_t(df.number, mean.number, scale.number), df.width)

    def assign(self, state: Slot, x: Slot) -> Slot:
        self.native.copy(x.number, 0, x.width, state.number, 0)
        return state

    def _slot(self, width: int) -> Slot:
        return Slot(self.native.slot(width), width)

    def _combine(self, function: int, x: Slot, y: Slot) -> Slot:
        if x.width != y.width:
            raise InputError(f"slots of widths {x.width} and {y.width} cannot be combined; they must be as wide")
        return Slot(self.native.combine(function, x.number, y.number), x.width)

    def _array(self, x: Tensor | None, shape: Sequence[int] | None) -> Tensor | None:
        """`x` as the program reads it; it copies what it reads before it returns."""
        if x is None:
            return None
        if shape is not None and x.shape != tuple(shape):
            raise InputError(f"a stream was given an array of shape {list(x.shape)} where {list(shape)} is needed")
        if x.device.type != "cpu":
            raise Unstreamable("parameters that are not on the CPU")
        return x.detach().to(self.dtype).contiguous()


def _expect(slots: dict[str, Slot], width: int) -> None:
    for name, slot in slots.items():
        if slot.width != width:
            raise InputError(f"{name} is a slot of width {slot.width}; it must be {width} wide")


def _address(x: Tensor | None) -> int:
    return 0 if x is None else x.data_ptr()

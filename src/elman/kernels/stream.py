"""`Stream`: one input at a time, at the speed of the arithmetic. Equal to `scan` in steps of one, bit for bit.

A stream compiles a module into a `Program` of csrc/stream.cpp once: weights are packed (a frozen snapshot), values in
between live in preallocated slots, the state of a row in one stretch of memory, and a step of any of the rows is one
call.

A Core takes part by a method of its own, the counterpart of `_scan`:

    def _stream(self, program: Program, x: Slot, state: Any) -> Slot

`x` is the slot (rows, input_size) that holds the input; `state` has the structure of `init_state`, with a slot in the
place of each leaf. It appends to `program` what turns x and the state into y, updating the state in place, and returns
the slot of y:

    return program.gated("gru", x, self.U, self.b, (self.W, self.c), (state.h,))    # a gated cell, by its base class
    return program.add(x, program.core(self.inner, x, state))                       # a residual
    return step_through(program, self.step, x, state, self.init_state(1))           # any equation: kernels/trace.py
    for core, part in zip(self.cores, state):                                       # a stack
        x = program.core(core, x, part)                                             # asks each core for its `_stream`

The embedding of a model takes part by `_stream(program) -> Slot`, the vectors of the symbols that a step is given; the
read-out by `_stream(program, h) -> Slot`, which appends its product, and `distribution`, which makes of its result
what the read-out gives. Without them they are called before and after the core.

A leaf of more than two axes is a slot of all its numbers in a row; a complex one, of (real, imaginary) pairs. Where a
core has no `_stream`, or raises `Unstreamable` for an option without a native form, the whole module is scanned in
steps of one.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from elman import kernels
from elman import state as states
from elman.errors import InputError
from elman.kernels.trace import Unstreamable as Unstreamable
from elman.options import whole
from elman.state import REAL, State

SUFFIX = {torch.float32: "_f32", torch.float64: "_f64"}
FUNCTIONS = ("sigmoid", "tanh", "softplus", "silu", "relu")


@dataclass(frozen=True)
class Slot:
    """An array (rows, width) of a program."""

    number: int
    width: int


Slots = Slot | tuple["Slots", ...]  # a state with a slot in the place of each leaf


class Program:
    """Steps on slots, appended in the order in which they will run. Every method returns the slot that it fills."""

    def __init__(self, dtype: torch.dtype) -> None:
        from elman import _native

        self.dtype = dtype
        self.native = getattr(_native, "program" + SUFFIX[dtype])()

    def slot(self, width: int) -> Slot:
        """Zeros (rows, width): an input."""
        return Slot(self.native.slot(width), width)

    def state(self, width: int) -> Slot:
        """A leaf of the state, (rows, width)."""
        return Slot(self.native.state(width), width)

    def lookup(self, table: Tensor) -> Slot:
        """The rows of `table` (V, width) that the symbols of a step name: the input of a program, in place of `slot`.

        A product of them is made once for each symbol and remembered, unless that would take much memory.
        """
        if table.dtype != self.dtype:
            raise Unstreamable(f"a table of {table.dtype} beside {self.dtype}")
        rows = self._array(table, None)
        return Slot(self.native.lookup(*table.shape, _address(rows)), table.shape[1])

    def core(self, core: nn.Module, x: Slot, state: Any) -> Slot:
        """What `core` makes of x and of its state."""
        if not hasattr(core, "_stream"):
            raise Unstreamable(f"{type(core).__name__} has no `_stream`")
        y: Slot = core._stream(self, x, state)  # type: ignore[operator]
        return y

    def linear(self, x: Slot, weight: Tensor, bias: Tensor | None = None) -> Slot:
        """x W^T + b, W (N, D), b (N,)."""
        w, b = self._array(weight, (len(weight), x.width)), self._array(bias, weight.shape[:1])
        return Slot(self.native.linear(x.number, len(weight), _address(w), _address(b)), len(weight))

    def gated(
        self, kind: str | None, x: Slot, U: Tensor, b: Tensor | None, weights: tuple[Tensor, ...],
        state: Sequence[Slot], options: kernels.GatedOptions | None = None,
    ) -> Slot:  # fmt: skip
        """A gated cell over U x + b; `kind`, `weights`, `options` as in `kernels.gated`. y is its first state."""
        from elman.kernels.native.gated import KINDS, option_shapes, weights_of

        if kind is None:
            raise Unstreamable("a variant of a gated cell that has no native loop")
        facts, R, given = KINDS[kind], state[0].width, options or kernels.GatedOptions()
        H = R if given.P is None else state[1].width
        N = facts.gates * H
        w = self._array(weights[0], (N, R)) if facts.matrix else None
        extra = self._array(weights[-1], None) if len(weights) > 1 or w is None else None
        arrays = kernels.GatedOptions(*map(self._array, given, option_shapes(kind, H, R)))
        struct = weights_of(kind, x.width, H, R, self._array(U, (N, x.width)), self._array(b, (N,)), w, extra, arrays)
        self.native.gated(struct, x.number, state[0].number, state[1].number if len(state) > 1 else -1)
        return state[0]

    def scan(self, a: Slot, b: Slot, h: Slot, *, is_complex: bool = False) -> Slot:
        """h = a * h + b, in place; slots of (real, imaginary) pairs if `is_complex`."""
        self.native.scan(is_complex, a.number, b.number, h.number)
        return h

    def selective(self, x: Slot, delta: Slot, A: Tensor, B: Slot, C: Slot, h: Slot) -> Slot:
        """h = exp(delta A) * h + delta x B, in place, h (D * N) and A (D, N): sum_n C[n] h[:, n]."""
        D, N = A.shape
        self._expect({"x": x, "delta": delta}, D)
        self._expect({"B": B, "C": C}, N)
        self._expect({"h": h}, D * N)
        a = self._array(A, None)
        return Slot(self.native.selective(x.number, delta.number, N, _address(a), B.number, C.number, h.number), D)

    def bank(self, x: Slot, a: Tensor, b: Tensor, c: Tensor, h: Slot) -> Slot:
        """h = a h + b x, in place, h (D * N) pairs and a, b, c (D, N, 2): sum_n Re(c[:, n] h[:, n])."""
        D, N, _ = a.shape
        self._expect({"x": x}, D)
        self._expect({"h": h}, D * N * 2)
        arrays = [self._array(v, a.shape) for v in (a, b, c)]
        return Slot(self.native.bank(x.number, N, *map(_address, arrays), h.number), D)

    def convolution(self, x: Slot, weight: Tensor, bias: Tensor, window: Slot) -> Slot:
        """bias + sum_k weight[k] * (the last K values of x)[k], weight (K, D), `window` ((K - 1) * D) in place."""
        K, D = weight.shape
        self._expect({"x": x}, D)
        self._expect({"window": window}, (K - 1) * D)
        w, b = self._array(weight, None), self._array(bias, (D,))
        return Slot(self.native.convolution(x.number, K, _address(w), _address(b), window.number), D)

    def constant(self, values: Tensor) -> Slot:
        """`values` (width,), the same in every row."""
        array = self._array(values, None)
        return Slot(self.native.constant(values.numel(), _address(array)), values.numel())

    def map(self, function: str, x: Slot) -> Slot:
        """sigmoid, tanh, softplus, silu or relu of every element."""
        return Slot(self.native.map(FUNCTIONS.index(function), x.number), x.width)

    def add(self, x: Slot, y: Slot) -> Slot:
        """x + y."""
        return self._combine(0, x, y)

    def mul(self, x: Slot, y: Slot) -> Slot:
        """x * y."""
        return self._combine(1, x, y)

    def negative(self, x: Slot) -> Slot:
        """-x."""
        return self.mul(x, self.constant(torch.full((x.width,), -1.0)))

    def layer_norm(self, x: Slot, gain: Tensor, bias: Tensor | None, eps: float) -> Slot:
        """gain * (x - mean x) / sqrt(var x + eps) + bias, for each row."""
        g, b = self._array(gain, (x.width,)), self._array(bias, (x.width,))
        return Slot(self.native.norm(True, x.number, _address(g), _address(b), eps), x.width)

    def rms_norm(self, x: Slot, gain: Tensor, eps: float) -> Slot:
        """gain * x / sqrt(mean x^2 + eps), for each row."""
        return Slot(self.native.norm(False, x.number, _address(self._array(gain, (x.width,))), 0, eps), x.width)

    def concat(self, parts: Sequence[Slot]) -> Slot:
        """The columns of all parts side by side."""
        y = self.slot(sum(part.width for part in parts))
        at = 0
        for part in parts:
            self.native.copy(part.number, 0, part.width, y.number, at)
            at += part.width
        return y

    def cut(self, x: Slot, first: int, width: int) -> Slot:
        """`width` columns of x from column `first` on."""
        y = self.slot(width)
        self.native.copy(x.number, first, width, y.number, 0)
        return y

    def assign(self, state: Slot, x: Slot) -> None:
        """The slot `state` becomes x."""
        self.native.copy(x.number, 0, x.width, state.number, 0)

    def _expect(self, slots: dict[str, Slot], width: int) -> None:
        for name, slot in slots.items():
            if slot.width != width:
                raise InputError(f"{name} is a slot of width {slot.width}; it must be {width} wide")

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


class Stream:
    """A module that is fed one input of some sessions at a time, and keeps the states of all: a row is a session.

    `module` is a Core, or a whole model, which takes what its embedding takes. Later changes of the module do not reach
    the stream. Not for several threads at once; `share` gives a second stream on the same packed weights.

    >>> import elman
    >>> stream = Stream(elman.cell("gru", 3, 4), batch_size=2)
    >>> stream.step(np.zeros((2, 3), np.float32)).shape
    (2, 4)
    >>> stream.step(np.zeros((1, 3), np.float32), rows=[1]).shape      # the second session alone
    (1, 4)
    >>> saved = stream.take([1])        # its state, a value
    >>> stream.put([0], saved)          # the first session goes on from there
    """

    def __init__(self, module: nn.Module, batch_size: int) -> None:
        if not isinstance(module, nn.Module) or not hasattr(module, "init_state") or not hasattr(module, "scan"):
            raise InputError(
                f"Stream was given a {type(module).__name__}; it takes a Core or a SequenceModel. "
                "elman.from_torch makes a Core of an nn.RNN, nn.GRU or nn.LSTM."
            )
        self.batch_size = batch_size = whole("batch_size", batch_size)
        model: Any = _frozen(module) if any(part.training for part in module.modules()) else module
        self._whole = hasattr(model, "embed")
        parts: tuple[Any, ...] = (model.core, model.embed, model.readout) if self._whole else (model, None, None)
        core, embed, readout = parts
        if not core.causal:
            raise InputError(
                f"{type(core).__name__} reads the future, so it cannot be streamed; stream a core without Reverse in it"
            )
        # Packing copies the weights; what is not packed has to be copied here.
        packed = _packed(core, embed, readout)
        self._engine = _Scanned(_frozen(core), batch_size) if packed is None else _Native(packed, batch_size)
        self._looks_up = packed is not None and packed.looks_up
        self._embed = _symbols if self._looks_up else _frozen(embed)
        self._finish = readout.distribution if self.native and hasattr(readout, "_stream") else _frozen(readout)

    @property
    def native(self) -> bool:
        """Whether a step is one native call, rather than a scan of length one."""
        return isinstance(self._engine, _Native)

    def share(self, batch_size: int) -> Stream:
        """Another stream on the same weights, which are not packed again, with rows of its own."""
        other = copy.copy(self)
        other.batch_size = whole("batch_size", batch_size)
        other._engine = self._engine.share(other.batch_size)
        return other

    def step(self, x: Array, rows: Rows = None) -> Array:
        """One input for each of the rows, all by default: x (n, D) -> y (n, H), array to array and tensor to tensor.

        The states of these rows move on; the others do not. No row may be named twice.
        """
        if self._whole:
            raise InputError("the stream has a whole model: ask for `distribution(x)`, or for `logits(symbols)`")
        if isinstance(x, np.ndarray):
            return self._engine.step(x, None if rows is None else _numbers(rows))
        return self._engine.tensors(x, _numbers(rows))

    @torch.no_grad()
    def distribution(self, x: Any, rows: Rows = None) -> Any:
        """What a whole model says of what follows one input for each of the rows."""
        if not self._whole:
            raise InputError("the stream has a core, which gives no distribution: ask for `step(x)`")
        return self._finish(self._engine.tensors(self._embed(torch.as_tensor(x)), _numbers(rows)))

    def logits(self, symbols: np.ndarray, rows: Rows = None) -> np.ndarray:
        """The logits (n, V) of a model that ends in a softmax for symbols (n,) int64, if possible without Torch."""
        symbols = np.asarray(symbols)
        if symbols.dtype != np.int64:  # 0.5 is not the symbol 0
            given = f"{symbols.dtype}{list(symbols.shape)}"
            raise InputError(f"logits was given {given}; it needs int64[{self.batch_size if rows is None else 'n'}]")
        if self._looks_up:
            return self._engine.step(symbols, None if rows is None else _numbers(rows))
        logits: np.ndarray = self.distribution(symbols, rows).logits.numpy()
        return logits

    def take(self, rows: Rows = None) -> State:
        """The states of the rows, all by default, as a value: changing it does not change the stream."""
        return self._engine.take(self._checked(rows))

    def put(self, rows: Rows, state: State) -> None:
        """The rows, or all if that is None, go on from these states: the inverse of `take`."""
        numbers = _distinct(self._checked(rows))
        like = states.map(lambda leaf: leaf.new_empty((len(numbers), *leaf.shape[1:])), self._engine.like)
        if states.describe(states.map(torch.empty_like, state)) != states.describe(like):
            raise InputError(f"the state is {states.describe(state)}, but the stream's is {states.describe(like)}")
        self._engine.put(numbers, state)

    @property
    def state(self) -> State:
        """The state of every row: take() and put() of all."""
        return self.take()

    @state.setter
    def state(self, state: State) -> None:
        self.put(None, state)

    def _checked(self, rows: Rows) -> np.ndarray:
        numbers = _numbers(rows)
        return np.arange(self.batch_size) if numbers is None else _inside(numbers, self.batch_size)


Array = TypeVar("Array", np.ndarray, Tensor)
Rows = Sequence[int] | np.ndarray | Tensor | None


def _numbers(rows: Rows) -> np.ndarray | None:
    if rows is None:
        return None
    numbers = np.asarray(rows)
    if numbers.ndim != 1 or (numbers.dtype.kind not in "iu" and len(numbers)):
        raise InputError(f"rows is {numbers.dtype}{list(numbers.shape)}; it names rows by their numbers: [0, 2, 5]")
    return np.ascontiguousarray(numbers, np.int64)


def _inside(rows: np.ndarray, batch_size: int) -> np.ndarray:
    if len(rows) and not 0 <= rows.min() <= rows.max() < batch_size:
        raise InputError(f"the rows {rows.tolist()} were named; the stream has the rows 0 to {batch_size - 1}")
    return rows


def _distinct(rows: np.ndarray) -> np.ndarray:
    if len(np.unique(rows)) < len(rows):
        raise InputError(f"the rows {rows.tolist()} were named; none may be named twice")
    return rows


class _Packed:
    """A program, its weights packed, and where the leaves of a state lie in a row of it."""

    def __init__(self, core: Any, embed: Any, readout: Any, dtype: torch.dtype) -> None:
        program, self.looks_up = Program(dtype), hasattr(embed, "_stream")
        x = embed._stream(program) if self.looks_up else program.slot(core.input_size)
        self.columns: list[slice] = []  # of each leaf in a row

        def leaf_slot(leaf: Tensor) -> Any:  # a slot in the place of the leaf
            slot = program.state(_width(leaf, dtype))
            begin = program.native.state_begin(slot.number)
            self.columns.append(slice(begin, begin + slot.width))
            return slot

        y = program.core(core, x, states.map(leaf_slot, core.init_state(1)))
        if hasattr(readout, "_stream"):
            y = readout._stream(program, y)
        program.native.finish(x.number, y.number)
        self.program, self.dtype, self.input, self.output = program.native, dtype, x.width, y.width
        self.init_state = core.init_state


class _Native:
    """The rows of a stream, stepped, read and written by csrc/stream.cpp."""

    def __init__(self, packed: _Packed, batch_size: int) -> None:
        self._packed, self._rows = packed, packed.program.stream(batch_size)
        self._numpy = np.dtype(str(packed.dtype).removeprefix("torch."))
        self._run = self._rows.step_symbols if packed.looks_up else self._rows.step
        self._batch_size, self._shape = batch_size, (batch_size, packed.output)
        self.like = packed.init_state(1)
        self.put(np.arange(batch_size), packed.init_state(batch_size))

    def share(self, batch_size: int) -> _Native:
        return _Native(self._packed, batch_size)

    def step(self, x: np.ndarray, rows: np.ndarray | None) -> np.ndarray:
        y = np.empty(self._shape if rows is None else (len(rows), self._packed.output), self._numpy)
        try:  # checked where it costs least, in the call
            self._run(x, rows, y, 1 if len(y) == 1 else torch.get_num_threads())
        except IndexError:
            if rows is not None:
                _distinct(_inside(rows, self._batch_size))
            raise InputError(f"a step was given the symbols {x.tolist()}; the model has no such symbol") from None
        except (TypeError, ValueError):
            needs = f"int64[{len(y)}]" if self._packed.looks_up else f"{self._numpy}[{len(y)}, {self._packed.input}]"
            raise InputError(f"a step was given {x.dtype}{list(x.shape)}; it needs {needs}") from None
        return y

    def tensors(self, x: Tensor, rows: np.ndarray | None) -> Tensor:
        return torch.from_numpy(self.step(x.detach().numpy(), rows))

    def take(self, rows: np.ndarray) -> State:
        stretches = torch.empty((len(rows), self._rows.state_row), dtype=self._packed.dtype)
        self._rows.take(rows.ctypes.data, len(rows), stretches.data_ptr())
        return self._leaves(stretches)

    def put(self, rows: np.ndarray, state: State) -> None:
        stretches = torch.zeros((len(rows), self._rows.state_row), dtype=self._packed.dtype)
        states.map(lambda leaf, new: leaf.copy_(new.detach()), self._leaves(stretches), state)
        self._rows.put(rows.ctypes.data, len(rows), stretches.data_ptr())

    def _leaves(self, stretches: Tensor) -> State:
        """The leaves of the states, each a view of its columns."""
        columns = iter(self._packed.columns)

        def view(like: Tensor) -> Tensor:
            numbers = stretches[:, next(columns)]
            shape = (*like.shape[1:], 2) if like.is_complex() else like.shape[1:]
            leaf = numbers.unflatten(1, shape)
            return torch.view_as_complex(leaf) if like.is_complex() else leaf

        return states.map(view, self.like)


class _Scanned:
    """What has no native form: scans of length one."""

    def __init__(self, core: Any, batch_size: int) -> None:
        self._core, self._batch_size = core, batch_size
        self.like, self._state = core.init_state(1), core.init_state(batch_size)

    def share(self, batch_size: int) -> _Scanned:
        return _Scanned(self._core, batch_size)

    def step(self, x: np.ndarray, rows: np.ndarray | None) -> np.ndarray:
        after: np.ndarray = self.tensors(torch.from_numpy(np.ascontiguousarray(x)), rows).numpy()
        return after

    @torch.no_grad()
    def tensors(self, x: Tensor, rows: np.ndarray | None) -> Tensor:
        if rows is None:
            y, self._state = self._core.scan(x.unsqueeze(1), self._state)
        else:
            y, moved = self._core.scan(x.unsqueeze(1), self.take(_distinct(_inside(rows, self._batch_size))))
            self.put(rows, moved)
        after: Tensor = y.squeeze(1)
        return after

    def take(self, rows: np.ndarray) -> State:
        return states.take(self._state, torch.from_numpy(rows))

    def put(self, rows: np.ndarray, state: State) -> None:
        self._state = states.put(self._state, torch.from_numpy(rows), state)


def _frozen(module: Any) -> Any:
    """A copy that later changes of the module do not reach."""
    return None if module is None else copy.deepcopy(module).eval().requires_grad_(False)


def _symbols(x: Tensor) -> Tensor:
    if x.is_floating_point() or x.is_complex():
        raise InputError(f"a step was given {x.dtype}{list(x.shape)}; the model reads symbols, which are integers")
    return x.long()


def _packed(core: Any, embed: Any, readout: Any) -> _Packed | None:
    dtypes = {REAL.get(t.dtype, t.dtype) for t in (*core.parameters(), *states.leaves(core.init_state(1)))}
    if kernels.active() != "native" or len(dtypes) != 1 or not dtypes <= set(SUFFIX):
        return None
    try:
        return _Packed(core, embed, readout, dtypes.pop())
    except Unstreamable:
        return None


def _width(leaf: Tensor, dtype: torch.dtype) -> int:
    if REAL.get(leaf.dtype, leaf.dtype) != dtype:
        raise Unstreamable(f"a state of {leaf.dtype} beside {dtype}")
    return leaf[0].numel() * (2 if leaf.is_complex() else 1)


def _address(x: Tensor | None) -> int:
    return 0 if x is None else x.data_ptr()

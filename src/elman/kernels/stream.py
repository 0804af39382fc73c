"""`Stream`: one input at a time, at the speed of the arithmetic. Equal to `scan` in steps of one, bit for bit.

A stream compiles a module into a `Program` of csrc/stream.cpp once: weights are packed (a frozen snapshot), states and
all values in between live in preallocated slots, and a step is one call.

A Core takes part by a method of its own, the counterpart of `_scan`:

    def _stream(self, program: Program, x: Slot, state: Any) -> Slot

`x` is the slot (B, input_size) that holds the input; `state` has the structure of `init_state`, with a slot in the
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
from typing import Any

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
    """An array (B, width) of a program."""

    number: int
    width: int


Slots = Slot | tuple["Slots", ...]  # a state with a slot in the place of each leaf


class Program:
    """Steps on slots, appended in the order in which they will run. Every method returns the slot that it fills."""

    def __init__(self, batch_size: int, dtype: torch.dtype) -> None:
        from elman import _native

        self.dtype = dtype
        self.native = getattr(_native, "program" + SUFFIX[dtype])(batch_size)

    def slot(self, width: int) -> Slot:
        """Zeros (B, width), to be written from outside: an input, a state."""
        return Slot(self.native.slot(width), width)

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
        from elman.kernels.native.gated import KINDS, option_shapes

        if kind is None:
            raise Unstreamable("a variant of a gated cell that has no native loop")
        facts, R, given = KINDS[kind], state[0].width, options or kernels.GatedOptions()
        H = R if given.P is None else state[1].width
        N = facts.gates * H
        w = self._array(weights[0], (N, R)) if facts.matrix else None
        extra = self._array(weights[-1], None) if len(weights) > 1 or w is None else None
        u, bias = self._array(U, (N, x.width)), self._array(b, (N,))
        more = [self._array(o, shape) for o, (_, shape) in zip(given, option_shapes(facts, H, R), strict=True)]
        self.native.gated(
            facts.number, facts.gates, x.number, _address(u), _address(bias), _address(w), _address(extra),
            0 if extra is None else extra.numel(), *map(_address, more), state[0].number,
            state[1].number if len(state) > 1 else -1,
        )  # fmt: skip
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
    """A module that is fed one input of each session at a time, and keeps the sessions' states.

    `module` is a Core, or a whole model: then a step takes what the model's embedding takes, and gives a distribution.
    Later changes of the module do not reach the stream. Not for several threads at once.

    >>> import elman
    >>> stream = Stream(elman.cell("gru", 3, 4), batch_size=2)
    >>> stream.step(np.zeros((2, 3), np.float32)).shape
    (2, 4)
    >>> saved = stream.state            # a value: read it, change it, put it back, give it to another stream
    >>> stream.state = saved
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
        self._engine = _native(core, embed, readout, batch_size) or _Scanned(_frozen(core), batch_size)
        self._packed = self.native and hasattr(embed, "_stream")
        self._embed = _symbols if self._packed else _frozen(embed)
        self._finish = readout.distribution if self.native and hasattr(readout, "_stream") else _frozen(readout)

    @property
    def native(self) -> bool:
        """Whether a step is one native call, rather than a scan of length one."""
        return isinstance(self._engine, _Native)

    def step(self, x: Any) -> Any:
        """One input for each row, x (B, D), an array or a tensor: y (B, H) of the same kind; the state moves on."""
        if not self._whole:
            return self._engine.arrays(x) if isinstance(x, np.ndarray) else self._engine.rows(x)
        with torch.no_grad():
            return self._finish(self._engine.rows(self._embed(torch.as_tensor(x))))

    def logits(self, symbols: np.ndarray) -> np.ndarray:
        """The same for a model that ends in a softmax: int64 (B,) to the logits (B, V), if possible without Torch."""
        symbols = np.asarray(symbols)
        if symbols.dtype != np.int64:  # 0.5 is not the symbol 0
            given = f"{symbols.dtype}{list(symbols.shape)}"
            raise InputError(f"logits was given {given}; it needs int64[{self.batch_size}]")
        return self._engine.arrays(symbols) if self._packed else self.step(symbols).logits.numpy()

    @property
    def state(self) -> State:
        """The state of every row, as a value: changing it does not change the stream."""
        return self._engine.get()

    @state.setter
    def state(self, state: State) -> None:
        now = self._engine.get()
        if states.describe(states.map(torch.empty_like, state)) != states.describe(now):
            raise InputError(f"the state is {states.describe(state)}, but the stream's is {states.describe(now)}")
        self._engine.set(state)


class _Native:
    """A program, its input and output, and its states."""

    def __init__(self, core: Any, embed: Any, readout: Any, batch_size: int, dtype: torch.dtype) -> None:
        program, looks_up = Program(batch_size, dtype), hasattr(embed, "_stream")
        self._like = core.init_state(batch_size)
        x = embed._stream(program) if looks_up else program.slot(core.input_size)
        self._slots = states.map(lambda leaf: program.slot(_width(leaf, dtype)), self._like)  # type: ignore[arg-type,return-value]
        y = program.core(core, x, self._slots)
        if hasattr(readout, "_stream"):
            y = readout._stream(program, y)
        self._program, self._in, self._out = program.native, x.number, y.number
        self._shape, self._numpy = (batch_size, y.width), np.dtype(str(dtype).removeprefix("torch."))
        self._needs = f"int64[{batch_size}]" if looks_up else f"{self._numpy}[{batch_size}, {x.width}]"
        self._run = program.native.step_symbols if looks_up else program.native.step
        self.set(self._like)

    def arrays(self, x: np.ndarray) -> np.ndarray:
        y = np.empty(self._shape, self._numpy)
        try:  # checked where it costs least, in the call
            self._run(self._in, x, self._out, y)
        except IndexError:
            raise InputError(f"a step was given the symbols {x.tolist()}; the model has no such symbol") from None
        except (TypeError, ValueError):
            raise InputError(f"a step was given {x.dtype}{list(x.shape)}; it needs {self._needs}") from None
        return y

    def rows(self, x: Tensor) -> Tensor:
        return torch.from_numpy(self.arrays(x.detach().numpy()))

    def get(self) -> State:
        def read(leaf: Tensor, slot: Any) -> Tensor:
            leaf = torch.empty_like(leaf)
            self._program.read(slot.number, leaf.data_ptr())
            return leaf

        return states.map(read, self._like, self._slots)

    def set(self, state: State) -> None:
        def write(leaf: Tensor, slot: Any) -> Tensor:
            leaf = leaf.detach().contiguous()
            self._program.write(slot.number, leaf.data_ptr())
            return leaf

        states.map(write, state, self._slots)


class _Scanned:
    """What has no native form: scans of length one."""

    def __init__(self, core: Any, batch_size: int) -> None:
        self._core, self._state = core, core.init_state(batch_size)

    def arrays(self, x: np.ndarray) -> np.ndarray:
        return self.rows(torch.from_numpy(np.ascontiguousarray(x))).numpy()

    @torch.no_grad()
    def rows(self, x: Tensor) -> Tensor:
        y, self._state = self._core.scan(x.unsqueeze(1), self._state)
        return y.squeeze(1)

    def get(self) -> State:
        return states.map(Tensor.clone, self._state)

    def set(self, state: State) -> None:
        self._state = states.map(Tensor.clone, state)


def _frozen(module: Any) -> Any:
    """A copy that later changes of the module do not reach."""
    return None if module is None else copy.deepcopy(module).eval().requires_grad_(False)


def _symbols(x: Tensor) -> Tensor:
    if x.is_floating_point() or x.is_complex():
        raise InputError(f"a step was given {x.dtype}{list(x.shape)}; the model reads symbols, which are integers")
    return x.long()


def _native(core: Any, embed: Any, readout: Any, batch_size: int) -> _Native | None:
    dtypes = {REAL.get(t.dtype, t.dtype) for t in (*core.parameters(), *states.leaves(core.init_state(1)))}
    if kernels.active() != "native" or len(dtypes) != 1 or not dtypes <= set(SUFFIX):
        return None
    try:
        return _Native(core, embed, readout, batch_size, dtypes.pop())
    except Unstreamable:
        return None


def _width(leaf: Tensor, dtype: torch.dtype) -> int:
    if REAL.get(leaf.dtype, leaf.dtype) != dtype:
        raise Unstreamable(f"a state of {leaf.dtype} beside {dtype}")
    return leaf[0].numel() * (2 if leaf.is_complex() else 1)


def _address(x: Tensor | None) -> int:
    return 0 if x is None else x.data_ptr()

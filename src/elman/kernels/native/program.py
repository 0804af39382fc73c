"""The native builder: a program of csrc/stream.cpp, weights packed, values in between in preallocated slots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from elman import _native
from elman.errors import InputError
from elman.kernels.builder import WEIGHTS, Builder, Slot, Unstreamable
from elman.kernels.native.attention import memory_of
from elman.kernels.native.gated import KINDS, option_shapes, weights_of
from elman.kernels.reference import GatedOptions

_NOTHING = Slot(-1, 0)  # in the place of a slot that is not there
STORED: dict[str | None, Any] = {None: _native.Stored.whole, **{name: _native.Stored[name] for name in WEIGHTS}}
PROGRAMS = {torch.float32: _native.program_f32, torch.float64: _native.program_f64}


class Program(Builder):
    """Steps on slots, which copy the weights that they are given. `finish` it; then it makes streams."""

    def __init__(self, dtype: torch.dtype, weights: str | None = None) -> None:
        if dtype not in PROGRAMS:
            raise Unstreamable(f"a program in {dtype}")
        self.dtype, self.numpy_dtype = dtype, np.dtype(str(dtype).removeprefix("torch."))
        self.native = PROGRAMS[dtype](STORED[weights])
        self.columns: list[slice] = []  # of each leaf in a row of the state
        self.looks_up = False  # whether a step is given symbols
        self.bound: int | None = None  # rows that a memory is there for

    def states_known(self) -> None:
        """What is appended from here on changes no state: who only reads leaves it out."""
        self.native.states_known()

    def finish(self, x: Slot, y: Slot) -> None:
        """A step is given x, an `input` or a `lookup`, and gives y."""
        self.native.finish(x.number, y.number)
        self.input_size, self.output_size = x.width, y.width

    def stream(self, batch_size: int) -> Any:
        """`batch_size` rows of state to step: a Stream of csrc/bind.cpp."""
        if self.bound not in (None, batch_size):
            raise InputError(f"a stream of {batch_size} rows was requested; the core has a memory for {self.bound}")
        return self.native.stream(batch_size)

    def outputs(self) -> Any:
        """The arrays that the steps of a stream give (csrc/arrays.h)."""
        return _native.Outputs(self.numpy_dtype)

    def input(self, width: int) -> Slot:
        return self._slot(width)

    def lookup(self, table: Tensor) -> Slot:
        """A product of the rows is made once for each symbol and remembered, unless that would take much memory."""
        if table.dtype != self.dtype:
            raise Unstreamable(f"a table of {table.dtype} in a program of {self.dtype}")
        self.looks_up = True
        V, width = table.shape
        return self._append("lookup", width, V=V, width=width, table=self._array(table, None))

    def state(self, width: int) -> Slot:
        slot = Slot(self.native.state(width), width)
        begin = self.native.state_begin(slot.number)
        self.columns.append(slice(begin, begin + width))
        return slot

    def constant(self, values: Tensor) -> Slot:
        return self._append("constant", values.numel(), width=values.numel(), values=self._array(values, None))

    def linear(self, x: Slot, weight: Tensor, bias: Tensor | None = None) -> Slot:
        w, b = self._array(weight, (len(weight), x.width)), self._array(bias, weight.shape[:1])
        return self._append("linear", len(weight), x=x, N=len(weight), w=w, b=b)

    def windows(self, x: Slot, weight: Tensor, bias: Tensor | None, stride: int) -> Slot:
        N, K = weight.shape
        if stride < 1 or not 1 <= K <= x.width:
            raise InputError(f"windows of {K} columns, {stride} apart, of {x.width}: at least one must fit")
        w, b = self._array(weight, None), self._array(bias, (N,))
        count = (x.width - K) // stride + 1
        return self._append("windows", count * N, x=x, N=N, K=K, stride=stride, w=w, b=b)

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
        struct = weights_of(kind, x.width, H, R, arrays, own, self._array(b, (N,)), w, extra)
        h, c = (*state, _NOTHING)[:2]
        self._append("gated", R, weights=struct, x=x, fed=fed or _NOTHING, U_fed=further, h=h, c=c)
        return state[0]

    def attend(
        self, query: Slot, keys: Tensor, values: Tensor, lengths: Tensor, v: Tensor | None, each: int
    ) -> tuple[Slot, Slot]:
        B, S, A = keys.shape
        _expect({"query": query}, A)
        self.bound = B * each
        weights = self._slot(S)
        k, m = (part.detach().to(self.dtype) for part in (keys, values))
        memory = memory_of(k, m, self._array(v, (A,)), lengths, B, A)
        return self._append("attend", m.shape[2], query=query, weights=weights, memory=memory, each=each), weights

    def scan(self, a: Slot, b: Slot, h: Slot, *, is_complex: bool = False) -> Slot:
        return self._append("scan", h.width, is_complex=is_complex, a=a, b=b, h=h)

    def selective(self, x: Slot, delta: Slot, A: Tensor, B: Slot, C: Slot, h: Slot) -> Slot:
        D, N = A.shape
        _expect({"x": x, "delta": delta}, D)
        _expect({"B": B, "C": C}, N)
        _expect({"h": h}, D * N)
        return self._append("selective", D, x=x, delta=delta, N=N, A=self._array(A, None), B=B, C=C, h=h)

    def bank(self, x: Slot, a: Tensor, b: Tensor, c: Tensor, h: Slot) -> Slot:
        D, N, _ = a.shape
        _expect({"x": x}, D)
        _expect({"h": h}, D * N * 2)
        arrays = {name: self._array(v, a.shape) for name, v in (("a", a), ("b", b), ("c", c))}
        return self._append("bank", D, x=x, N=N, **arrays, h=h)

    def matrix(
        self, shape: tuple[int, int, int], q: Slot, k: Slot, v: Slot, a: Slot | None, S: Slot,
        b: Slot | None = None, alpha: Slot | None = None, beta: Slot | None = None,
    ) -> Slot:  # fmt: skip
        H, K, V = shape
        if not q.width or q.width % K or H % (q.width // K):
            raise InputError(f"q is a slot of width {q.width}; it must have {K} columns for each group of {H} heads")
        if (alpha is None) != (beta is None) or (b is not None and alpha is not None):
            raise InputError("a step of matrices takes b, or alpha and beta together, or none of the three")
        _expect({"k": k}, q.width)
        _expect({"v": v}, H * V)
        _expect({"S": S}, H * K * V)
        _expect({} if b is None else {"b": b}, H)
        _expect({} if a is None or a.width == H else {"a": a}, H * K)
        for name, slot in (("alpha", alpha), ("beta", beta)):
            if slot is not None and slot.width != q.width:
                _expect({name: slot}, H * K)
        given = {"a": a, "b": b, "alpha": alpha, "beta": beta}
        slots = {name: slot or _NOTHING for name, slot in given.items()}
        return self._append("matrix", H * V, H=H, K=K, V=V, q=q, k=k, v=v, **slots, S=S)

    def filter(self, x: Slot, transition: Tensor, p: Slot) -> Slot:
        _expect({"x": x}, p.width)
        return self._append("filter", p.width, x=x, transition=self._array(transition, (p.width, p.width)), p=p)

    def convolution(self, x: Slot, weight: Tensor, bias: Tensor, window: Slot) -> Slot:
        K, D = weight.shape
        _expect({"x": x}, D)
        _expect({"window": window}, (K - 1) * D)
        w, b = self._array(weight, None), self._array(bias, (D,))
        return self._append("convolution", D, x=x, K=K, w=w, bias=b, window=window)

    def map(self, function: str, x: Slot) -> Slot:
        return self._append("map", x.width, function=_native.Function[function], x=x)

    def add(self, x: Slot, y: Slot) -> Slot:
        return self._combine("add", x, y)

    def mul(self, x: Slot, y: Slot) -> Slot:
        return self._combine("mul", x, y)

    def div(self, x: Slot, y: Slot) -> Slot:
        return self._combine("div", x, y)

    def maximum(self, x: Slot, y: Slot) -> Slot:
        return self._combine("maximum", x, y)

    def minimum(self, x: Slot, y: Slot) -> Slot:
        return self._combine("minimum", x, y)

    def choose(self, condition: Slot, x: Slot, y: Slot) -> Slot:
        _expect({"x": x, "y": y}, condition.width)
        return self._append("choose", x.width, condition=condition, x=x, y=y)

    def gather(self, x: Slot, columns: Sequence[int]) -> Slot:
        if len(columns) and not 0 <= min(columns) <= max(columns) < x.width:
            raise InputError(f"columns is {list(columns)}; the slot has {x.width} columns")
        places = torch.tensor(list(columns), dtype=torch.int64, device="cpu")
        return self._append("gather", len(places), x=x, columns=places, count=len(places))

    def lags(self, x: Slot, delays: Sequence[int], past: Slot) -> Slot:
        _expect({"past": past}, max(delays) * x.width)
        ago = torch.tensor(list(delays), dtype=torch.int64, device="cpu")
        return self._append("lags", len(ago) * x.width, x=x, delays=ago, count=len(ago), past=past)

    def mean(self, decay: float, x: Slot, weight: Slot, sum: Slot, total: Slot) -> Slot:
        each = torch.float64.itemsize // self.dtype.itemsize
        _expect({"sum": sum}, each * x.width)
        _expect({"total": total}, each * weight.width)
        if weight.width not in (1, x.width):
            raise InputError(f"weight is a slot of width {weight.width}; it must be 1 or {x.width} wide")
        return self._append("mean", x.width, decay=decay, x=x, weight=weight, sum=sum, total=total)

    def layer_norm(self, x: Slot, gain: Tensor, bias: Tensor | None, eps: float, heads: int = 1) -> Slot:
        return self._norm(True, x, gain, bias, eps, heads)

    def rms_norm(self, x: Slot, gain: Tensor, eps: float, heads: int = 1) -> Slot:
        return self._norm(False, x, gain, None, eps, heads)

    def concat(self, parts: Sequence[Slot]) -> Slot:
        y = self._slot(sum(part.width for part in parts))
        at = 0
        for part in parts:
            self._copy(part, y, at)
            at += part.width
        return y

    def cut(self, x: Slot, first: int, width: int) -> Slot:
        if not 0 <= first <= first + width <= x.width:
            raise InputError(f"the columns {first} to {first + width} were requested; the slot has {x.width}")
        return self._append("cut", width, x=x, first=first, count=width)

    def student_t(self, df: Slot, mean: Slot, scale: Slot) -> Slot:
        _expect({"mean": mean, "scale": scale}, df.width)
        return self._append("student_t", df.width, df=df, mean=mean, scale=scale)

    def assign(self, state: Slot, x: Slot) -> Slot:
        self._copy(x, state, 0)
        return state

    def _slot(self, width: int) -> Slot:
        return Slot(self.native.slot(width), width)

    def _append(self, name: str, width: int, /, **fields: object) -> Slot:
        """Append an operation of csrc/program.h, its slots as numbers: the slot that it fills."""
        numbers = {key: field.number if isinstance(field, Slot) else field for key, field in fields.items()}
        return Slot(getattr(self.native, name)(numbers), width)

    def _copy(self, x: Slot, y: Slot, to: int) -> None:
        self._append("copy", y.width, x=x, first=0, count=x.width, y=y, to=to)

    def _combine(self, function: str, x: Slot, y: Slot) -> Slot:
        if x.width != y.width:
            raise InputError(f"slots of widths {x.width} and {y.width} cannot be combined; they must be equally wide")
        return self._append("combine", x.width, function=_native.Combination[function], x=x, y=y)

    def _norm(self, centred: bool, x: Slot, gain: Tensor, bias: Tensor | None, eps: float, heads: int) -> Slot:
        N = x.width // heads
        if N * heads != x.width:
            raise InputError(f"a slot of width {x.width} does not have {heads} heads")
        if heads == 1 or gain.shape == (N,):
            g, b = self._array(gain, (N,)), self._array(bias, (N,))
            return self._append("norm", x.width, centred=centred, x=x, heads=heads, gain=g, bias=b, eps=eps)
        y = self._append("norm", x.width, centred=centred, x=x, heads=heads, gain=None, bias=None, eps=eps)
        y = self.mul(y, self.constant(gain))
        return y if bias is None else self.add(y, self.constant(bias))

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

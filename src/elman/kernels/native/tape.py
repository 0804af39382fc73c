"""A recorded function as a tape of csrc/tape.h: one call instead of some hundred of Torch's, each of which costs more
to begin than what it computes on a few numbers.

`lower` reads the graph that `make_fx` wrote, operation by operation. Views are views here too, what does not depend on
the arguments is computed once, and what is computed twice is computed once. An operation that this file does not list,
or a product that is worth several threads, leaves the whole function to Torch.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, fx

from elman import _native
from elman.kernels.native.op import define, expect, output

Code, Type = _native.TapeCode, _native.TapeType
TYPES = {
    torch.float32: Type.f32, torch.float64: Type.f64, torch.complex64: Type.c64, torch.complex128: Type.c128,
    torch.int64: Type.i64, torch.bool: Type.u8,
}  # fmt: skip
REAL = (torch.float32, torch.float64)
LINE = 64  # bytes: arrays begin where a cache line does
LARGEST = 1 << 22  # multiply-adds of a product: a millisecond, in which Torch would have begun


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


class Unlisted(Exception):
    """An operation that a tape does not have, or not of such arguments."""


@dataclass(eq=False)
class Array:
    """Memory that one instruction or several fill, or that is there beforehand."""

    shape: torch.Size
    dtype: torch.dtype
    place: int = 0  # as in csrc/tape.h
    at: int = 0  # bytes from the beginning of that place
    constant: Tensor | None = None
    outer: tuple[Value, Value] | None = None  # what it is the outer product of: (B, M) and (B, N)


@dataclass(frozen=True, eq=False)
class Value:
    """An array as one sees it: the strides and the beginning are those of a tensor without memory."""

    array: Array
    view: Tensor  # on the device "meta"

    @property
    def shape(self) -> torch.Size:
        return self.view.shape

    @property
    def dtype(self) -> torch.dtype:
        return self.view.dtype

    @property
    def key(self) -> tuple[object, ...]:
        view = self.view
        return id(self.array), view.dtype, view.shape, view.stride(), view.storage_offset()


Written = tuple[Any, torch.dtype, torch.Size, tuple[int, ...], tuple[Value, ...]]


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
        tape = _Writer(graph, arguments).tape
    except Unlisted:
        return graph
    return graph if tape.run(arguments) is None else tape


class _Writer:
    def __init__(self, graph: fx.GraphModule, arguments: Sequence[Tensor]) -> None:
        self.written: list[Written] = []
        self.writes: list[tuple[Value, ...]] = []  # what each of them fills
        self.known: dict[object, Any] = {}  # what was computed, by what it is
        self.alive: list[object] = []  # identities are keys
        self.given = [self._array(argument.shape, argument.dtype, 2 + i) for i, argument in enumerate(arguments)]
        values: dict[fx.Node, Any] = {}
        given = iter(self.given)
        for node in graph.graph.nodes:
            if node.op == "placeholder":
                values[node] = next(given)
            elif node.op == "get_attr":
                found = getattr(graph, node.target)
                if not isinstance(found, Tensor):
                    raise Unlisted(node.target)
                values[node] = self.constant(found)
            elif node.op == "call_function":
                args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: values[n])
                values[node] = self.call(node.target, args, kwargs)
            else:
                self.tape = self._finish(graph, [values[n] for n in node.args[0]])

    def _array(self, shape: Sequence[int], dtype: torch.dtype, place: int = 0) -> Value:
        if dtype not in TYPES:
            raise Unlisted(str(dtype))
        view = torch.empty(shape, dtype=dtype, device="meta")
        return Value(Array(view.shape, dtype, place), view)

    def constant(self, tensor: Tensor) -> Value:
        if tensor.dtype not in TYPES or not tensor.is_cpu:
            raise Unlisted(f"a constant of {tensor.dtype} on {tensor.device}")
        tensor = tensor.detach().resolve_conj().contiguous()
        key = ("constant", tensor.dtype, tensor.shape, tensor.numpy().tobytes())
        if key not in self.known:
            self.known[key] = self._array(tensor.shape, tensor.dtype, 1)
            self.known[key].array.constant = tensor
        value: Value = self.known[key]
        return value

    def call(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if target is operator.getitem:
            return args[0][args[1]]
        if not isinstance(target, torch._ops.OpOverload):
            raise Unlisted(str(target))
        name = target._schema.name
        values = [v for v in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(v, Value)]
        random = torch.Tag.nondeterministic_seeded in target.tags  # drawn anew at each call
        if target._schema.is_mutable or random or kwargs.get("rounding_mode") is not None:
            raise Unlisted(name)
        if all(v.array.constant is not None for v in values):
            return self._computed(target, args, kwargs)
        keys = torch.utils._pytree.tree_map(lambda v: v.key if isinstance(v, Value) else v, (args, kwargs))
        key = repr((target, *keys))
        if key not in self.known:
            self.alive += values
            self.known[key] = self._lowered(name, target, args, kwargs)
        return self.known[key]

    def _computed(self, target: Any, args: Any, kwargs: Any) -> Any:
        """What does not depend on the arguments."""

        def tensor(v: Any) -> Any:
            if not isinstance(v, Value):
                return v
            assert v.array.constant is not None
            return v.array.constant.as_strided(v.shape, v.view.stride(), v.view.storage_offset())

        found = target(*torch.utils._pytree.tree_map(tensor, args), **torch.utils._pytree.tree_map(tensor, kwargs))
        return torch.utils._pytree.tree_map(lambda v: self.constant(v) if isinstance(v, Tensor) else v, found)

    def _lowered(self, name: str, target: Any, args: Any, kwargs: Any) -> Any:
        if name in VIEWS:
            return self._seen(target, args, kwargs)
        if name in FILLS:
            like = target(*_metas(args), **{**_metas(kwargs), "device": "meta"})
            fixed = FILLS[name]
            return self.constant(torch.full(like.shape, args[-1] if fixed is None else fixed, dtype=like.dtype))
        if name not in OPERATIONS:
            raise Unlisted(name)
        try:
            return OPERATIONS[name](self, *args, **{k: v for k, v in kwargs.items() if k not in IGNORED})
        except Unlisted as error:
            raise Unlisted(f"{name} {error}") from None

    def _seen(self, target: Any, args: Any, kwargs: Any) -> Any:
        """A view of the first argument; of a copy side by side where Torch's own lies otherwise."""
        x = args[0]
        try:
            views = target(*_metas(args), **_metas(kwargs))
        except RuntimeError:
            x = self.contiguous(x, copies=True)
            views = target(x.view, *_metas(args[1:]), **_metas(kwargs))
        if any(view.dtype not in TYPES for view in torch.utils._pytree.tree_leaves(views)):
            raise Unlisted("as another type")
        return torch.utils._pytree.tree_map(lambda view: Value(x.array, view), views)

    # Instructions

    def append(self, code: Any, read: torch.dtype, sizes: Sequence[int], more: Sequence[int], *operands: Value) -> None:
        """An instruction; the first operand is written."""
        sizes = torch.Size(sizes) or torch.Size((1,))
        if len(sizes) > _native.TAPE_AXES:
            raise Unlisted(f"{len(sizes)} axes")
        filled = operands[:2] if code == Code.trace else operands[:1]
        if sizes.numel():
            self.written.append((code, read, sizes, tuple(more), operands))
            self.writes.append(tuple(filled))
        elif code in (Code.sum, Code.largest):
            raise Unlisted("a sum of nothing")

    def map(self, code: Any, *operands: Value, to: torch.dtype | None = None) -> Value:
        """Of numbers of one type, one by one."""
        shape = torch.broadcast_shapes(*(v.shape for v in operands))
        y = self._array(shape, to or operands[-1].dtype)
        self.append(code, operands[-1].dtype, shape, (), y, *operands)
        return y

    def cast(self, x: Any, dtype: torch.dtype) -> Value:
        if not isinstance(x, Value):
            return self.constant(torch.tensor(x, dtype=dtype))
        if x.dtype == dtype:
            return x
        if x.array.constant is not None and x.array.constant.numel() == 1:
            number = self.constant(x.array.constant.reshape(()).to(dtype))
            return Value(number.array, number.view.expand(x.shape))
        if dtype == torch.bool:
            return self.map(Code.ne, *self._both(x, 0, x.dtype), to=torch.bool)
        if x.dtype.is_complex and not dtype.is_complex:
            raise Unlisted("a complex number as a real one")
        y = self._array(x.shape, dtype)
        self.append(Code.cast, dtype, x.shape, (TYPES[x.dtype].value,), y, x)
        return y

    def _both(self, x: Any, y: Any, dtype: torch.dtype) -> tuple[Value, Value]:
        return self.cast(x, dtype), self.cast(y, dtype)

    def binary(self, code: Any, x: Any, y: Any, dtype: torch.dtype | None = None) -> Value:
        dtype = dtype or torch.result_type(_meta(x), _meta(y))
        if code == Code.div and not (dtype.is_floating_point or dtype.is_complex):
            dtype = torch.get_default_dtype()
        neutral = {Code.mul: 1, Code.div: 1, Code.add: 0, Code.sub: 0}.get(code)
        if neutral is not None and _is_all(y, neutral):
            return self._unchanged(x, y, dtype)
        if code in (Code.mul, Code.add) and _is_all(x, neutral):
            return self._unchanged(y, x, dtype)
        if code not in ARITHMETIC and dtype.is_complex:
            raise Unlisted("of complex numbers")
        compares = code in COMPARISONS
        if dtype == torch.bool and not compares:
            raise Unlisted("of booleans")
        return self.map(code, *self._both(x, y, dtype), to=torch.bool if compares else None)

    def _unchanged(self, x: Any, other: Any, dtype: torch.dtype) -> Value:
        x = self.cast(x, dtype)
        shape = torch.broadcast_shapes(x.shape, other.shape if isinstance(other, Value) else ())
        return Value(x.array, x.view.expand(shape))

    def unary(self, code: Any, x: Value) -> Value:
        dtype = x.dtype if x.dtype.is_floating_point or code == Code.neg else torch.get_default_dtype()
        if x.dtype.is_complex and code not in COMPLEX:
            raise Unlisted("of complex numbers")
        if code in (Code.abs, Code.sign, Code.relu) and x.dtype not in REAL and not x.dtype.is_complex:
            if code == Code.abs and x.dtype == torch.int64:
                return self.binary(Code.maximum, x, self.unary(Code.neg, x))
            raise Unlisted("of whole numbers")
        return self.map(code, self.cast(x, x.dtype if x.dtype.is_complex else dtype))

    def contiguous(self, x: Value, copies: bool = False) -> Value:
        if x.view.is_contiguous() and not copies:
            return x
        key = ("contiguous", x.key)
        if key not in self.known:
            self.alive.append(x)
            self.known[key] = self.map(Code.copy, x)
        found: Value = self.known[key]
        return found

    def reduce(self, code: Any, x: Value, dims: Sequence[int] | int | None, keepdim: bool = False) -> Value:
        rank = x.view.dim()
        dims = range(rank) if dims is None or dims == [] else [dims] if isinstance(dims, int) else dims
        gone = sorted({d % rank for d in dims}) if rank else []
        if not gone:
            return x
        if all(x.shape[d] == 1 for d in gone):
            return x if keepdim else Value(x.array, x.view.squeeze(gone))
        rest = [d for d in range(rank) if d not in gone]
        y = self._array([x.shape[d] for d in rest], x.dtype)
        turned = Value(x.array, x.view.permute(*rest, *gone))
        sizes = turned.shape
        target = Value(y.array, y.view.reshape(*y.shape, *[1] * len(gone)).expand(sizes))
        self.append(code, x.dtype, sizes, (len(gone),), target, turned)
        shape = [1 if d in gone else x.shape[d] for d in range(rank)] if keepdim else y.shape
        return Value(y.array, y.view.view(shape))

    def product(self, x: Value, w: Value, b: Value | None = None) -> Value:
        """x (A, M, K) and w (A, K, N): (A, M, N); with b (N,), A being 1."""
        (A, M, K), N = x.shape, w.shape[2]
        if x.dtype not in REAL or w.dtype != x.dtype:
            raise Unlisted("a product that is not of real numbers")
        if A * M * N * K > LARGEST:
            raise Unlisted("a large product")
        if K == 1 and b is None:
            y = self.binary(Code.mul, x, w)
            if y.array not in (x.array, w.array):  # as it is where the other has nothing but ones
                y.array.outer = (Value(x.array, x.view[:, :, 0]), Value(w.array, w.view[:, 0]))
            return y
        y = self._array((A, M, N), x.dtype)
        operands = [self.contiguous(x), self.contiguous(Value(w.array, w.view.transpose(1, 2)))]
        self.append(Code.linear, x.dtype, (1,), (A, M, N, K), *map(_whole, (y, *operands, *([] if b is None else [b]))))
        return y

    def joined(self, parts: Sequence[Value], dim: int) -> Value:
        dtype = parts[0].dtype
        metas = torch.cat([part.view for part in parts], dim)
        y, at = self._array(metas.shape, dtype), 0
        for part in parts:
            width = part.shape[dim]
            self.append(Code.copy, dtype, part.shape, (), Value(y.array, y.view.narrow(dim, at, width)), part)
            at += width
        return y

    def chosen(
        self, code: Any, x: Value, dim: int, places: Value, shape: Sequence[int], n: int, from_end: bool = False
    ) -> Value:
        rows, columns = torch.Size(x.shape[:dim]).numel(), torch.Size(x.shape[dim + 1 :]).numel()
        m = places.view.numel() if code == Code.take else places.shape[dim]
        y = self._array(shape, x.dtype)
        operands = map(_whole, (y, self.contiguous(x), self.contiguous(self.cast(places, torch.int64))))
        self.append(code, x.dtype, (1,), (rows, n, m, columns, int(from_end)), *operands)
        return y

    def trace(self, e: Value, factors: Value, share: Value, immediate: Value) -> tuple[Value, Value]:
        (B, C, R, W), given = e.shape, [self.contiguous(v) for v in (e, factors, share)]
        after, gradient = self._array(e.shape, e.dtype), self._array((R, W), e.dtype)
        outer = _outer(immediate, B, C * R, W)
        last = [self.contiguous(v) for v in (outer if outer else (immediate,))]
        operands = map(_whole, (after, gradient, *given, *last))
        self.append(Code.trace, e.dtype, (1,), (B, C, R, W, int(outer is not None)), *operands)
        return after, gradient

    def _finish(self, graph: fx.GraphModule, made: Sequence[Value]) -> Tape:
        places: dict[int, int] = {}
        for number, value in enumerate(made):
            array, place = value.array, 2 + len(self.given) + number
            whole = value.view.is_contiguous() and value.shape.numel() == array.shape.numel()
            if array.place or not whole or id(array) in places or value.dtype != array.dtype:
                target = self._array(value.shape, value.dtype)
                self.append(Code.copy, value.dtype, value.shape, (), target, value)
                array = target.array
            places[id(array)] = place
        needed, kept = set(places), []
        for written, filled in zip(reversed(self.written), reversed(self.writes), strict=True):
            if any(id(value.array) in needed for value in filled):
                kept.append(written)
                needed |= {id(value.array) for value in written[-1]}
        kept.reverse()
        native = _native.Tape()
        native.memory, native.given, native.made = self._placed(kept, places), len(self.given), len(made)
        for code, dtype, sizes, more, operands in kept:
            for value in operands:
                if value.array.constant is not None:
                    value.array.at = self._stored(native, value.array)
            reduces = code in (Code.sum, Code.largest)
            views = [value.view if reduces else value.view.expand(sizes) for value in operands]
            axes, strides = (list(sizes), [v.stride() for v in views]) if reduces else _fewer_axes(sizes, views)
            encoded = [
                [value.array.place, value.array.at // value.dtype.itemsize + view.storage_offset(), *along]
                for value, view, along in zip(operands, views, strides, strict=True)
            ]
            native.append(code, TYPES[dtype], axes, list(more), encoded)
        return Tape(native, self.given, made, graph)

    def _placed(self, kept: Sequence[Written], places: dict[int, int]) -> int:
        """Give each array its place; bytes of the memory of a run, in which what is read no more makes room."""
        last = {id(value.array): number for number, written in enumerate(kept) for value in written[-1]}
        free: dict[int, list[int]] = {}  # by size, so that memory stays in the cache
        begun, memory = set[int](), 0
        for number, written in enumerate(kept):
            arrays = {id(value.array): value.array for value in written[-1]}
            own = [key for key, array in arrays.items() if array.place == 0 and key not in places]
            sizes = {key: -(-arrays[key].shape.numel() * arrays[key].dtype.itemsize // LINE) * LINE for key in own}
            for key in arrays:
                if key in places:
                    arrays[key].place = places[key]
            for key in own:
                if key in begun:
                    continue
                begun.add(key)
                if free.get(sizes[key]):
                    arrays[key].at = free[sizes[key]].pop()
                else:
                    arrays[key].at, memory = memory, memory + sizes[key]
            for key in own:
                if last[key] == number:
                    free.setdefault(sizes[key], []).append(arrays[key].at)
        return memory

    def _stored(self, native: Any, array: Array) -> int:
        assert array.constant is not None
        raw = array.constant.numpy().tobytes()
        key = ("stored", raw)
        if key not in self.known:
            self.known[key] = native.constant(raw)
        at: int = self.known[key]
        return at


def _meta(x: Any) -> Any:
    return x.view if isinstance(x, Value) else x


def _metas(x: Any) -> Any:
    return torch.utils._pytree.tree_map(_meta, x)


def _whole(x: Value) -> Value:
    """As an operand of an instruction that knows its shape by itself: where it begins."""
    return Value(x.array, x.view.as_strided((1,), (0,)))


def _fewer_axes(sizes: Sequence[int], views: Sequence[Tensor]) -> tuple[list[int], list[list[int]]]:
    """The same elements in the same order: axes of one element go, and two that every view walks as one become one."""
    axes: list[int] = []
    strides: list[list[int]] = [[] for _ in views]
    for axis, size in enumerate(sizes):
        here = [view.stride(axis) for view in views]
        if size == 1:
            continue
        if axes and all(along[-1] == step * size for along, step in zip(strides, here, strict=True)):
            axes[-1] *= size
            for along, step in zip(strides, here, strict=True):
                along[-1] = step
            continue
        axes.append(size)
        for along, step in zip(strides, here, strict=True):
            along.append(step)
    return (axes, strides) if axes else ([1], [[0] for _ in views])


def _is_all(x: Any, number: int | None) -> bool:
    """Whether it is this number, wherever it is looked at."""
    if not isinstance(x, Value):
        return not isinstance(x, bool) and bool(x == number)
    constant = x.array.constant
    return (
        constant is not None
        and number is not None
        and constant.dtype != torch.bool
        and bool((constant == number).all())
    )


def _outer(x: Value, B: int, M: int, N: int) -> tuple[Value, Value] | None:
    """(B, M) and (B, N) of which x, seen as (B, M, N), is the outer product."""
    array, view = x.array, x.view
    if array.outer is None or view.storage_offset() or view.shape.numel() != array.shape.numel() or N == 1:
        return None
    left, right = array.outer
    if left.shape == (B, M) and right.shape == (B, N) and view.is_contiguous():
        return left, right
    turned = view.reshape(B, M, N) if view.is_contiguous() else None
    if turned is None and left.shape == (B, N) and right.shape == (B, M):
        try:
            turned = view.view(B, M, N)
        except RuntimeError:
            return None
        if turned.stride() == (M * N, 1, M):
            return right, left
    return None


def _index(w: _Writer, x: Value, indices: Sequence[Value | None]) -> Value:
    dims = [d for d, index in enumerate(indices) if index is not None]
    places = indices[dims[0]] if len(dims) == 1 else None
    if places is None or places.dtype != torch.int64:
        raise Unlisted("aten::index")
    dim = dims[0]
    shape = (*x.shape[:dim], *places.shape, *x.shape[dim + 1 :])
    return w.chosen(Code.take, x, dim, places, shape, x.shape[dim], from_end=True)


def _gather(w: _Writer, x: Value, dim: int, index: Value, sparse_grad: bool = False) -> Value:
    dim %= x.view.dim()
    if index.shape[:dim] != x.shape[:dim] or index.shape[dim + 1 :] != x.shape[dim + 1 :]:
        raise Unlisted("aten::gather")
    return w.chosen(Code.gather, x, dim, index, index.shape, x.shape[dim])


def _scatter_add(w: _Writer, x: Value, dim: int, index: Value, source: Value) -> Value:
    dim %= x.view.dim()
    if not _is_all(x, 0) or index.shape != source.shape or index.shape[:dim] != x.shape[:dim]:
        raise Unlisted("aten::scatter_add")
    if index.shape[dim + 1 :] != x.shape[dim + 1 :]:
        raise Unlisted("aten::scatter_add")
    return w.chosen(Code.scatter, source, dim, index, x.shape, x.shape[dim])


def _embedding(w: _Writer, weight: Value, places: Value, *rest: object) -> Value:
    return w.chosen(Code.take, weight, 0, places, (*places.shape, *weight.shape[1:]), len(weight.view))


def _embedding_back(w: _Writer, g: Value, places: Value, n: int, padding: int, by_count: bool) -> Value:
    """Each row of g belongs, whole, to the row of the weight that its place names."""
    if by_count:
        raise Unlisted("by how often a place is named")
    E = g.shape[-1]
    g = w.contiguous(g)
    flat = Value(g.array, g.view.view(-1, E))
    places = w.contiguous(places)
    wide = Value(places.array, places.view.reshape(-1, 1).expand(-1, E))
    if padding >= 0:  # a row that stays as it is
        flat = _where(w, w.binary(Code.eq, wide, padding), w.cast(0, g.dtype), flat)
    return w.chosen(Code.scatter, flat, 0, wide, (n, E), n)


def _part(w: _Writer, g: Value, sizes: Sequence[int], part: Callable[[Tensor], Tensor]) -> Value:
    """g where the part is, zeros elsewhere."""
    y = w._array(sizes, g.dtype)
    zero = w.constant(torch.zeros((), dtype=g.dtype))
    w.append(Code.copy, g.dtype, y.shape, (), y, zero)
    w.append(Code.copy, g.dtype, g.shape, (), Value(y.array, part(y.view)), g)
    return y


def _select_back(w: _Writer, g: Value, sizes: Sequence[int], dim: int, index: int) -> Value:
    return _part(w, g, sizes, lambda view: view.select(dim, index))


def _slice_back(w: _Writer, g: Value, sizes: Sequence[int], dim: int, start: int, end: int, step: int) -> Value:
    return _part(w, g, sizes, lambda view: torch.ops.aten.slice.Tensor(view, dim, start, end, step))


def _complex(w: _Writer, real: Value, imaginary: Value) -> Value:
    dtype = torch.complex64 if real.dtype == torch.float32 else torch.complex128
    y = w._array(torch.broadcast_shapes(real.shape, imaginary.shape), dtype)
    parts = torch.view_as_real(y.view)
    for k, part in enumerate((real, imaginary)):
        w.append(Code.copy, real.dtype, y.shape, (), Value(y.array, parts[..., k]), part)
    return y


def _polar(w: _Writer, size: Value, angle: Value) -> Value:
    real, imaginary = (w.binary(Code.mul, size, w.unary(code, angle)) for code in (Code.cos, Code.sin))
    return _complex(w, real, imaginary)


def _where(w: _Writer, condition: Value, x: Any, y: Any) -> Value:
    dtype = torch.result_type(_meta(x), _meta(y))
    x, y = w._both(x, y, dtype)
    return w.map(Code.where, condition, x, y)


def _clamp(w: _Writer, x: Value, least: Any = None, most: Any = None) -> Value:
    if least is not None:
        x = w.binary(Code.maximum, x, least)
    return x if most is None else w.binary(Code.minimum, x, most)


def _pow(w: _Writer, x: Any, y: Any) -> Value:
    dtype = torch.result_type(_meta(x), _meta(y))
    if isinstance(x, Value) and not isinstance(y, Value) and y in (-0.5, -1, -2):  # as in Torch
        return w.binary(Code.div, 1, _pow(w, x, -y))
    if isinstance(x, Value) and not isinstance(y, Value) and y in (1, 2, 3, 0.5):
        x = w.cast(x, dtype)
        if y == 0.5:
            return w.unary(Code.sqrt, x)
        powers = [x, w.binary(Code.mul, x, x)] if y > 1 else [x]
        return w.binary(Code.mul, powers[1], x) if y == 3 else powers[-1]
    return w.binary(Code.pow, x, y, dtype)


def _unary(code: Any) -> Callable[..., Value]:
    return lambda w, x: w.unary(code, x)


def _binary(code: Any) -> Callable[..., Value]:
    return lambda w, x, y: w.binary(code, x, y)


def _add(code: Any) -> Callable[..., Value]:
    def lowered(w: _Writer, x: Any, y: Any, alpha: float = 1) -> Value:
        return w.binary(code, x, y if alpha == 1 else w.binary(Code.mul, y, alpha))

    return lowered


def _sum(w: _Writer, x: Value, dims: Any = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> Value:
    if dtype is None and not (x.dtype.is_floating_point or x.dtype.is_complex):
        dtype = torch.int64
    return w.reduce(Code.sum, x if dtype is None else w.cast(x, dtype), dims, keepdim)


def _mean(w: _Writer, x: Value, dims: Any = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> Value:
    total = _sum(w, x, dims, keepdim, dtype)
    return w.binary(Code.div, total, x.shape.numel() // max(1, total.shape.numel()))


def _any(w: _Writer, x: Value, dims: Any = None, keepdim: bool = False) -> Value:
    count = w.reduce(Code.sum, w.cast(w.cast(x, torch.bool), torch.int64), dims, keepdim)
    return w.binary(Code.ne, count, 0)


def _logical(code: Any) -> Callable[..., Value]:
    def lowered(w: _Writer, *operands: Value) -> Value:
        if any(not isinstance(v, Value) or v.dtype != torch.bool for v in operands):
            raise Unlisted("bits of whole numbers")
        return w.map(code, *operands)

    return lowered


def _log_softmax(w: _Writer, x: Value, dim: int, half: bool = False) -> Value:
    off = w.binary(Code.sub, x, w.reduce(Code.largest, x, dim, True))
    return w.binary(Code.sub, off, w.unary(Code.log, w.reduce(Code.sum, w.unary(Code.exp, off), dim, True)))


def _log_softmax_back(w: _Writer, g: Value, y: Value, dim: int, dtype: torch.dtype) -> Value:
    total = w.reduce(Code.sum, g, dim, True)
    return w.binary(Code.sub, g, w.binary(Code.mul, w.unary(Code.exp, y), total))


def _softmax(w: _Writer, x: Value, dim: int, half: bool = False) -> Value:
    e = w.unary(Code.exp, w.binary(Code.sub, x, w.reduce(Code.largest, x, dim, True)))
    return w.binary(Code.div, e, w.reduce(Code.sum, e, dim, True))


def _softmax_back(w: _Writer, g: Value, y: Value, dim: int, dtype: torch.dtype) -> Value:
    shared = w.binary(Code.mul, g, y)
    return w.binary(Code.sub, shared, w.binary(Code.mul, y, w.reduce(Code.sum, shared, dim, True)))


def _softplus_back(w: _Writer, g: Value, x: Value, beta: float, threshold: float) -> Value:
    if beta != 1 or threshold < 20:
        raise Unlisted("aten::softplus_backward")
    return w.binary(Code.mul, g, w.unary(Code.sigmoid, x))


def _softplus(w: _Writer, x: Value, beta: float = 1, threshold: float = 20) -> Value:
    if beta != 1 or threshold < 20:
        raise Unlisted("aten::softplus")
    return w.unary(Code.softplus, x)


def _mul(w: _Writer, *factors: Any) -> Value:
    y = factors[0]
    for factor in factors[1:]:
        y = w.binary(Code.mul, y, factor)
    found: Value = y
    return found


def _one_less(w: _Writer, y: Value) -> Value:
    return w.binary(Code.sub, 1, y)


def _rows(v: Value) -> Value:
    return Value(v.array, v.view[None])


def _mm(w: _Writer, x: Value, y: Value) -> Value:
    found = w.product(_rows(x), _rows(y))
    return Value(found.array, found.view[0])


def _addmm(w: _Writer, b: Value, x: Value, y: Value, beta: float = 1, alpha: float = 1) -> Value:
    if beta != 1 or alpha != 1 or b.shape != y.shape[1:] or not b.view.is_contiguous() or b.dtype != x.dtype:
        raise Unlisted("aten::addmm")
    found = w.product(_rows(x), _rows(y), b)
    return Value(found.array, found.view[0])


def _dot(w: _Writer, x: Value, y: Value) -> Value:
    return w.reduce(Code.sum, w.binary(Code.mul, x, y), None)


def _same(w: _Writer, x: Value, *rest: object) -> Value:
    return x


def _block_diagonal(w: _Writer, blocks: Sequence[Value]) -> Value:
    if any(block.view.dim() != 2 for block in blocks):
        raise Unlisted("of vectors")
    zero = w.constant(torch.zeros((), dtype=blocks[0].dtype))
    y = w._array([sum(block.shape[axis] for block in blocks) for axis in (0, 1)], blocks[0].dtype)
    w.append(Code.copy, y.dtype, y.shape, (), y, zero)
    row = column = 0
    for block in blocks:
        (m, n), view = block.shape, y.view
        part = Value(y.array, view.narrow(0, row, m).narrow(1, column, n))
        w.append(Code.copy, y.dtype, block.shape, (), part, block)
        row, column = row + m, column + n
    return y


def _to_copy(w: _Writer, x: Value, dtype: torch.dtype | None = None) -> Value:
    return w.cast(x, dtype or x.dtype)


def _cat(w: _Writer, parts: Sequence[Value], dim: int = 0) -> Value:
    """Parts of shape (0,) are left out, whatever axes the others have, as in Torch."""
    if any(part.dtype != parts[0].dtype for part in parts):
        raise Unlisted("parts of several types")
    parts = [part for part in parts if part.shape != (0,)] or parts[:1]
    return w.joined(parts, dim % parts[0].view.dim())


def _conj(w: _Writer, x: Value) -> Value:
    return w.unary(Code.conj, x) if x.dtype.is_complex else x


ARITHMETIC = (Code.add, Code.sub, Code.mul, Code.div)
COMPLEX = (Code.neg, Code.conj, Code.exp, Code.expm1, Code.sign)
COMPARISONS = (Code.eq, Code.ne, Code.lt, Code.le, Code.gt, Code.ge)
IGNORED = ("memory_format", "layout", "device", "pin_memory", "non_blocking")
VIEWS = {
    f"aten::{name}" for name in (
        "view", "_unsafe_view", "expand", "permute", "t", "transpose", "slice", "select", "split",
        "split_with_sizes", "unbind", "unsqueeze", "squeeze", "view_as_real", "view_as_complex", "diagonal", "narrow",
    )
}  # fmt: skip
FILLS: dict[str, float | None] = {
    "aten::new_zeros": 0, "aten::zeros_like": 0, "aten::new_ones": 1, "aten::ones_like": 1, "aten::new_full": None,
    "aten::full_like": None,
}  # fmt: skip
OPERATIONS: dict[str, Callable[..., Any]] = {
    **{
        f"aten::{name}": _unary(Code[name])
        for name in ("neg", "exp", "expm1", "log", "log1p", "sqrt", "sigmoid", "tanh", "relu", "abs", "sign", "sin",
                     "cos", "lgamma", "digamma")
    },
    **{
        f"aten::{name}": _binary(Code[name])
        for name in ("mul", "div", "maximum", "minimum", "eq", "ne", "lt", "le", "gt", "ge")
    },
    "aten::sgn": _unary(Code.sign),
    "aten::add": _add(Code.add),
    "aten::sub": _add(Code.sub),
    "aten::rsub": lambda w, x, y, alpha=1: _add(Code.sub)(w, y, x, alpha),
    "aten::pow": _pow,
    "aten::reciprocal": lambda w, x: w.binary(Code.div, 1, x),
    "aten::clamp": _clamp,
    "aten::clamp_min": _clamp,
    "aten::clamp_max": lambda w, x, most: _clamp(w, x, None, most),
    "aten::where": _where,
    "aten::masked_fill": lambda w, x, mask, value: _where(w, mask, w.cast(value, x.dtype), x),
    "aten::isnan": lambda w, x: w.map(Code.isnan, x, to=torch.bool),
    "aten::logical_not": _logical(Code.no),
    "aten::bitwise_not": _logical(Code.no),
    "aten::logical_and": _logical(Code.both),
    "aten::bitwise_and": _logical(Code.both),
    "aten::logical_or": _logical(Code.either),
    "aten::bitwise_or": _logical(Code.either),
    "aten::any": _any,
    "aten::sum": _sum,
    "aten::mean": _mean,
    "aten::amax": lambda w, x, dims=None, keepdim=False: w.reduce(Code.largest, x, dims, keepdim),
    "aten::cat": _cat,
    "aten::stack": lambda w, parts, dim=0: _cat(w, [Value(v.array, v.view.unsqueeze(dim)) for v in parts], dim),
    "aten::index": _index,
    "aten::gather": _gather,
    "aten::scatter_add": _scatter_add,
    "aten::embedding": _embedding,
    "aten::embedding_dense_backward": _embedding_back,
    "aten::block_diag": _block_diagonal,
    "aten::select_backward": _select_back,
    "aten::slice_backward": _slice_back,
    "aten::complex": _complex,
    "aten::polar": _polar,
    "aten::_conj": _conj,
    "aten::_log_softmax": _log_softmax,
    "aten::_log_softmax_backward_data": _log_softmax_back,
    "aten::_softmax": _softmax,
    "aten::_softmax_backward_data": _softmax_back,
    "aten::softplus": _softplus,
    "aten::softplus_backward": _softplus_back,
    "aten::sigmoid_backward": lambda w, g, y: _mul(w, g, _one_less(w, y), y),
    "aten::tanh_backward": lambda w, g, y: _mul(w, g, _one_less(w, _mul(w, y, y))),
    "aten::threshold_backward": lambda w, g, x, least: _where(w, w.binary(Code.le, x, least), w.cast(0, g.dtype), g),
    "aten::mm": _mm,
    "aten::bmm": lambda w, x, y: w.product(x, y),
    "aten::addmm": _addmm,
    "aten::dot": _dot,
    "aten::clone": _same,
    "aten::detach": _same,
    "aten::alias": _same,
    "aten::lift_fresh_copy": _same,
    "aten::_to_copy": _to_copy,
    "elman::trace_step": lambda w, e, factors, share, immediate: w.trace(e, factors, share, immediate),
}  # fmt: skip

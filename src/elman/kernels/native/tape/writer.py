"""Writing a tape: what each operation of a graph is here, in which order, and where its arrays lie."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from elman import _native
from elman.kernels.native.tape.operations import FILLS, IGNORED, OPERATIONS, VIEWS
from elman.kernels.native.tape.values import (
    ARITHMETIC,
    COMPARISONS,
    COMPLEX,
    REAL,
    TYPES,
    Array,
    Code,
    Unlisted,
    Value,
    is_all,
    meta,
    metas,
)  # fmt: skip

LINE = 64  # bytes: arrays begin where a cache line does
LARGEST = 1 << 22  # multiply-adds of a product: a millisecond, in which Torch would have begun

Written = tuple[Any, torch.dtype, torch.Size, tuple[int, ...], tuple[Value, ...]]


class Writer:
    """Reads a graph; `native` is the tape, of the arrays `given` to the outputs `made`."""

    def __init__(self, graph: fx.GraphModule, arguments: Sequence[Tensor]) -> None:
        self.written: list[Written] = []
        self.writes: list[tuple[Value, ...]] = []  # what each of them fills
        self.known: dict[object, Any] = {}  # what was computed, by what it is
        self.alive: list[object] = []  # identities are keys
        self.given = [self.array(argument.shape, argument.dtype, 2 + i) for i, argument in enumerate(arguments)]
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
                self.made: list[Value] = [values[n] for n in node.args[0]]
        self.native = self._finished(self.made)

    def array(self, shape: Sequence[int], dtype: torch.dtype, place: int = 0) -> Value:
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
            self.known[key] = self.array(tensor.shape, tensor.dtype, 1)
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
            like = target(*metas(args), **{**metas(kwargs), "device": "meta"})
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
            views = target(*metas(args), **metas(kwargs))
        except RuntimeError:
            x = self.contiguous(x, copies=True)
            views = target(x.view, *metas(args[1:]), **metas(kwargs))
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
        y = self.array(shape, to or operands[-1].dtype)
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
        y = self.array(x.shape, dtype)
        self.append(Code.cast, dtype, x.shape, (TYPES[x.dtype].value,), y, x)
        return y

    def _both(self, x: Any, y: Any, dtype: torch.dtype) -> tuple[Value, Value]:
        return self.cast(x, dtype), self.cast(y, dtype)

    def binary(self, code: Any, x: Any, y: Any, dtype: torch.dtype | None = None) -> Value:
        dtype = dtype or torch.result_type(meta(x), meta(y))
        if code == Code.div and not (dtype.is_floating_point or dtype.is_complex):
            dtype = torch.get_default_dtype()
        neutral = {Code.mul: 1, Code.div: 1, Code.add: 0, Code.sub: 0}.get(code)
        if neutral is not None and is_all(y, neutral):
            return self._unchanged(x, y, dtype)
        if code in (Code.mul, Code.add) and is_all(x, neutral):
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
        y = self.array([x.shape[d] for d in rest], x.dtype)
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
        y = self.array((A, M, N), x.dtype)
        operands = [self.contiguous(x), self.contiguous(Value(w.array, w.view.transpose(1, 2)))]
        self.append(Code.linear, x.dtype, (1,), (A, M, N, K), *map(_whole, (y, *operands, *([] if b is None else [b]))))
        return y

    def joined(self, parts: Sequence[Value], dim: int) -> Value:
        dtype = parts[0].dtype
        metas = torch.cat([part.view for part in parts], dim)
        y, at = self.array(metas.shape, dtype), 0
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
        y = self.array(shape, x.dtype)
        operands = map(_whole, (y, self.contiguous(x), self.contiguous(self.cast(places, torch.int64))))
        self.append(code, x.dtype, (1,), (rows, n, m, columns, int(from_end)), *operands)
        return y

    def trace(self, e: Value, factors: Value, share: Value, immediate: Value) -> tuple[Value, Value]:
        (B, C, R, W), given = e.shape, [self.contiguous(v) for v in (e, factors, share)]
        after, gradient = self.array(e.shape, e.dtype), self.array((R, W), e.dtype)
        outer = _outer(immediate, B, C * R, W)
        last = [self.contiguous(v) for v in (outer if outer else (immediate,))]
        operands = map(_whole, (after, gradient, *given, *last))
        self.append(Code.trace, e.dtype, (1,), (B, C, R, W, int(outer is not None)), *operands)
        return after, gradient

    def _finished(self, made: Sequence[Value]) -> Any:
        """The tape of csrc, of what the outputs need."""
        places: dict[int, int] = {}
        for number, value in enumerate(made):
            array, place = value.array, 2 + len(self.given) + number
            whole = value.view.is_contiguous() and value.shape.numel() == array.shape.numel()
            if array.place or not whole or id(array) in places or value.dtype != array.dtype:
                target = self.array(value.shape, value.dtype)
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
        return native

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

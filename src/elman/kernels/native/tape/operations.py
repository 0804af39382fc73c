"""The operations of Torch that a tape has, by name, and what instructions each of them becomes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from elman.kernels.native.tape.values import Code, Unlisted, Value, is_all, meta

if TYPE_CHECKING:
    from elman.kernels.native.tape.writer import Writer


def _index(w: Writer, x: Value, indices: Sequence[Value | None]) -> Value:
    dims = [d for d, index in enumerate(indices) if index is not None]
    places = indices[dims[0]] if len(dims) == 1 else None
    if places is None or places.dtype != torch.int64:
        raise Unlisted("aten::index")
    dim = dims[0]
    shape = (*x.shape[:dim], *places.shape, *x.shape[dim + 1 :])
    return w.chosen(Code.take, x, dim, places, shape, x.shape[dim], from_end=True)


def _gather(w: Writer, x: Value, dim: int, index: Value, sparse_grad: bool = False) -> Value:
    dim %= x.view.dim()
    if index.shape[:dim] != x.shape[:dim] or index.shape[dim + 1 :] != x.shape[dim + 1 :]:
        raise Unlisted("aten::gather")
    return w.chosen(Code.gather, x, dim, index, index.shape, x.shape[dim])


def _scatter_add(w: Writer, x: Value, dim: int, index: Value, source: Value) -> Value:
    dim %= x.view.dim()
    if not is_all(x, 0) or index.shape != source.shape or index.shape[:dim] != x.shape[:dim]:
        raise Unlisted("aten::scatter_add")
    if index.shape[dim + 1 :] != x.shape[dim + 1 :]:
        raise Unlisted("aten::scatter_add")
    return w.chosen(Code.scatter, source, dim, index, x.shape, x.shape[dim])


def _embedding(w: Writer, weight: Value, places: Value, *rest: object) -> Value:
    return w.chosen(Code.take, weight, 0, places, (*places.shape, *weight.shape[1:]), len(weight.view))


def _embedding_back(w: Writer, g: Value, places: Value, n: int, padding: int, by_count: bool) -> Value:
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


def _part(w: Writer, g: Value, sizes: Sequence[int], part: Callable[[Tensor], Tensor]) -> Value:
    """g where the part is, zeros elsewhere."""
    y = w.array(sizes, g.dtype)
    zero = w.constant(torch.zeros((), dtype=g.dtype))
    w.append(Code.copy, g.dtype, y.shape, (), y, zero)
    w.append(Code.copy, g.dtype, g.shape, (), Value(y.array, part(y.view)), g)
    return y


def _select_back(w: Writer, g: Value, sizes: Sequence[int], dim: int, index: int) -> Value:
    return _part(w, g, sizes, lambda view: view.select(dim, index))


def _slice_back(w: Writer, g: Value, sizes: Sequence[int], dim: int, start: int, end: int, step: int) -> Value:
    return _part(w, g, sizes, lambda view: torch.ops.aten.slice.Tensor(view, dim, start, end, step))


def _complex(w: Writer, real: Value, imaginary: Value) -> Value:
    dtype = torch.complex64 if real.dtype == torch.float32 else torch.complex128
    y = w.array(torch.broadcast_shapes(real.shape, imaginary.shape), dtype)
    parts = torch.view_as_real(y.view)
    for k, part in enumerate((real, imaginary)):
        w.append(Code.copy, real.dtype, y.shape, (), Value(y.array, parts[..., k]), part)
    return y


def _polar(w: Writer, size: Value, angle: Value) -> Value:
    real, imaginary = (w.binary(Code.mul, size, w.unary(code, angle)) for code in (Code.cos, Code.sin))
    return _complex(w, real, imaginary)


def _where(w: Writer, condition: Value, x: Any, y: Any) -> Value:
    dtype = torch.result_type(meta(x), meta(y))
    x, y = w._both(x, y, dtype)
    return w.map(Code.where, condition, x, y)


def _clamp(w: Writer, x: Value, least: Any = None, most: Any = None) -> Value:
    if least is not None:
        x = w.binary(Code.maximum, x, least)
    return x if most is None else w.binary(Code.minimum, x, most)


def _pow(w: Writer, x: Any, y: Any) -> Value:
    dtype = torch.result_type(meta(x), meta(y))
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
    def lowered(w: Writer, x: Any, y: Any, alpha: float = 1) -> Value:
        return w.binary(code, x, y if alpha == 1 else w.binary(Code.mul, y, alpha))

    return lowered


def _sum(w: Writer, x: Value, dims: Any = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> Value:
    if dtype is None and not (x.dtype.is_floating_point or x.dtype.is_complex):
        dtype = torch.int64
    return w.reduce(Code.sum, x if dtype is None else w.cast(x, dtype), dims, keepdim)


def _mean(w: Writer, x: Value, dims: Any = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> Value:
    total = _sum(w, x, dims, keepdim, dtype)
    return w.binary(Code.div, total, x.shape.numel() // max(1, total.shape.numel()))


def _any(w: Writer, x: Value, dims: Any = None, keepdim: bool = False) -> Value:
    count = w.reduce(Code.sum, w.cast(w.cast(x, torch.bool), torch.int64), dims, keepdim)
    return w.binary(Code.ne, count, 0)


def _logical(code: Any) -> Callable[..., Value]:
    def lowered(w: Writer, *operands: Value) -> Value:
        if any(not isinstance(v, Value) or v.dtype != torch.bool for v in operands):
            raise Unlisted("bits of whole numbers")
        return w.map(code, *operands)

    return lowered


def _log_softmax(w: Writer, x: Value, dim: int, half: bool = False) -> Value:
    off = w.binary(Code.sub, x, w.reduce(Code.largest, x, dim, True))
    return w.binary(Code.sub, off, w.unary(Code.log, w.reduce(Code.sum, w.unary(Code.exp, off), dim, True)))


def _log_softmax_back(w: Writer, g: Value, y: Value, dim: int, dtype: torch.dtype) -> Value:
    total = w.reduce(Code.sum, g, dim, True)
    return w.binary(Code.sub, g, w.binary(Code.mul, w.unary(Code.exp, y), total))


def _softmax(w: Writer, x: Value, dim: int, half: bool = False) -> Value:
    e = w.unary(Code.exp, w.binary(Code.sub, x, w.reduce(Code.largest, x, dim, True)))
    return w.binary(Code.div, e, w.reduce(Code.sum, e, dim, True))


def _softmax_back(w: Writer, g: Value, y: Value, dim: int, dtype: torch.dtype) -> Value:
    shared = w.binary(Code.mul, g, y)
    return w.binary(Code.sub, shared, w.binary(Code.mul, y, w.reduce(Code.sum, shared, dim, True)))


def _softplus_back(w: Writer, g: Value, x: Value, beta: float, threshold: float) -> Value:
    if beta != 1 or threshold < 20:
        raise Unlisted("aten::softplus_backward")
    return w.binary(Code.mul, g, w.unary(Code.sigmoid, x))


def _softplus(w: Writer, x: Value, beta: float = 1, threshold: float = 20) -> Value:
    if beta != 1 or threshold < 20:
        raise Unlisted("aten::softplus")
    return w.unary(Code.softplus, x)


def _mul(w: Writer, *factors: Any) -> Value:
    y = factors[0]
    for factor in factors[1:]:
        y = w.binary(Code.mul, y, factor)
    found: Value = y
    return found


def _one_less(w: Writer, y: Value) -> Value:
    return w.binary(Code.sub, 1, y)


def _rows(v: Value) -> Value:
    return Value(v.array, v.view[None])


def _mm(w: Writer, x: Value, y: Value) -> Value:
    found = w.product(_rows(x), _rows(y))
    return Value(found.array, found.view[0])


def _addmm(w: Writer, b: Value, x: Value, y: Value, beta: float = 1, alpha: float = 1) -> Value:
    if beta != 1 or alpha != 1 or b.shape != y.shape[1:] or not b.view.is_contiguous() or b.dtype != x.dtype:
        raise Unlisted("aten::addmm")
    found = w.product(_rows(x), _rows(y), b)
    return Value(found.array, found.view[0])


def _dot(w: Writer, x: Value, y: Value) -> Value:
    return w.reduce(Code.sum, w.binary(Code.mul, x, y), None)


def _same(w: Writer, x: Value, *rest: object) -> Value:
    return x


def _block_diagonal(w: Writer, blocks: Sequence[Value]) -> Value:
    if any(block.view.dim() != 2 for block in blocks):
        raise Unlisted("of vectors")
    zero = w.constant(torch.zeros((), dtype=blocks[0].dtype))
    y = w.array([sum(block.shape[axis] for block in blocks) for axis in (0, 1)], blocks[0].dtype)
    w.append(Code.copy, y.dtype, y.shape, (), y, zero)
    row = column = 0
    for block in blocks:
        (m, n), view = block.shape, y.view
        part = Value(y.array, view.narrow(0, row, m).narrow(1, column, n))
        w.append(Code.copy, y.dtype, block.shape, (), part, block)
        row, column = row + m, column + n
    return y


def _to_copy(w: Writer, x: Value, dtype: torch.dtype | None = None) -> Value:
    return w.cast(x, dtype or x.dtype)


def _cat(w: Writer, parts: Sequence[Value], dim: int = 0) -> Value:
    """Parts of shape (0,) are left out, whatever axes the others have, as in Torch."""
    if any(part.dtype != parts[0].dtype for part in parts):
        raise Unlisted("parts of several types")
    parts = [part for part in parts if part.shape != (0,)] or parts[:1]
    return w.joined(parts, dim % parts[0].view.dim())


def _conj(w: Writer, x: Value) -> Value:
    return w.unary(Code.conj, x) if x.dtype.is_complex else x


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

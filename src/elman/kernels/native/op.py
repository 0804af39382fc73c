"""How a native function becomes a Torch operation: defined, implemented for the CPU, and faked for compile and export.

`define` and `impl` rather than the `custom_op` decorator, which costs 10 us and more a call.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_type_hints

import torch
from torch import Tensor

from elman import _native
from elman.errors import KernelError
from elman.kernels.native import memory

library = torch.library.Library("elman", "DEF")
calls: Counter[str] = Counter()  # how often each native op ran: what a test asserts to know that it did

SUFFIX = {
    torch.float32: "_f32",
    torch.float64: "_f64",
    torch.complex64: "_c64",
    torch.complex128: "_c128",
}


Struct = dict[str, object]  # the fields of a struct of csrc by their names: numbers, tensors, None, structs


def run(name: str, dtype: torch.dtype, *structs: Mapping[str, object]) -> None:
    """The function `name` of csrc for a dtype, on as many threads as Torch uses."""
    getattr(_native, name + SUFFIX[dtype])(*structs, torch.get_num_threads())


Context = Any  # of an autograd.Function, which stores on it what it needs
Value = Any  # an argument or a result of an operation: its schema has the type
Operation = Callable[..., Value]


def define(schema: str, run: Operation, fake: Operation) -> Operation:
    """Register `schema` with its CPU implementation and its fake (shapes only); return the op to call."""
    name = schema.split("(")[0]

    def counted(*args: Value) -> Value:
        calls[name] += 1
        return run(*args)

    library.define(schema)
    library.impl(name, counted, "CPU")
    torch.library.register_fake(f"elman::{name}", fake, lib=library)
    op: Operation = getattr(torch.ops.elman, name).default
    return op


def schema_of(arguments: type[tuple[Value, ...]]) -> str:
    """The fields of a NamedTuple of tensors, as a schema has them: "Tensor x, Tensor? bias"."""
    kinds = get_type_hints(arguments)
    return ", ".join(f"Tensor{'' if kind is Tensor else '?'} {name}" for name, kind in kinds.items())


def expect(name: str, x: Tensor, shape: Sequence[int], dtype: torch.dtype) -> None:
    """The kernels see bare addresses: a wrong shape or dtype must stop here."""
    if x.shape != tuple(shape) or x.dtype != dtype:
        raise KernelError(
            f"native kernel: `{name}` is {x.dtype} {tuple(x.shape)}, but must be {dtype} {tuple(shape)}. "
            "Call the function of the same name in elman.kernels, which promotes and checks its arguments."
        )


def output(like: Tensor, shape: Sequence[int]) -> Tensor:
    """An uninitialised tensor (shape) of the dtype of `like`; a large one in memory that was used before, if there is
    some and it is not a fake."""
    if type(like) is Tensor and like.is_cpu and (nbytes := math.prod(shape) * like.itemsize) >= memory.SMALLEST:
        return like.new_empty(0).set_(memory.storage(nbytes), 0, tuple(shape))  # type: ignore[call-overload]
    return like.new_empty(shape)


def contiguous(x: Tensor | None) -> Tensor | None:
    """The same, side by side in memory."""
    return None if x is None else x.contiguous()


def rows(x: Tensor) -> tuple[Tensor, int, int]:
    """`x` (B, T, C), copied only if its channels do not lie side by side, with its strides over rows and over time."""
    if x.stride(2) != 1 and x.shape[2] > 1:
        x = x.contiguous()
    return x, x.stride(0), x.stride(1)


def over_rows(x: Tensor) -> Tensor:
    """x (B, ...) -> (...), in the order of the rows: Torch's own sum may depend on the threads."""
    return x.cumsum(0)[-1] if len(x) else x.sum(0)


def no_gradient(like: Tensor) -> Tensor:
    """Zeros of the shape of `like` (B, T, C): one row that is read again and again, instead of a tensor of them."""
    return like.new_zeros((1, 1, like.shape[2])).expand(like.shape)


class _Once(torch.autograd.Function):
    """A backward pass that says what to do when it is differentiated again."""

    @staticmethod
    def forward(ctx: Context, run: Operation, *args: Value) -> Value:
        found = run(*args)
        return tuple(found) if isinstance(found, list) else found  # in a list autograd would not look for tensors

    @staticmethod
    def backward(ctx: Context, *grads: Value) -> Value:
        raise KernelError('native kernels have no second derivative; use `with elman.kernels.use("reference")`')


def once(run: Operation, *args: Value) -> Value:
    """Run a backward op; when a graph of the backward pass is being recorded, leave a node in it that raises."""
    if torch.is_grad_enabled():
        return _Once.apply(run, *args)
    return run(*args)

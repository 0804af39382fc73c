"""sigmoid, tanh, softplus, silu, log, exp, sin and cos, on csrc/elementwise.cpp: the same bits at every position.

Torch's own are not so: their vector and scalar code differ in the last bits.
The backward passes are Torch's, elementwise and exact enough, and can be differentiated again.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from elman import _native
from elman.kernels import reference
from elman.kernels.native.op import SUFFIX, Context, Operation, define, output


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x)), elementwise."""
    return _apply(_Sigmoid, _ops["sigmoid"], torch.sigmoid, x)


def tanh(x: Tensor) -> Tensor:
    """tanh(x), elementwise."""
    return _apply(_Tanh, _ops["tanh"], torch.tanh, x)


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)), elementwise."""
    return _apply(_Softplus, _ops["softplus"], torch.nn.functional.softplus, x)


def silu(x: Tensor) -> Tensor:
    """x * sigmoid(x), elementwise."""
    return _apply(_Silu, _ops["silu"], torch.nn.functional.silu, x)


def log(p: Tensor) -> Tensor:
    """log p, elementwise: -inf at zero, with a gradient of zero there."""
    return _apply(_Log, _ops["log"], reference.log, p)


def exp(x: Tensor) -> Tensor:
    """e^x, elementwise."""
    return _apply(_Exp, _ops["exp"], torch.exp, x)


def sin(x: Tensor) -> Tensor:
    """The sine of x in radians, elementwise."""
    return _apply(_Sin, _ops["sin"], torch.sin, x)


def cos(x: Tensor) -> Tensor:
    """The cosine of x in radians, elementwise."""
    return _apply(_Cos, _ops["cos"], torch.cos, x)


class _Exp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, x: Tensor) -> Tensor:
        y: Tensor = _ops["exp"](x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Context, gy: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return gy * y


class _Log(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, p: Tensor) -> Tensor:
        ctx.save_for_backward(p)
        y: Tensor = _ops["log"](p)
        return y

    @staticmethod
    def backward(ctx: Context, gy: Tensor) -> Tensor:
        (p,) = ctx.saved_tensors
        return torch.where(p > 0, gy / torch.where(p > 0, p, 1.0), 0.0)


class _Sigmoid(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, x: Tensor) -> Tensor:
        y: Tensor = _ops["sigmoid"](x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Context, gy: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return torch.ops.aten.sigmoid_backward(gy, y)


class _Tanh(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, x: Tensor) -> Tensor:
        y: Tensor = _ops["tanh"](x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Context, gy: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return torch.ops.aten.tanh_backward(gy, y)


class _Softplus(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return _ops["softplus"](x)

    @staticmethod
    def backward(ctx: Context, gy: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gy * sigmoid(x)


class _Silu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return _ops["silu"](x)

    @staticmethod
    def backward(ctx: Context, gy: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        s = sigmoid(x)
        return gy * (s + x * s * (1 - s))


class _Sin(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return _ops["sin"](x)

    @staticmethod
    def backward(ctx: Context, gy: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gy * cos(x)


class _Cos(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return _ops["cos"](x)

    @staticmethod
    def backward(ctx: Context, gy: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return -gy * sin(x)


def _apply(
    function: type[torch.autograd.Function], op: Callable[..., Tensor], plain: Callable[..., Tensor], x: Tensor
) -> Tensor:
    if x.is_complex():  # no recurrence needs these, so they have no kernel
        return plain(x)
    if torch.is_grad_enabled() and x.requires_grad:
        return function.apply(x)
    return op(x)


def _define(name: str) -> Operation:
    def run(x: Tensor) -> Tensor:
        x = x.contiguous()
        y = output(x, x.shape)
        getattr(_native, name + SUFFIX[x.dtype])(x.numel(), x.data_ptr(), y.data_ptr(), torch.get_num_threads())
        return y

    return define(f"{name}(Tensor x) -> Tensor", run, lambda x: x.new_empty(x.shape))


_ops = {name: _define(name) for name in ("sigmoid", "tanh", "softplus", "silu", "log", "exp", "sin", "cos")}

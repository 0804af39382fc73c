"""y = x W^T + b, on csrc/product.cpp: the bits of a row of y do not depend on the other rows."""

import torch
from torch import Tensor

from elman import _native
from elman.kernels.native.op import SUFFIX, Context, define, expect, output


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x` (..., D), `weight` (N, D), `bias` (N,) or None -> (..., N), all of one dtype."""
    if x.is_complex():
        return _complex(x, weight, bias)
    wanted = x.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad)
    if torch.is_grad_enabled() and wanted:
        return _Linear.apply(x, weight, bias)
    return _forward(x, weight, bias)


class _Linear(torch.autograd.Function):
    """Its backward pass can be differentiated again. The gradient of a row of x does not see the other rows either."""

    @staticmethod
    def forward(ctx: Context, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _forward(x, weight, bias)

    @staticmethod
    def backward(ctx: Context, gy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        need_x, need_weight, need_bias = ctx.needs_input_grad
        g = gy.reshape(-1, weight.shape[0])
        gx = linear(g, weight.t()).view(x.shape) if need_x else None
        gw = g.t() @ x.reshape(-1, weight.shape[1]) if need_weight else None
        return gx, gw, g.sum(0) if need_bias else None


def _complex(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A complex product as the real one over (real, imaginary) pairs, so that its rows are as independent."""
    re, im = weight.real, weight.imag
    pairs = torch.stack((torch.stack((re, -im), -1), torch.stack((im, re), -1)), 1)  # (N, 2, D, 2)
    N, _, D, _ = pairs.shape
    flat = None if bias is None else torch.view_as_real(bias.resolve_conj()).reshape(2 * N)
    y = linear(torch.view_as_real(x.resolve_conj()).reshape(*x.shape[:-1], 2 * D), pairs.reshape(2 * N, 2 * D), flat)
    return torch.view_as_complex(y.reshape(*x.shape[:-1], N, 2))


def _run(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    N, D = weight.shape
    expect("x", x, (*x.shape[:-1], D), weight.dtype)
    if bias is not None:
        expect("bias", bias, (N,), weight.dtype)
        bias = bias.contiguous()
    x, weight = x.contiguous(), weight.contiguous()
    y = output(x, (*x.shape[:-1], N))
    M = y.numel() // N if N else 0
    getattr(_native, "linear" + SUFFIX[x.dtype])(
        M,
        N,
        D,
        x.data_ptr(),
        weight.data_ptr(),
        0 if bias is None else bias.data_ptr(),
        y.data_ptr(),
        torch.get_num_threads(),
    )
    return y


def _fake(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


_forward = define("linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor", _run, _fake)

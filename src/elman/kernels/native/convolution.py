"""The causal convolution of each channel, y[t] = bias + sum_k w[k] x[t - K + 1 + k], on csrc/convolution.cpp."""

import torch
from torch import Tensor

from elman.kernels.native.op import Context, Struct, define, expect, no_gradient, once, output, over_rows, rows, run


def convolution(
    x: Tensor, weight: Tensor, bias: Tensor, window: Tensor, lengths: Tensor, reset: Tensor
) -> tuple[Tensor, Tensor]:
    """`x` (B, T, C), `weight` (K, C), `bias` (C,), `window` (B, K - 1, C) -> y (B, T, C) and the last window."""
    inputs = (x, weight, bias, window)
    if torch.is_grad_enabled() and any(t.requires_grad for t in inputs):
        y, last = _Convolution.apply(*inputs, lengths, reset)
    else:
        y, last = _forward(*inputs, lengths, reset)
    return y, last


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(*inputs)
        ctx.set_materialize_grads(False)
        y, last = _forward(*inputs)
        return y, last

    @staticmethod
    def backward(ctx: Context, gy: Tensor | None, glast: Tensor | None) -> tuple[Tensor | None, ...]:
        x, window = ctx.saved_tensors[0], ctx.saved_tensors[3]
        gy = no_gradient(x) if gy is None else gy
        if glast is None:
            glast = torch.zeros_like(window)
        return *once(_backward, *ctx.saved_tensors, gy, glast), None, None


def _inputs(x: Tensor, weight: Tensor, bias: Tensor, window: Tensor, lengths: Tensor, reset: Tensor) -> Struct:
    """ConvolutionInputs of csrc/kernels.h, checked."""
    B, T, C = x.shape
    K = len(weight)
    expect("weight", weight, (K, C), x.dtype)
    expect("bias", bias, (C,), x.dtype)
    expect("window", window, (B, K - 1, C), x.dtype)
    expect("lengths", lengths, (B,), torch.int64)
    expect("reset", reset, (B, T), torch.bool)
    return {
        "n": {"B": B, "T": T, "C": C}, "K": K, "x": rows(x), "w": weight.contiguous(), "bias": bias.contiguous(),
        "window": window.contiguous(), "lengths": lengths.contiguous(), "reset": reset.contiguous(),
    }  # fmt: skip


def _run(*inputs: Tensor) -> tuple[Tensor, Tensor]:
    x, window = inputs[0], inputs[3]
    struct = _inputs(*inputs)
    y, last = output(x, x.shape), x.new_empty(window.shape)
    run("convolution", x.dtype, struct, {"y": y, "last": last})
    return y, last


def _run_backward(*args: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    *inputs, gy, glast = args
    x, weight, window = inputs[0], inputs[1], inputs[3]
    struct = _inputs(*inputs)
    expect("gy", gy, x.shape, x.dtype)
    expect("glast", glast, window.shape, x.dtype)
    gx, gwindow = output(x, x.shape), x.new_empty(window.shape)
    sums = x.new_empty((len(x), len(weight) + 1, x.shape[2]), dtype=torch.float64)
    arriving: Struct = {"gy": rows(gy), "glast": glast.contiguous()}
    run("convolution_back", x.dtype, struct, arriving, {"gx": gx, "gwindow": gwindow, "sums": sums})
    gweight, gbias = over_rows(sums).to(x.dtype).split([len(weight), 1])
    return gx, gweight.clone(), gbias[0].clone(), gwindow


def _fake(*inputs: Tensor) -> tuple[Tensor, Tensor]:
    return inputs[0].new_empty(inputs[0].shape), inputs[3].new_empty(inputs[3].shape)


def _fake_backward(*args: Tensor) -> tuple[Tensor, ...]:
    return tuple(t.new_empty(t.shape) for t in args[:4])


_INPUTS = "Tensor x, Tensor weight, Tensor bias, Tensor window, Tensor lengths, Tensor reset"
_forward = define(f"convolution({_INPUTS}) -> (Tensor y, Tensor last)", _run, _fake)
_backward = define(
    f"convolution_back({_INPUTS}, Tensor gy, Tensor glast)"
    " -> (Tensor gx, Tensor gweight, Tensor gbias, Tensor gwindow)",
    _run_backward,
    _fake_backward,
)

"""Layer and RMS normalisation of rows, on csrc/norm.cpp: a row has the same bits here and in a stream."""

import torch
from torch import Tensor

from elman.kernels.native.op import Context, Struct, contiguous, define, expect, once, output, run
from elman.kernels.reference.elementwise import affine


def layer_norm(x: Tensor, gain: Tensor | None, bias: Tensor | None, eps: float, heads: int = 1) -> Tensor:
    """gain * (x - mean x) / sqrt(var x + eps) + bias over the last axis of x (..., N), or over each head of it."""
    return _norm(x, gain, bias, eps, True, heads)


def rms_norm(x: Tensor, gain: Tensor | None, eps: float, heads: int = 1) -> Tensor:
    """gain * x / sqrt(mean x^2 + eps) over the last axis of x (..., N), or over each head of it."""
    return _norm(x, gain, None, eps, False, heads)


def l2_norm(x: Tensor, eps: float, heads: int = 1) -> Tensor:
    """x / sqrt(sum x^2 + eps): rms_norm divided by the root of how many there are."""
    N = x.shape[-1] // heads
    return rms_norm(x, x.new_full((N,), N**-0.5), eps / N, heads)


def _norm(x: Tensor, gain: Tensor | None, bias: Tensor | None, eps: float, centred: bool, heads: int) -> Tensor:
    if heads == 1:
        return _Norm.apply(x, gain, bias, eps, centred)
    parts = x.unflatten(-1, (heads, -1))
    if gain is None or gain.shape == parts.shape[-1:]:
        return _Norm.apply(parts, gain, bias, eps, centred).flatten(-2)
    return affine(_Norm.apply(parts, None, None, eps, centred), gain, bias)  # not fused, as in the kernel


class _Norm(torch.autograd.Function):
    """With v = (x - mean) * scale:  gx = scale * (gv - mean(gv) - v * mean(gv * v)), the first mean only if centred."""

    @staticmethod
    def forward(ctx: Context, x: Tensor, gain: Tensor | None, bias: Tensor | None, eps: float, centred: bool) -> Tensor:
        y, mean, scale = _forward(x, gain, bias, eps, centred)
        ctx.save_for_backward(x, gain, mean, scale)
        ctx.centred, ctx.has_bias = centred, bias is not None
        return y

    @staticmethod
    def backward(ctx: Context, gy: Tensor) -> tuple[Tensor | None, ...]:
        x, gain, mean, scale = ctx.saved_tensors
        gx, ggain, gbias = once(_backward, x, gain, mean, scale, gy, ctx.centred)
        return gx, None if gain is None else ggain, gbias if ctx.has_bias else None, None, None


def _inputs(x: Tensor, gain: Tensor | None, bias: Tensor | None, eps: float, centred: bool) -> Struct:
    """NormInputs of csrc/kernels.h, checked."""
    N = x.shape[-1]
    weights: Struct = {}
    for name, weight in (("gain", gain), ("bias", bias)):
        if weight is not None:
            expect(name, weight, (N,), x.dtype)
        weights[name] = contiguous(weight)
    M = x.numel() // N if N else 0
    return {"M": M, "N": N, "x": x.contiguous(), **weights, "eps": eps, "centred": centred}


def _run(
    x: Tensor, gain: Tensor | None, bias: Tensor | None, eps: float, centred: bool
) -> tuple[Tensor, Tensor, Tensor]:
    inputs = _inputs(x, gain, bias, eps, centred)
    y, mean, scale = _fake(x, gain, bias, eps, centred)
    run("norm", x.dtype, inputs, {"y": y, "mean": mean, "scale": scale})
    return y, mean, scale


def _fake(
    x: Tensor, gain: Tensor | None, bias: Tensor | None, eps: float, centred: bool
) -> tuple[Tensor, Tensor, Tensor]:
    return output(x, x.shape), x.new_empty(x.shape[:-1]), x.new_empty(x.shape[:-1])


def _run_back(
    x: Tensor, gain: Tensor | None, mean: Tensor, scale: Tensor, gy: Tensor, centred: bool
) -> tuple[Tensor, Tensor, Tensor]:
    expect("gy", gy, x.shape, x.dtype)
    inputs = _inputs(x, gain, None, 0.0, centred)
    gx, ggain, gbias = _fake_back(x, gain, mean, scale, gy, centred)
    arriving: Struct = {"mean": mean, "scale": scale, "gy": gy.contiguous()}
    run("norm_back", x.dtype, inputs, arriving, {"gx": gx, "ggain": ggain, "gbias": gbias})
    return gx, ggain, gbias


def _fake_back(
    x: Tensor, gain: Tensor | None, mean: Tensor, scale: Tensor, gy: Tensor, centred: bool
) -> tuple[Tensor, Tensor, Tensor]:
    return output(x, x.shape), x.new_empty(x.shape[-1:]), x.new_empty(x.shape[-1:])


_forward = define(
    "norm(Tensor x, Tensor? gain, Tensor? bias, float eps, bool centred) -> (Tensor y, Tensor mean, Tensor scale)",
    _run,
    _fake,
)
_backward = define(
    "norm_back(Tensor x, Tensor? gain, Tensor mean, Tensor scale, Tensor gy, bool centred)"
    " -> (Tensor gx, Tensor ggain, Tensor gbias)",
    _run_back,
    _fake_back,
)

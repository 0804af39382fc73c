"""The selective scan h[t] = exp(delta[t] A)*h[t-1] + delta[t] x[t] B[t], y[t] = C[t] h[t], on csrc/selective.cpp."""

from typing import Any

import torch
from torch import Tensor

from elman.kernels.native.op import Context, Struct, define, expect, no_gradient, once, output, over_rows, rows, run

EVERY = (
    32  # steps between two states that are saved for the backward pass: D * N / 32 numbers a step, at N = 16 half of x
)


def selective_scan(
    x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, h0: Tensor, lengths: Tensor, reset: Tensor
) -> tuple[Tensor, Tensor]:
    """`x`, `delta` (B, T, D), `A` (D, N), `B`, `C` (B, T, N), `h0` (B, D, N) -> y (B, T, D), last (B, D, N)."""
    inputs = (x, delta, A, B, C, h0)
    if torch.is_grad_enabled() and any(t.requires_grad for t in inputs):
        y, last = _SelectiveScan.apply(*inputs, lengths, reset)
    else:
        y, last, _ = _forward(*inputs, lengths, reset, False)
    return y, last


class _SelectiveScan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        y, last, saved = _forward(*inputs, True)
        ctx.save_for_backward(*inputs, saved)
        ctx.set_materialize_grads(False)
        return y, last

    @staticmethod
    def backward(ctx: Context, gy: Tensor | None, glast: Tensor | None) -> tuple[Tensor | None, ...]:
        x, h0 = ctx.saved_tensors[0], ctx.saved_tensors[5]
        gy = no_gradient(x) if gy is None else gy
        if glast is None:
            glast = torch.zeros_like(h0)
        return *once(_backward, *ctx.saved_tensors, gy, glast), None, None


def _inputs(
    x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, h0: Tensor, lengths: Tensor, reset: Tensor
) -> Struct:
    """SelectiveInputs of csrc/kernels.h, checked."""
    batch, T, D = x.shape
    N = A.shape[-1]
    shapes = {"delta": (delta, x.shape), "A": (A, (D, N)), "B": (B, (batch, T, N)), "C": (C, (batch, T, N))}
    for name, (tensor, shape) in (shapes | {"h0": (h0, (batch, D, N))}).items():
        expect(name, tensor, shape, x.dtype)
    expect("lengths", lengths, (batch,), torch.int64)
    expect("reset", reset, (batch, T), torch.bool)
    return {
        "n": {"B": batch, "T": T, "C": D}, "N": N, "every": EVERY, "x": rows(x), "delta": rows(delta),
        "A": A.contiguous(), "B": rows(B), "C": rows(C), "h0": h0.contiguous(), "lengths": lengths.contiguous(),
        "reset": reset.contiguous(),
    }  # fmt: skip


def _saved_shape(x: Tensor, A: Tensor) -> tuple[int, int, int]:
    """A share of a state for each step, rather than T / EVERY states: an exported graph would fix whether that is 0."""
    B, T, D = x.shape
    return B, T, -((D + 15) // 16 * 16 * A.shape[1] // -EVERY)


def _run(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
    *inputs, keep = args
    x, A, h0 = inputs[0], inputs[2], inputs[5]
    struct = _inputs(*inputs)
    y, last = output(x, x.shape), x.new_empty(h0.shape)
    saved = output(x, _saved_shape(x, A) if keep else (0,))
    run("selective_scan", x.dtype, struct, {"y": y, "last": last, "saved": saved if keep else None})
    return y, last, saved


def _run_backward(*args: Tensor) -> tuple[Tensor, ...]:
    *inputs, saved, gy, glast = args
    x, A, B, h0 = inputs[0], inputs[2], inputs[3], inputs[5]
    struct = _inputs(*inputs)
    expect("saved", saved, _saved_shape(x, A), x.dtype)
    expect("gy", gy, x.shape, x.dtype)
    expect("glast", glast, h0.shape, x.dtype)
    gx, gdelta = output(x, x.shape), output(x, x.shape)
    gA = x.new_empty(h0.shape, dtype=torch.float64)
    gB, gC, gh0 = x.new_empty(B.shape), x.new_empty(B.shape), x.new_empty(h0.shape)
    arriving: Struct = {"saved": saved, "gy": rows(gy), "glast": glast.contiguous()}
    gradients = {"gx": gx, "gdelta": gdelta, "gA": gA, "gB": gB, "gC": gC, "gh0": gh0}
    run("selective_scan_back", x.dtype, struct, arriving, gradients)
    return gx, gdelta, over_rows(gA).to(x.dtype), gB, gC, gh0


def _fake(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
    x, _, A, _, _, h0, _, _, keep = args
    return x.new_empty(x.shape), x.new_empty(h0.shape), x.new_empty(_saved_shape(x, A) if keep else (0,))


def _fake_backward(*args: Tensor) -> tuple[Tensor, ...]:
    return tuple(t.new_empty(t.shape) for t in args[:6])


_INPUTS = "Tensor x, Tensor delta, Tensor A, Tensor B, Tensor C, Tensor h0, Tensor lengths, Tensor reset"
_forward = define(f"selective_scan({_INPUTS}, bool keep) -> (Tensor y, Tensor last, Tensor saved)", _run, _fake)
_backward = define(
    f"selective_scan_back({_INPUTS}, Tensor saved, Tensor gy, Tensor glast)"
    " -> (Tensor gx, Tensor gdelta, Tensor gA, Tensor gB, Tensor gC, Tensor gh0)",
    _run_backward,
    _fake_backward,
)

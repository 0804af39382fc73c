"""The scan of banks, h[t] = a h[t-1] + b x[t], y[t] = sum_n Re(c h[t]), on csrc/bank.cpp."""

from typing import Any

import torch
from torch import Tensor

from elman.kernels.native.op import Context, Struct, define, expect, no_gradient, once, output, over_rows, rows, run

EVERY = 32  # steps between two states that are kept for the backward pass: at N = 32, 2 numbers a step for each of x


def bank_scan(
    x: Tensor, a: Tensor, b: Tensor, c: Tensor, h0: Tensor, lengths: Tensor, reset: Tensor
) -> tuple[Tensor, Tensor]:
    """`x` (B, T, D), `a`, `b`, `c` (D, N, 2), `h0` (B, D, N, 2) -> y (B, T, D), last (B, D, N, 2)."""
    inputs = (x, a, b, c, h0)
    if torch.is_grad_enabled() and any(t.requires_grad for t in inputs):
        y, last = _BankScan.apply(*inputs, lengths, reset)
    else:
        y, last, _ = _forward(*inputs, lengths, reset, False)
    return y, last


class _BankScan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        y, last, saved = _forward(*inputs, True)
        ctx.save_for_backward(*inputs, saved)
        ctx.set_materialize_grads(False)
        return y, last

    @staticmethod
    def backward(ctx: Context, gy: Tensor | None, glast: Tensor | None) -> tuple[Tensor | None, ...]:
        x, h0 = ctx.saved_tensors[0], ctx.saved_tensors[4]
        gy = no_gradient(x) if gy is None else gy
        if glast is None:
            glast = torch.zeros_like(h0)
        return *once(_backward, *ctx.saved_tensors, gy, glast), None, None


def _inputs(x: Tensor, a: Tensor, b: Tensor, c: Tensor, h0: Tensor, lengths: Tensor, reset: Tensor) -> Struct:
    """BankInputs of csrc/kernels.h, checked."""
    (B, T, D), N = x.shape, a.shape[1]
    for name, tensor in (("a", a), ("b", b), ("c", c)):
        expect(name, tensor, (D, N, 2), x.dtype)
    expect("h0", h0, (B, D, N, 2), x.dtype)
    expect("lengths", lengths, (B,), torch.int64)
    expect("reset", reset, (B, T), torch.bool)
    return {
        "n": {"B": B, "T": T, "C": D}, "N": N, "every": EVERY, "x": rows(x), "a": a.contiguous(), "b": b.contiguous(),
        "c": c.contiguous(), "h0": h0.contiguous(), "lengths": lengths.contiguous(), "reset": reset.contiguous(),
    }  # fmt: skip


def _saved_shape(x: Tensor, a: Tensor) -> tuple[int, int, int]:
    """A share of a state for each step, rather than T / EVERY states: an exported graph would fix whether that is 0."""
    B, T, D = x.shape
    return B, T, -((D + 15) // 16 * 16 * 2 * a.shape[1] // -EVERY)


def _run(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
    *inputs, keep = args
    x, a, h0 = inputs[0], inputs[1], inputs[4]
    struct = _inputs(*inputs)
    y, last = output(x, x.shape), x.new_empty(h0.shape)
    saved = output(x, _saved_shape(x, a) if keep else (0,))
    run("bank_scan", x.dtype, struct, {"y": y, "last": last, "saved": saved if keep else None})
    return y, last, saved


def _run_backward(*args: Tensor) -> tuple[Tensor, ...]:
    *inputs, saved, gy, glast = args
    x, a, h0 = inputs[0], inputs[1], inputs[4]
    struct = _inputs(*inputs)
    expect("saved", saved, _saved_shape(x, a), x.dtype)
    expect("gy", gy, x.shape, x.dtype)
    expect("glast", glast, h0.shape, x.dtype)
    gx, gh0 = output(x, x.shape), x.new_empty(h0.shape)
    sums = {name: x.new_empty(h0.shape, dtype=torch.float64) for name in ("ga", "gb", "gc")}
    arriving: Struct = {"saved": saved, "gy": rows(gy), "glast": glast.contiguous()}
    run("bank_scan_back", x.dtype, struct, arriving, {"gx": gx, **sums, "gh0": gh0})
    return gx, *(over_rows(s).to(x.dtype) for s in sums.values()), gh0


def _fake(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
    x, a, _, _, h0, _, _, keep = args
    return x.new_empty(x.shape), x.new_empty(h0.shape), x.new_empty(_saved_shape(x, a) if keep else (0,))


def _fake_backward(*args: Tensor) -> tuple[Tensor, ...]:
    return tuple(t.new_empty(t.shape) for t in args[:5])


_INPUTS = "Tensor x, Tensor a, Tensor b, Tensor c, Tensor h0, Tensor lengths, Tensor reset"
_forward = define(f"bank_scan({_INPUTS}, bool keep) -> (Tensor y, Tensor last, Tensor saved)", _run, _fake)
_backward = define(
    f"bank_scan_back({_INPUTS}, Tensor saved, Tensor gy, Tensor glast)"
    " -> (Tensor gx, Tensor ga, Tensor gb, Tensor gc, Tensor gh0)",
    _run_backward,
    _fake_backward,
)

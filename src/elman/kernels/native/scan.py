"""The linear scan h[t] = a[t]*h[t-1] + b[t], and the reversal of rows, on csrc/scan.cpp."""

from typing import Any

import torch
from torch import Tensor

from elman import _native
from elman.kernels.native.op import SUFFIX, define, expect, no_gradient, once, output, over_rows, rows


def linear_scan(a: Tensor, b: Tensor, h0: Tensor, lengths: Tensor, reset: Tensor) -> tuple[Tensor, Tensor]:
    """`a` (B, T, C) or (C,), `b` (B, T, C), `h0` (B, C), `lengths` (B,), `reset` (B, T) -> h (B, T, C), last (B, C)."""
    if torch.is_grad_enabled() and (a.requires_grad or b.requires_grad or h0.requires_grad):
        h, last = _LinearScan.apply(a, b, h0, lengths, reset)
    else:
        h, last = _forward(a, b, h0, lengths, reset)
    return h, last


def reverse(x: Tensor, lengths: Tensor) -> Tensor:
    """`x` (B, T, ...), `lengths` (B,): the valid prefix of each row in reverse order, the padding where it is."""
    if torch.is_grad_enabled() and x.requires_grad:
        y: Tensor = _Reverse.apply(x, lengths)
        return y
    y = _reverse(x, lengths)
    return y


class _Reverse(torch.autograd.Function):
    """Its own inverse, and its own gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, lengths: Tensor) -> Tensor:
        ctx.save_for_backward(lengths)
        y: Tensor = _reverse(x, lengths)
        return y

    @staticmethod
    def backward(ctx: Any, gy: Tensor) -> tuple[Tensor, None]:
        (lengths,) = ctx.saved_tensors
        return reverse(gy, lengths), None


class _LinearScan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, h0: Tensor, lengths: Tensor, reset: Tensor) -> tuple[Tensor, Tensor]:
        h, last = _forward(a, b, h0, lengths, reset)
        ctx.save_for_backward(a, h0, lengths, reset, h)
        ctx.set_materialize_grads(False)
        return h, last

    @staticmethod
    def backward(ctx: Any, gh: Tensor | None, glast: Tensor | None) -> tuple[Tensor | None, ...]:
        a, h0, lengths, reset, h = ctx.saved_tensors
        gh = no_gradient(h) if gh is None else gh
        if glast is None:
            glast = torch.zeros_like(h0)
        ga, gb, gh0 = once(_backward, a, h0, lengths, reset, h, gh, glast)
        return ga, gb, gh0, None, None


def _coefficients(a: Tensor, like: Tensor) -> tuple[Tensor, int, int]:
    if a.ndim == 1:
        expect("a", a, like.shape[2:], like.dtype)
        return a.contiguous(), 0, 0
    expect("a", a, like.shape, like.dtype)
    return rows(a)


def _run(a: Tensor, b: Tensor, h0: Tensor, lengths: Tensor, reset: Tensor) -> tuple[Tensor, Tensor]:
    B, T, C = b.shape
    expect("h0", h0, (B, C), b.dtype)
    expect("lengths", lengths, (B,), torch.int64)
    expect("reset", reset, (B, T), torch.bool)
    a, a_row, a_time = _coefficients(a.resolve_conj(), b)
    b, b_row, b_time = rows(b.resolve_conj())
    h0, lengths, reset = h0.resolve_conj().contiguous(), lengths.contiguous(), reset.contiguous()
    h, last = output(b, (B, T, C)), b.new_empty((B, C))
    getattr(_native, "linear_scan" + SUFFIX[b.dtype])(
        B, T, C, a.data_ptr(), a_row, a_time, b.data_ptr(), b_row, b_time, h0.data_ptr(),
        lengths.data_ptr(), reset.data_ptr(), h.data_ptr(), last.data_ptr(), torch.get_num_threads(),
    )  # fmt: skip
    return h, last


def _run_backward(
    a: Tensor, h0: Tensor, lengths: Tensor, reset: Tensor, h: Tensor, gh: Tensor, glast: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    B, T, C = h.shape
    expect("h0", h0, (B, C), h.dtype)
    expect("lengths", lengths, (B,), torch.int64)
    expect("reset", reset, (B, T), torch.bool)
    expect("gh", gh, h.shape, h.dtype)
    expect("glast", glast, h0.shape, h.dtype)
    constant = a.ndim == 1
    a, a_row, a_time = _coefficients(a.resolve_conj(), h)
    gh, gh_row, gh_time = rows(gh.resolve_conj())
    h0, lengths, reset = h0.resolve_conj().contiguous(), lengths.contiguous(), reset.contiguous()
    h, glast = h.contiguous(), glast.resolve_conj().contiguous()
    ga = output(h, (0 if constant else B, T, C))
    total = h.new_empty((B if constant else 0, C), dtype=torch.complex128 if h.is_complex() else torch.float64)
    gb, gh0 = output(h, (B, T, C)), torch.empty_like(h0)
    getattr(_native, "linear_scan_back" + SUFFIX[h.dtype])(
        B, T, C, a.data_ptr(), a_row, a_time, h0.data_ptr(), lengths.data_ptr(), reset.data_ptr(), h.data_ptr(),
        gh.data_ptr(), gh_row, gh_time, glast.data_ptr(),
        ga.data_ptr(), total.data_ptr() if constant else 0, gb.data_ptr(), gh0.data_ptr(), torch.get_num_threads(),
    )  # fmt: skip
    return over_rows(total).to(h.dtype) if constant else ga, gb, gh0


def _fake(a: Tensor, b: Tensor, h0: Tensor, lengths: Tensor, reset: Tensor) -> tuple[Tensor, Tensor]:
    B, T, C = b.shape
    return b.new_empty((B, T, C)), b.new_empty((B, C))


def _fake_backward(
    a: Tensor, h0: Tensor, lengths: Tensor, reset: Tensor, h: Tensor, gh: Tensor, glast: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return a.new_empty(a.shape), h.new_empty(h.shape), h.new_empty(h0.shape)


def _run_reverse(x: Tensor, lengths: Tensor) -> Tensor:
    B, T = x.shape[:2]
    expect("lengths", lengths, (B,), torch.int64)
    x, lengths = x.resolve_conj().contiguous(), lengths.contiguous()
    y = output(x, x.shape)
    size = x[0, 0].nbytes if B and T else 0
    _native.reverse(B, T, size, x.data_ptr(), lengths.data_ptr(), y.data_ptr(), torch.get_num_threads())
    return y


_reverse = define("reverse(Tensor x, Tensor lengths) -> Tensor", _run_reverse, lambda x, lengths: x.new_empty(x.shape))
_forward = define(
    "linear_scan(Tensor a, Tensor b, Tensor h0, Tensor lengths, Tensor reset) -> (Tensor h, Tensor last)",
    _run,
    _fake,
)
_backward = define(
    "linear_scan_back(Tensor a, Tensor h0, Tensor lengths, Tensor reset, Tensor h, Tensor gh, Tensor glast)"
    " -> (Tensor ga, Tensor gb, Tensor gh0)",
    _run_backward,
    _fake_backward,
)

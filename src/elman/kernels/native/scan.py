"""The linear scan h[t] = a[t]*h[t-1] + b[t], on csrc/scan.cpp."""

from typing import Any

import torch
from torch import Tensor

from elman import _native
from elman.kernels.native.op import SUFFIX, define, expect, once, rows


def linear_scan(a: Tensor, b: Tensor, h0: Tensor, lengths: Tensor, reset: Tensor) -> tuple[Tensor, Tensor]:
    """`a` (B, T, C) or (C,), `b` (B, T, C), `h0` (B, C), `lengths` (B,), `reset` (B, T) -> h (B, T, C), last (B, C)."""
    if torch.is_grad_enabled() and (a.requires_grad or b.requires_grad or h0.requires_grad):
        h, last = _LinearScan.apply(a, b, h0, lengths, reset)
    else:
        h, last = _forward(a, b, h0, lengths, reset)
    return h, last


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
        if gh is None:  # a row of zeros that is read again and again, instead of a tensor of them
            gh = torch.zeros_like(h0[:1]).unsqueeze(1).expand(h.shape)
        if glast is None:
            glast = torch.zeros_like(h0)
        ga, gb, gh0 = once(_backward, a, h0, lengths, reset, h, gh, glast)
        return ga, gb, gh0, None, None


def _time_varying(a: Tensor, like: Tensor) -> tuple[Tensor, int, int]:
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
    a, a_row, a_time = _time_varying(a, b)
    b, b_row, b_time = rows(b)
    h0, lengths, reset = h0.contiguous(), lengths.contiguous(), reset.contiguous()
    h, last = b.new_empty((B, T, C)), b.new_empty((B, C))
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
    a, a_row, a_time = _time_varying(a, h)
    gh, gh_row, gh_time = rows(gh)
    h0, lengths, reset = h0.contiguous(), lengths.contiguous(), reset.contiguous()
    h, glast = h.contiguous(), glast.contiguous()
    ga = h.new_empty((B, C) if constant else (B, T, C))
    gb, gh0 = torch.empty_like(h), torch.empty_like(h0)
    getattr(_native, "linear_scan_back" + SUFFIX[h.dtype])(
        B, T, C, a.data_ptr(), a_row, a_time, h0.data_ptr(), lengths.data_ptr(), reset.data_ptr(), h.data_ptr(),
        gh.data_ptr(), gh_row, gh_time, glast.data_ptr(), constant,
        ga.data_ptr(), gb.data_ptr(), gh0.data_ptr(), torch.get_num_threads(),
    )  # fmt: skip
    return ga.sum(0) if constant else ga, gb, gh0


def _fake(a: Tensor, b: Tensor, h0: Tensor, lengths: Tensor, reset: Tensor) -> tuple[Tensor, Tensor]:
    B, T, C = b.shape
    return b.new_empty((B, T, C)), b.new_empty((B, C))


def _fake_backward(
    a: Tensor, h0: Tensor, lengths: Tensor, reset: Tensor, h: Tensor, gh: Tensor, glast: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return a.new_empty(a.shape), h.new_empty(h.shape), h.new_empty(h0.shape)


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

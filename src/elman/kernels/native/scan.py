"""The linear scan h[t] = a[t]*h[t-1] + b[t], the scan of a maximum and the reversal of rows, on csrc/scan.cpp."""

import torch
from torch import Tensor

from elman import _native
from elman.kernels.native.op import Context, Struct, define, expect, no_gradient, once, output, over_rows, rows, run


def linear_scan(a: Tensor, b: Tensor, h0: Tensor, lengths: Tensor, reset: Tensor) -> tuple[Tensor, Tensor]:
    """`a` (B, T, C) or (C,), `b` (B, T, C), `h0` (B, C), `lengths` (B,), `reset` (B, T) -> h (B, T, C), last (B, C)."""
    if torch.is_grad_enabled() and (a.requires_grad or b.requires_grad or h0.requires_grad):
        h, last = _LinearScan.apply(a, b, h0, lengths, reset)
    else:
        h, last = _forward(a, b, h0, lengths, reset)
    return h, last


def max_scan(a: Tensor, b: Tensor, m0: Tensor, lengths: Tensor, reset: Tensor) -> tuple[Tensor, Tensor]:
    """m[t] = max(a[t] + m[t-1], b[t]): `a`, `b` (B, T, C), `m0` (B, C) -> m (B, T, C), last (B, C)."""
    if torch.is_grad_enabled() and (a.requires_grad or b.requires_grad or m0.requires_grad):
        m, last = _MaxScan.apply(a, b, m0, lengths, reset)
    else:
        m, last = _max(a, b, m0, lengths, reset)
    return m, last


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
    def forward(ctx: Context, x: Tensor, lengths: Tensor) -> Tensor:
        ctx.save_for_backward(lengths)
        y: Tensor = _reverse(x, lengths)
        return y

    @staticmethod
    def backward(ctx: Context, gy: Tensor) -> tuple[Tensor, None]:
        (lengths,) = ctx.saved_tensors
        return reverse(gy, lengths), None


class _LinearScan(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Context, a: Tensor, b: Tensor, h0: Tensor, lengths: Tensor, reset: Tensor
    ) -> tuple[Tensor, Tensor]:
        h, last = _forward(a, b, h0, lengths, reset)
        ctx.save_for_backward(a, h0, lengths, reset, h)
        ctx.set_materialize_grads(False)
        return h, last

    @staticmethod
    def backward(ctx: Context, gh: Tensor | None, glast: Tensor | None) -> tuple[Tensor | None, ...]:
        a, h0, lengths, reset, h = ctx.saved_tensors
        gh = no_gradient(h) if gh is None else gh
        if glast is None:
            glast = torch.zeros_like(h0)
        ga, gb, gh0 = once(_backward, a, h0, lengths, reset, h, gh, glast)
        return ga, gb, gh0, None, None


class _MaxScan(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Context, a: Tensor, b: Tensor, m0: Tensor, lengths: Tensor, reset: Tensor
    ) -> tuple[Tensor, Tensor]:
        m, last = _max(a, b, m0, lengths, reset)
        ctx.save_for_backward(a, b, m0, lengths, reset, m)
        return m, last

    @staticmethod
    def backward(ctx: Context, gm: Tensor, glast: Tensor) -> tuple[Tensor | None, ...]:
        ga, gb, gm0 = once(_max_back, *ctx.saved_tensors, gm, glast)
        return ga, gb, gm0, None, None


def _inputs(a: Tensor, b: Tensor | None, h0: Tensor, lengths: Tensor, reset: Tensor, like: Tensor) -> Struct:
    """ScanInputs of csrc/scans.h, checked; `like` is (B, T, C)."""
    B, T, C = like.shape
    constant = a.ndim == 1
    expect("a", a, (C,) if constant else like.shape, like.dtype)
    expect("h0", h0, (B, C), like.dtype)
    expect("lengths", lengths, (B,), torch.int64)
    expect("reset", reset, (B, T), torch.bool)
    a = a.resolve_conj()
    return {
        "n": {"B": B, "T": T, "C": C}, "a": (a.contiguous(), 0, 0) if constant else rows(a),
        "b": None if b is None else rows(b.resolve_conj()), "h0": h0.resolve_conj().contiguous(),
        "lengths": lengths.contiguous(), "reset": reset.contiguous(),
    }  # fmt: skip


def _run(a: Tensor, b: Tensor, h0: Tensor, lengths: Tensor, reset: Tensor) -> tuple[Tensor, Tensor]:
    B, T, C = b.shape
    inputs = _inputs(a, b, h0, lengths, reset, b)
    h, last = output(b, (B, T, C)), b.new_empty((B, C))
    run("linear_scan", b.dtype, inputs, {"h": h, "last": last})
    return h, last


def _run_backward(
    a: Tensor, h0: Tensor, lengths: Tensor, reset: Tensor, h: Tensor, gh: Tensor, glast: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    B, T, C = h.shape
    inputs = _inputs(a, None, h0, lengths, reset, h)
    expect("gh", gh, h.shape, h.dtype)
    expect("glast", glast, h0.shape, h.dtype)
    arriving: Struct = {
        "h": h.contiguous(), "gh": rows(gh.resolve_conj()), "glast": glast.resolve_conj().contiguous(),
    }  # fmt: skip
    constant = a.ndim == 1
    ga = output(h, (0 if constant else B, T, C))
    total = h.new_empty((B if constant else 0, C), dtype=torch.complex128 if h.is_complex() else torch.float64)
    gb, gh0 = output(h, (B, T, C)), h.new_empty((B, C))
    gradients = {"ga": ga, "sum": total if constant else None, "gb": gb, "gh0": gh0}
    run("linear_scan_back", h.dtype, inputs, arriving, gradients)
    return over_rows(total).to(h.dtype) if constant else ga, gb, gh0


def _run_max(a: Tensor, b: Tensor, m0: Tensor, lengths: Tensor, reset: Tensor) -> tuple[Tensor, Tensor]:
    expect("a", a, b.shape, b.dtype)
    inputs = _inputs(a, b, m0, lengths, reset, b)
    m, last = output(b, b.shape), b.new_empty(m0.shape)
    run("max_scan", b.dtype, inputs, {"h": m, "last": last})
    return m, last


def _run_max_back(
    a: Tensor, b: Tensor, m0: Tensor, lengths: Tensor, reset: Tensor, m: Tensor, gm: Tensor, glast: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    inputs = _inputs(a, b, m0, lengths, reset, b)
    expect("m", m, b.shape, b.dtype)
    expect("gm", gm, b.shape, b.dtype)
    expect("glast", glast, m0.shape, b.dtype)
    arriving: Struct = {"h": m.contiguous(), "gh": rows(gm), "glast": glast.contiguous()}
    ga, gb, gm0 = output(b, b.shape), output(b, b.shape), b.new_empty(m0.shape)
    run("max_scan_back", b.dtype, inputs, arriving, {"ga": ga, "sum": None, "gb": gb, "gh0": gm0})
    return ga, gb, gm0


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


_max = define(
    "max_scan(Tensor a, Tensor b, Tensor m0, Tensor lengths, Tensor reset) -> (Tensor m, Tensor last)",
    _run_max,
    _fake,
)
_max_back = define(
    "max_scan_back(Tensor a, Tensor b, Tensor m0, Tensor lengths, Tensor reset, Tensor m, Tensor gm, Tensor glast)"
    " -> (Tensor ga, Tensor gb, Tensor gm0)",
    _run_max_back,
    lambda a, b, m0, *_: (a.new_empty(a.shape), b.new_empty(b.shape), m0.new_empty(m0.shape)),
)
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

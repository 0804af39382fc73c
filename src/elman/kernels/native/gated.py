"""The gated loops, on csrc/gated.cpp: one call for all time steps, rows and gates.

The backward loop gives the gradients of u and of the states, and the factors of the weights' gradients, which are then
one large product over all rows and steps.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from elman import _native
from elman import state as states
from elman.errors import UnknownNameError
from elman.kernels.native.op import SUFFIX, define, expect, once, rows
from elman.state import State


class Kind(NamedTuple):
    """What Python must know of a cell of csrc/gated.h."""

    number: int  # in `dispatch`
    gates: int
    saves: int  # values per unit and step that the backward pass needs
    matrix: bool = True  # the first weight is (gates * H, H)
    states: int = 1


KINDS = {
    "elman_tanh": Kind(0, 1, 0),
    "elman_relu": Kind(1, 1, 0),
    "indrnn_tanh": Kind(2, 1, 0, matrix=False),
    "indrnn_relu": Kind(3, 1, 0, matrix=False),
    "rate_tanh": Kind(4, 1, 1),
    "rate_relu": Kind(5, 1, 1),
    "gru": Kind(6, 3, 4),
    "gru_before": Kind(7, 3, 3),
    "lstm": Kind(8, 4, 5, states=2),
    "mgu": Kind(9, 2, 2),
}


def gated(
    kind: str | None,
    u: Tensor,
    weights: tuple[Tensor, ...],
    state: State,
    lengths: Tensor,
    reset: Tensor,
    recur: Callable[..., Any] | None = None,
) -> tuple[Tensor, State]:
    """`u` (B, T, gates * H), `weights` as `kind` has them, `state` of (B, H) leaves -> y (B, T, H), state."""
    if kind not in KINDS:
        raise UnknownNameError("kind of gated loop", kind, KINDS)
    leaves = states.leaves(state)
    dtype = u.dtype
    for tensor in (*weights, *leaves):
        dtype = torch.promote_types(dtype, tensor.dtype)
    u, *rest = (t.to(dtype) for t in (u, *weights, *leaves))
    parts, last = rest[: len(weights)], rest[len(weights) :]
    w = parts[0] if KINDS[kind].matrix else None
    extra = parts[-1] if len(parts) > 1 or w is None else None
    h0, c0 = last[0], last[1] if len(last) > 1 else None
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (u, w, extra, h0, c0)):
        y, h, c = _Gated.apply(kind, u, w, extra, h0, c0, lengths, reset)
    else:
        y, h, c, _ = _forward(kind, u, w, extra, h0, c0, lengths, reset, False)
    ends = iter((h, c))
    return y, states.map(lambda leaf: next(ends), state)


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, kind: str, u: Tensor, w: Tensor | None, extra: Tensor | None, h0: Tensor, c0: Tensor | None,
        lengths: Tensor, reset: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        y, h, c, saved = _forward(kind, u, w, extra, h0, c0, lengths, reset, True)
        ctx.save_for_backward(w, extra, h0, c0, lengths, reset, y, saved)
        ctx.set_materialize_grads(False)
        ctx.kind = kind
        return y, h, c

    @staticmethod
    def backward(ctx: Any, gy: Tensor | None, gh: Tensor | None, gc: Tensor | None) -> tuple[Tensor | None, ...]:
        w, extra, h0, c0, lengths, reset, y, saved = ctx.saved_tensors
        if gy is None:  # a row of zeros that is read again and again, instead of a tensor of them
            gy = torch.zeros_like(h0[:1]).unsqueeze(1).expand(y.shape)
        gh = torch.zeros_like(h0) if gh is None else gh
        gc = torch.zeros_like(h0) if gc is None and c0 is not None else gc
        gu, gh0, gc0, before, side = once(
            _backward, ctx.kind, w, extra, h0, c0, lengths, reset, y, saved, gy, gh, gc if c0 is not None else None
        )
        need_w, need_extra = ctx.needs_input_grad[2:4]
        gw = _weight_gradient(ctx.kind, gu, before, side) if need_w else None
        gextra = _extra_gradient(ctx.kind, gu, before, side) if need_extra else None
        return None, gu, gw, gextra, gh0, gc0 if c0 is not None else None, None, None


def _weight_gradient(kind: str, gu: Tensor, before: Tensor, side: Tensor) -> Tensor:
    """The gradients of a matrix of weights are sums over rows and steps: products of (B * T)-long columns."""
    g, h = gu.flatten(0, 1).t(), before.flatten(0, 1)
    if side.numel() == 0:
        return g @ h
    H = h.shape[1]
    other = side.flatten(0, 1)
    gw = gu.new_empty((g.shape[0], H))
    torch.mm(g[:-H], h, out=gw[:-H])
    # In "gru" the last gate's sum reads h' and its gradient is `side`; else it reads `side` and its gradient is gu.
    torch.mm(*((other.t(), h) if kind == "gru" else (g[-H:], other)), out=gw[-H:])
    return gw


def _extra_gradient(kind: str, gu: Tensor, before: Tensor, side: Tensor) -> Tensor | None:
    if kind == "gru":
        return side.sum((0, 1))
    if kind.startswith("indrnn"):
        return (gu * before).sum((0, 1))
    return None  # the leak of a rate cell is not learned here


def _address(x: Tensor | None) -> int:
    return 0 if x is None else x.data_ptr()


def _checked(
    kind: Kind,
    w: Tensor | None,
    extra: Tensor | None,
    h0: Tensor,
    c0: Tensor | None,
    lengths: Tensor,
    reset: Tensor,
    T: int,
) -> tuple[Tensor | None, Tensor | None, Tensor, Tensor | None, Tensor, Tensor]:
    B, H = h0.shape
    if w is not None:
        expect("weights[0]", w, (kind.gates * H, H), h0.dtype)
        w = w.contiguous()
    if extra is not None:
        expect("weights[-1]", extra, (1,) if extra.numel() == 1 else (H,), h0.dtype)
        extra = extra.contiguous()
    if c0 is not None:
        expect("state[1]", c0, (B, H), h0.dtype)
        c0 = c0.contiguous()
    expect("lengths", lengths, (B,), torch.int64)
    expect("reset", reset, (B, T), torch.bool)
    return w, extra, h0.contiguous(), c0, lengths.contiguous(), reset.contiguous()


def _run(
    kind: str, u: Tensor, w: Tensor | None, extra: Tensor | None, h0: Tensor, c0: Tensor | None, lengths: Tensor,
    reset: Tensor, save: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    B, T, H = u.shape[0], u.shape[1], h0.shape[-1]
    expect("u", u, (B, T, KINDS[kind].gates * H), h0.dtype)
    expect("state[0]", h0, (B, H), u.dtype)
    w, extra, h0, c0, lengths, reset = _checked(KINDS[kind], w, extra, h0, c0, lengths, reset, T)
    u, u_row, u_time = rows(u)
    y, h, c, saved = _fake(kind, u, w, extra, h0, c0, lengths, reset, save)
    getattr(_native, "gated" + SUFFIX[u.dtype])(
        KINDS[kind].number, B, T, H, u.data_ptr(), u_row, u_time, _address(w), _address(extra),
        0 if extra is None else extra.numel(), h0.data_ptr(), _address(c0), lengths.data_ptr(), reset.data_ptr(),
        y.data_ptr(), h.data_ptr(), c.data_ptr(), saved.data_ptr() if save else 0, torch.get_num_threads(),
    )  # fmt: skip
    return y, h, c, saved


def _fake(
    kind: str, u: Tensor, w: Tensor | None, extra: Tensor | None, h0: Tensor, c0: Tensor | None, lengths: Tensor,
    reset: Tensor, save: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    B, T, H = u.shape[0], u.shape[1], h0.shape[-1]
    line = 64 // u.dtype.itemsize
    width = (H + line - 1) // line * line
    saved = u.new_empty((B * T * KINDS[kind].saves * width if save else 0,))
    return u.new_empty((B, T, H)), h0.new_empty((B, H)), h0.new_empty((B, H) if c0 is not None else (0,)), saved


def _run_back(
    kind: str, w: Tensor | None, extra: Tensor | None, h0: Tensor, c0: Tensor | None, lengths: Tensor, reset: Tensor,
    y: Tensor, saved: Tensor, gy: Tensor, gh: Tensor, gc: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    B, T, H = y.shape
    expect("gy", gy, y.shape, y.dtype)
    expect("gh", gh, (B, H), y.dtype)
    w, extra, h0, c0, lengths, reset = _checked(KINDS[kind], w, extra, h0, c0, lengths, reset, T)
    gy, gy_row, gy_time = rows(gy)
    y, gh, gc = y.contiguous(), gh.contiguous(), None if gc is None else gc.contiguous()
    gu, gh0, gc0, before, side = _fake_back(kind, w, extra, h0, c0, lengths, reset, y, saved, gy, gh, gc)
    getattr(_native, "gated_back" + SUFFIX[y.dtype])(
        KINDS[kind].number, B, T, H, _address(w), _address(extra), 0 if extra is None else extra.numel(), h0.data_ptr(),
        _address(c0), lengths.data_ptr(), reset.data_ptr(), y.data_ptr(), saved.data_ptr(), gy.data_ptr(), gy_row,
        gy_time, gh.data_ptr(), _address(gc), gu.data_ptr(), gh0.data_ptr(), gc0.data_ptr(), before.data_ptr(),
        side.data_ptr(), torch.get_num_threads(),
    )  # fmt: skip
    return gu, gh0, gc0, before, side


def _fake_back(
    kind: str, w: Tensor | None, extra: Tensor | None, h0: Tensor, c0: Tensor | None, lengths: Tensor, reset: Tensor,
    y: Tensor, saved: Tensor, gy: Tensor, gh: Tensor, gc: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    B, T, H = y.shape
    gu = y.new_empty((B, T, KINDS[kind].gates * H))
    side = y.new_empty((B, T, H) if kind in ("gru", "gru_before", "mgu") else (0,))
    return gu, y.new_empty((B, H)), y.new_empty((B, H) if c0 is not None else (0,)), y.new_empty((B, T, H)), side


_forward = define(
    "gated(str kind, Tensor u, Tensor? w, Tensor? extra, Tensor h0, Tensor? c0, Tensor lengths, Tensor reset,"
    " bool save) -> (Tensor y, Tensor h, Tensor c, Tensor saved)",
    _run,
    _fake,
)
_backward = define(
    "gated_back(str kind, Tensor? w, Tensor? extra, Tensor h0, Tensor? c0, Tensor lengths, Tensor reset, Tensor y,"
    " Tensor saved, Tensor gy, Tensor gh, Tensor? gc)"
    " -> (Tensor gu, Tensor gh0, Tensor gc0, Tensor before, Tensor side)",
    _run_back,
    _fake_back,
)

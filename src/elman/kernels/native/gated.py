"""The gated loops, on csrc/gated.cpp and csrc/gated_back.cpp: one call for all time steps, rows and gates.

The projections of the inputs are made inside, some steps at a time, and never stored.
"""

import functools
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
    x: Tensor,
    weights: tuple[Tensor, ...],
    state: State,
    lengths: Tensor,
    reset: Tensor,
    U: Tensor | None = None,
    b: Tensor | None = None,
) -> tuple[Tensor, State]:
    """`x` (B, T, D), `U` (gates * H, D), `b` (gates * H,), `weights` as `kind` has them, `state` of (B, H) leaves
    -> y (B, T, H), state. Without U, x is what it would have made: (B, T, gates * H)."""
    if kind not in KINDS:
        raise UnknownNameError("kind of gated loop", kind, KINDS)
    leaves = states.leaves(state)
    w = weights[0] if KINDS[kind].matrix else None
    extra = weights[-1] if len(weights) > 1 or w is None else None
    arguments = [x, U, b, w, extra, leaves[0], leaves[1] if len(leaves) > 1 else None]
    dtype = functools.reduce(torch.promote_types, (t.dtype for t in arguments if t is not None))
    arguments = [None if t is None else t.to(dtype) for t in arguments]
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in arguments):
        y, h, c = _Gated.apply(kind, *arguments, lengths, reset)
    else:
        y, h, c, _ = _forward(kind, *arguments, lengths, reset, False)
    ends = iter((h, c))
    return y, states.map(lambda leaf: next(ends), state)


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, kind: str, x: Tensor, U: Tensor | None, b: Tensor | None, w: Tensor | None, extra: Tensor | None,
        h0: Tensor, c0: Tensor | None, lengths: Tensor, reset: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        y, h, c, saved = _forward(kind, x, U, b, w, extra, h0, c0, lengths, reset, True)
        # Projections that were given are of no use for their own gradient: only the shape counts.
        ctx.save_for_backward(x if U is not None else None, U, w, extra, h0, c0, lengths, reset, y, saved)
        ctx.set_materialize_grads(False)
        ctx.kind = kind
        return y, h, c

    @staticmethod
    def backward(ctx: Any, gy: Tensor | None, gh: Tensor | None, gc: Tensor | None) -> tuple[Tensor | None, ...]:
        x, U, w, extra, h0, c0, lengths, reset, y, saved = ctx.saved_tensors
        if gy is None:  # a row of zeros that is read again and again, instead of a tensor of them
            gy = torch.zeros_like(h0[:1]).unsqueeze(1).expand(y.shape)
        gh = torch.zeros_like(h0) if gh is None else gh
        gc = torch.zeros_like(h0) if gc is None and c0 is not None else gc
        wanted = list(ctx.needs_input_grad[1:6])
        found = once(
            _backward, ctx.kind, x, U, w, extra, h0, c0, lengths, reset, y, saved, gy, gh,
            gc if c0 is not None else None, wanted,
        )  # fmt: skip
        *inputs, gh0, gc0 = found
        some = [g if want else None for g, want in zip(inputs, wanted, strict=True)]
        return None, *some, gh0, gc0 if c0 is not None else None, None, None


def _address(x: Tensor | None) -> int:
    return 0 if x is None else x.data_ptr()


def _checked(
    kind: Kind, x: Tensor | None, U: Tensor | None, b: Tensor | None, w: Tensor | None, extra: Tensor | None,
    h0: Tensor, c0: Tensor | None, lengths: Tensor, reset: Tensor, T: int,
) -> list[Tensor | None]:  # fmt: skip
    """U, b, w, extra, h0, c0, lengths, reset, each of the right shape and side by side."""
    B, H = h0.shape
    N, dtype = kind.gates * H, h0.dtype
    if x is not None:
        expect("x", x, (B, T, N if U is None else U.shape[1]), dtype)
    for name, given, shape in (
        ("U", U, (N, U.shape[1] if U is not None else 0)),
        ("b", b, (N,)),
        ("weights[0]", w, (N, H)),
        ("weights[-1]", extra, (1,) if extra is not None and extra.numel() == 1 else (H,)),
        ("state[0]", h0, (B, H)),
        ("state[1]", c0, (B, H)),
    ):
        if given is not None:
            expect(name, given, shape, dtype)
    expect("lengths", lengths, (B,), torch.int64)
    expect("reset", reset, (B, T), torch.bool)
    return [None if t is None else t.contiguous() for t in (U, b, w, extra, h0, c0, lengths, reset)]


def _run(
    kind: str, x: Tensor, U: Tensor | None, b: Tensor | None, w: Tensor | None, extra: Tensor | None, h0: Tensor,
    c0: Tensor | None, lengths: Tensor, reset: Tensor, save: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    (B, T, D), H = x.shape, h0.shape[-1]
    arrays = _checked(KINDS[kind], x, U, b, w, extra, h0, c0, lengths, reset, T)
    U, b, w, extra, *rest = arrays
    x, x_row, x_time = rows(x)
    y, h, c, saved = _fake(kind, x, U, b, w, extra, h0, c0, lengths, reset, save)
    getattr(_native, "gated" + SUFFIX[x.dtype])(
        KINDS[kind].number, B, T, D, H, x.data_ptr(), x_row, x_time, _address(U), _address(b), _address(w),
        _address(extra), 0 if extra is None else extra.numel(), *map(_address, rest), y.data_ptr(), h.data_ptr(),
        c.data_ptr(), saved.data_ptr() if save else 0, torch.get_num_threads(),
    )  # fmt: skip
    return y, h, c, saved


def _fake(
    kind: str, x: Tensor, U: Tensor | None, b: Tensor | None, w: Tensor | None, extra: Tensor | None, h0: Tensor,
    c0: Tensor | None, lengths: Tensor, reset: Tensor, save: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    B, T, H = x.shape[0], x.shape[1], h0.shape[-1]
    line = 64 // x.dtype.itemsize
    width = (H + line - 1) // line * line
    saved = x.new_empty((B * T * KINDS[kind].saves * width if save else 0,))
    return x.new_empty((B, T, H)), h0.new_empty((B, H)), h0.new_empty((B, H) if c0 is not None else (0,)), saved


def _run_back(
    kind: str, x: Tensor | None, U: Tensor | None, w: Tensor | None, extra: Tensor | None, h0: Tensor,
    c0: Tensor | None, lengths: Tensor, reset: Tensor, y: Tensor, saved: Tensor, gy: Tensor, gh: Tensor,
    gc: Tensor | None, wanted: list[bool],
) -> tuple[Tensor, ...]:  # fmt: skip
    B, T, H = y.shape
    expect("gy", gy, y.shape, y.dtype)
    expect("gh", gh, (B, H), y.dtype)
    U, _, w, extra, *rest = _checked(KINDS[kind], x, U, None, w, extra, h0, c0, lengths, reset, T)
    gy, gy_row, gy_time = rows(gy)
    y, gh, gc = y.contiguous(), gh.contiguous(), None if gc is None else gc.contiguous()
    x_row = x_time = 0
    if x is not None:
        x, x_row, x_time = rows(x)
    outputs = _fake_back(kind, x, U, w, extra, h0, c0, lengths, reset, y, saved, gy, gh, gc, wanted)
    getattr(_native, "gated_back" + SUFFIX[y.dtype])(
        KINDS[kind].number, B, T, outputs[0].shape[-1] if U is None else U.shape[1], H, _address(x), x_row, x_time,
        _address(U), _address(w), _address(extra), 0 if extra is None else extra.numel(), *map(_address, rest),
        y.data_ptr(), saved.data_ptr(), gy.data_ptr(), gy_row, gy_time, gh.data_ptr(), _address(gc),
        *(out.data_ptr() if want else 0 for out, want in zip(outputs[:5], wanted, strict=True)),
        *(out.data_ptr() for out in outputs[5:]), torch.get_num_threads(),
    )  # fmt: skip
    return outputs


def _fake_back(
    kind: str, x: Tensor | None, U: Tensor | None, w: Tensor | None, extra: Tensor | None, h0: Tensor,
    c0: Tensor | None, lengths: Tensor, reset: Tensor, y: Tensor, saved: Tensor, gy: Tensor, gh: Tensor,
    gc: Tensor | None, wanted: list[bool],
) -> tuple[Tensor, ...]:  # fmt: skip
    """Gradients of x, U, b, w, extra (empty where they are not wanted), h0 and c0."""
    B, T, H = y.shape
    N = KINDS[kind].gates * H
    D = N if U is None else U.shape[1]
    shapes = ((B, T, D), (N, D), (N,), (N, H), (H,))
    some = [y.new_empty(shape if want else (0,)) for shape, want in zip(shapes, wanted, strict=True)]
    return *some, y.new_empty((B, H)), y.new_empty((B, H) if c0 is not None else (0,))


_forward = define(
    "gated(str kind, Tensor x, Tensor? U, Tensor? b, Tensor? w, Tensor? extra, Tensor h0, Tensor? c0, Tensor lengths,"
    " Tensor reset, bool save) -> (Tensor y, Tensor h, Tensor c, Tensor saved)",
    _run,
    _fake,
)
_backward = define(
    "gated_back(str kind, Tensor? x, Tensor? U, Tensor? w, Tensor? extra, Tensor h0, Tensor? c0, Tensor lengths,"
    " Tensor reset, Tensor y, Tensor saved, Tensor gy, Tensor gh, Tensor? gc, bool[] wanted)"
    " -> (Tensor gx, Tensor gU, Tensor gb, Tensor gw, Tensor gextra, Tensor gh0, Tensor gc0)",
    _run_back,
    _fake_back,
)

"""The gated loops, on csrc/gated.cpp and csrc/gated_back.cpp: one call for all time steps, rows and gates.

The projections of the inputs are made inside, some steps at a time, and never stored. For the backward pass each step
saves a few values per unit; or, if told so, the state is saved every so many steps, and the rest computed again.
"""

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from elman import _native
from elman import state as states
from elman.errors import InputError, UnknownNameError
from elman.kernels.native.op import Context, Struct, define, expect, no_gradient, once, rows, run
from elman.kernels.reference import GatedOptions
from elman.state import State


class Kind(NamedTuple):
    """What a caller must know of a kind of gated cell: csrc/gated.h says it, once."""

    number: int
    gates: int
    saves: int  # values per unit and step that the backward pass needs
    states: int
    matrix: bool  # the first weight is (gates * H, H)
    attends: bool  # there is a loop with attention inside


KINDS = {name: Kind(**facts) for name, facts in _native.GATED_KINDS.items()}


def gated(
    kind: str | None,
    x: Tensor,
    weights: tuple[Tensor, ...],
    state: State,
    lengths: Tensor,
    reset: Tensor,
    U: Tensor | None = None,
    b: Tensor | None = None,
    options: GatedOptions = GatedOptions(),  # noqa: B008  (a value)
    every: int | None = None,
) -> tuple[Tensor, State]:
    """`x` (B, T, D), `U` (gates * H, D), `b` (gates * H,), `weights` as `kind` has them, `state` of (B, H) leaves
    -> y (B, T, H), state. Without U, x is what it would have made: (B, T, gates * H).

    With `every`, the state is saved every so many steps for the backward pass, and nothing else.
    """
    if kind not in KINDS:
        raise UnknownNameError("kind of gated loop", kind, KINDS)
    if every is not None and every < 1:
        raise InputError(f"every is {every}; the state can be saved every 1, 2, 3, ... steps")
    leaves = states.leaves(state)
    w = weights[0] if KINDS[kind].matrix else None
    extra = weights[-1] if len(weights) > 1 or w is None else None
    arguments = [x, U, b, w, extra, leaves[0], leaves[1] if len(leaves) > 1 else None, *options]
    dtype = functools.reduce(torch.promote_types, {t.dtype for t in arguments if t is not None})
    arguments = [t if t is None or t.dtype == dtype else t.to(dtype) for t in arguments]
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in arguments):
        # A cell that saves nothing but y has nothing to compute again.
        y, h, c = _Gated.apply(kind, every if KINDS[kind].saves else None, *arguments, lengths, reset)
    else:
        y, h, c, _ = _forward(kind, *arguments[:7], arguments[7:], lengths, reset, False, None)
    ends = iter((h, c))
    return y, states.map(lambda leaf: next(ends), state)


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Context, kind: str, every: int | None, x: Tensor, U: Tensor | None, b: Tensor | None, w: Tensor | None,
        extra: Tensor | None, h0: Tensor, c0: Tensor | None, *rest: Any,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        *options, lengths, reset = rest
        y, h, c, saved = _forward(kind, x, U, b, w, extra, h0, c0, options, lengths, reset, True, every)
        # Projections that were given are of no use for their own gradient: only the shape counts.
        x = x if U is not None or every is not None else None  # type: ignore[assignment]
        ctx.save_for_backward(x, U, b, w, extra, h0, c0, lengths, reset, y, saved, *options)
        ctx.set_materialize_grads(False)
        ctx.kind, ctx.every = kind, every
        return y, h, c

    @staticmethod
    def backward(ctx: Context, gy: Tensor | None, gh: Tensor | None, gc: Tensor | None) -> tuple[Tensor | None, ...]:
        x, U, b, w, extra, h0, c0, lengths, reset, y, saved, *options = ctx.saved_tensors
        gy = no_gradient(y) if gy is None else gy
        gh = torch.zeros_like(h0) if gh is None else gh
        if c0 is not None:
            gc = torch.zeros_like(c0) if gc is None else gc
        wanted = list(ctx.needs_input_grad[2:7])
        found = once(
            _backward, ctx.kind, x, U, b, w, extra, h0, c0, options, lengths, reset, y, saved, ctx.every, gy, gh,
            gc if c0 is not None else None, wanted,
        )  # fmt: skip
        gradients = iter(found)
        return None, None, *(next(gradients) if need else None for need in _needed(wanted, c0, options)), None, None


def option_shapes(kind: str, H: int, R: int) -> tuple[tuple[int, ...], ...]:
    """The shapes that the options must have, in the order of GatedOptions."""
    gates = KINDS[kind].gates
    return (gates - 1, H), (R, H), (gates * H,), (gates * H,), (H,), (H,)


def weights_of(
    kind: str, D: int, H: int, R: int, U: Tensor | None, b: Tensor | None, w: Tensor | None, extra: Tensor | None,
    options: GatedOptions | None,
) -> Struct:  # fmt: skip
    """GatedWeights of csrc/kernels.h."""
    return {
        "kind": KINDS[kind].number, "D": D, "H": H, "R": R, "U": U, "b": b, "w": w, "extra": extra,
        "extra_size": 0 if extra is None else extra.numel(), "options": options and options._asdict(),
    }  # fmt: skip


def _inputs(
    kind: str, x: Tensor | None, U: Tensor | None, b: Tensor | None, w: Tensor | None, extra: Tensor | None,
    h0: Tensor, c0: Tensor | None, options: GatedOptions | None, lengths: Tensor, reset: Tensor, T: int,
    every: int | None,
) -> Struct:  # fmt: skip
    """GatedInputs of csrc/kernels.h: checked, and side by side in memory."""
    _check(kind, x, U, b, w, extra, h0, c0, options, lengths, reset, T)
    U, b, w, extra, c0 = _contiguous(U), _contiguous(b), _contiguous(w), _contiguous(extra), _contiguous(c0)
    options = options and GatedOptions(*map(_contiguous, options))
    (B, R), H = h0.shape, _units(kind, w, h0)
    D = KINDS[kind].gates * H if U is None else U.shape[1]
    return {
        "weights": weights_of(kind, D, H, R, U, b, w, extra, options), "B": B, "T": T,
        "every": max(T, 1) if every is None else min(every, max(T, 1)), "x": None if x is None else rows(x),
        "h0": h0.contiguous(), "c0": c0, "lengths": lengths.contiguous(), "reset": reset.contiguous(),
    }  # fmt: skip


def _given(options: list[Tensor | None]) -> GatedOptions | None:
    return GatedOptions(*options) if any(option is not None for option in options) else None


def _contiguous(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.contiguous()


def _units(kind: str, w: Tensor | None, h0: Tensor) -> int:
    """As many as h has, unless it is projected."""
    return int(h0.shape[-1]) if w is None else int(w.shape[0]) // KINDS[kind].gates


def _check(
    kind: str, x: Tensor | None, U: Tensor | None, b: Tensor | None, w: Tensor | None, extra: Tensor | None,
    h0: Tensor, c0: Tensor | None, options: GatedOptions | None, lengths: Tensor, reset: Tensor, T: int,
) -> None:  # fmt: skip
    B, R = h0.shape
    H, dtype = _units(kind, w, h0), h0.dtype
    N = KINDS[kind].gates * H
    if x is not None:
        expect("x", x, (B, T, N if U is None else U.shape[1]), dtype)
    if options and options.gain_U is not None and (options.gain is None or U is None):
        raise InputError("gain_U normalises U x beside a normalised W h': it needs U and gain as well")
    if R != H and (options is None or options.P is None):
        expect("weights[0]", h0, (B, H), dtype)  # says what h should be
    if U is not None:
        expect("U", U, (N, U.shape[1]), dtype)
    if b is not None:
        expect("b", b, (N,), dtype)
    if w is not None:
        expect("weights[0]", w, (N, R), dtype)
    if extra is not None:
        expect("weights[-1]", extra, (1,) if extra.numel() == 1 else (H,), dtype)
    if c0 is not None:
        expect("state[1]", c0, (B, H), dtype)
    for name, option, shape in zip(options._fields, options, option_shapes(kind, H, R), strict=True) if options else ():
        if option is not None:
            expect(name, option, shape, dtype)
    expect("lengths", lengths, (B,), torch.int64)
    expect("reset", reset, (B, T), torch.bool)


def saved_numbers(kind: str, B: int, T: int, H: int, itemsize: int) -> int:
    """What every step of a loop without options saves."""
    return _saved_numbers(kind, B, T, H, H, [None] * len(GatedOptions._fields), None, itemsize)


def _saved_numbers(
    kind: str, B: int, T: int, H: int, R: int, options: list[Tensor | None], every: int | None, itemsize: int
) -> int:
    """All that the backward pass needs: what every step saves, or the states at the checkpoints."""
    norms = (option is not None for option in GatedOptions(*options)[2:5])  # gain, gain_U, gain_c
    saved_row, state_row = _native.gated_layout(KINDS[kind].number, int(H), int(R), *norms, itemsize)
    return T * B * saved_row if every is None else -(-T // every) * B * state_row


def _run(
    kind: str, x: Tensor, U: Tensor | None, b: Tensor | None, w: Tensor | None, extra: Tensor | None, h0: Tensor,
    c0: Tensor | None, options: list[Tensor | None], lengths: Tensor, reset: Tensor, save: bool,
    every: int | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    inputs = _inputs(kind, x, U, b, w, extra, h0, c0, _given(options), lengths, reset, x.shape[1], every)
    y, h, c, saved = _fake(kind, x, U, b, w, extra, h0, c0, options, lengths, reset, save, every)
    outputs = {"y": y, "h": h, "c": c, **_saved_or_checkpoints(saved if save else None, every)}
    run("gated", x.dtype, inputs, outputs)
    return y, h, c, saved


def _saved_or_checkpoints(saved: Tensor | None, every: int | None) -> Struct:
    return {"saved": saved, "checkpoints": None} if every is None else {"saved": None, "checkpoints": saved}


def _fake(
    kind: str, x: Tensor, U: Tensor | None, b: Tensor | None, w: Tensor | None, extra: Tensor | None, h0: Tensor,
    c0: Tensor | None, options: list[Tensor | None], lengths: Tensor, reset: Tensor, save: bool,
    every: int | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    B, T, R = x.shape[0], x.shape[1], h0.shape[-1]
    H = _units(kind, w, h0)
    saved = x.new_empty((_saved_numbers(kind, B, T, H, R, options, every, x.itemsize) if save else 0,))
    return x.new_empty((B, T, R)), h0.new_empty((B, R)), h0.new_empty((B, H) if c0 is not None else (0,)), saved


def _run_back(
    kind: str, x: Tensor | None, U: Tensor | None, b: Tensor | None, w: Tensor | None, extra: Tensor | None, h0: Tensor,
    c0: Tensor | None, options: list[Tensor | None], lengths: Tensor, reset: Tensor, y: Tensor, saved: Tensor,
    every: int | None, gy: Tensor, gh: Tensor, gc: Tensor | None, wanted: list[bool],
) -> list[Tensor]:  # fmt: skip
    B, T, R = y.shape
    expect("gy", gy, y.shape, y.dtype)
    expect("gh", gh, (B, R), y.dtype)
    inputs = _inputs(kind, x, U, b, w, extra, h0, c0, _given(options), lengths, reset, T, every)
    H = _units(kind, w, h0)
    expect("saved", saved, (_saved_numbers(kind, B, T, H, R, options, every, y.itemsize),), y.dtype)
    arriving: Struct = {
        "y": y.contiguous(), **_saved_or_checkpoints(saved, every), "gy": rows(gy), "gh": gh.contiguous(),
        "gc": _contiguous(gc),
    }  # fmt: skip
    outputs = _fake_back(kind, x, U, b, w, extra, h0, c0, options, lengths, reset, y, saved, every, gy, gh, gc, wanted)
    found = iter(outputs)
    found_or_none = [next(found) if need else None for need in _needed(wanted, c0, options)]
    gradients: Struct = {
        **dict(zip(("gx", "gU", "gb", "gw", "gextra", "gh0", "gc0"), found_or_none, strict=False)),
        "options": GatedOptions(*found_or_none[7:])._asdict(),
    }
    run("gated_back", y.dtype, inputs, arriving, gradients)
    return outputs


def _fake_back(
    kind: str, x: Tensor | None, U: Tensor | None, b: Tensor | None, w: Tensor | None, extra: Tensor | None, h0: Tensor,
    c0: Tensor | None, options: list[Tensor | None], lengths: Tensor, reset: Tensor, y: Tensor, saved: Tensor,
    every: int | None, gy: Tensor, gh: Tensor, gc: Tensor | None, wanted: list[bool],
) -> list[Tensor]:  # fmt: skip
    """Gradients of x, U, b, w, extra, h0, c0 and the options: those that are needed."""
    B, T, R = y.shape
    H = _units(kind, w, h0)
    N = KINDS[kind].gates * H
    D = N if U is None else U.shape[1]
    shapes = ((B, T, D), (N, D), (N,), (N, R), (H,), (B, R), (B, H), *option_shapes(kind, H, R))
    return [y.new_empty(shape) for shape, need in zip(shapes, _needed(wanted, c0, options), strict=True) if need]


def _needed(wanted: list[bool], c0: Tensor | None, options: list[Tensor | None]) -> list[bool]:
    return [*wanted, True, c0 is not None, *(given is not None for given in options)]


_forward = define(
    "gated(str kind, Tensor x, Tensor? U, Tensor? b, Tensor? w, Tensor? extra, Tensor h0, Tensor? c0,"
    " Tensor?[] options, Tensor lengths, Tensor reset, bool save, SymInt? every)"
    " -> (Tensor y, Tensor h, Tensor c, Tensor saved)",
    _run,
    _fake,
)
_backward = define(
    "gated_back(str kind, Tensor? x, Tensor? U, Tensor? b, Tensor? w, Tensor? extra, Tensor h0, Tensor? c0,"
    " Tensor?[] options, Tensor lengths, Tensor reset, Tensor y, Tensor saved, SymInt? every, Tensor gy, Tensor gh,"
    " Tensor? gc, bool[] wanted)"
    " -> Tensor[]",
    _run_back,
    _fake_back,
)

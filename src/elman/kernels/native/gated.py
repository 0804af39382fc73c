"""The gated loops, on csrc/gated.cpp and csrc/gated_back.cpp: one call for all time steps, rows and gates.

The projections of the inputs are made inside, some steps at a time, and never stored. For the backward pass each step
saves a few values per unit; or, if told so, the state is kept every so many steps, and the rest computed again.
"""

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from elman import _native
from elman import state as states
from elman.errors import InputError, UnknownNameError
from elman.kernels.native.op import SUFFIX, define, expect, no_gradient, once, rows
from elman.state import State

Options = tuple[Tensor | None, ...]


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
    "mgu": Kind(8, 2, 2),
    "lstm": Kind(9, 4, 5, states=2),
    "lstm_logistic": Kind(10, 4, 5, states=2),  # the candidate too
    "lstm_coupled": Kind(11, 3, 4, states=2),
    "lstm_coupled_logistic": Kind(12, 3, 4, states=2),
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
    options: Options = (),
    every: int | None = None,
) -> tuple[Tensor, State]:
    """`x` (B, T, D), `U` (gates * H, D), `b` (gates * H,), `weights` as `kind` has them, `state` of (B, H) leaves
    -> y (B, T, H), state. Without U, x is what it would have made: (B, T, gates * H). `options` as GatedOptions.

    With `every`, the state is kept every so many steps for the backward pass, and nothing else.
    """
    if kind not in KINDS:
        raise UnknownNameError("kind of gated loop", kind, KINDS)
    if every is not None and every < 1:
        raise InputError(f"every is {every}; the state can be kept every 1, 2, 3, ... steps")
    leaves = states.leaves(state)
    w = weights[0] if KINDS[kind].matrix else None
    extra = weights[-1] if len(weights) > 1 or w is None else None
    arguments = [x, U, b, w, extra, leaves[0], leaves[1] if len(leaves) > 1 else None, *(options or [None] * 6)]
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
        ctx: Any, kind: str, every: int | None, x: Tensor, U: Tensor | None, b: Tensor | None, w: Tensor | None,
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
    def backward(ctx: Any, gy: Tensor | None, gh: Tensor | None, gc: Tensor | None) -> tuple[Tensor | None, ...]:
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


def _address(x: Tensor | None) -> int:
    return 0 if x is None else x.data_ptr()


def option_shapes(kind: Kind, H: int, R: int) -> list[tuple[str, tuple[int, ...]]]:
    """The options in their order, and the shapes that they must have."""
    N = kind.gates * H
    norms = [("gain", (N,)), ("gain_U", (N,)), ("gain_c", (H,)), ("bias_c", (H,))]
    return [("peephole", (kind.gates - 1, H)), ("P", (R, H)), *norms]


def _width(kind: Kind, w: Tensor | None, h0: Tensor) -> int:
    """Units: as many as h has, unless it is projected."""
    return int(h0.shape[-1]) if w is None else int(w.shape[0]) // kind.gates


def _checked(
    kind: Kind, x: Tensor | None, U: Tensor | None, b: Tensor | None, w: Tensor | None, extra: Tensor | None,
    h0: Tensor, c0: Tensor | None, options: list[Tensor | None], lengths: Tensor, reset: Tensor, T: int,
) -> list[Tensor | None]:  # fmt: skip
    """U, b, w, extra, the options, h0, c0, lengths, reset, each of the right shape and side by side."""
    B, R = h0.shape
    H, dtype = _width(kind, w, h0), h0.dtype
    N = kind.gates * H
    if x is not None:
        expect("x", x, (B, T, N if U is None else U.shape[1]), dtype)
    if options[3] is not None and (options[2] is None or U is None):
        raise InputError("gain_U normalises U x beside a normalised W h': it needs U and gain as well")
    if R != H and options[1] is None:
        expect("weights[0]", h0, (B, H), dtype)  # says what h should be
    shapes = [
        ("U", U, (N, U.shape[1] if U is not None else 0)),
        ("b", b, (N,)),
        ("weights[0]", w, (N, R)),
        ("weights[-1]", extra, (1,) if extra is not None and extra.numel() == 1 else (H,)),
        ("state[0]", h0, (B, R)),
        ("state[1]", c0, (B, H)),
        *((name, given, shape) for (name, shape), given in zip(option_shapes(kind, H, R), options, strict=True)),
    ]
    for name, given, shape in shapes:
        if given is not None:
            expect(name, given, shape, dtype)
    expect("lengths", lengths, (B,), torch.int64)
    expect("reset", reset, (B, T), torch.bool)
    return [None if t is None else t.contiguous() for t in (U, b, w, extra, *options, h0, c0, lengths, reset)]


def _saved_row(kind: Kind, H: int, options: list[Tensor | None], itemsize: int) -> int:
    """Numbers that the backward pass needs of a row and step, as kernels.h says."""
    gain, gain_U, gain_c = (gain is not None for gain in options[2:5])
    values = kind.saves + (gain + gain_U) * kind.gates
    return values * _padded(H, itemsize) + (64 // itemsize if gain or gain_U or gain_c else 0)


def _saved_numbers(
    kind: Kind, B: int, T: int, H: int, R: int, options: list[Tensor | None], every: int | None, itemsize: int
) -> int:
    """All that the backward pass needs, or all that is kept instead."""
    if every is None:
        return T * B * _saved_row(kind, H, options, itemsize)
    return -(-T // every) * B * (_padded(R, itemsize) + (_padded(H, itemsize) if kind.states == 2 else 0))


def _padded(width: int, itemsize: int) -> int:
    line = 64 // itemsize
    return (width + line - 1) // line * line


def _saved_or_kept(
    saved: Tensor, save: bool, kind: Kind, H: int, options: list[Tensor | None], every: int | None, T: int
) -> tuple[int, int, int, int]:
    """saved, saved_row, every and kept, as kernels.h says."""
    row, address = _saved_row(kind, H, options, saved.itemsize), saved.data_ptr() if save else 0
    return (address, row, max(T, 1), 0) if every is None else (0, row, min(every, max(T, 1)), address)


def _run(
    kind: str, x: Tensor, U: Tensor | None, b: Tensor | None, w: Tensor | None, extra: Tensor | None, h0: Tensor,
    c0: Tensor | None, options: list[Tensor | None], lengths: Tensor, reset: Tensor, save: bool,
    every: int | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    (B, T, D), R, facts = x.shape, h0.shape[-1], KINDS[kind]
    U, b, w, extra, *rest = _checked(facts, x, U, b, w, extra, h0, c0, options, lengths, reset, T)
    H = _width(facts, w, h0)
    x, x_row, x_time = rows(x)
    y, h, c, saved = _fake(kind, x, U, b, w, extra, h0, c0, options, lengths, reset, save, every)
    getattr(_native, "gated" + SUFFIX[x.dtype])(
        facts.number, B, T, D, H, R, x.data_ptr(), x_row, x_time, _address(U), _address(b), _address(w),
        _address(extra), 0 if extra is None else extra.numel(), *map(_address, rest), y.data_ptr(), h.data_ptr(),
        c.data_ptr(), *_saved_or_kept(saved, save, facts, H, options, every, T), torch.get_num_threads(),
    )  # fmt: skip
    return y, h, c, saved


def _fake(
    kind: str, x: Tensor, U: Tensor | None, b: Tensor | None, w: Tensor | None, extra: Tensor | None, h0: Tensor,
    c0: Tensor | None, options: list[Tensor | None], lengths: Tensor, reset: Tensor, save: bool,
    every: int | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    B, T, R = x.shape[0], x.shape[1], h0.shape[-1]
    H = _width(KINDS[kind], w, h0)
    saved = x.new_empty((_saved_numbers(KINDS[kind], B, T, H, R, options, every, x.itemsize) if save else 0,))
    return x.new_empty((B, T, R)), h0.new_empty((B, R)), h0.new_empty((B, H) if c0 is not None else (0,)), saved


def _run_back(
    kind: str, x: Tensor | None, U: Tensor | None, b: Tensor | None, w: Tensor | None, extra: Tensor | None, h0: Tensor,
    c0: Tensor | None, options: list[Tensor | None], lengths: Tensor, reset: Tensor, y: Tensor, saved: Tensor,
    every: int | None, gy: Tensor, gh: Tensor, gc: Tensor | None, wanted: list[bool],
) -> list[Tensor]:  # fmt: skip
    (B, T, R), facts = y.shape, KINDS[kind]
    expect("gy", gy, y.shape, y.dtype)
    expect("gh", gh, (B, R), y.dtype)
    U, b, w, extra, *rest = _checked(facts, x, U, b, w, extra, h0, c0, options, lengths, reset, T)
    H = _width(facts, w, h0)
    expect("saved", saved, (_saved_numbers(facts, B, T, H, R, options, every, y.itemsize),), y.dtype)
    gy, gy_row, gy_time = rows(gy)
    y, gh, gc = y.contiguous(), gh.contiguous(), None if gc is None else gc.contiguous()
    x_row = x_time = 0
    if x is not None:
        x, x_row, x_time = rows(x)
    outputs = _fake_back(kind, x, U, b, w, extra, h0, c0, options, lengths, reset, y, saved, every, gy, gh, gc, wanted)
    found = iter(outputs)
    addresses = [next(found).data_ptr() if need else 0 for need in _needed(wanted, c0, options)]
    getattr(_native, "gated_back" + SUFFIX[y.dtype])(
        facts.number, B, T, facts.gates * H if U is None else U.shape[1], H, R, _address(x), x_row, x_time,
        _address(U), _address(b), _address(w), _address(extra), 0 if extra is None else extra.numel(),
        *map(_address, rest), y.data_ptr(), *_saved_or_kept(saved, True, facts, H, options, every, T),
        gy.data_ptr(), gy_row, gy_time, gh.data_ptr(), _address(gc), *addresses, torch.get_num_threads(),
    )  # fmt: skip
    return outputs


def _fake_back(
    kind: str, x: Tensor | None, U: Tensor | None, b: Tensor | None, w: Tensor | None, extra: Tensor | None, h0: Tensor,
    c0: Tensor | None, options: list[Tensor | None], lengths: Tensor, reset: Tensor, y: Tensor, saved: Tensor,
    every: int | None, gy: Tensor, gh: Tensor, gc: Tensor | None, wanted: list[bool],
) -> list[Tensor]:  # fmt: skip
    """Gradients of x, U, b, w, extra, h0, c0 and the options: those that are needed."""
    B, T, R = y.shape
    H = _width(KINDS[kind], w, h0)
    N = KINDS[kind].gates * H
    D = N if U is None else U.shape[1]
    shapes: list[tuple[int, ...]] = [(B, T, D), (N, D), (N,), (N, R), (H,), (B, R), (B, H)]
    shapes += [shape for _, shape in option_shapes(KINDS[kind], H, R)]
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

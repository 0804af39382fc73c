"""The gated loops, on csrc/gated.cpp and csrc/gated_back.cpp: one call for all time steps, rows and gates.

The projections of the inputs are made inside, some steps at a time, and never stored. For the backward pass each step
saves a few values per unit, `narrow` in bfloat16; or, with `every`, the state is saved every n steps, and the rest
computed again.
"""

import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from elman import _native
from elman import state as states
from elman.errors import InputError, UnknownNameError
from elman.kernels.native.op import (
    Context,
    Struct,
    Value,
    contiguous,
    define,
    expect,
    no_gradient,
    once,
    output,
    rows,
    run,
    schema_of,
)
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
    kind: str,
    x: Tensor,
    weights: tuple[Tensor, ...],
    state: State,
    lengths: Tensor,
    reset: Tensor,
    U: Tensor | None = None,
    b: Tensor | None = None,
    options: GatedOptions = GatedOptions(),  # noqa: B008  (a value)
    every: int | None = None,
    backwards: bool = False,
    narrow: bool = False,
) -> tuple[Tensor, State]:
    """`x` (B, T, D), `U` (gates * H, D), `b` (gates * H,), `weights` as `kind` has them, `state` of (B, H) leaves
    -> y (B, T, H), state. Without U, x is what it would have made: (B, T, gates * H).

    With `every`, only the state after every so many steps is saved for the backward pass. `backwards`, each row is read
    from its end. `narrow`, a float32 loop saves in bfloat16; not so the states of `every`.
    """
    if every is not None and every < 1:
        raise InputError(f"every is {every}; the state can be saved every 1, 2, 3, ... steps")
    tensors = [x, *tensors_of(kind, weights, state, U, b, options)]
    dtype = functools.reduce(torch.promote_types, {t.dtype for t in tensors if t is not None})
    tensors = [t if t is None or t.dtype == dtype else t.to(dtype) for t in tensors]
    given = *tensors[1:7], lengths, reset, *tensors[7:]  # the fields of Loop and of GatedOptions
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
        # A cell that saves nothing but y has nothing to compute again.
        y, h, c = _Gated.apply(kind, every if KINDS[kind].saves else None, backwards, narrow, tensors[0], *given)
    else:
        y, h, c, _ = _forward(kind, tensors[0], *given, False, None, backwards, False)
    return y, last_state(state, h, c)


def tensors_of(
    kind: str, weights: tuple[Tensor, ...], state: State, U: Tensor | None, b: Tensor | None, options: GatedOptions
) -> list[Tensor | None]:
    """The fields of Loop, without lengths and reset, and those of the options."""
    if kind not in KINDS:
        raise UnknownNameError("kind of gated loop", kind, KINDS)
    leaves = states.leaves(state)
    w = weights[0] if KINDS[kind].matrix else None
    extra = weights[-1] if len(weights) > 1 or w is None else None
    return [U, b, w, extra, leaves[0], leaves[1] if len(leaves) > 1 else None, *options]


def last_state(like: State, h: Tensor, c: Tensor) -> State:
    ends = iter((h, c))
    return states.map(lambda leaf: next(ends), like)


class Loop(NamedTuple):
    """The arguments of every gated loop besides its inputs: weights, the state before, which steps are valid."""

    U: Tensor | None  # (gates * H, D)
    b: Tensor | None  # (gates * H,)
    w: Tensor | None  # (gates * H, R)
    extra: Tensor | None  # (H,) or (1,)
    h0: Tensor  # (B, R)
    c0: Tensor | None  # (B, H)
    lengths: Tensor  # (B,)
    reset: Tensor  # (B, T)


LOOP, OPTIONS = len(Loop._fields), len(GatedOptions._fields)


def split(given: Sequence[Value]) -> tuple[Loop, GatedOptions, Sequence[Value]]:
    """The arguments of an operation after its inputs: the loop, its options, and the rest."""
    return Loop(*given[:LOOP]), GatedOptions(*given[LOOP : LOOP + OPTIONS]), given[LOOP + OPTIONS :]


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Context, kind: str, every: int | None, backwards: bool, narrow: bool, x: Tensor, *given: Value
    ) -> tuple[Tensor, Tensor, Tensor]:
        y, h, c, saved = _forward(kind, x, *given, True, every, backwards, narrow)
        # Projections that were given are of no use for their own gradient: only the shape counts.
        projects = given[0] is not None
        ctx.save_for_backward(x if projects or every is not None else None, *given, y, saved)
        ctx.set_materialize_grads(False)
        ctx.kind, ctx.every, ctx.backwards = kind, every, backwards
        return y, h, c

    @staticmethod
    def backward(ctx: Context, gy: Tensor | None, gh: Tensor | None, gc: Tensor | None) -> tuple[Tensor | None, ...]:
        x, *given = ctx.saved_tensors
        loop, options, (y, _) = split(given)
        gy = no_gradient(y) if gy is None else gy
        wanted = list(ctx.needs_input_grad[4:9])
        last = *last_gradients(loop, gh, gc), wanted, ctx.backwards
        gradients = iter(once(_backward, ctx.kind, x, *given, ctx.every, gy, *last))
        found = [next(gradients) if need else None for need in needed(wanted, loop, options)]
        return None, None, None, None, *found[:7], None, None, *found[7:]


def last_gradients(loop: Loop, gh: Tensor | None, gc: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """What arrives at the last state: zeros where nothing does, None for a c that there is not."""
    gh = torch.zeros_like(loop.h0) if gh is None else gh
    if loop.c0 is None:
        return gh, None
    return gh, torch.zeros_like(loop.c0) if gc is None else gc


def option_shapes(kind: str, H: int, R: int) -> tuple[tuple[int, ...], ...]:
    """The shapes that the options must have, in the order of GatedOptions."""
    gates = KINDS[kind].gates
    return (gates - 1, H), (R, H), (gates * H,), (gates * H,), (H,), (H,)


def weights_of(
    kind: str, D: int, H: int, R: int, options: GatedOptions | None, U: Tensor | None, b: Tensor | None,
    w: Tensor | None, extra: Tensor | None,
) -> Struct:  # fmt: skip
    """GatedWeights of csrc/loops.h."""
    return {
        "kind": KINDS[kind].number, "D": D, "H": H, "R": R, "U": U, "b": b, "w": w, "extra": extra,
        "extra_size": 0 if extra is None else extra.numel(), "options": options and options._asdict(),
    }  # fmt: skip


def inputs_of(
    kind: str, x: Tensor | None, loop: Loop, given: GatedOptions, T: int, every: int | None, backwards: bool
) -> Struct:
    """GatedInputs of csrc/loops.h: checked, and side by side in memory."""
    (B, R), H = loop.h0.shape, units(kind, loop)
    options = None if all(option is None for option in given) else given  # one struct less to read
    D = KINDS[kind].gates * H if loop.U is None else loop.U.shape[1]
    if x is not None:
        expect("x", x, (B, T, D), loop.h0.dtype)
    check(kind, loop, options, H, D, T)
    arrays = options and GatedOptions(*map(contiguous, options))
    return {
        "weights": weights_of(kind, D, H, R, arrays, *map(contiguous, loop[:4])), "B": B, "T": T,
        "every": max(T, 1) if every is None else min(every, max(T, 1)), "x": None if x is None else rows(x),
        "h0": loop.h0.contiguous(), "c0": contiguous(loop.c0), "lengths": loop.lengths.contiguous(),
        "reset": loop.reset.contiguous(), "backwards": backwards,
    }  # fmt: skip


def units(kind: str, loop: Loop) -> int:
    """As many as h has, unless it is projected."""
    return int(loop.h0.shape[-1]) if loop.w is None else int(loop.w.shape[0]) // KINDS[kind].gates


def check(kind: str, loop: Loop, options: GatedOptions | None, H: int, D: int, T: int) -> None:
    """That a loop of H units over inputs (B, T, D) has the shapes that csrc reads."""
    (B, R), dtype, N = loop.h0.shape, loop.h0.dtype, KINDS[kind].gates * H
    if options and options.gain_U is not None and (options.gain is None or loop.U is None):
        raise InputError("gain_U normalises U x, and only together with W h': it needs U and gain as well")
    if R != H and (options is None or options.P is None):
        expect("weights[0]", loop.h0, (B, H), dtype)  # says what h should be
    if loop.U is not None:
        expect("U", loop.U, (N, D), dtype)
    if loop.b is not None:
        expect("b", loop.b, (N,), dtype)
    if loop.w is not None:
        expect("weights[0]", loop.w, (N, R), dtype)
    if loop.extra is not None:
        expect("weights[-1]", loop.extra, (1,) if loop.extra.numel() == 1 else (H,), dtype)
    if loop.c0 is not None:
        expect("state[1]", loop.c0, (B, H), dtype)
    for name, option, shape in zip(options._fields, options, option_shapes(kind, H, R), strict=True) if options else ():
        if option is not None:
            expect(name, option, shape, dtype)
    expect("lengths", loop.lengths, (B,), torch.int64)
    expect("reset", loop.reset, (B, T), torch.bool)


def saved_numbers(
    kind: str, B: int, T: int, H: int, R: int, options: GatedOptions, every: int | None, itemsize: int
) -> int:
    """All that the backward pass needs: what every step saves, or the states at the checkpoints."""
    norms = (option is not None for option in (options.gain, options.gain_U, options.gain_c))
    saved_row, state_row = _native.gated_layout(KINDS[kind].number, int(H), int(R), *norms, itemsize)
    return T * B * saved_row if every is None else -(-T // every) * B * state_row


def _run(kind: str, x: Tensor, *given: Value) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    loop, options, (save, every, backwards, _) = split(given)
    inputs = inputs_of(kind, x, loop, options, x.shape[1], every, backwards)
    y, h, c, saved = _fake(kind, x, *given)
    run("gated", x.dtype, inputs, outputs_of(y, y.shape[2], h, c, saved if save else None, every))
    return y, h, c, saved


def outputs_of(y: Tensor, ldy: int, h: Tensor, c: Tensor, saved: Tensor | None, every: int | None) -> Struct:
    """GatedOutputs of csrc/loops.h; y may be some of the `ldy` columns of a tensor."""
    return {"y": y, "h": h, "c": c, **_saved_one_way(saved, every), "ldy": ldy}


def _saved_one_way(saved: Tensor | None, every: int | None) -> Struct:
    """The three fields of which one may be there."""
    name = "checkpoints" if every is not None else "halves" if saved is not None and _is_narrow(saved) else "saved"
    return {"saved": None, "halves": None, "checkpoints": None, name: saved}


def _is_narrow(saved: Tensor) -> bool:
    return saved.dtype == torch.bfloat16


def _fake(kind: str, x: Tensor, *given: Value) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    loop, options, (save, every, _, narrow) = split(given)
    return output(x, (*x.shape[:2], loop.h0.shape[-1])), *room_for(kind, x, loop, options, save, every, narrow)


def room_for(
    kind: str, x: Tensor, loop: Loop, options: GatedOptions, save: bool, every: int | None, narrow: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """What a loop over x writes besides y: h, c, and what the backward pass needs."""
    B, T, R, H = *x.shape[:2], loop.h0.shape[-1], units(kind, loop)
    like = x.new_empty(0, dtype=torch.bfloat16) if narrow and every is None and x.dtype == torch.float32 else x
    saved = output(like, (saved_numbers(kind, B, T, H, R, options, every, x.itemsize) if save else 0,))
    return x.new_empty((B, R)), x.new_empty((B, H) if loop.c0 is not None else (0,)), saved


def _run_back(kind: str, x: Tensor | None, *given: Value) -> list[Tensor]:
    loop, options, (y, saved, every, gy, gh, gc, wanted, backwards) = split(given)
    inputs = inputs_of(kind, x, loop, options, y.shape[1], every, backwards)
    arriving = arriving_of(kind, loop, options, y.contiguous(), y.shape[2], saved, every, gy, gh, gc)
    outputs = _fake_back(kind, x, *given)
    run("gated_back", y.dtype, inputs, arriving, gradients_of(iter(outputs), needed(wanted, loop, options)))
    return outputs


def arriving_of(
    kind: str, loop: Loop, options: GatedOptions, y: Tensor, ldy: int, saved: Tensor, every: int | None, gy: Tensor,
    gh: Tensor, gc: Tensor | None,
) -> Struct:  # fmt: skip
    """GatedArriving of csrc/loops.h, checked; y may be some of the `ldy` columns of a tensor."""
    B, T, R = y.shape
    expect("gy", gy, y.shape, y.dtype)
    expect("gh", gh, (B, R), y.dtype)
    numbers = saved_numbers(kind, B, T, units(kind, loop), R, options, every, y.itemsize)
    narrow = _is_narrow(saved) and every is None and y.dtype == torch.float32
    expect("saved", saved, (numbers,), torch.bfloat16 if narrow else y.dtype)
    return {
        "y": y, **_saved_one_way(saved, every), "ldy": ldy, "gy": rows(gy), "gh": gh.contiguous(),
        "gc": contiguous(gc),
    }  # fmt: skip


def gradients_of(tensors: Iterator[Tensor], need: list[bool]) -> Struct:
    """GatedGradients of csrc/loops.h, in the next tensors for what is needed."""
    found = [next(tensors) if wanted else None for wanted in need]
    names = ("gx", "gU", "gb", "gw", "gextra", "gh0", "gc0")
    return {**dict(zip(names, found, strict=False)), "options": GatedOptions(*found[7:])._asdict()}


def _fake_back(kind: str, x: Tensor | None, *given: Value) -> list[Tensor]:
    """Gradients of x, U, b, w, extra, h0, c0 and the options: those that are needed."""
    loop, options, (y, *_, wanted, _) = split(given)
    return room_for_gradients(kind, y, loop, options, wanted)


def room_for_gradients(kind: str, y: Tensor, loop: Loop, options: GatedOptions, wanted: list[bool]) -> list[Tensor]:
    (B, T), R, H = y.shape[:2], loop.h0.shape[-1], units(kind, loop)
    N = KINDS[kind].gates * H
    D = N if loop.U is None else loop.U.shape[1]
    shapes = ((B, T, D), (N, D), (N,), (N, R), (H,), (B, R), (B, H), *option_shapes(kind, H, R))
    return [output(y, shape) for shape, need in zip(shapes, needed(wanted, loop, options), strict=True) if need]


def needed(wanted: list[bool], loop: Loop, options: GatedOptions) -> list[bool]:
    return [*wanted, True, loop.c0 is not None, *(option is not None for option in options)]


_ARGUMENTS = f"{schema_of(Loop)}, {schema_of(GatedOptions)}"
_forward = define(
    f"gated(str kind, Tensor x, {_ARGUMENTS}, bool save, SymInt? every, bool backwards, bool narrow)"
    " -> (Tensor y, Tensor h, Tensor c, Tensor saved)",
    _run,
    _fake,
)
_backward = define(
    f"gated_back(str kind, Tensor? x, {_ARGUMENTS}, Tensor y, Tensor saved, SymInt? every, Tensor gy, Tensor gh,"
    " Tensor? gc, bool[] wanted, bool backwards) -> Tensor[]",
    _run_back,
    _fake_back,
)

"""Two gated loops over the same inputs, their outputs side by side, on csrc/gated_pair.cpp: a bidirectional layer."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from elman.kernels.native.gated import (
    LOOP,
    OPTIONS,
    Loop,
    arriving_of,
    gradients_of,
    inputs_of,
    last_gradients,
    last_state,
    needed,
    outputs_of,
    room_for,
    room_for_gradients,
    split,
    tensors_of,
)
from elman.kernels.native.op import Context, Struct, Value, define, expect, no_gradient, once, output, run, schema_of
from elman.kernels.reference import GatedLoop, GatedOptions
from elman.state import State

EACH = LOOP + OPTIONS


def gated_pair(
    x: Tensor, loops: tuple[GatedLoop, GatedLoop], lengths: Tensor, reset: Tensor
) -> tuple[Tensor, tuple[State, State]]:
    """`x` (B, T, D), all of one dtype -> y (B, T, sum of R), the states after both loops."""
    kinds, backwards = [loop.kind for loop in loops], [loop.backwards for loop in loops]
    narrow = [loop.narrow for loop in loops]
    given: list[Value] = []
    for loop in loops:
        tensors = tensors_of(loop.kind, loop.weights, loop.state, loop.U, loop.b, loop.options)
        given += [*tensors[:6], lengths, reset, *tensors[6:]]
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, *given)):
        y, *ends = _GatedPair.apply(kinds, backwards, narrow, x, *given)
    else:
        y, *ends = _forward(kinds, backwards, x, *given, False, narrow)
    first, second = loops
    return y, (last_state(first.state, *ends[:2]), last_state(second.state, *ends[2:4]))


class _GatedPair(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Context, kinds: list[str], backwards: list[bool], narrow: list[bool], x: Tensor, *given: Value
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        y, h, c, h2, c2, *saved = _forward(kinds, backwards, x, *given, True, narrow)
        ctx.save_for_backward(x, *given, y, *saved)
        ctx.set_materialize_grads(False)
        ctx.kinds, ctx.backwards = kinds, backwards
        return y, h, c, h2, c2

    @staticmethod
    def backward(ctx: Context, gy: Tensor | None, *glast: Tensor | None) -> tuple[Tensor | None, ...]:
        x, *given, y, saved, saved2 = ctx.saved_tensors
        both = _both(given)
        last = [last_gradients(one.loop, *glast[2 * i : 2 * i + 2]) for i, one in enumerate(both)]
        # Of x the first loop gives the gradient of both.
        wanted = [list(ctx.needs_input_grad[3:8]), [False, *ctx.needs_input_grad[4 + EACH : 8 + EACH]]]
        gy = no_gradient(y) if gy is None else gy
        arguments = ctx.kinds, ctx.backwards, x, *given, y, saved, saved2, gy, *last[0], *last[1], *wanted
        gradients = iter(once(_backward, *arguments))
        found = [
            [next(gradients) if need else None for need in needed(want, one.loop, one.options)]
            for want, one in zip(wanted, both, strict=True)
        ]
        return None, None, None, found[0][0], *(g for f in found for g in (*f[1:7], None, None, *f[7:]))


class _One(NamedTuple):
    loop: Loop
    options: GatedOptions


def _both(given: Sequence[Value]) -> list[_One]:
    """The two loops among the arguments of an operation after its inputs."""
    return [_One(*split(given[i * EACH : (i + 1) * EACH])[:2]) for i in range(2)]


def _columns(y: Tensor, both: list[_One]) -> list[Tensor]:
    """The columns of y that each loop has."""
    R = both[0].loop.h0.shape[-1]
    return [y[..., left:right] for left, right in pairwise((0, R, y.shape[-1]))]


def _inputs(kinds: list[str], backwards: list[bool], x: Tensor, both: list[_One]) -> Struct:
    structs = [
        inputs_of(kind, x, *one, x.shape[1], None, back) for kind, one, back in zip(kinds, both, backwards, strict=True)
    ]
    return _pair(structs)


def _pair(structs: Sequence[Struct]) -> Struct:
    return {"first": structs[0], "second": structs[1]}


def _run(kinds: list[str], backwards: list[bool], x: Tensor, *given: Value) -> tuple[Tensor, ...]:
    both, save = _both(given), given[-2]
    y, h, c, h2, c2, saved, saved2 = _fake(kinds, backwards, x, *given)
    first, second = _columns(y, both)
    outputs = [
        outputs_of(first, y.shape[2], h, c, saved if save else None, None),
        outputs_of(second, y.shape[2], h2, c2, saved2 if save else None, None),
    ]
    run("gated_pair", x.dtype, _inputs(kinds, backwards, x, both), _pair(outputs))
    return y, h, c, h2, c2, saved, saved2


def _fake(kinds: list[str], backwards: list[bool], x: Tensor, *given: Value) -> tuple[Tensor, ...]:
    both, (save, narrow) = _both(given), given[2 * EACH :]
    y = output(x, (*x.shape[:2], sum(one.loop.h0.shape[-1] for one in both)))
    (h, c, saved), (h2, c2, saved2) = (
        room_for(kind, x, *one, save, None, half) for kind, one, half in zip(kinds, both, narrow, strict=True)
    )
    return y, h, c, h2, c2, saved, saved2


def _run_back(kinds: list[str], backwards: list[bool], x: Tensor, *given: Value) -> list[Tensor]:
    both, (y, saved, saved2, gy, gh, gc, gh2, gc2, *wanted) = _both(given), given[2 * EACH :]
    expect("gy", gy, y.shape, y.dtype)
    first, second = zip(_columns(y.contiguous(), both), _columns(gy, both), strict=True)
    arriving = [
        arriving_of(kinds[0], *both[0], first[0], y.shape[2], saved, None, first[1], gh, gc),
        arriving_of(kinds[1], *both[1], second[0], y.shape[2], saved2, None, second[1], gh2, gc2),
    ]
    outputs = _fake_back(kinds, backwards, x, *given)
    found = iter(outputs)
    gradients = [gradients_of(found, needed(want, *one)) for want, one in zip(wanted, both, strict=True)]
    run("gated_pair_back", y.dtype, _inputs(kinds, backwards, x, both), _pair(arriving), _pair(gradients))
    return outputs


def _fake_back(kinds: list[str], backwards: list[bool], x: Tensor, *given: Value) -> list[Tensor]:
    y, wanted = given[2 * EACH], given[-2:]
    gradients = [
        room_for_gradients(kind, y, *one, want) for kind, one, want in zip(kinds, _both(given), wanted, strict=True)
    ]
    return [*gradients[0], *gradients[1]]


def _schema(suffix: str) -> str:
    """The arguments of one loop, under names of its own."""
    arguments = f"{schema_of(Loop)}, {schema_of(GatedOptions)}"
    return ", ".join(f"{argument}{suffix}" for argument in arguments.split(", "))


_ARGUMENTS = f"str[] kinds, bool[] backwards, Tensor x, {_schema('')}, {_schema('2')}"
_forward = define(
    f"gated_pair({_ARGUMENTS}, bool save, bool[] narrow)"
    " -> (Tensor y, Tensor h, Tensor c, Tensor h2, Tensor c2, Tensor saved, Tensor saved2)",
    _run,
    _fake,
)
_backward = define(
    f"gated_pair_back({_ARGUMENTS}, Tensor y, Tensor saved, Tensor saved2, Tensor gy, Tensor gh, Tensor? gc,"
    " Tensor gh2, Tensor? gc2, bool[] wanted, bool[] wanted2) -> Tensor[]",
    _run_back,
    _fake_back,
)

"""Attention, on csrc/attention.cpp; the gated loop with attention inside, on csrc/attended.cpp and attended_back.cpp.

The backward pass of the loop gives the gradients of what its products make; those of the weights are products over all
steps, and Torch's.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from elman.errors import InputError
from elman.kernels.native.gated import KINDS, LOOP, Loop, check, saved_numbers, weights_of
from elman.kernels.native.op import (
    Context,
    Struct,
    Value,
    contiguous,
    define,
    expect,
    no_gradient,
    once,
    over_rows,
    rows,
    run,
    schema_of,
)
from elman.kernels.reference import AttendedLoop, GatedOptions


def attend(query: Tensor, keys: Tensor, values: Tensor, lengths: Tensor, v: Tensor | None) -> tuple[Tensor, Tensor]:
    """query (B, T, A), keys (B, S, A), values (B, S, M), lengths (B,), v (A,) or None -> context, weights."""
    given = [query, keys, values] if v is None else [query, keys, values, v]
    if torch.is_grad_enabled() and any(t.requires_grad for t in given):
        found: tuple[Tensor, Tensor] = _Attend.apply(query, keys, values, v, lengths)
        return found
    context, weights = _forward(query, keys, values, v, lengths)
    return context, weights


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Context, query: Tensor, keys: Tensor, values: Tensor, v: Tensor | None, lengths: Tensor
    ) -> tuple[Tensor, Tensor]:
        context, weights = _forward(query, keys, values, v, lengths)
        ctx.save_for_backward(query, keys, values, v, lengths, weights)
        ctx.set_materialize_grads(False)
        return context, weights

    @staticmethod
    def backward(ctx: Context, gcontext: Tensor | None, gweights: Tensor | None) -> tuple[Tensor | None, ...]:
        query, keys, values, v, lengths, weights = ctx.saved_tensors
        if gcontext is None:
            gcontext = query.new_zeros((*query.shape[:2], values.shape[2]))
        gquery, gkeys, gvalues, gv = once(_backward, query, keys, values, v, lengths, weights, gcontext, gweights)
        return gquery, gkeys, gvalues, None if v is None else over_rows(gv), None


def memory_of(keys: Tensor, values: Tensor, v: Tensor | None, lengths: Tensor, B: int, A: int) -> Struct:
    """Memory of csrc/loops.h: checked, and side by side in memory."""
    S, M = values.shape[1:]
    expect("keys", keys, (B, S, A), values.dtype)
    expect("values", values, (B, S, M), values.dtype)
    expect("lengths", lengths, (B,), torch.int64)
    if v is not None:
        expect("v", v, (A,), values.dtype)
    return {
        "B": B, "S": S, "A": A, "M": M, "keys": keys.contiguous(), "values": values.contiguous(), "v": contiguous(v),
        "lengths": lengths.contiguous(),
    }  # fmt: skip


def _attend_inputs(query: Tensor, keys: Tensor, values: Tensor, v: Tensor | None, lengths: Tensor) -> Struct:
    """AttendInputs of csrc/loops.h."""
    B, T, A = query.shape
    expect("query", query, (B, T, A), values.dtype)
    return {"memory": memory_of(keys, values, v, lengths, B, A), "T": T, "query": query.contiguous()}


def _run(query: Tensor, keys: Tensor, values: Tensor, v: Tensor | None, lengths: Tensor) -> tuple[Tensor, Tensor]:
    context, weights = _fake(query, keys, values, v, lengths)
    inputs = _attend_inputs(query, keys, values, v, lengths)
    run("attend", query.dtype, inputs, {"context": context, "weights": weights})
    return context, weights


def _fake(query: Tensor, keys: Tensor, values: Tensor, v: Tensor | None, lengths: Tensor) -> tuple[Tensor, Tensor]:
    B, T = query.shape[:2]
    return query.new_empty((B, T, values.shape[2])), query.new_empty((B, T, keys.shape[1]))


def _run_back(
    query: Tensor, keys: Tensor, values: Tensor, v: Tensor | None, lengths: Tensor, weights: Tensor, gcontext: Tensor,
    gweights: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    found = _fake_back(query, keys, values, v, lengths, weights, gcontext, gweights)
    arriving = {"weights": weights, "gcontext": gcontext.contiguous(), "gweights": contiguous(gweights)}
    names = ("gquery", "gkeys", "gvalues", "gv")
    inputs = _attend_inputs(query, keys, values, v, lengths)
    run("attend_back", query.dtype, inputs, arriving, dict(zip(names, found, strict=True)))
    return found


def _fake_back(
    query: Tensor, keys: Tensor, values: Tensor, v: Tensor | None, lengths: Tensor, weights: Tensor, gcontext: Tensor,
    gweights: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    gv = query.new_zeros((len(query), query.shape[2]))
    return query.new_empty(query.shape), keys.new_zeros(keys.shape), values.new_zeros(values.shape), gv


def fits(loop: AttendedLoop) -> bool:
    """Whether csrc has this loop: one of its kinds, without options."""
    return loop.kind in KINDS and KINDS[loop.kind].attends and all(option is None for option in loop.options)


def attended(
    loop: AttendedLoop, u: Tensor, state: list[Tensor], lengths: Tensor, reset: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """u (B, T, gates * H), what the inputs say to the gates; the leaves of a state, h, c if the cell has it, y if it is
    fed. -> [h, context] (B, T, H + M), or y (B, T, Z) if it is fed; the leaves of the last state."""
    if not fits(loop):
        raise InputError(f"there is no native loop with attention inside for the kind {loop.kind}")
    c0 = state[1] if KINDS[loop.kind].states == 2 else None
    y0 = None if loop.O is None else state[-1]
    w, extra = (*loop.weights, None)[:2]
    given = (
        *Loop(loop.U, None, w, extra, state[0], c0, lengths, reset),
        *Attention(y0, loop.keys, loop.values, loop.v, loop.Q, loop.O, loop.o, loop.sizes),
    )
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (u, *given)):
        h, context, y, *last = _Attended.apply(loop.kind, u, *given)
    else:
        found = _attended(loop.kind, u, *given, False)
        h, context, y = found[:3]
        last = list(found[5:8])
    ends = [last[0], *([] if c0 is None else [last[1]]), *([] if y0 is None else [last[2]])]
    return torch.cat([h, context], -1) if loop.O is None else y, ends


class Attention(NamedTuple):
    """What a loop with attention inside is given besides: the output before, the memory, how it is asked and read."""

    y0: Tensor | None  # (B, Z)
    keys: Tensor  # (B, S, A)
    values: Tensor  # (B, S, M)
    v: Tensor | None  # (A,)
    Q: Tensor | None  # (A, H)
    O: Tensor | None  # (Z, H + M)  # noqa: E741
    o: Tensor | None  # (Z,)
    sizes: Tensor  # (B,): the lengths of the memory


def _split(given: Sequence[Value]) -> tuple[Loop, Attention, Sequence[Value]]:
    """The arguments of an operation after its inputs: the loop, its attention, and the rest."""
    end = LOOP + len(Attention._fields)
    return Loop(*given[:LOOP]), Attention(*given[LOOP:end]), given[end:]


class _Attended(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, kind: str, u: Tensor, *given: Value) -> tuple[Tensor, ...]:
        h, context, y, query, weights, last_h, last_c, last_y, saved = _attended(kind, u, *given, True)
        # What u holds is of no use for its own gradient.
        ctx.save_for_backward(*given, context, h, y, query, weights, saved)
        ctx.kind = kind
        return h, context, y, last_h, last_c, last_y

    @staticmethod
    def backward(ctx: Context, *arriving: Tensor) -> tuple[Tensor | None, ...]:
        loop, memory, (context, *outputs) = _split(ctx.saved_tensors)
        h, y = outputs[:2]
        gu, gsum, gquery, gpre, gkeys, gvalues, gv, gh0, gc0, gy0 = once(
            _attended_back, ctx.kind, *loop, *memory, *outputs, *arriving
        )
        before = _before(loop.h0, h, loop.reset)
        sums = gsum if loop.extra is not None else gu
        gU = _outer(gu, context if memory.y0 is None else _before(memory.y0, y, loop.reset))
        gextra = None if loop.extra is None else sums.flatten(0, 1).sum(0)[-len(loop.extra) :]
        by_loop = (gU, None, _outer(sums, before), gextra, gh0, None if loop.c0 is None else gc0, None, None)
        by_memory = (
            None if memory.y0 is None else gy0, gkeys, gvalues, None if memory.v is None else over_rows(gv),
            None if memory.Q is None else _outer(gquery, before),
            None if memory.O is None else _outer(gpre, torch.cat([h, context], -1)),
            None if memory.o is None else gpre.sum((0, 1)), None,
        )  # fmt: skip
        return None, gu, *by_loop, *by_memory


def _before(first: Tensor, y: Tensor, reset: Tensor) -> Tensor:
    """What y (B, T, H) was a step earlier: zero where an episode begins."""
    return torch.where(reset[..., None], 0.0, torch.cat([first[:, None], y], 1)[:, : y.shape[1]])


def _outer(g: Tensor, x: Tensor) -> Tensor:
    """sum over rows and steps of g x^T."""
    return g.flatten(0, 1).t() @ x.flatten(0, 1)


def _inputs(kind: str, u: Tensor | None, loop: Loop, memory: Attention) -> Struct:
    """AttendedInputs of csrc/loops.h."""
    (B, H), T, dtype = loop.h0.shape, loop.reset.shape[1], loop.h0.dtype
    N, M, A = KINDS[kind].gates * H, memory.values.shape[2], H if memory.Q is None else memory.Q.shape[0]
    D = M if memory.O is None else memory.O.shape[0]
    check(kind, loop, None, H, D, T)
    for name, tensor, shape in (
        ("u", u, (B, T, N)), ("extra", loop.extra, (H,)), ("y0", memory.y0, (B, D)), ("Q", memory.Q, (A, H)),
        ("O", memory.O, (D, H + M)), ("o", memory.o, (D,)),
    ):  # fmt: skip
        if tensor is not None:
            expect(name, tensor, shape, dtype)
    if loop.U is None or loop.w is None:
        raise InputError("a loop with attention inside has the weights U and w; one of them is None")
    if (memory.Q is None) == (memory.O is None) or (memory.v is None) != (memory.Q is None):
        raise InputError("a loop with attention inside has v and Q, or O and o")
    return {
        "weights": weights_of(kind, D, H, H, None, *map(contiguous, loop[:4])), "B": B, "T": T,
        "u": None if u is None else rows(u), "h0": loop.h0.contiguous(), "c0": contiguous(loop.c0),
        "y0": contiguous(memory.y0), "lengths": loop.lengths.contiguous(), "reset": loop.reset.contiguous(),
        "memory": memory_of(memory.keys, memory.values, memory.v, memory.sizes, B, A),
        "Q": contiguous(memory.Q), "O": contiguous(memory.O), "o": contiguous(memory.o),
    }  # fmt: skip


def _saved_numbers(kind: str, B: int, T: int, H: int, itemsize: int) -> int:
    return saved_numbers(kind, B, T, H, H, GatedOptions(), None, itemsize)


def _run_attended(kind: str, u: Tensor, *given: Value) -> tuple[Tensor, ...]:
    loop, memory, (save,) = _split(given)
    found = _fake_attended(kind, u, *given)
    names = ("h", "context", "y", "query", "weights", "last_h", "last_c", "last_y", "saved")
    outputs: Struct = dict(zip(names, found if save else (*found[:-1], None), strict=True))
    run("attended", u.dtype, _inputs(kind, u, loop, memory), outputs)
    return found


def _fake_attended(kind: str, u: Tensor, *given: Value) -> tuple[Tensor, ...]:
    """Zeros: nothing is written past the lengths."""
    loop, memory, (save,) = _split(given)
    (B, T), H, (S, M) = u.shape[:2], loop.h0.shape[1], memory.values.shape[1:]
    A, Z = 0 if memory.Q is None else memory.Q.shape[0], 0 if memory.O is None else memory.O.shape[0]
    return (
        *(u.new_zeros((B, T, n)) for n in (H, M, Z, A, S)), u.new_empty((B, H)), u.new_empty((B, H)),
        u.new_empty((B, Z)), u.new_empty((_saved_numbers(kind, B, T, H, u.itemsize) if save else 0,)),
    )  # fmt: skip


def _run_attended_back(kind: str, *given: Value) -> list[Tensor]:
    loop, memory, (h, y, query, weights, saved, gh, gcontext, gy, glast_h, glast_c, glast_y) = _split(given)
    B, T, H = h.shape
    expect("saved", saved, (_saved_numbers(kind, B, T, H, h.itemsize),), h.dtype)
    found = _fake_attended_back(kind, *given)
    arriving: Struct = {
        "h": h, "y": y, "query": query, "weights": weights, "saved": saved, "gh": rows(gh), "gcontext": rows(gcontext),
        "gy": rows(gy if memory.O is not None else no_gradient(h)), "glast_h": glast_h.contiguous(),
        "glast_c": glast_c.contiguous(), "glast_y": glast_y.contiguous(),
    }  # fmt: skip
    names = ("gu", "gsum", "gquery", "gpre", "gkeys", "gvalues", "gv", "gh0", "gc0", "gy0")
    run("attended_back", h.dtype, _inputs(kind, None, loop, memory), arriving, dict(zip(names, found, strict=True)))
    return found


def _fake_attended_back(kind: str, *given: Value) -> list[Tensor]:
    loop, memory, (h, y, query, *_) = _split(given)
    (B, T, H), (_, _, A) = h.shape, memory.keys.shape
    N = KINDS[kind].gates * H
    shapes = (
        (B, T, N), (B, T, N if loop.extra is not None else 0), query.shape, y.shape, memory.keys.shape,
        memory.values.shape, (B, A), (B, H), (B, H), (B, y.shape[2]),
    )  # fmt: skip
    return [h.new_zeros(shape) for shape in shapes]


_forward = define(
    "attend(Tensor query, Tensor keys, Tensor values, Tensor? v, Tensor lengths) -> (Tensor context, Tensor weights)",
    _run,
    _fake,
)
_backward = define(
    "attend_back(Tensor query, Tensor keys, Tensor values, Tensor? v, Tensor lengths, Tensor weights, Tensor gcontext,"
    " Tensor? gweights) -> (Tensor, Tensor, Tensor, Tensor)",
    _run_back,
    _fake_back,
)
_ARGUMENTS = f"{schema_of(Loop)}, {schema_of(Attention)}"
_attended = define(
    f"attended(str kind, Tensor u, {_ARGUMENTS}, bool save) -> (Tensor h, Tensor context, Tensor y, Tensor query,"
    " Tensor weights, Tensor last_h, Tensor last_c, Tensor last_y, Tensor saved)",
    _run_attended,
    _fake_attended,
)
_attended_back = define(
    f"attended_back(str kind, {_ARGUMENTS}, Tensor h, Tensor y, Tensor query, Tensor weights, Tensor saved, Tensor gh,"
    " Tensor gcontext, Tensor gy, Tensor glast_h, Tensor glast_c, Tensor glast_y) -> Tensor[]",
    _run_attended_back,
    _fake_attended_back,
)

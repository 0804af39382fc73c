"""Attention, on csrc/attention.cpp; the gated loop with attention inside, on csrc/attended.cpp and attended_back.cpp.

The backward pass of the loop gives the gradients of what its products make; those of the weights are products over all
steps, and Torch's.
"""

from typing import Any

import torch
from torch import Tensor

from elman.errors import InputError
from elman.kernels.native.gated import KINDS, saved_numbers, weights_of
from elman.kernels.native.op import Context, Struct, define, expect, no_gradient, once, over_rows, rows, run
from elman.kernels.reference import AttendedLoop


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


def memory_of(
    query: Tensor | None, keys: Tensor, values: Tensor, v: Tensor | None, lengths: Tensor, B: int, T: int, A: int
) -> Struct:
    """AttendInputs of csrc/kernels.h: checked, and side by side in memory."""
    S, M = values.shape[1:]
    expect("keys", keys, (B, S, A), values.dtype)
    expect("values", values, (B, S, M), values.dtype)
    expect("lengths", lengths, (B,), torch.int64)
    if query is not None:
        expect("query", query, (B, T, A), values.dtype)
    if v is not None:
        expect("v", v, (A,), values.dtype)
    return {
        "B": B, "T": T, "S": S, "A": A, "M": M, "query": _contiguous(query), "keys": keys.contiguous(),
        "values": values.contiguous(), "v": _contiguous(v), "lengths": lengths.contiguous(),
    }  # fmt: skip


def _run(query: Tensor, keys: Tensor, values: Tensor, v: Tensor | None, lengths: Tensor) -> tuple[Tensor, Tensor]:
    context, weights = _fake(query, keys, values, v, lengths)
    inputs = memory_of(query, keys, values, v, lengths, *query.shape)
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
    arriving = {"weights": weights, "gcontext": gcontext.contiguous(), "gweights": _contiguous(gweights)}
    names = ("gquery", "gkeys", "gvalues", "gv")
    inputs = memory_of(query, keys, values, v, lengths, *query.shape)
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
    extra = loop.weights[1] if len(loop.weights) > 1 else None
    c0 = state[1] if KINDS[loop.kind].states == 2 else None
    y0 = None if loop.O is None else state[-1]
    arguments = (
        u, loop.U, loop.weights[0], extra, state[0], c0, y0, loop.keys, loop.values, loop.v, loop.Q, loop.O, loop.o,
    )  # fmt: skip
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in arguments):
        h, context, y, *last = _Attended.apply(loop.kind, *arguments, loop.sizes, lengths, reset)
    else:
        found = _attended(loop.kind, *arguments, loop.sizes, lengths, reset, False)
        h, context, y = found[:3]
        last = list(found[5:8])
    ends = [last[0], *([] if c0 is None else [last[1]]), *([] if y0 is None else [last[2]])]
    return torch.cat([h, context], -1) if loop.O is None else y, ends


class _Attended(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, kind: str, *arguments: Any) -> tuple[Tensor, ...]:
        h, context, y, query, weights, last_h, last_c, last_y, saved = _attended(kind, *arguments, True)
        # What u holds is of no use for its own gradient.
        ctx.save_for_backward(*arguments[1:], h, context, y, query, weights, saved)
        ctx.kind, ctx.u = kind, arguments[0].shape
        return h, context, y, last_h, last_c, last_y

    @staticmethod
    def backward(ctx: Context, *arriving: Tensor) -> tuple[Tensor | None, ...]:
        U, W, extra, h0, c0, y0, keys, values, v, Q, O, o, sizes, lengths, reset, *rest = ctx.saved_tensors  # noqa: E741
        h, context, y, query, weights, saved = rest
        given = (U, W, extra, h0, c0, y0, keys, values, v, Q, O, o, sizes, lengths, reset)
        gu, gsum, gquery, gpre, gkeys, gvalues, gv, gh0, gc0, gy0 = once(
            _attended_back, ctx.kind, *given, h, y, query, weights, saved, *arriving
        )
        before = _before(h0, h, reset)
        sums = gsum if extra is not None else gu
        gU = _outer(gu, context if O is None else _before(y0, y, reset))
        gextra = None if extra is None else sums.flatten(0, 1).sum(0)[-len(extra) :]
        gQ = None if Q is None else _outer(gquery, before)
        gO = None if O is None else _outer(gpre, torch.cat([h, context], -1))
        return (
            None, gu, gU, _outer(sums, before), gextra, gh0, None if c0 is None else gc0, None if y0 is None else gy0,
            gkeys, gvalues, None if v is None else over_rows(gv), gQ, gO, None if O is None else gpre.sum((0, 1)),
            None, None, None,
        )  # fmt: skip


def _before(first: Tensor, y: Tensor, reset: Tensor) -> Tensor:
    """What y (B, T, H) was a step earlier: zero where an episode begins."""
    return torch.where(reset[..., None], 0.0, torch.cat([first[:, None], y], 1)[:, : y.shape[1]])


def _outer(g: Tensor, x: Tensor) -> Tensor:
    """sum over rows and steps of g x^T."""
    return g.flatten(0, 1).t() @ x.flatten(0, 1)


def _inputs(
    kind: str, u: Tensor | None, U: Tensor, W: Tensor, extra: Tensor | None, h0: Tensor, c0: Tensor | None,
    y0: Tensor | None, keys: Tensor, values: Tensor, v: Tensor | None, Q: Tensor | None, O: Tensor | None,  # noqa: E741
    o: Tensor | None, sizes: Tensor, lengths: Tensor, reset: Tensor,
) -> Struct:  # fmt: skip
    """AttendedInputs of csrc/kernels.h."""
    (B, H), T, dtype = h0.shape, reset.shape[1], h0.dtype
    G, M, A = KINDS[kind].gates, values.shape[2], H if Q is None else Q.shape[0]
    D = M if O is None else O.shape[0]
    expect("U", U, (G * H, D), dtype)
    expect("W", W, (G * H, H), dtype)
    for name, given, shape in (
        ("u", u, (B, T, G * H)), ("extra", extra, (H,)), ("c0", c0, (B, H)), ("y0", y0, (B, D)), ("Q", Q, (A, H)),
        ("O", O, (D, H + M)), ("o", o, (D,)),
    ):  # fmt: skip
        if given is not None:
            expect(name, given, shape, dtype)
    expect("lengths", lengths, (B,), torch.int64)
    expect("reset", reset, (B, T), torch.bool)
    if (Q is None) == (O is None) or (v is None) != (Q is None):
        raise InputError("a loop with attention inside has v and Q, or O and o")
    weights = weights_of(kind, D, H, H, U.contiguous(), None, W.contiguous(), _contiguous(extra), None)
    return {
        "weights": weights, "B": B, "T": T, "u": None if u is None else rows(u), "h0": h0.contiguous(),
        "c0": _contiguous(c0), "y0": _contiguous(y0), "lengths": lengths.contiguous(), "reset": reset.contiguous(),
        "memory": memory_of(None, keys, values, v, sizes, B, T, A), "Q": _contiguous(Q), "O": _contiguous(O),
        "o": _contiguous(o),
    }  # fmt: skip


def _contiguous(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.contiguous()


def _run_attended(kind: str, *given: Any) -> tuple[Tensor, ...]:
    *arguments, save = given
    found = _fake_attended(kind, *given)
    names = ("h", "context", "y", "query", "weights", "last_h", "last_c", "last_y", "saved")
    outputs: Struct = dict(zip(names, found if save else (*found[:-1], None), strict=True))
    run("attended", arguments[0].dtype, _inputs(kind, *arguments), outputs)
    return found


def _fake_attended(
    kind: str, u: Tensor, U: Tensor, W: Tensor, extra: Tensor | None, h0: Tensor, c0: Tensor | None, y0: Tensor | None,
    keys: Tensor, values: Tensor, v: Tensor | None, Q: Tensor | None, O: Tensor | None, o: Tensor | None,  # noqa: E741
    sizes: Tensor, lengths: Tensor, reset: Tensor, save: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Zeros: nothing is written past the lengths."""
    (B, T), H, M, S = u.shape[:2], h0.shape[1], values.shape[2], values.shape[1]
    A, Z = 0 if Q is None else Q.shape[0], 0 if O is None else O.shape[0]
    return (
        *(u.new_zeros((B, T, n)) for n in (H, M, Z, A, S)), u.new_empty((B, H)), u.new_empty((B, H)),
        u.new_empty((B, Z)), u.new_empty((saved_numbers(kind, B, T, H, u.itemsize) if save else 0,)),
    )  # fmt: skip


def _run_attended_back(kind: str, *given: Any) -> list[Tensor]:
    arguments, (h, y, query, weights, saved, gh, gcontext, gy, glast_h, glast_c, glast_y) = given[:15], given[15:]
    (B, T, H), fed = h.shape, arguments[10] is not None
    expect("saved", saved, (saved_numbers(kind, B, T, H, h.itemsize),), h.dtype)
    found = _fake_attended_back(kind, *given)
    arriving: Struct = {
        "h": h, "y": y, "query": query, "weights": weights, "saved": saved, "gh": rows(gh), "gcontext": rows(gcontext),
        "gy": rows(gy if fed else no_gradient(h)), "glast_h": glast_h.contiguous(), "glast_c": glast_c.contiguous(),
        "glast_y": glast_y.contiguous(),
    }  # fmt: skip
    names = ("gu", "gsum", "gquery", "gpre", "gkeys", "gvalues", "gv", "gh0", "gc0", "gy0")
    run("attended_back", h.dtype, _inputs(kind, None, *arguments), arriving, dict(zip(names, found, strict=True)))
    return found


def _fake_attended_back(kind: str, *given: Any) -> list[Tensor]:
    extra, values, h, y, query = given[2], given[7], given[15], given[16], given[17]
    (B, T, H), keys = h.shape, given[6]
    N = KINDS[kind].gates * H
    shapes = (
        (B, T, N), (B, T, N if extra is not None else 0), query.shape, y.shape, keys.shape, values.shape,
        (B, keys.shape[2]), (B, H), (B, H), (B, y.shape[2]),
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
_ARGUMENTS = (
    "Tensor U, Tensor W, Tensor? extra, Tensor h0, Tensor? c0, Tensor? y0, Tensor keys, Tensor values, Tensor? v,"
    " Tensor? Q, Tensor? O, Tensor? o, Tensor sizes, Tensor lengths, Tensor reset"
)
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

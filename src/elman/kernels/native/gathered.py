"""The gated loop whose state before is gathered, on csrc/gathered.cpp and gathered_back.cpp.

The backward pass gives the gradients of the sums; those of the weights are products over all rows, and Torch's.
"""

import torch
from torch import Tensor

from elman.kernels.native.op import Context, Struct, Value, contiguous, define, expect, once, output, run
from elman.kernels.reference.gathered import Gather, shape


def gathered(
    kind: str, u: Tensor, w: Tensor, b: Tensor, gather: Gather, state: tuple[Tensor, ...] | None
) -> tuple[Tensor, ...]:
    """u (M, A * H), w (G * H, P * H), b (G * H,), the states that are given (levels[0], H) -> h, or h and c (N, H)."""
    size = shape(kind, u, w, b, gather)
    h0, c0 = (*(state or ()), None, None)[:2]
    arguments = (size.P, size.F, u, w, b, h0, c0, *gather)
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (u, w, b, h0, c0)):
        h, c = _Gathered.apply(*arguments)
    else:
        h, c = _forward(*arguments, False)[:2]
    return (h, c) if size.F else (h,)


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, P: int, F: int, *given: Value) -> tuple[Tensor, Tensor]:
        h, c, saved, forgets = _forward(P, F, *given, True)
        ctx.save_for_backward(*given, h, c, saved, forgets)
        ctx.P, ctx.F = P, F
        return h, c

    @staticmethod
    def backward(ctx: Context, gh: Tensor, gc: Tensor) -> tuple[Tensor | None, ...]:
        *given, h, c, saved, forgets = ctx.saved_tensors
        u, w, b, h0, c0, levels, before, first, source, _ = given
        gu, gsum, gforgets, gh, gc = once(_backward, ctx.P, ctx.F, *given, h, c, saved, forgets, gh, gc)
        begin, H = int(levels[0]), h.shape[1]
        later = int(levels[1]) if len(levels) > 1 else begin  # the first row that gathers
        if first is None:
            gw = gsum[later - begin :].t() @ _states(h, before[later:]) if ctx.needs_input_grad[3] else None
        else:
            together = gsum[later - begin :, : 3 * H].t() @ saved[later - begin :, 4]
            gw = torch.cat([together, gforgets.t() @ h[before]])
        return (
            None, None, gu, gw, _bias(gsum, u.shape[1], None if source is None else source[begin:]),
            None if h0 is None else gh[:begin], None if c0 is None else gc[:begin], *(None,) * 5,
        )  # fmt: skip


def _states(h: Tensor, before: Tensor) -> Tensor:
    """What was gathered, (rows, P * H): zeros where there was nothing."""
    rows, P = before.shape
    found = h.index_select(0, before.reshape(-1).clamp(min=0)).view(rows, P, h.shape[1])
    if bool((before < 0).any()):
        found = torch.where((before < 0)[..., None], 0.0, found)
    return found.view(rows, P * h.shape[1])


def _bias(gsum: Tensor, width: int, source: Tensor | None) -> Tensor:
    """b is read by rows without u, and by gates that u does not speak to."""
    rest = gsum[:, width:].sum(0)
    if source is None:
        return torch.cat([rest.new_zeros(width), rest])
    return torch.cat([(source < 0).to(gsum.dtype) @ gsum[:, :width], rest])


def _inputs(
    P: int, F: int, u: Tensor, w: Tensor, b: Tensor, h0: Tensor | None, c0: Tensor | None, levels: Tensor,
    before: Tensor, first: Tensor | None, source: Tensor | None, group: Tensor | None,
) -> Struct:  # fmt: skip
    """GatheredInputs of csrc/loops.h: checked, and side by side in memory."""
    (M, width), H, dtype = u.shape, w.shape[1] // P, u.dtype
    N, given, G = int(levels[-1]), int(levels[0]), 3 + F if F else 1
    expect("w", w, (G * H, P * H), dtype)
    expect("b", b, (G * H,), dtype)
    for name, state, wanted in (("h0", h0, given > 0), ("c0", c0, given > 0 and F > 0)):
        if state is not None or wanted:
            expect(name, u.new_empty(0, H) if state is None else state, (given, H), dtype)
    edges = int(first[-1]) if first is not None else 0
    expect("levels", levels, (len(levels),), torch.int64)
    expect("before", before, (N, P) if first is None else (edges,), torch.int64)
    for name, index, size in (("first", first, N + 1), ("source", source, N), ("group", group, N)):
        if index is not None:
            expect(name, index, (size,), torch.int64)
    fields = {"u": u, "w": w, "b": b, "h0": h0, "c0": c0}
    indices = {"level": levels, "before": before, "first": first, "source": source, "group": group}
    flat = {name: contiguous(t) for name, t in {**fields, **indices}.items()}
    return {"N": N, "levels": len(levels) - 1, "M": M, "A": width // H, "H": H, "P": P, "F": F, **flat}


def _run(P: int, F: int, *given: Value) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    *arguments, save = given
    h, c, saved, forgets = found = _fake(P, F, *given)
    outputs = {"h": h, "c": c if F else None, "saved": saved if save else None, "forgets": forgets if save else None}
    run("gathered", h.dtype, _inputs(P, F, *arguments), outputs)
    return found


def _fake(
    P: int, F: int, u: Tensor, w: Tensor, b: Tensor, h0: Tensor | None, c0: Tensor | None, levels: Tensor,
    before: Tensor, first: Tensor | None, source: Tensor | None, group: Tensor | None, save: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    N = int(levels[-1]) if first is not None else len(before)
    H, rows = w.shape[1] // P, N - (0 if h0 is None else len(h0))
    saves = 0 if not save else 5 if first is not None else 4 + F if F else 0
    edges = len(before) if first is not None and save else 0
    return (
        output(u, (N, H)), output(u, (N if F else 0, H)), output(u, (rows, saves, H)), output(u, (edges, H)),
    )  # fmt: skip


def _run_back(P: int, F: int, *given: Value) -> tuple[Tensor, ...]:
    *arguments, h, c, saved, forgets, gh, gc = given
    gu, gsum, gforgets, gh, gc = found = _fake_back(P, F, *given)
    gh.copy_(given[-2])
    gc.copy_(given[-1])
    arriving = {"h": h, "c": c, "saved": saved, "forgets": forgets}
    to = {"gu": gu, "gsum": gsum, "gforgets": gforgets, "gh": gh, "gc": gc}
    run("gathered_back", h.dtype, _inputs(P, F, *arguments), arriving, to)
    return found


def _fake_back(P: int, F: int, *given: Value) -> tuple[Tensor, ...]:
    (u, _, b), (saved, forgets, gh, gc) = given[:3], given[-4:]
    # A row of u that nobody reads has no gradient.
    return (
        torch.zeros_like(u, memory_format=torch.contiguous_format), output(u, (len(saved), len(b))),
        output(u, forgets.shape), output(u, gh.shape), output(u, gc.shape),
    )  # fmt: skip


_ARGUMENTS = (
    "int P, int F, Tensor u, Tensor w, Tensor b, Tensor? h0, Tensor? c0, Tensor levels, Tensor before, Tensor? first,"
    " Tensor? source, Tensor? group"
)
_forward = define(
    f"gathered({_ARGUMENTS}, bool save) -> (Tensor h, Tensor c, Tensor saved, Tensor forgets)",
    _run,
    _fake,
)
_backward = define(
    f"gathered_back({_ARGUMENTS}, Tensor h, Tensor c, Tensor saved, Tensor forgets, Tensor gh, Tensor gc)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    _run_back,
    _fake_back,
)

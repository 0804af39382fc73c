"""The scan of matrix states, on csrc/matrix.cpp and csrc/matrix_back.cpp: a head's bits depend on that head alone."""

from typing import NamedTuple

import torch
from torch import Tensor

from elman.kernels.native.op import Context, Struct, contiguous, define, expect, once, output, run, schema_of

EVERY = 32  # steps between two states that are saved for the backward pass


class Arguments(NamedTuple):
    """What the operation takes, in the order of its schema."""

    q: Tensor
    k: Tensor
    v: Tensor
    a: Tensor | None
    b: Tensor | None
    alpha: Tensor | None
    beta: Tensor | None
    S0: Tensor
    lengths: Tensor
    reset: Tensor


GRADIENTS = Arguments._fields[:-2]


def matrix_scan(
    q: Tensor, k: Tensor, v: Tensor, a: Tensor | None, S0: Tensor, lengths: Tensor, reset: Tensor,
    b: Tensor | None = None, alpha: Tensor | None = None, beta: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`q`, `k` (B, T, G, K), `v` (B, T, H, V), `S0` (B, H, K, V), and what else there is -> y (B, T, H, V), last S."""
    given = Arguments(q, k, v, a, b, alpha, beta, S0, lengths, reset)
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in given):
        y, last = _MatrixScan.apply(*given)
    else:
        y, last, _, _ = _forward(*given, False)
    return y, last


class _MatrixScan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, *given: Tensor | None) -> tuple[Tensor, Tensor]:
        y, last, saved, m = _forward(*given, True)
        ctx.save_for_backward(*given, saved, m)
        ctx.set_materialize_grads(False)
        return y, last

    @staticmethod
    def backward(ctx: Context, gy: Tensor | None, glast: Tensor | None) -> tuple[Tensor | None, ...]:
        *tensors, saved, m = ctx.saved_tensors
        given = Arguments(*tensors)
        gy = given.v.new_zeros((1, 1, *given.v.shape[2:])).expand(given.v.shape) if gy is None else gy
        glast = torch.zeros_like(given.S0) if glast is None else glast
        found = iter(once(_backward, *given, saved, m, gy, glast))
        return *(None if getattr(given, name) is None else next(found) for name in GRADIENTS), None, None


def _heads(name: str, x: Tensor | None, B: int, T: int, counts: tuple[int, ...], width: int) -> Struct | None:
    """Heads of csrc/scans.h: `x` (B, T, heads, width), or (B, T, heads) for one number each, checked; copied only if
    what a step has does not lie side by side."""
    if x is None:
        return None
    if x.dim() == 3:
        x, counts, width = x[..., None], counts[:1], 1
    count = x.shape[2] if x.dim() == 4 and x.shape[2] in counts else counts[0]
    expect(name, x, (B, T, count, width), x.dtype)
    flat = x.flatten(2)
    if flat.stride(2) != 1 and flat.shape[2] > 1:
        flat = flat.contiguous()
    return {"data": flat, "row": flat.stride(0), "time": flat.stride(1), "count": count, "width": width}


def _inputs(given: Arguments) -> Struct:
    """MatrixInputs of csrc/scans.h, checked."""
    q, k, v, a, b, alpha, beta, S0, lengths, reset = given
    (B, T, H, V), (K, dtype) = v.shape, (q.shape[-1], v.dtype)
    for name, x in zip(GRADIENTS, given, strict=False):
        if x is not None:
            expect(name, x, x.shape, dtype)
    G = q.shape[2]
    expect("k", k, q.shape, dtype)
    expect("S0", S0, (B, H, K, V), dtype)
    expect("lengths", lengths, (B,), torch.int64)
    expect("reset", reset, (B, T), torch.bool)
    if b is not None:
        expect("b", b, (B, T, H), dtype)
    groups = (H, G) if G and H % G == 0 else (H,)  # any other number of groups is refused below
    return {
        "B": B, "T": T, "H": H, "K": K, "V": V, "every": EVERY,
        "q": _heads("q", q, B, T, groups, K), "k": _heads("k", k, B, T, groups, K),
        "v": _heads("v", v, B, T, (H,), V), "a": _heads("a", a, B, T, groups, K),
        "b": _heads("b", b, B, T, (H,), 1), "alpha": _heads("alpha", alpha, B, T, groups, K),
        "beta": _heads("beta", beta, B, T, groups, K), "S0": S0.contiguous(), "lengths": lengths.contiguous(),
        "reset": reset.contiguous(),
    }  # fmt: skip


def _saved_shapes(given: Arguments, save: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Of the states that are saved, and of m. A share of a state for each step, not T / EVERY states: an exported graph
    would fix whether that is 0."""
    if not save:
        return (0,), (0,)
    B, T, H, V = given.v.shape
    states = (B, T, -(H * given.q.shape[-1] * V // -EVERY))
    return states, (0,) if given.b is None and given.alpha is None else (B, T, H, V)


def _run(*args: object) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    *tensors, save = args
    given = Arguments(*tensors)  # type: ignore[arg-type]
    inputs = _inputs(given)
    states, reads = _saved_shapes(given, bool(save))
    y, last = output(given.v, given.v.shape), given.v.new_empty(given.S0.shape)
    saved, m = output(given.v, states), output(given.v, reads)
    outputs = {"y": y, "last": last, "saved": saved if save else None, "m": m if len(reads) > 1 else None}
    run("matrix_scan", y.dtype, inputs, outputs)
    return y, last, saved, m


def _fake(*args: object) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    *tensors, save = args
    given = Arguments(*tensors)  # type: ignore[arg-type]
    shapes = (given.v.shape, given.S0.shape, *_saved_shapes(given, bool(save)))
    y, last, saved, m = (given.v.new_empty(shape) for shape in shapes)
    return y, last, saved, m


def _run_back(*args: Tensor) -> list[Tensor]:
    *tensors, saved, m, gy, glast = args
    given = Arguments(*tensors)
    inputs, dtype = _inputs(given), given.v.dtype
    B, T, H, V = given.v.shape
    states, reads = _saved_shapes(given, True)
    expect("saved", saved, states, dtype)
    expect("m", m, reads, dtype)
    expect("gy", gy, given.v.shape, dtype)
    expect("glast", glast, given.S0.shape, dtype)
    gradients = {
        "g" + name: None if x is None else output(given.v, x.shape) for name, x in zip(GRADIENTS, given, strict=False)
    }
    arriving: Struct = {
        "saved": saved, "m": m if len(reads) > 1 else None, "gy": _heads("gy", gy, B, T, (H,), V),
        "glast": contiguous(glast),
    }  # fmt: skip
    run("matrix_scan_back", dtype, inputs, arriving, gradients)
    return [g for g in gradients.values() if g is not None]


def _fake_back(*args: Tensor) -> list[Tensor]:
    given = Arguments(*args[: len(Arguments._fields)])
    return [x.new_empty(x.shape) for x in given[: len(GRADIENTS)] if x is not None]


_forward = define(
    f"matrix_scan({schema_of(Arguments)}, bool save) -> (Tensor y, Tensor last, Tensor saved, Tensor m)", _run, _fake
)
_backward = define(
    f"matrix_scan_back({schema_of(Arguments)}, Tensor saved, Tensor m, Tensor gy, Tensor glast) -> Tensor[]",
    _run_back,
    _fake_back,
)

"""Logarithms of the densities of Student's t and of the negative binomial, on csrc/densities.cpp: their gradients are
made beside them."""

import torch
from torch import Tensor

from elman.kernels import reference
from elman.kernels.native.op import Context, Operation, Struct, Value, define, expect, run

NAMES = {"student_t_log_prob": ("df", "mean", "scale"), "negative_binomial_log_prob": ("logits", "shape")}


def student_t_log_prob(x: Tensor, df: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    """Of each number of x; all of one shape and dtype."""
    return _log_prob("student_t_log_prob", x, df, mean, scale)


def negative_binomial_log_prob(x: Tensor, logits: Tensor, shape: Tensor) -> Tensor:
    """The same of counts, whose mean is softplus(logits)."""
    if x.requires_grad and torch.is_grad_enabled():  # how much more probable one and a half are than one
        return reference.negative_binomial_log_prob(x, logits, shape)
    return _log_prob("negative_binomial_log_prob", x, logits, shape)


def _log_prob(name: str, x: Tensor, *parameters: Tensor) -> Tensor:
    if torch.is_grad_enabled() and any(t.requires_grad for t in (x, *parameters)):
        log_prob: Tensor = _LogProb.apply(name, x, *parameters)
        return log_prob
    log_prob, *_ = _ops[name](x, *parameters, False)
    return log_prob


class _LogProb(torch.autograd.Function):
    """Its backward pass can be differentiated again."""

    @staticmethod
    def forward(ctx: Context, name: str, x: Tensor, *parameters: Tensor) -> Tensor:
        log_prob, *slopes = _ops[name](x, *parameters, True)
        ctx.name = name
        ctx.save_for_backward(x, *parameters, *slopes)
        return log_prob

    @staticmethod
    def backward(ctx: Context, g: Tensor) -> tuple[Tensor | None, ...]:
        count = 1 + len(NAMES[ctx.name])
        given, slopes = ctx.saved_tensors[:count], ctx.saved_tensors[count:]
        if torch.is_grad_enabled():
            return None, *_gradients(ctx, given, g)
        found = [g * slope if need else None for slope, need in zip(slopes, ctx.needs_input_grad[2:], strict=True)]
        return None, -g * slopes[1] if ctx.needs_input_grad[1] else None, *found


def _gradients(ctx: Context, given: tuple[Tensor, ...], g: Tensor) -> tuple[Tensor | None, ...]:
    """By the reference, with a graph."""
    wanted = [t for t, need in zip(given, ctx.needs_input_grad[1:], strict=True) if need]
    found = iter(torch.autograd.grad(getattr(reference, ctx.name)(*given), wanted, g, create_graph=True))
    return tuple(next(found) if need else None for need in ctx.needs_input_grad[1:])


def _define(name: str) -> Operation:
    names = NAMES[name]

    def fake(x: Tensor, *given: Value) -> list[Tensor]:
        *_, slopes = given
        return [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(1 + slopes * len(names))]

    def work(x: Tensor, *given: Value) -> list[Tensor]:
        parameters = dict(zip(names, given, strict=False))
        for parameter, t in parameters.items():
            expect(parameter, t, x.shape, x.dtype)
        log_prob, *slopes = fake(x, *given)
        gradients: Struct = dict.fromkeys((f"g{parameter}" for parameter in names), None)
        gradients |= {f"g{parameter}": t for parameter, t in zip(names, slopes, strict=False)}
        arrays = {"x": x.contiguous(), **{parameter: t.contiguous() for parameter, t in parameters.items()}}
        run(name, x.dtype, {"N": x.numel(), **arrays}, {"log_prob": log_prob, **gradients})
        return [log_prob, *slopes]

    arguments = ", ".join(f"Tensor {parameter}" for parameter in ("x", *names))
    return define(f"{name}({arguments}, bool slopes) -> Tensor[]", work, fake)


_ops = {name: _define(name) for name in NAMES}

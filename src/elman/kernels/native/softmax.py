"""log P(symbol) under a softmax over h W^T + b, on csrc/softmax.cpp: without its logits, and each row by itself."""

import torch
from torch import Tensor

from elman.kernels import reference
from elman.kernels.native.op import Context, Struct, contiguous, define, expect, output, run

Gradients = tuple[Tensor, Tensor, Tensor | None]  # of h, of the weight and of the bias


def softmax_log_prob(h: Tensor, weight: Tensor, bias: Tensor | None, symbols: Tensor) -> Tensor:
    """`h` (M, D), `weight` (V, D), `bias` (V,) or None, all of one dtype, `symbols` (M,) -> (M,)."""
    if _differentiated(h, weight, bias):
        return _LogProb.apply(h, weight, bias, symbols)
    return _forward(h, weight, bias, symbols)


def softmax_log_prob_sum(h: Tensor, weight: Tensor, bias: Tensor | None, symbols: Tensor) -> Tensor:
    """The sum of them: its gradients are made beside it, from the same logits."""
    if _differentiated(h, weight, bias):
        return _Sum.apply(h, weight, bias, symbols)
    return _forward(h, weight, bias, symbols).sum()


def _differentiated(h: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    wanted = h.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad)
    return wanted and torch.is_grad_enabled()


class _LogProb(torch.autograd.Function):
    """Its backward pass can be differentiated again."""

    @staticmethod
    def forward(ctx: Context, h: Tensor, weight: Tensor, bias: Tensor | None, symbols: Tensor) -> Tensor:
        ctx.save_for_backward(h, weight, bias, symbols)
        return _forward(h, weight, bias, symbols)

    @staticmethod
    def backward(ctx: Context, gy: Tensor) -> tuple[Tensor | None, ...]:
        return *_gradients(ctx.saved_tensors, gy), None


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, h: Tensor, weight: Tensor, bias: Tensor | None, symbols: Tensor) -> Tensor:
        ctx.save_for_backward(h, weight, bias, symbols)
        log_prob, *ctx.gradients = _backward(h, weight, bias, symbols, h.new_ones(len(h)))
        return log_prob.sum()

    @staticmethod
    def backward(ctx: Context, gy: Tensor) -> tuple[Tensor | None, ...]:
        made, ctx.gradients = ctx.gradients, None  # given away, so that they become those of the parameters as they are
        if made is None or torch.is_grad_enabled():
            return *_gradients(ctx.saved_tensors, gy.expand(len(ctx.saved_tensors[0]))), None
        *each, bias = made if ctx.saved_tensors[2] is not None else (*made[:2], None)
        del made
        if gy != 1:
            for gradient in each if bias is None else (*each, bias):
                gradient.mul_(gy)
        return *each, bias, None


def _gradients(saved: tuple[Tensor, ...], gy: Tensor) -> Gradients:
    h, weight, bias, symbols = saved
    if torch.is_grad_enabled():
        return reference.softmax_log_prob_back(h, weight, bias, symbols, gy)
    _, gh, gw, gb = _backward(h, weight, bias, symbols, gy)
    return gh, gw, None if bias is None else gb


def _inputs(h: Tensor, weight: Tensor, bias: Tensor | None, symbols: Tensor) -> Struct:
    """SoftmaxInputs of csrc/kernels.h, checked."""
    (M, D), V = h.shape, weight.shape[0]
    expect("weight", weight, (V, D), h.dtype)
    expect("symbols", symbols, (M,), torch.int64)
    if bias is not None:
        expect("bias", bias, (V,), h.dtype)
    given = {"h": h.contiguous(), "w": weight.contiguous(), "b": contiguous(bias), "symbols": symbols.contiguous()}
    return {"M": M, "V": V, "K": D, **given}


def _run(h: Tensor, weight: Tensor, bias: Tensor | None, symbols: Tensor) -> Tensor:
    log_prob = _fake(h, weight, bias, symbols)
    run("softmax_log_prob", h.dtype, _inputs(h, weight, bias, symbols), {"log_prob": log_prob})
    return log_prob


def _fake(h: Tensor, weight: Tensor, bias: Tensor | None, symbols: Tensor) -> Tensor:
    return h.new_empty(len(h))


def _run_back(h: Tensor, weight: Tensor, bias: Tensor | None, symbols: Tensor, g: Tensor) -> tuple[Tensor, ...]:
    expect("g", g, (len(h),), h.dtype)
    made = _fake_back(h, weight, bias, symbols, g)
    outputs: Struct = dict(zip(("log_prob", "gh", "gw", "gb"), made, strict=True))
    if bias is None:
        outputs["gb"] = None
    run("softmax_log_prob_back", h.dtype, _inputs(h, weight, bias, symbols), {"g": g.contiguous()}, outputs)
    return made


def _fake_back(h: Tensor, weight: Tensor, bias: Tensor | None, symbols: Tensor, g: Tensor) -> tuple[Tensor, ...]:
    gb = h.new_empty(0 if bias is None else len(bias))
    return h.new_empty(len(h)), h.new_empty(h.shape), output(h, weight.shape), gb


_arguments = "Tensor h, Tensor weight, Tensor? bias, Tensor symbols"
_forward = define(f"softmax_log_prob({_arguments}) -> Tensor", _run, _fake)
_backward = define(
    f"softmax_log_prob_back({_arguments}, Tensor g) -> (Tensor log_prob, Tensor gh, Tensor gw, Tensor gb)",
    _run_back,
    _fake_back,
)

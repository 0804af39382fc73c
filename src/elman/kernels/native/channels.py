"""Scans of independent channels, from a state to the last one: the selective scan, banks and the causal convolution.

csrc/selective.cpp, csrc/bank.cpp and csrc/convolution.cpp have one shape, and so have their operations: `ChannelScan`.
"""

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from elman.kernels.native.op import (
    Context,
    Struct,
    Value,
    define,
    expect,
    no_gradient,
    once,
    output,
    over_rows,
    rows,
    run,
)

EVERY = 32  # steps between two states that are saved for the backward pass

Shape = tuple[int, ...]


def selective_scan(
    x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, h0: Tensor, lengths: Tensor, reset: Tensor
) -> tuple[Tensor, Tensor]:
    """`x`, `delta` (B, T, D), `A` (D, N), `B`, `C` (B, T, N), `h0` (B, D, N) -> y (B, T, D), last (B, D, N)."""
    return SCANS["selective_scan"](x, delta, A, B, C, h0, lengths, reset)


def bank_scan(
    x: Tensor, a: Tensor, b: Tensor, c: Tensor, h0: Tensor, lengths: Tensor, reset: Tensor
) -> tuple[Tensor, Tensor]:
    """`x` (B, T, D), `a`, `b`, `c` (D, N, 2), `h0` (B, D, N, 2) -> y (B, T, D), last (B, D, N, 2)."""
    return SCANS["bank_scan"](x, a, b, c, h0, lengths, reset)


def convolution(
    x: Tensor, weight: Tensor, bias: Tensor, window: Tensor, lengths: Tensor, reset: Tensor
) -> tuple[Tensor, Tensor]:
    """`x` (B, T, C), `weight` (K, C), `bias` (C,), `window` (B, K - 1, C) -> y (B, T, C) and the last window."""
    return SCANS["convolution"](x, weight, bias, window, lengths, reset)


class ChannelScan:
    """The operation `name` of csrc/scans.h: arguments, lengths, reset -> y, the last state.

    Its arguments are x (B, T, C) first, others over "time", "weight"s, and last the "state". `inputs` checks them
    and makes its struct. Where it `saves`, that is the state every so many steps, for the backward pass. The gradients
    of weights come for each row, and are added up here.
    """

    def __init__(
        self,
        name: str,
        arguments: Mapping[str, str],
        inputs: Callable[..., Struct],
        saves: bool,
    ) -> None:
        self.name, self.inputs, self.saves = name, inputs, saves
        self.names, self.kinds, self.count = tuple(arguments), tuple(arguments.values()), len(arguments)
        taken = ", ".join(f"Tensor {argument}" for argument in (*arguments, "lengths", "reset"))
        save, saved = (", bool save", ", Tensor saved") if saves else ("", "")
        gradients = ", ".join(f"Tensor g{argument}" for argument in arguments)
        self.forward = define(f"{name}({taken}{save}) -> (Tensor y, Tensor last{saved})", self._run, self._fake)
        self.backward = define(
            f"{name}_back({taken}{saved}, Tensor gy, Tensor glast) -> ({gradients})", self._run_back, self._fake_back
        )

    def __call__(self, *given: Tensor) -> tuple[Tensor, Tensor]:
        if torch.is_grad_enabled() and any(t.requires_grad for t in given):
            y, last = _ChannelScan.apply(self.name, *given)
        elif self.saves:
            y, last, _ = self.forward(*given, False)
        else:
            y, last = self.forward(*given)
        return y, last

    def _saved_shape(self, x: Tensor, h: Tensor) -> Shape:
        """A share of a state for each step, not T / EVERY states: an exported graph would fix whether that is 0."""
        B, T, D = x.shape
        return B, T, -((D + 15) // 16 * 16 * math.prod(h.shape[2:]) // -EVERY)

    def _run(self, *given: Value) -> tuple[Tensor, ...]:
        x, h = given[0], given[self.count - 1]
        y, last = output(x, x.shape), x.new_empty(h.shape)
        if not self.saves:
            run(self.name, x.dtype, self.inputs(*given), {"y": y, "last": last})
            return y, last
        save = given[-1]
        saved = output(x, self._saved_shape(x, h) if save else (0,))
        outputs = {"y": y, "last": last, "saved": saved if save else None}
        run(self.name, x.dtype, self.inputs(*given[:-1]), outputs)
        return y, last, saved

    def _fake(self, *given: Value) -> tuple[Tensor, ...]:
        x, h = given[0], given[self.count - 1]
        y, last = x.new_empty(x.shape), x.new_empty(h.shape)
        return (y, last, x.new_empty(self._saved_shape(x, h) if given[-1] else (0,))) if self.saves else (y, last)

    def _run_back(self, *args: Tensor) -> tuple[Tensor, ...]:
        given, (*saved, gy, glast) = args[: self.count + 2], args[self.count + 2 :]
        inputs = self.inputs(*given)
        x, h = given[0], given[self.count - 1]
        arriving: Struct = {}
        if self.saves:
            expect("saved", saved[0], self._saved_shape(x, h), x.dtype)
            arriving["saved"] = saved[0]
        expect("gy", gy, x.shape, x.dtype)
        expect("glast", glast, h.shape, x.dtype)
        arriving["gy"], arriving["glast"] = rows(gy), glast.contiguous()
        gradients = {}
        for name, kind, tensor in zip(self.names, self.kinds, given[:-2], strict=True):
            by_row = kind == "weight"
            shape = (len(x), *tensor.shape) if by_row else tensor.shape
            gradients["g" + name] = x.new_empty(shape, dtype=torch.float64) if by_row else output(x, shape)
        run(self.name + "_back", x.dtype, inputs, arriving, gradients)
        found = zip(self.kinds, gradients.values(), strict=True)
        return tuple(over_rows(g).to(x.dtype) if kind == "weight" else g for kind, g in found)

    def _fake_back(self, *args: Tensor) -> tuple[Tensor, ...]:
        return tuple(t.new_empty(t.shape) for t in args[: self.count])


class _ChannelScan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, name: str, *given: Tensor) -> tuple[Tensor, Tensor]:
        scan = SCANS[name]
        y, last, *saved = scan.forward(*given, True) if scan.saves else scan.forward(*given)
        ctx.save_for_backward(*given, *saved)
        ctx.set_materialize_grads(False)
        ctx.scan = name  # a node has a `name` of its own
        return y, last

    @staticmethod
    def backward(ctx: Context, gy: Tensor | None, glast: Tensor | None) -> tuple[Tensor | None, ...]:
        scan = SCANS[ctx.scan]
        x, h = ctx.saved_tensors[0], ctx.saved_tensors[scan.count - 1]
        gy = no_gradient(x) if gy is None else gy
        glast = torch.zeros_like(h) if glast is None else glast
        return None, *once(scan.backward, *ctx.saved_tensors, gy, glast), None, None


def _selective(
    x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, h0: Tensor, lengths: Tensor, reset: Tensor
) -> Struct:
    """SelectiveInputs of csrc/scans.h, checked."""
    (batch, T, D), N, dtype = x.shape, A.shape[-1], x.dtype
    expect("delta", delta, (batch, T, D), dtype)
    expect("A", A, (D, N), dtype)
    expect("B", B, (batch, T, N), dtype)
    expect("C", C, (batch, T, N), dtype)
    expect("h0", h0, (batch, D, N), dtype)
    _expect_steps(lengths, reset, batch, T)
    return {
        "n": {"B": batch, "T": T, "C": D}, "N": N, "every": EVERY, "x": rows(x), "delta": rows(delta),
        "A": A.contiguous(), "B": rows(B), "C": rows(C), "h0": h0.contiguous(), "lengths": lengths.contiguous(),
        "reset": reset.contiguous(),
    }  # fmt: skip


def _bank(x: Tensor, a: Tensor, b: Tensor, c: Tensor, h0: Tensor, lengths: Tensor, reset: Tensor) -> Struct:
    """BankInputs of csrc/scans.h, checked."""
    (B, T, D), N, dtype = x.shape, a.shape[1], x.dtype
    expect("a", a, (D, N, 2), dtype)
    expect("b", b, (D, N, 2), dtype)
    expect("c", c, (D, N, 2), dtype)
    expect("h0", h0, (B, D, N, 2), dtype)
    _expect_steps(lengths, reset, B, T)
    return {
        "n": {"B": B, "T": T, "C": D}, "N": N, "every": EVERY, "x": rows(x), "a": a.contiguous(), "b": b.contiguous(),
        "c": c.contiguous(), "h0": h0.contiguous(), "lengths": lengths.contiguous(), "reset": reset.contiguous(),
    }  # fmt: skip


def _convolution(x: Tensor, weight: Tensor, bias: Tensor, window: Tensor, lengths: Tensor, reset: Tensor) -> Struct:
    """ConvolutionInputs of csrc/scans.h, checked."""
    (B, T, C), K, dtype = x.shape, len(weight), x.dtype
    expect("weight", weight, (K, C), dtype)
    expect("bias", bias, (C,), dtype)
    expect("window", window, (B, K - 1, C), dtype)
    _expect_steps(lengths, reset, B, T)
    return {
        "n": {"B": B, "T": T, "C": C}, "K": K, "x": rows(x), "weight": weight.contiguous(), "bias": bias.contiguous(),
        "window": window.contiguous(), "lengths": lengths.contiguous(), "reset": reset.contiguous(),
    }  # fmt: skip


def _expect_steps(lengths: Tensor, reset: Tensor, B: int, T: int) -> None:
    expect("lengths", lengths, (B,), torch.int64)
    expect("reset", reset, (B, T), torch.bool)


SCANS = {
    scan.name: scan
    for scan in (
        ChannelScan(
            "selective_scan",
            {"x": "time", "delta": "time", "A": "weight", "B": "time", "C": "time", "h0": "state"},
            _selective,
            saves=True,
        ),
        ChannelScan(
            "bank_scan", {"x": "time", "a": "weight", "b": "weight", "c": "weight", "h0": "state"}, _bank,
            saves=True,
        ),
        ChannelScan(
            "convolution", {"x": "time", "weight": "weight", "bias": "weight", "window": "state"}, _convolution,
            saves=False,
        ),
    )
}  # fmt: skip

"""The selective scan, the scan of banks and the causal convolution as operations on named arguments.

Cases, plain loops and comparisons.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from elman import kernels

native = pytest.importorskip("elman.kernels.native")

Results = tuple[Tensor, Tensor]


@contextmanager
def threads(n: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def scan_loop(
    x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, h0: Tensor, lengths: Tensor, reset: Tensor
) -> Results:
    """Algorithm 2 of the paper, with delta B for B-bar, step by step."""
    h, ys = h0, []
    for t in range(x.shape[1]):
        drive = (delta[:, t] * x[:, t])[:, :, None] * B[:, t, None, :]
        new = torch.where(reset[:, t, None, None], drive, torch.exp(delta[:, t, :, None] * A) * h + drive)
        valid = t < lengths
        h = torch.where(valid[:, None, None], new, h)
        y = (C[:, t, None, :] * new).sum(2)
        ys.append(torch.where(valid[:, None], y, torch.zeros_like(y)))
    return torch.stack(ys, 1) if ys else x * 1, h


def bank_loop(x: Tensor, a: Tensor, b: Tensor, c: Tensor, h0: Tensor, lengths: Tensor, reset: Tensor) -> Results:
    """Step by step, part by part: Torch's complex product of an infinity with a real number is NaN."""
    (ar, ai), (br, bi), (cr, ci), (hr, hi) = (v.unbind(-1) for v in (a, b, c, h0))
    ys = []
    for t in range(x.shape[1]):
        xt, start, valid = x[:, t, :, None], reset[:, t, None, None], (t < lengths)[:, None, None]
        real, imaginary = br * xt, bi * xt
        real = torch.where(start, real, ar * hr - ai * hi + real)
        imaginary = torch.where(start, imaginary, ar * hi + ai * hr + imaginary)
        y = (cr * real - ci * imaginary).sum(2)
        ys.append(torch.where(valid[..., 0], y, torch.zeros_like(y)))
        hr, hi = torch.where(valid, real, hr), torch.where(valid, imaginary, hi)
    return torch.stack(ys, 1) if ys else x * 1, torch.stack([hr, hi], -1)


def convolution_loop(
    x: Tensor, weight: Tensor, bias: Tensor, window: Tensor, lengths: Tensor, reset: Tensor
) -> Results:
    ys = []
    for t in range(x.shape[1]):
        before = torch.where(reset[:, t, None, None], torch.zeros_like(window), window)
        seen = torch.cat([before, x[:, t : t + 1]], 1)
        valid = t < lengths
        window = torch.where(valid[:, None, None], seen[:, 1:], window)
        y = bias + (weight * seen).sum(1)
        ys.append(torch.where(valid[:, None], y, torch.zeros_like(y)))
    return torch.stack(ys, 1) if ys else x * 1, window


@dataclass(frozen=True)
class Operation:
    """An operation: the axes of each argument (B batch, T time, D channels, N states or taps, W = N - 1, P = 2)."""

    name: str
    axes: dict[str, str]  # the last one is the state
    loop: Callable[..., Results]

    def __call__(self, *inputs: Tensor) -> Results:
        results: Results = getattr(kernels, self.name)(*inputs)
        return results


OPERATIONS = {
    "selective_scan": Operation(
        "selective_scan", {"x": "BTD", "delta": "BTD", "A": "DN", "B": "BTN", "C": "BTN", "h0": "BDN"}, scan_loop
    ),
    "bank_scan": Operation("bank_scan", {"x": "BTD", "a": "DNP", "b": "DNP", "c": "DNP", "h0": "BDNP"}, bank_loop),
    "convolution": Operation(
        "convolution", {"x": "BTD", "weight": "ND", "bias": "D", "window": "BWD"}, convolution_loop
    ),
}
each_operation = pytest.mark.parametrize("op", OPERATIONS.values(), ids=OPERATIONS)
each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
# Past 32 steps a state is saved; past 128 channels there is a second group of them.
SHAPES = [(3, 5, 7, 2), (2, 70, 65, 3), (1, 33, 261, 16), (5, 13, 3, 1), (2, 32, 16, 5), (17, 6, 1, 4), (2, 97, 9, 6)]
SHAPES += [(0, 4, 3, 2), (2, 0, 3, 2), (2, 3, 0, 2)]
each_shape = pytest.mark.parametrize("shape", SHAPES)


@dataclass
class Case:
    op: Operation
    arguments: dict[str, Tensor]
    lengths: Tensor
    reset: Tensor

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        return *self.arguments.values(), self.lengths, self.reset

    def map(self, f: Callable[[Tensor], Tensor]) -> "Case":
        return replace(self, arguments={k: f(v) for k, v in self.arguments.items()})

    def rows(self, first: int, end: int) -> "Case":
        part = {k: v[first:end] if self.op.axes[k][0] == "B" else v for k, v in self.arguments.items()}
        return Case(self.op, part, self.lengths[first:end], self.reset[first:end])

    def steps(self, first: int, end: int, state: Tensor) -> "Case":
        part = {k: v[:, first:end] if "T" in self.op.axes[k] else v for k, v in self.arguments.items()}
        lengths = (self.lengths - first).clamp(0, end - first)
        return Case(self.op, {**part, list(part)[-1]: state}, lengths, self.reset[:, first:end])


def case(op: Operation, shape: tuple[int, int, int, int], dtype: torch.dtype, seed: int = 0) -> Case:
    """Lengths that include 0 and T, resets at 0, in the middle and at the end; decays of about one, some above."""
    g = torch.Generator().manual_seed(seed)
    sizes = dict(zip("BTDNWP", (*shape, shape[3] - 1, 2), strict=True))
    B, T = shape[:2]
    arguments = {
        k: torch.randn([sizes[axis] for axis in axes], generator=g, dtype=torch.float64) for k, axes in op.axes.items()
    }
    if op.name == "selective_scan":
        arguments["delta"] = arguments["delta"].abs() * 0.3
        arguments["A"] -= 1
    if op.name == "bank_scan":  # of about length one
        arguments["a"] *= 0.6
    lengths = torch.randint(0, T + 1, (B,), generator=g)
    lengths[:1], lengths[2:3] = T, 0
    reset = torch.rand(B, T, generator=g) < 0.1
    if T:
        reset[1:2, 0], reset[:1, T // 2], reset[:1, T - 1] = True, True, True
    return Case(op, {k: v.to(dtype) for k, v in arguments.items()}, lengths, reset)


@contextmanager
def called(op: Operation, times: int = 1, back: int = 0) -> Iterator[None]:
    before = dict(native.calls)
    yield
    for name, n in ((op.name, times), (op.name + "_back", back)):
        ran = native.calls[name] - before.get(name, 0)
        assert ran == n, f"{name} ran {ran} times, not {n}"


def run(c: Case) -> Results:
    with called(c.op):
        return c.op(*c.inputs)


def arriving(c: Case, seed: int = 1) -> Results:
    g = torch.Generator().manual_seed(seed)
    x, *_, state = c.arguments.values()
    return torch.randn(x.shape, generator=g, dtype=x.dtype), torch.randn(state.shape, generator=g, dtype=x.dtype)


def gradients(f: Callable[..., Results], c: Case, out: Results) -> dict[str, Tensor]:
    """With respect to every argument, of gradients that arrive at every y and at the last state."""
    c = c.map(lambda t: t.clone().requires_grad_())
    results = f(*c.inputs)
    wanted = [g.to(r.dtype) for g, r in zip(out, results, strict=True)]
    return dict(
        zip(
            c.arguments,
            torch.autograd.grad(results, tuple(c.arguments.values()), wanted, materialize_grads=True),
            strict=True,
        )
    )


def native_gradients(c: Case, out: Results) -> dict[str, Tensor]:
    with called(c.op, 1, 1):
        return gradients(c.op, c, out)


def close(x: Tensor, expected: Tensor) -> None:
    """To a few hundred roundings of the largest value: what sums over time and channels accumulate."""
    finite = expected[expected.isfinite()]
    scale = max(1.0, float(finite.abs().max()) if finite.numel() else 1.0)
    atol = 300 * torch.finfo(x.dtype).eps * scale
    torch.testing.assert_close(x.to(expected.dtype), expected, rtol=0, atol=atol, equal_nan=True)


def compare(c: Case, laid_out: Case | None = None) -> None:
    """Values and gradients against the loop, in float64."""
    wide, out = c.map(Tensor.double), arriving(c)
    laid_out = laid_out or c
    for x, expected in zip(run(laid_out), c.op.loop(*wide.inputs), strict=True):
        assert x.dtype == c.arguments["x"].dtype
        close(x, expected)
    expected_gradients = gradients(c.op.loop, wide, out)
    for name, g in native_gradients(laid_out, out).items():
        assert g.dtype == c.arguments["x"].dtype and g.shape == c.arguments[name].shape
        close(g, expected_gradients[name])


def same(x: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(x, expected, rtol=1e-4, atol=1e-5, equal_nan=True)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "as it is": lambda x: x,
    "slice": lambda x: torch.cat([x, x, x], -1)[..., x.shape[-1] : 2 * x.shape[-1]],
    "transpose": lambda x: x.transpose(0, -1).clone(memory_format=torch.contiguous_format).transpose(0, -1),
    "every other": lambda x: torch.stack([x, x * 2], -1)[..., 0],
}

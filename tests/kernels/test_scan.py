"""The native linear scan and reversal: equal to a plain loop, the same bits however batched, cut and threaded."""

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from elman import kernels
from elman.errors import KernelError

native = pytest.importorskip("elman.kernels.native")

REAL = [torch.float32, torch.float64]
COMPLEX = [torch.complex64, torch.complex128]
WIDE = {torch.float32: torch.float64, torch.complex64: torch.complex128}
SHAPES = [(3, 5, 7), (2, 4, 65), (1, 9, 1), (5, 13, 3), (17, 6, 16), (2, 3, 530), (1, 70, 2)]
SHAPES += [(0, 4, 3), (2, 0, 3), (2, 3, 0)]


@dataclass
class Case:
    a: Tensor
    b: Tensor
    h0: Tensor
    lengths: Tensor
    reset: Tensor

    @property
    def inputs(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        return self.a, self.b, self.h0, self.lengths, self.reset

    def rows(self, first: int, end: int) -> "Case":
        a = self.a if self.a.ndim == 1 else self.a[first:end]
        return Case(a, *(x[first:end] for x in self.inputs[1:]))

    def steps(self, first: int, end: int, h0: Tensor) -> "Case":
        a = self.a if self.a.ndim == 1 else self.a[:, first:end]
        lengths = (self.lengths - first).clamp(0, end - first)
        return Case(a, self.b[:, first:end], h0, lengths, self.reset[:, first:end])

    def wide(self) -> "Case":
        dtype = WIDE.get(self.b.dtype, self.b.dtype)
        return Case(self.a.to(dtype), self.b.to(dtype), self.h0.to(dtype), self.lengths, self.reset)


def case(shape: tuple[int, int, int], dtype: torch.dtype, constant: bool, seed: int = 0) -> Case:
    """Lengths that include 0 and T, resets at 0, in the middle and at the end, coefficients of about one."""
    B, T, C = shape
    g = torch.Generator().manual_seed(seed)
    a = torch.randn((C,) if constant else shape, generator=g, dtype=dtype) * 0.7
    b, h0 = torch.randn(shape, generator=g, dtype=dtype), torch.randn(B, C, generator=g, dtype=dtype)
    lengths = torch.randint(0, T + 1, (B,), generator=g)
    lengths[:1], lengths[2:3] = T, 0
    reset = torch.rand(B, T, generator=g) < 0.2
    if T:
        reset[1:2, 0], reset[:1, T // 2], reset[:1, T - 1] = True, True, True
    return Case(a, b, h0, lengths, reset)


def loop(a: Tensor, b: Tensor, h0: Tensor, lengths: Tensor, reset: Tensor) -> tuple[Tensor, Tensor]:
    state, hs = h0, []
    for t in range(b.shape[1]):
        at = a if a.ndim == 1 else a[:, t]
        h = torch.where(reset[:, t, None], b[:, t], at * state + b[:, t])
        valid = (t < lengths)[:, None]
        hs.append(torch.where(valid, h, torch.zeros_like(h)))
        state = torch.where(valid, h, state)
    return torch.stack(hs, 1) if hs else b * 1, state


@contextmanager
def called(**times: int) -> Iterator[None]:
    before = dict(native.calls)
    yield
    for name, n in times.items():
        assert native.calls[name] - before.get(name, 0) == n, (
            f"{name} ran {native.calls[name] - before.get(name, 0)} times, not {n}"
        )


def run(c: Case) -> tuple[Tensor, Tensor]:
    with called(linear_scan=1):
        return kernels.linear_scan(*c.inputs)


def leaves(c: Case) -> Case:
    return replace(c, a=c.a.clone().requires_grad_(), b=c.b.clone().requires_grad_(), h0=c.h0.clone().requires_grad_())


def gradients(scan, c: Case, out: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:  # type: ignore[no-untyped-def]
    """With respect to a, b and h0, of gradients that arrive at every h and at the last."""
    c = leaves(c)
    results = scan(*c.inputs)
    return torch.autograd.grad(
        results, (c.a, c.b, c.h0), [g.to(r.dtype) for g, r in zip(out, results, strict=True)], materialize_grads=True
    )


def arriving(c: Case, seed: int = 1) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(c.b.shape, generator=g, dtype=c.b.dtype), torch.randn(c.h0.shape, generator=g, dtype=c.b.dtype)


def close(x: Tensor, expected: Tensor) -> None:
    """To a few hundred roundings of the largest value: what a recurrence with coefficients of about one accumulates."""
    eps = torch.finfo(x.dtype).eps
    scale = max(1.0, float(expected.abs().max()) if expected.numel() else 1.0)
    torch.testing.assert_close(x.to(expected.dtype), expected, rtol=0, atol=200 * eps * scale)


@pytest.mark.parametrize("dtype", REAL + COMPLEX)
@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_loop(shape: tuple[int, int, int], constant: bool, dtype: torch.dtype) -> None:
    c = case(shape, dtype, constant)
    wide = c.wide()
    for x, expected in zip(run(c), loop(*wide.inputs), strict=True):
        assert x.dtype == dtype
        close(x, expected)
    out = arriving(c)
    with called(linear_scan=1, linear_scan_back=1):
        got = gradients(kernels.linear_scan, c, out)
    for x, expected in zip(got, gradients(loop, wide, out), strict=True):
        assert x.dtype == dtype
        close(x, expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("constant", [False, True])
def test_gradcheck(constant: bool, dtype: torch.dtype) -> None:
    c = leaves(case((4, 5, 3), dtype, constant))
    assert torch.autograd.gradcheck(lambda a, b, h0: native.linear_scan(a, b, h0, c.lengths, c.reset), (c.a, c.b, c.h0))
    assert native.calls["linear_scan_back"] > 0


@pytest.mark.parametrize("only", ["h", "last"])
def test_gradient_that_arrives_at_one_output(only: str) -> None:
    c = case((3, 6, 5), torch.float64, False)
    gh, glast = arriving(c)
    first, second = leaves(c), leaves(c)
    index, g = (0, gh) if only == "h" else (1, glast)
    with called(linear_scan_back=1):
        got = torch.autograd.grad(run(first)[index], (first.a, first.b, first.h0), g)
    for x, expected in zip(
        got, torch.autograd.grad(loop(*second.inputs)[index], (second.a, second.b, second.h0), g), strict=True
    ):
        close(x, expected)


def test_long_constant_sum_keeps_its_digits() -> None:
    """The gradient of a constant coefficient is a sum over all rows and steps: a running float would lose digits."""
    B, T = 2, 20000
    c = Case(
        torch.full((1,), 0.7),
        torch.ones(B, T, 1),
        torch.zeros(B, 1),
        torch.full((B,), T),
        torch.zeros(B, T, dtype=torch.bool),
    )
    with called(linear_scan_back=1):
        ga = gradients(kernels.linear_scan, c, (torch.ones(B, T, 1), torch.zeros(B, 1)))[0]
    a, h, d = float(c.a), [0.0], 0.0
    for _ in range(T):
        h.append(a * h[-1] + 1)
    expected = 0.0
    for t in reversed(range(T)):
        d = 1 + a * d
        expected += B * d * h[t]
    assert float(ga) == pytest.approx(expected, rel=2e-6)


@pytest.mark.parametrize("dtype", REAL + COMPLEX)
@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_nothing_leaks_past_a_reset_or_out_of_the_padding(bad: float, dtype: torch.dtype) -> None:
    T, C = 8, 11
    clean = case((3, T, C), dtype, False)
    clean.lengths[:] = torch.tensor([T, 5, 0])
    clean.reset[:] = False
    clean.reset[0, 3] = True
    c = replace(clean, a=clean.a.clone(), b=clean.b.clone(), h0=clean.h0.clone())
    c.a[0, :4], c.b[0, :3], c.h0[0] = bad, bad, bad  # before the reset, and the coefficient it cuts
    c.a[1, 5:], c.b[1, 5:], c.a[2], c.b[2] = bad, bad, bad, bad  # in the padding
    gh, glast = arriving(c)
    spoilt = gh.clone()
    spoilt[1, 5:], spoilt[2] = bad, bad
    h, last = run(c)
    expected, expected_last = run(clean)
    assert (
        torch.equal(h[0, 3:], expected[0, 3:]) and torch.equal(h[1:], expected[1:]) and torch.equal(last, expected_last)
    )
    got, wanted = gradients(kernels.linear_scan, c, (spoilt, glast)), gradients(kernels.linear_scan, clean, (gh, glast))
    for x, y in zip(got[:2], wanted[:2], strict=True):
        assert torch.equal(x[0, 3:], y[0, 3:]) and torch.equal(x[1:], y[1:])
    assert torch.equal(got[2][1:], wanted[2][1:])
    assert not got[0][0, 3].any()


@pytest.mark.parametrize("dtype", REAL + COMPLEX)
@pytest.mark.parametrize("constant", [False, True])
def test_bits_do_not_depend_on_the_batch(constant: bool, dtype: torch.dtype) -> None:
    c = case((64, 40, 65), dtype, constant)
    h, last = run(c)
    gh, glast = arriving(c)
    gradient = gradients(kernels.linear_scan, c, (gh, glast))
    for B in (1, 2, 3, 5, 8, 17, 64):
        for first in (0, 64 - B):
            part = c.rows(first, first + B)
            got = run(part)
            assert torch.equal(got[0], h[first : first + B]) and torch.equal(got[1], last[first : first + B])
            g = gradients(kernels.linear_scan, part, (gh[first : first + B], glast[first : first + B]))
            for i in (1, 2) if constant else (0, 1, 2):
                assert torch.equal(g[i], gradient[i][first : first + B])


@pytest.mark.parametrize("dtype", REAL + COMPLEX)
@pytest.mark.parametrize("constant", [False, True])
def test_bits_do_not_depend_on_the_cut(constant: bool, dtype: torch.dtype) -> None:
    c = case((5, 30, 19), dtype, constant)
    h, last = run(c)
    for cuts in ((0, 30), (0, 1, 30), (0, 7, 7, 21, 30), tuple(range(31))):
        state, pieces = c.h0, []
        for first, end in itertools.pairwise(cuts):
            piece, state = run(c.steps(first, end, state))
            pieces.append(piece)
        assert torch.equal(torch.cat(pieces, 1), h) and torch.equal(state, last)


@pytest.mark.parametrize("dtype", REAL + COMPLEX)
@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize(
    "shape", [(1, 600, 65), (3, 300, 70), (8, 100, 64)]
)  # all past the size from which threads are used
def test_bits_do_not_depend_on_threads(shape: tuple[int, int, int], constant: bool, dtype: torch.dtype) -> None:
    c = case(shape, dtype, constant)
    out, before, seen = arriving(c), torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            seen.append((*run(c), *gradients(kernels.linear_scan, c, out)))
    finally:
        torch.set_num_threads(before)
    for other in seen[1:]:
        assert all(torch.equal(x, y) for x, y in zip(seen[0], other, strict=True))


def test_an_instruction_set_that_the_machine_lacks_is_refused() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", "import elman._native"],
        env={**os.environ, "ELMAN_ISA": "mmx"},
        capture_output=True,
        text=True,
    )
    assert ran.returncode != 0 and "ELMAN_ISA is 'mmx'" in ran.stderr and native.isas()[0] in ran.stderr


def test_runs_in_a_forked_child_and_in_several_python_threads() -> None:
    """Threads were used before the fork: a pool of them does not come along, and a child that waits for it hangs."""
    c = case((8, 300, 64), torch.float32, False)
    expected = run(c)[0]
    with ThreadPoolExecutor(4) as pool:
        assert all(torch.equal(h, expected) for h, _ in pool.map(lambda _: kernels.linear_scan(*c.inputs), range(8)))
    wanted, child = expected.numpy().tobytes(), os.fork()
    if child == 0:  # here only our kernel is called: Torch's own parallel operations may hang
        os._exit(0 if kernels.linear_scan(*c.inputs)[0].numpy().tobytes() == wanted else 1)
    deadline = time.monotonic() + 60
    while (done := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
        time.sleep(0.01)
    if done == (0, 0):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert done == (child, 0)


@settings(deadline=None, max_examples=60, derandomize=True)
@given(data=st.data())
def test_fuzz(data: st.DataObject) -> None:
    """Any shape, lengths, resets, strides and dtype; `a` constant, broadcast or full."""
    B, T, C = (data.draw(st.integers(0, n)) for n in (5, 9, 40))
    dtype = data.draw(st.sampled_from(REAL + COMPLEX))
    constant = data.draw(st.booleans())
    c = case((B, T, C), dtype, constant, seed=data.draw(st.integers(0, 99)))
    c.lengths = torch.tensor(data.draw(st.lists(st.integers(0, T), min_size=B, max_size=B)), dtype=torch.int64)
    c.reset = torch.tensor(data.draw(st.lists(st.booleans(), min_size=B * T, max_size=B * T)), dtype=torch.bool).view(
        B, T
    )
    if not constant and T and B and data.draw(st.booleans()):
        c.a = c.a[:, :1].expand(B, T, C) if data.draw(st.booleans()) else c.a[:1].expand(B, T, C)
    laid_out = strided(c, data.draw(st.sampled_from(["slice", "transpose", "conj", "none"])))
    for x, y in zip(run(laid_out), run(c), strict=True):
        assert torch.equal(x, y)
    for x, expected in zip(run(c), loop(*c.wide().inputs), strict=True):
        close(x, expected)
    out = arriving(c)
    for x, expected in zip(gradients(kernels.linear_scan, laid_out, out), gradients(loop, c.wide(), out), strict=True):
        close(x, expected)


def strided(c: Case, how: str) -> Case:
    """The same values, lying differently in memory."""

    def lay(x: Tensor) -> Tensor:
        if how == "slice":
            return torch.cat([x, x, x], -1)[..., x.shape[-1] : 2 * x.shape[-1]]
        if how == "transpose":
            return x.transpose(0, -1).clone(memory_format=torch.contiguous_format).transpose(0, -1)
        if how == "conj" and x.is_complex():
            return x.conj().resolve_conj().conj()
        return x

    return Case(*(lay(x) for x in c.inputs))


def test_second_derivative_says_what_to_do() -> None:
    c = leaves(case((2, 4, 3), torch.float64, False))
    (g,) = torch.autograd.grad(run(c)[0].sum(), c.a, create_graph=True)
    with pytest.raises(KernelError, match=r'no second derivative; use `with elman.kernels.use\("reference"\)`'):
        g.sum().backward()
    with kernels.use("reference"):
        (g,) = torch.autograd.grad(kernels.linear_scan(*c.inputs)[0].sum(), c.a, create_graph=True)
        g.sum().backward()
    assert c.a.grad is not None


def test_lengths_past_the_end_are_refused() -> None:
    c = case((2, 4, 3), torch.float32, False)
    c.lengths[1] = 5
    with pytest.raises(ValueError, match=r"lengths\[1\] is 5, but must be in \[0, 4\]"):
        native.linear_scan(*c.inputs)
    with pytest.raises(KernelError, match="`h0` is"):
        native.linear_scan(c.a, c.b, c.h0[:1], c.lengths, c.reset)


@pytest.mark.parametrize("dtype", REAL + COMPLEX)
def test_reverse(dtype: torch.dtype) -> None:
    lengths = torch.tensor([0, 1, 4, 7])
    x = torch.randn(4, 7, 3, 2, dtype=dtype)
    with called(reverse=2):
        y = kernels.reverse(x, lengths)
        assert torch.equal(kernels.reverse(y, lengths), x)
    for row, n in enumerate(lengths.tolist()):
        assert torch.equal(y[row, :n], x[row, :n].flip(0)) and torch.equal(y[row, n:], x[row, n:])
    for empty in (x[:0], x[:, :0], x[..., :0]):
        assert kernels.reverse(empty, lengths[: len(empty)].clamp(max=empty.shape[1])).shape == empty.shape


def test_reverse_gradients() -> None:
    x = torch.randn(3, 4, 2, dtype=torch.float64, requires_grad=True)
    lengths = torch.tensor([4, 0, 2])
    with called(reverse=1):
        kernels.reverse(x.detach(), lengths)
    assert torch.autograd.gradcheck(lambda x: kernels.reverse(x, lengths), (x,))
    assert torch.autograd.gradgradcheck(lambda x: kernels.reverse(x, lengths), (x,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
@pytest.mark.parametrize("threads", [1, 2])
def test_what_is_too_large_for_the_caches_has_the_same_bits(dtype: torch.dtype, threads: int) -> None:
    """From 40 MB of inputs and outputs on, outputs are streamed past the caches; in two chunks they are not."""
    B, T, C = 2, 13000, 256 if dtype == torch.float32 else 128
    torch.manual_seed(0)
    a, b, h0 = (torch.randn(shape, dtype=dtype) for shape in ((B, T, C), (B, T, C), (B, C)))
    a *= 0.5
    lengths, reset = torch.tensor([T, 9000]), torch.rand(B, T) < 0.01
    half, before = T // 2, torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        h, last = kernels.linear_scan(a, b, h0, lengths, reset)
        parts, state = [], h0
        for start, end in ((0, half), (half, T)):
            rows = (lengths - start).clamp(0, end - start)
            part, state = kernels.linear_scan(a[:, start:end], b[:, start:end], state, rows, reset[:, start:end])
            parts.append(part)
    finally:
        torch.set_num_threads(before)
    assert 3 * h.nbytes >= 40 << 20 > 3 * parts[0].nbytes
    assert torch.equal(h, torch.cat(parts, 1)) and torch.equal(last, state)


def model(a: Tensor, b: Tensor, h0: Tensor, lengths: Tensor, reset: Tensor) -> tuple[Tensor, Tensor]:
    h, last = kernels.linear_scan(torch.sigmoid(a), b, h0, lengths, reset)
    return kernels.reverse(h * 2, lengths), last + 1


@pytest.mark.slow
def test_compiled() -> None:
    torch._dynamo.reset()
    c = case((3, 5, 7), torch.float64, False)
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="aot_eager")
    out = arriving(c)
    with called(linear_scan=1):
        results = compiled(*c.inputs)
    for x, expected in zip(results, model(*c.inputs), strict=True):
        assert torch.equal(x, expected)
    with called(linear_scan=1, linear_scan_back=1):
        got = gradients(compiled, c, out)
    for x, expected in zip(got, gradients(model, c, out), strict=True):
        torch.testing.assert_close(x, expected, rtol=1e-12, atol=1e-12)


def test_exported_with_dynamic_batch_and_time() -> None:
    class Module(torch.nn.Module):
        def forward(self, a: Tensor, b: Tensor, h0: Tensor, lengths: Tensor, reset: Tensor) -> tuple[Tensor, Tensor]:
            return model(a, b, h0, lengths, reset)

    B, T = torch.export.Dim("B", min=1, max=1024), torch.export.Dim("T", min=1, max=4096)
    program = torch.export.export(
        Module(), case((3, 5, 7), torch.float32, False).inputs,
        dynamic_shapes=({0: B, 1: T}, {0: B, 1: T}, {0: B}, {0: B}, {0: B, 1: T}),
    )  # fmt: skip
    other = case((5, 11, 7), torch.float32, False)
    with called(linear_scan=1, reverse=1):
        results = program.module()(*other.inputs)
    for x, expected in zip(results, model(*other.inputs), strict=True):
        assert torch.equal(x, expected)

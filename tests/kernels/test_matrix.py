"""The scan of matrix states: against products written out, against the reference, and bit for bit with itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from elman import kernels
from elman.errors import InputError, KernelError
from elman.kernels import reference
from elman.kernels.builder import Slot
from elman.kernels.native.program import Program

native = pytest.importorskip("elman.kernels.native")

Results = tuple[Tensor, Tensor]
DECAYS = ("none", "head", "key", "key by group")
CORRECTIONS = ("none", "delta", "general")
each_decay = pytest.mark.parametrize("decay", DECAYS)
each_correction = pytest.mark.parametrize("correction", CORRECTIONS)
each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


@dataclass
class Case:
    tensors: dict[str, Tensor]  # what has gradients, by name; what is not there is None
    lengths: Tensor
    reset: Tensor

    def __call__(self, scan: Callable[..., Results] = kernels.matrix_scan) -> Results:
        return scan(**self.tensors, lengths=self.lengths, reset=self.reset)

    def map(self, f: Callable[[Tensor], Tensor]) -> Case:
        return replace(self, tensors={name: x if x is None else f(x) for name, x in self.tensors.items()})

    def rows(self, first: int, end: int) -> Case:
        part = self.map(lambda x: x[first:end])
        return Case(part.tensors, self.lengths[first:end], self.reset[first:end])

    def steps(self, first: int, end: int, S: Tensor) -> Case:
        part = {**self.map(lambda x: x[:, first:end]).tensors, "S0": S}
        return Case(part, (self.lengths - first).clamp(0, end - first), self.reset[:, first:end])


def case(
    sizes: tuple[int, ...],
    decay: str = "head",
    correction: str = "delta",
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Case:
    """B, T, H, G, K, V. Lengths include 0 and T; resets at 0, in the middle, at the end; keys of length one or so."""
    B, T, H, G, K, V = sizes
    g = torch.Generator().manual_seed(seed)

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    tensors = {
        "q": randn(B, T, G, K),
        "k": randn(B, T, G, K) * K**-0.5,
        "v": randn(B, T, H, V),
        "S0": randn(B, H, K, V),
    }
    decays = {"head": (H,), "key": (H, K), "key by group": (G, K)}
    tensors["a"] = randn(B, T, *decays[decay]).sigmoid() if decay != "none" else None  # type: ignore[assignment]
    if correction == "delta":
        tensors["b"] = randn(B, T, H).sigmoid()
    if correction.startswith("general"):
        tensors["alpha"], tensors["beta"] = randn(B, T, G, K) * K**-0.5, -randn(B, T, H, K) * 0.5 * K**-0.5
    if correction == "general, by head and by group":
        tensors["alpha"], tensors["beta"] = tensors["beta"], tensors["alpha"]
    lengths = torch.randint(0, T + 1, (B,), generator=g)
    lengths[:1], lengths[2:3] = T, 0
    reset = torch.rand(B, T, generator=g) < 0.05
    if T:
        reset[1:2, 0], reset[:1, T // 2], reset[:1, T - 1] = True, True, True
    return Case({k: x if x is None else x.to(dtype) for k, x in tensors.items()}, lengths, reset)


@contextmanager
def called(scans: int = 1, back: int = 0) -> Iterator[None]:
    names = ("matrix_scan", "matrix_scan_back")
    before = [native.calls[name] for name in names]
    yield
    assert [native.calls[name] - n for name, n in zip(names, before, strict=True)] == [scans, back]


def arriving(c: Case, seed: int = 1) -> Results:
    g = torch.Generator().manual_seed(seed)
    v, S = c.tensors["v"], c.tensors["S0"]
    return torch.randn(v.shape, generator=g, dtype=v.dtype), torch.randn(S.shape, generator=g, dtype=v.dtype)


def gradients(
    c: Case, scan: Callable[..., Results] = kernels.matrix_scan, out: Results | None = None
) -> dict[str, Tensor]:
    """Of everything, with gradients that arrive at every y and at the last state."""
    there = {name: x.detach().clone().requires_grad_() for name, x in c.tensors.items() if x is not None}
    results = replace(c, tensors={**c.tensors, **there})(scan)
    found = torch.autograd.grad(results, tuple(there.values()), out or arriving(c), materialize_grads=True)
    return dict(zip(there, found, strict=True))


def wide(c: Case) -> Case:
    return c.map(Tensor.double)


def close(x: Tensor, expected: Tensor) -> None:
    """To some hundred roundings of the largest value: what sums over time, keys and columns accumulate."""
    scale = max(1.0, float(expected.abs().max()) if expected.numel() else 1.0)
    atol = 300 * torch.finfo(x.dtype).eps * scale
    torch.testing.assert_close(x.to(expected.dtype), expected, rtol=0, atol=atol, equal_nan=True)


def compare(c: Case) -> None:
    """Values and gradients against the reference in float64."""
    with called():
        results = c()
    for x, y in zip(results, wide(c)(reference.matrix_scan), strict=True):
        close(x, y)
    first, second = arriving(c)
    expected = gradients(wide(c), reference.matrix_scan, (first.double(), second.double()))
    with called(1, 1):
        found = gradients(c)
    for name, g in found.items():
        assert g.dtype == c.tensors[name].dtype and g.shape == c.tensors[name].shape
        close(g, expected[name])


@each_decay
@each_correction
def test_the_reference_is_the_equation(decay: str, correction: str) -> None:
    """With the matrix that S' is multiplied by written out, head by head, in NumPy."""
    B, T, H, G, K, V = 3, 7, 4, 2, 3, 5
    c = case((B, T, H, G, K, V), decay, correction, torch.float64)
    y, last = c(reference.matrix_scan)
    x = {name: None if v is None else v.numpy() for name, v in c.tensors.items()}

    def of(name: str, row: int, t: int, h: int) -> Any:
        heads = x[name].shape[2]  # type: ignore[union-attr]
        return x[name][row, t, h // (H // heads)]  # type: ignore[index]

    for row in range(B):
        for h in range(H):
            S = x["S0"][row, h].copy()  # type: ignore[index]
            for t in range(T):
                if t >= c.lengths[row]:
                    assert not y[row, t, h].any()
                    continue
                S = np.zeros_like(S) if c.reset[row, t] else S
                k, v = of("k", row, t, h), of("v", row, t, h)
                D = np.eye(K) if decay == "none" else np.diag(np.broadcast_to(of("a", row, t, h), K))
                if correction == "delta":
                    b = of("b", row, t, h)
                    S = (np.eye(K) - b * np.outer(k, k)) @ D @ S + b * np.outer(k, v)
                elif correction == "general":
                    S = (D + np.outer(of("beta", row, t, h), of("alpha", row, t, h))) @ S + np.outer(k, v)
                else:
                    S = D @ S + np.outer(k, v)
                np.testing.assert_allclose(y[row, t, h], S.T @ of("q", row, t, h), atol=1e-12)
            np.testing.assert_allclose(last[row, h], S, atol=1e-12)


@each_decay
@each_correction
@each_dtype
def test_every_option(decay: str, correction: str, dtype: torch.dtype) -> None:
    compare(case((4, 70, 4, 2, 5, 9), decay, correction, dtype))


@pytest.mark.parametrize("K", [1, 3, 16, 17, 64, 128])
@pytest.mark.parametrize("V", [1, 3, 16, 17, 64, 128])
def test_every_width(K: int, V: int) -> None:
    """All tails, of keys and of columns; past 64 columns there is a second part of them backward."""
    c = case((3, 34, 2, 1, K, V), "key", CORRECTIONS[(K + V) % 3], torch.float32, seed=K * V)
    compare(c)


@pytest.mark.parametrize("sizes", [(0, 3, 2, 1, 4, 5), (3, 0, 2, 1, 4, 5), (1, 1, 1, 1, 1, 1), (2, 97, 6, 3, 8, 70)])
@each_correction
def test_odd_sizes(sizes: tuple[int, ...], correction: str) -> None:
    compare(case(sizes, "head", correction, torch.float64))


def test_what_corrects_may_be_of_a_head_or_of_a_group() -> None:
    compare(case((4, 40, 4, 2, 5, 9), "key", "general, by head and by group"))


@each_correction
def test_more_rows_than_go_back_together(correction: str) -> None:
    """Of 64 heads four rows at a time, the last one alone; the first four are shorter than those that wait."""
    c = case((9, 34, 64, 8, 2, 3), "head", correction)
    c.lengths[:4], c.lengths[8] = torch.tensor([3, 0, 2, 1]), 34
    compare(c)


@each_correction
def test_every_number_is_written(correction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over NaN, as memory that was used before may have it; every row ends before the last step."""
    c = case((5, 70, 4, 2, 5, 9), "key", correction)
    c.lengths[:] = torch.tensor([33, 0, 32, 1, 64])
    monkeypatch.setattr(
        "elman.kernels.native.matrix.output", lambda like, shape: like.new_full(tuple(shape), torch.nan)
    )
    compare(c)


@each_decay
@each_correction
def test_gradients_are_derivatives(decay: str, correction: str) -> None:
    c = case((3, 5, 2, 1, 3, 2), decay, correction, torch.float64)
    names = [name for name, x in c.tensors.items() if x is not None]

    def function(*tensors: Tensor) -> Results:
        return replace(c, tensors={**c.tensors, **dict(zip(names, tensors, strict=True))})()

    assert torch.autograd.gradcheck(function, tuple(c.tensors[name].requires_grad_() for name in names))


@each_correction
@each_dtype
def test_cuts_and_batches_have_the_same_bits(correction: str, dtype: torch.dtype) -> None:
    """Any cut, one step included, and each row alone."""
    c = case((4, 41, 2, 2, 17, 37), "key", correction, dtype)
    whole = c()
    for cuts in ([0, 1, 2, 20, 20, 41], list(range(42)), [0, 33, 41]):
        S, ys = c.tensors["S0"], []
        for first, end in pairwise(cuts):
            y, S = c.steps(first, end, S)()
            ys.append(y)
        assert torch.equal(torch.cat(ys, 1), whole[0]) and torch.equal(S, whole[1])
    for row in range(4):
        for x, y in zip(c.rows(row, row + 1)(), whole, strict=True):
            assert torch.equal(x, y[row : row + 1])


@each_correction
@pytest.mark.parametrize("sizes", [(1, 100, 3, 1, 32, 100), (5, 66, 4, 2, 16, 130)])  # enough for threads
def test_bits_do_not_depend_on_threads(correction: str, sizes: tuple[int, ...]) -> None:
    c, before, seen = case(sizes, "head", correction), torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            seen.append([*c(), *gradients(c).values()])
    finally:
        torch.set_num_threads(before)
    for other in seen[1:]:
        assert all(torch.equal(x, y) for x, y in zip(seen[0], other, strict=True))


@each_correction
@pytest.mark.parametrize("bad", [torch.inf, torch.nan])
def test_nothing_leaks_out_of_an_episode_or_the_padding(correction: str, bad: float) -> None:
    """What is infinite or NaN before a reset or past the lengths changes nothing after the one or before the other."""
    c = case((3, 40, 2, 1, 5, 19), "key", correction)
    c.lengths[:], c.reset[:] = torch.tensor([40, 36, 20]), False
    c.reset[:, 35] = True
    broken = c.map(Tensor.clone)
    for name, x in broken.tensors.items():
        if x is not None and name != "S0":
            x[0, 33], x[1, 36:], x[2, 20:] = bad, bad, bad
    good, found = (c(), gradients(c)), (broken(), gradients(broken))
    assert torch.equal(good[0][1], found[0][1])  # the last states
    y, expected = found[0][0], good[0][0]
    assert torch.equal(y[0, 35:], expected[0, 35:]) and torch.equal(y[1:], expected[1:])
    assert not y[0, 33].isfinite().all()
    for name, g in found[1].items():
        if name == "S0":
            assert torch.equal(g[1:], good[1][name][1:])
        else:
            assert torch.equal(g[0, 35:], good[1][name][0, 35:]) and torch.equal(g[1:], good[1][name][1:])


def test_only_one_of_the_results_is_used() -> None:
    for use in (0, 1):
        found = []
        for scan in (kernels.matrix_scan, reference.matrix_scan):
            c = case((2, 5, 2, 1, 3, 4), dtype=torch.float64).map(Tensor.requires_grad_)
            c(scan)[use].sum().backward()
            found.append([torch.zeros_like(x) if x.grad is None else x.grad for x in c.tensors.values()])
        torch.testing.assert_close(found[0], found[1])


def test_parts_of_one_projection_are_read_where_they_lie() -> None:
    c = case((2, 9, 2, 2, 8, 8), "key", "general")
    wanted = c()
    names = [name for name, x in c.tensors.items() if name != "S0"]
    side_by_side = torch.cat([c.tensors[name].flatten(2) for name in names], -1)
    parts = side_by_side.split([c.tensors[name].flatten(2).shape[-1] for name in names], -1)
    views = {name: part.unflatten(-1, c.tensors[name].shape[2:]) for name, part in zip(names, parts, strict=True)}
    turned = {"S0": c.tensors["S0"].transpose(2, 3).contiguous().transpose(2, 3)}
    for x, y in zip(replace(c, tensors={**views, **turned})(), wanted, strict=True):
        assert torch.equal(x, y)


def test_wrong_arguments_are_refused() -> None:
    c = case((2, 4, 4, 2, 3, 5))
    t = c.tensors
    with pytest.raises(InputError, match="takes b, or alpha and beta together"):
        replace(c, tensors={**t, "alpha": t["k"]})()
    for name, bad in {"k": t["k"][..., :2], "v": t["v"][:, :, :3], "S0": t["S0"][:, :2], "a": t["a"][..., :3]}.items():
        with pytest.raises(KernelError, match=r"is torch\.float32"):
            replace(c, tensors={**t, name: bad})(native.matrix_scan)
    with pytest.raises(KernelError, match="`q` is"):  # 3 groups do not divide 4 heads
        three = t["q"][:, :, :1].expand(2, 4, 3, 3)
        replace(c, tensors={**t, "q": three, "k": three})(native.matrix_scan)
    for bad in (c.reset[:, :3], c.reset[:1], c.reset.long()):  # which would be read past its end
        with pytest.raises(KernelError, match="`reset` is"):
            replace(c, reset=bad)(native.matrix_scan)
    c.lengths[1] = 5
    with pytest.raises(ValueError, match=r"lengths\[1\] is 5"):
        c(native.matrix_scan)
    with pytest.raises(InputError, match=r"lengths are \[4, 5\]"):
        c(reference.matrix_scan)


def test_second_derivative_says_what_to_do() -> None:
    c = case((2, 4, 2, 1, 3, 2), dtype=torch.float64).map(Tensor.requires_grad_)
    (g,) = torch.autograd.grad(c()[0].sum(), c.tensors["k"], create_graph=True)
    with pytest.raises(KernelError, match="no second derivative"):
        g.sum().backward()


@pytest.mark.parametrize("save", [False, True])
def test_the_operations_are_registered_with_fakes(save: bool) -> None:
    c = case((2, 40, 2, 1, 3, 4), "key", "general")
    given = [c.tensors.get(name) for name in ("q", "k", "v", "a", "b", "alpha", "beta", "S0")]
    arguments = (*given, c.lengths, c.reset)
    torch.library.opcheck(
        torch.ops.elman.matrix_scan.default, (*arguments, save), test_utils=("test_schema", "test_faketensor")
    )
    if save:
        saved, m = torch.ops.elman.matrix_scan(*arguments, True)[2:]
        torch.library.opcheck(
            torch.ops.elman.matrix_scan_back.default, (*arguments, saved, m, *arriving(c)),
            test_utils=("test_schema", "test_faketensor"),
        )  # fmt: skip


@pytest.mark.slow
def test_compiled() -> None:
    c = case((3, 37, 2, 1, 7, 3), dtype=torch.float64)
    compiled = torch.compile(kernels.matrix_scan, fullgraph=True, dynamic=True, backend="aot_eager")
    with called():
        results = c(compiled)
    for x, expected in zip(results, c(), strict=True):
        assert torch.equal(x, expected)
    for name, g in gradients(c, compiled).items():
        torch.testing.assert_close(g, gradients(c)[name], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("decay", ["none", "head", "key"])
@pytest.mark.parametrize("correction", [*CORRECTIONS, "general, by head and by group"])
@pytest.mark.parametrize("sizes", [(3, 9, 4, 2, 5, 7), (2, 6, 2, 2, 16, 32), (1, 5, 12, 12, 64, 64)])
def test_a_stream_has_the_bits_of_the_scan(decay: str, correction: str, sizes: tuple[int, ...]) -> None:
    B, T, H, _, K, V = sizes
    c = case(sizes, decay, correction)
    c.lengths[:], c.reset[:] = T, False
    names = [name for name, x in c.tensors.items() if name != "S0" and x is not None]
    columns = torch.cat([c.tensors[name].flatten(2) for name in names], -1)
    program = Program(torch.float32)
    x, parts, at = program.input(columns.shape[-1]), {}, 0
    for name in names:
        width = c.tensors[name][0, 0].numel()
        parts[name] = program.cut(x, at, width)
        at += width
    S = program.state(H * K * V)
    y = program.matrix(
        (H, K, V), parts["q"], parts["k"], parts["v"], parts.get("a"), S,
        *(parts.get(name) for name in ("b", "alpha", "beta")),
    )  # fmt: skip
    program.finish(x, y)
    stream, outputs = program.stream(B), program.outputs()
    state, rows = c.tensors["S0"].flatten(1).contiguous(), torch.arange(B)
    padded = torch.zeros(B, stream.state_row)
    padded[:, : H * K * V] = state
    stream.put(rows.data_ptr(), B, padded.data_ptr())
    wanted, last = c()
    for t in range(T):
        found = stream.step(columns[:, t].contiguous().numpy(), None, outputs, 1)
        assert torch.equal(torch.from_numpy(found.copy()), wanted[:, t].flatten(1))
    stream.take(rows.data_ptr(), B, padded.data_ptr())
    assert torch.equal(padded[:, : H * K * V], last.flatten(1))


def test_a_stream_refuses_wrong_widths() -> None:
    program = Program(torch.float32)
    shape, q, v, S = (4, 3, 5), program.input(6), program.input(20), program.state(60)
    bad: list[dict[str, Slot]] = [
        {"a": program.input(6)}, {"b": program.input(3)}, {"alpha": q}, {"k": v}, {"v": q}, {"S": v},
        {"q": program.input(9)}, {"alpha": q, "beta": program.input(3)}, {"b": program.input(4), "alpha": q, "beta": q},
    ]  # fmt: skip
    for wrong in bad:
        slots: dict[str, Any] = {"q": q, "k": q, "v": v, "a": None, "S": S, **wrong}
        with pytest.raises(InputError):
            program.matrix(shape, **slots)


# The scan of a maximum


def maxima(dtype: torch.dtype) -> tuple[Tensor, ...]:
    """With equal numbers among them, whose gradient is halved."""
    g = torch.Generator().manual_seed(0)
    a, b = (torch.randint(-4, 5, (4, 11, 19), generator=g).to(dtype) / 2 for _ in range(2))
    m0 = torch.randint(-4, 5, (4, 19), generator=g).to(dtype) / 2
    reset = torch.rand(4, 11, generator=g) < 0.1
    reset[0, 0], reset[0, 10] = True, True
    return a, b, m0, torch.tensor([11, 0, 5, 10]), reset


@each_dtype
def test_max_scan(dtype: torch.dtype) -> None:
    a, b, m0, lengths, reset = maxima(dtype)
    found = []
    for scan in (kernels.max_scan, reference.max_scan):
        inputs = [x.clone().requires_grad_() for x in (a, b, m0)]
        m, last = scan(*inputs, lengths, reset)
        g = torch.arange(m.numel(), dtype=dtype).reshape(m.shape) / 64
        found.append([m, last, *torch.autograd.grad((m, last), inputs, (g, g[:, 0]))])
    assert native.calls["max_scan"] and native.calls["max_scan_back"]
    for x, y in zip(*found, strict=True):
        assert torch.equal(x, y)
    m, last = m0, []
    for t in range(11):  # step by step
        before = torch.where(reset[:, t, None], 0.0, m)
        m = torch.where((t < lengths)[:, None], torch.maximum(a[:, t] + before, b[:, t]), m)
    assert torch.equal(m, found[0][1])


def test_max_scan_is_cut_anywhere_and_lets_nothing_through() -> None:
    a, b, m0, lengths, reset = maxima(torch.float32)
    whole, last = kernels.max_scan(a, b, m0, lengths, reset)
    m, parts = m0, []
    for first, end in ((0, 1), (1, 6), (6, 6), (6, 11)):
        part = slice(first, end)
        y, m = kernels.max_scan(a[:, part], b[:, part], m, (lengths - first).clamp(0, end - first), reset[:, part])
        parts.append(y)
    assert torch.equal(torch.cat(parts, 1), whole) and torch.equal(m, last)
    a, b = a.clone().requires_grad_(), b.clone()
    with torch.no_grad():
        a[2, 5:], a[0, :10] = torch.nan, torch.inf
    y, last = kernels.max_scan(a, b, m0, lengths, reset)
    assert torch.equal(y[0, 10], torch.maximum(a[0, 10], b[0, 10])) and not y[2, 5:].any()
    (g,) = torch.autograd.grad(last[2].sum(), a)
    assert g.isfinite().all() and not g[2, 5:].any()

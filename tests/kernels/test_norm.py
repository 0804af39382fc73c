"""The native normalisations against Torch's own, value by value and gradient by gradient, and against themselves."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from elman import kernels

native = pytest.importorskip("elman.kernels.native")

EPS = 1e-5
Norm = Callable[..., Tensor]
# What is learned, ours, Torch's: each a function of x and what is learned.
KINDS: dict[str, tuple[int, Norm, Norm]] = {
    "layer": (
        2,
        lambda x, gain, bias: kernels.layer_norm(x, gain, bias, EPS),
        lambda x, gain, bias: F.layer_norm(x, gain.shape, gain, bias, EPS),
    ),
    "layer without a bias": (
        1,
        lambda x, gain: kernels.layer_norm(x, gain, None, EPS),
        lambda x, gain: F.layer_norm(x, gain.shape, gain, None, EPS),
    ),
    "rms": (
        1,
        lambda x, gain: kernels.rms_norm(x, gain, EPS),
        lambda x, gain: F.rms_norm(x, gain.shape, gain, EPS),
    ),
}
each_kind = pytest.mark.parametrize("kind", KINDS)
# Of three heads: what is learned, ours, Torch's.
BY_HEAD: dict[str, tuple[int, Norm, Norm]] = {
    "layer": (
        2,
        lambda x, gain, bias: kernels.layer_norm(x, gain, bias, EPS, 3),
        lambda x, gain, bias: F.group_norm(x, 3, gain, bias, EPS),
    ),
    "layer without a bias": (
        1,
        lambda x, gain: kernels.layer_norm(x, gain, None, EPS, 3),
        lambda x, gain: F.group_norm(x, 3, gain, None, EPS),
    ),
    "rms": (
        1,
        lambda x, gain: kernels.rms_norm(x, gain, EPS, 3),
        lambda x, gain: torch.cat([F.rms_norm(part, part.shape[-1:], eps=EPS) for part in x.chunk(3, -1)], -1) * gain,
    ),
    "rms, one gain for all": (
        1,
        lambda x, gain: kernels.rms_norm(x, gain.chunk(3)[0], EPS, 3),
        lambda x, gain: torch.cat(
            [F.rms_norm(part, part.shape[-1:], gain.chunk(3)[0], EPS) for part in x.chunk(3, -1)], -1
        ),
    ),
    "l2": (
        0,
        lambda x: kernels.l2_norm(x, EPS, 3),
        lambda x: torch.cat([part / (part.square().sum(-1, keepdim=True) + EPS).sqrt() for part in x.chunk(3, -1)], -1),
    ),
}  # fmt: skip


def drawn(kind: str, rows: int, width: int, dtype: torch.dtype) -> list[Tensor]:
    """x, far from a mean of zero, and what is learned."""
    g = torch.Generator().manual_seed(rows * width)
    x = torch.randn(rows, width, generator=g, dtype=torch.float64) * 3 + 2
    learned = [torch.randn(width, generator=g, dtype=torch.float64) for _ in range(KINDS[kind][0])]
    return [t.to(dtype) for t in (x, *learned)]


def solved(f: Norm, inputs: list[Tensor]) -> list[Tensor]:
    """y and the gradients of everything, of one that differs from element to element."""
    inputs = [t.detach().requires_grad_() for t in inputs]
    y = f(*inputs)
    g = torch.randn(y.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return [y, *torch.autograd.grad(y, inputs, g.to(y.dtype))]


@pytest.mark.parametrize("kind", BY_HEAD)
@pytest.mark.parametrize("width", [1, 7, 16, 65])
def test_each_head_is_normalised_by_itself(kind: str, width: int) -> None:
    learned, ours, theirs = BY_HEAD[kind]
    g = torch.Generator().manual_seed(width)
    inputs = [torch.randn(5, 3 * width, generator=g, dtype=torch.float64) * 2 + 1]
    inputs += [torch.randn(3 * width, generator=g, dtype=torch.float64) for _ in range(learned)]
    before = native.calls["norm"], native.calls["norm_back"]
    found = solved(ours, inputs)
    assert (native.calls["norm"], native.calls["norm_back"]) == (before[0] + 1, before[1] + 1)
    torch.testing.assert_close(found, solved(theirs, inputs), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("width", [1, 7, 16, 65])
def test_rows_and_steps_have_the_same_bits_by_head(width: int) -> None:
    """A row beside others, alone, and in a stream, whose operation is the kernel."""
    from elman.kernels.native.program import Program

    g = torch.Generator().manual_seed(width)
    x, gain, bias = torch.randn(6, 3 * width, generator=g), *torch.randn(2, 3 * width, generator=g)
    program = Program(torch.float32)
    slot = program.input(3 * width)
    program.finish(
        slot,
        program.concat(
            [
                program.layer_norm(slot, gain, bias, EPS, 3), program.rms_norm(slot, gain[:width], EPS, 3),
                program.l2_norm(slot, EPS, 3),
            ]
        ),
    )  # fmt: skip
    steps = torch.from_numpy(program.stream(6).step(x.numpy(), None, program.outputs(), 1).copy())

    def norms(x: Tensor) -> Tensor:
        parts = (kernels.layer_norm(x, gain, bias, EPS, 3), kernels.rms_norm(x, gain[:width], EPS, 3))
        return torch.cat([*parts, kernels.l2_norm(x, EPS, 3)], -1)

    assert torch.equal(steps, norms(x))
    for row in range(6):
        assert torch.equal(norms(x[row : row + 1]), steps[row : row + 1])


def compare(kind: str, inputs: list[Tensor]) -> None:
    _, ours, theirs = KINDS[kind]
    before = native.calls["norm"], native.calls["norm_back"]
    got = solved(ours, inputs)
    assert (native.calls["norm"], native.calls["norm_back"]) == (before[0] + 1, before[1] + 1)
    torch.testing.assert_close(got, solved(theirs, inputs), rtol=1e-11, atol=1e-11)


@each_kind
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_torch_is_the_oracle(kind: str, threads: int) -> None:
    """Rows past 16 groups and past a chunk of 4096 numbers; widths around whole vectors."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for rows, width in ((1, 1), (3, 7), (15, 16), (17, 33), (100, 9), (65, 130), (9, 1100), (2, 5000)):
            compare(kind, drawn(kind, rows, width, torch.float64))
    finally:
        torch.set_num_threads(before)


@each_kind
@settings(max_examples=40, derandomize=True, deadline=None)
@given(rows=st.integers(1, 70), width=st.integers(1, 70))
def test_any_number_of_rows_and_columns(kind: str, rows: int, width: int) -> None:
    compare(kind, drawn(kind, rows, width, torch.float64))


@each_kind
def test_nothing_to_normalise(kind: str) -> None:
    x, *learned = drawn(kind, 0, 5, torch.float32)
    y, gx, *gradients = solved(KINDS[kind][1], [x, *learned])
    assert y.shape == gx.shape == (0, 5) and all(not g.any() for g in gradients)


@each_kind
def test_gradcheck(kind: str) -> None:
    inputs = [t.requires_grad_() for t in drawn(kind, 4, 5, torch.float64)]
    assert torch.autograd.gradcheck(KINDS[kind][1], inputs)


@each_kind
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bits_do_not_depend_on_rows_or_threads(kind: str, dtype: torch.dtype) -> None:
    """Of the rows and of their gradients; those of what is learned are sums in an order that threads do not change."""
    x, *learned = drawn(kind, 90, 137, dtype)
    ours, before = KINDS[kind][1], torch.get_num_threads()
    y, gx, *sums = solved(ours, [x, *learned])
    g = torch.randn(y.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            assert all(torch.equal(a, b) for a, b in zip(solved(ours, [x, *learned]), (y, gx, *sums), strict=True))
            for first, end in ((0, 1), (40, 43), (89, 90)):
                part = x[first:end].clone().requires_grad_()
                row = ours(part, *learned)
                assert torch.equal(row, y[first:end])
                assert torch.equal(torch.autograd.grad(row, part, g[first:end])[0], gx[first:end])
    finally:
        torch.set_num_threads(before)


@each_kind
@pytest.mark.parametrize("bad", [float("inf"), float("nan"), 1e30])
def test_one_row_that_is_not_ordinary(kind: str, bad: float) -> None:
    """It comes out as from Torch, and the others do not notice."""
    x, *learned = drawn(kind, 5, 11, torch.float32)
    clean = KINDS[kind][1](x, *learned)
    x[2, 4] = bad
    y = KINDS[kind][1](x, *learned)
    others = torch.tensor([0, 1, 3, 4])
    assert torch.equal(y[others], clean[others])
    assert torch.equal(y[2].isfinite(), KINDS[kind][2](x, *learned)[2].isfinite())


@each_kind
def test_rows_that_lie_apart(kind: str) -> None:
    x, *learned = drawn(kind, 12, 10, torch.float64)
    apart = torch.stack([x, x * 2], -1)[..., 0]
    assert not apart.is_contiguous()
    assert torch.equal(KINDS[kind][1](apart, *learned), KINDS[kind][1](x, *learned))

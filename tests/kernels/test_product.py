"""y = x W^T + b on the native product: right, and the same bits however the rows are batched."""

import platform

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from elman import kernels
from elman.errors import InputError

native = pytest.importorskip("elman.kernels.native")

SIZES = (0, 1, 3, 7, 65)


def arrays(M: int, N: int, K: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(M * 10007 + N * 101 + K)
    return tuple(torch.randn(*s, dtype=dtype, generator=g) for s in ((M, K), (N, K), (N,)))  # type: ignore[return-value]


def called(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    before = native.calls["linear"]
    y = kernels.linear(x, w, b)
    assert native.calls["linear"] == before + 1
    return y


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bias", [True, False])
def test_equals_torch_at_every_size(dtype: torch.dtype, bias: bool) -> None:
    for M in (*SIZES, 23, 26, 130):
        for N in SIZES:
            for K in (*SIZES, 300, 700):
                x, w, b = arrays(M, N, K, dtype)
                c = b if bias else None
                expected = F.linear(x.double(), w.double(), None if c is None else c.double())
                # Summing k products costs at most k roundings of the largest partial sum.
                scale = (x.abs().double() @ w.abs().double().t() + 4) * torch.finfo(dtype).eps * (K + 2)
                assert ((called(x, w, c).double() - expected).abs() <= scale).all(), (M, N, K)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("K,N", [(3, 7), (65, 65), (300, 40), (128, 384), (600, 9)])
def test_rows_do_not_depend_on_their_neighbours(dtype: torch.dtype, K: int, N: int) -> None:
    """Sizes on both sides of the choice of which factor is packed, and sums longer than a block of k."""
    x, w, b = arrays(500, N, K, dtype)
    whole = called(x, w, b)
    for first, end in ((0, 1), (3, 5), (7, 10), (10, 15), (20, 28), (31, 48), (100, 164), (0, 499)):
        assert torch.equal(called(x[first:end], w, b), whole[first:end]), (first, end)
    threads = torch.get_num_threads()
    try:
        for number in (1, 2, 3):
            for rows in (500, 30):
                torch.set_num_threads(1)
                called(-x[:rows], w, b)  # other numbers, in the memory that the next output finds
                torch.set_num_threads(number)
                assert torch.equal(called(x[:rows], w, b), whole[:rows]), (number, rows)
    finally:
        torch.set_num_threads(threads)


def test_columns_are_one_sum_in_ascending_order() -> None:
    """The order is part of the contract: a stream and the gated loops continue sums that this product would begin."""
    x, w, b = arrays(5, 6, 40, torch.float32)
    y = called(x, w, b)
    if native.isa() == "baseline" and platform.machine() in ("x86_64", "AMD64"):  # that of arm64 fuses
        acc = b.expand(5, 6).clone()
        for k in range(40):
            acc = acc + x[:, k, None] * w[:, k]
        assert torch.equal(y, acc)
    else:  # one rounding for each multiply-add: exact in float64 up to double rounding, which these numbers do not meet
        acc64 = b.double().expand(5, 6)
        for k in range(40):
            acc64 = (acc64 + x[:, k, None].double() * w[:, k].double()).float().double()
        assert torch.equal(y.double(), acc64)


def test_leading_axes_strides_and_empty_batches() -> None:
    x = torch.randn(4, 6, 5)
    w = torch.randn(3, 5)
    torch.testing.assert_close(called(x, w, None), F.linear(x, w))
    torch.testing.assert_close(called(x.transpose(0, 1), w, None), F.linear(x, w).transpose(0, 1))
    wide = torch.randn(5, 3)
    torch.testing.assert_close(called(x, wide.t(), None), F.linear(x, wide.t()))
    assert called(torch.randn(0, 7, 5), w, None).shape == (0, 7, 3)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e-42, 3e38])
def test_special_values_stay_in_their_row(value: float) -> None:
    x, w, b = arrays(20, 7, 9, torch.float32)
    x[4, 2] = value
    y = called(x, w, b)
    torch.testing.assert_close(y, F.linear(x, w, b), equal_nan=True)
    assert y[torch.arange(20) != 4].isfinite().all()


def test_gradients() -> None:
    x, w, b = (t.requires_grad_() for t in arrays(4, 3, 5, torch.float64))
    before = native.calls["linear"]
    assert torch.autograd.gradcheck(kernels.linear, (x, w, b))
    assert torch.autograd.gradgradcheck(kernels.linear, (x, w, b))
    assert native.calls["linear"] > before


def test_complex_products_are_exact_and_row_invariant() -> None:
    x, w, b = (torch.complex(t, t.flip(0)) for t in arrays(9, 4, 6, torch.float64))
    y = called(x, w, b)
    torch.testing.assert_close(y, F.linear(x, w, b))
    assert torch.equal(called(x[3:4], w, b), y[3:4])
    assert torch.autograd.gradcheck(kernels.linear, tuple(t.detach().requires_grad_() for t in (x, w, b)))


def test_compiled_and_exported() -> None:
    layer = torch.nn.Linear(6, 5)

    class Model(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return kernels.linear(x, layer.weight, layer.bias)

    x = torch.randn(3, 4, 6, requires_grad=True)
    compiled = torch.compile(Model(), fullgraph=True, backend="aot_eager")
    y = compiled(x)
    assert torch.equal(y, kernels.linear(x, layer.weight, layer.bias))
    expected = torch.autograd.grad(kernels.linear(x, layer.weight, layer.bias).square().sum(), (x, layer.weight))
    for got, want in zip(torch.autograd.grad(y.square().sum(), (x, layer.weight)), expected, strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_windows_are_a_convolution(dtype: torch.dtype) -> None:
    """Of a row that is 11 steps of 3 channels: torch.nn's, channels last, with its gradients."""
    g = torch.Generator().manual_seed(0)
    x, w, b = (torch.randn(*s, dtype=dtype, generator=g, requires_grad=True) for s in ((5, 33), (4, 6), (4,)))
    for stride in (1, 2, 4):
        y = kernels.windows(x, w, b, 3 * stride)
        expected = F.conv1d(x.unflatten(1, (11, 3)).mT, w.unflatten(1, (2, 3)).mT, b, stride).mT.flatten(1)
        torch.testing.assert_close(y, expected)
        for ours, theirs in zip(
            torch.autograd.grad(y.pow(2).sum(), (x, w, b)),
            torch.autograd.grad(expected.pow(2).sum(), (x, w, b)),
            strict=True,
        ):
            torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(("K", "stride"), [(0, 1), (7, 1), (3, 0)])
def test_windows_that_do_not_fit_are_refused(K: int, stride: int) -> None:
    from elman.kernels.native.program import Program

    program, weight = Program(torch.float32), torch.zeros(2, K)
    message = f"windows of {K} columns, {stride} apart, of 6: at least one must fit"
    with pytest.raises(InputError, match=message):
        kernels.windows(torch.zeros(1, 6), weight, None, stride)
    with pytest.raises(InputError, match=message):
        program.windows(program.input(6), weight, None, stride)

"""sigmoid, tanh, softplus, silu, exp, sin and cos on native vectors: accurate, clean at edges, blind to position."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from elman import kernels

native = pytest.importorskip("elman.kernels.native")

ULPS = 3.0  # stated in csrc/math.h


def exact(name: str, x: np.ndarray) -> np.ndarray:
    """In numpy's long double (64 bits of mantissa), by formulas without cancellation."""
    x = x.astype(np.longdouble)
    if name in ("sin", "cos"):
        return np.sin(x) if name == "sin" else np.cos(x)
    e = np.exp(-np.abs(x))
    logistic = np.where(x < 0, e, 1) / (1 + e)
    if name == "exp":
        return np.exp(x)
    if name == "tanh":
        return np.tanh(x)
    if name == "softplus":
        return np.maximum(x, 0) + np.log1p(e)
    return logistic if name == "sigmoid" else x * logistic


def called(name: str, x: Tensor) -> Tensor:
    before = native.calls[name]
    y: Tensor = getattr(kernels, name)(x)
    assert native.calls[name] == before + 1
    return y


NAMES = ("sigmoid", "tanh", "softplus", "silu", "exp", "sin", "cos")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_accurate_to_three_ulps(name: str, dtype: torch.dtype) -> None:
    g = torch.Generator().manual_seed(0)
    edge = 85 if dtype == torch.float32 else 700
    spread = (torch.rand(100_000, generator=g, dtype=torch.float64) * 2 - 1) * edge
    near = torch.randn(100_000, generator=g, dtype=torch.float64)
    tiny = (
        torch.exp(torch.rand(50_000, generator=g, dtype=torch.float64) * -80) * torch.randn(50_000, generator=g).sign()
    )
    x = torch.cat([spread, near, tiny]).to(dtype)
    want = exact(name, x.numpy())
    ulp = np.spacing(np.abs(want.astype(x.numpy().dtype))).astype(np.longdouble)
    worst = float(np.max(np.abs(called(name, x).numpy().astype(np.longdouble) - want) / ulp))
    assert worst <= ULPS, worst


@pytest.mark.parametrize("name", ["sin", "cos"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_angles_of_any_size(name: str, dtype: torch.dtype) -> None:
    """From the least number to the greatest, and as near to multiples of pi / 2 as there are numbers."""
    g = torch.Generator().manual_seed(1)
    most = 127 if dtype == torch.float32 else 1023
    exponents = torch.randint(-most, most, (200_000,), generator=g)
    sizes = torch.ldexp(1 + torch.rand(200_000, generator=g, dtype=torch.float64), exponents)
    turns = torch.randint(1, 700_000, (100_000,), generator=g).double() * (torch.pi / 2)
    # The worst of all doubles, and of all floats, to reduce (Muller and others, 2018).
    worst = torch.tensor([6381956970095103.0 * 2.0**797, 16367173.0 * 2.0**72], dtype=torch.float64)
    x = torch.cat([sizes, turns, turns * 1e6, worst]).to(dtype)
    x = torch.cat([x, -x])
    x = x[x.isfinite()]
    want = exact(name, x.numpy())
    ulp = np.spacing(np.abs(want.astype(x.numpy().dtype))).astype(np.longdouble)
    worst_error = float(np.max(np.abs(called(name, x).numpy().astype(np.longdouble) - want) / ulp))
    assert worst_error <= (0.51 if dtype == torch.float32 else 1.0), worst_error


@pytest.mark.parametrize("name", ["sin", "cos"])
def test_sines_of_floats_are_those_of_doubles(name: str) -> None:
    """Rounded once: no instruction set has other bits, nor has an exported C file."""
    x = torch.randn(10_000, generator=torch.Generator().manual_seed(0)) * 1e4
    assert torch.equal(called(name, x), called(name, x.double()).float())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_edges_are_the_reference(name: str, dtype: torch.dtype) -> None:
    inf, nan = float("inf"), float("nan")
    x = torch.tensor([0.0, -0.0, inf, -inf, nan, 1e-42, -1e-42, 5e-39, 1e30, -1e30, 88.0, 20.0], dtype=dtype)
    with kernels.use("reference"):
        expected = getattr(kernels, name)(x)
    got = called(name, x)
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-44, equal_nan=True)
    assert torch.equal(torch.signbit(got[:2]), torch.signbit(expected[:2]))


@pytest.mark.parametrize("name", NAMES)
def test_bits_do_not_depend_on_position_or_length(name: str) -> None:
    x = torch.randn(10_000) * 5
    whole = called(name, x)
    for first, end in ((0, 1), (1, 4), (5, 12), (3, 40), (4090, 4101), (1, 10_000)):
        assert torch.equal(called(name, x[first:end]), whole[first:end])
    assert torch.equal(called(name, x.view(100, 100).t()), whole.view(100, 100).t())
    assert called(name, x[:0]).shape == (0,)


@pytest.mark.parametrize("name", NAMES)
def test_gradients(name: str) -> None:
    f: Callable[[Tensor], Tensor] = getattr(kernels, name)
    x = torch.linspace(-3, 3, 7, dtype=torch.float64, requires_grad=True)
    before = native.calls[name]
    assert torch.autograd.gradcheck(f, (x,))
    assert torch.autograd.gradgradcheck(f, (x,))
    assert native.calls[name] > before


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_compiled(name: str) -> None:
    f: Callable[[Tensor], Tensor] = getattr(kernels, name)
    x = torch.randn(5, 3, requires_grad=True)
    y = torch.compile(lambda v: f(v) * 2, fullgraph=True, backend="aot_eager")(x)
    assert torch.equal(y, f(x) * 2)
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x), torch.autograd.grad((f(x) * 2).sum(), x))


def test_the_square_root_is_the_nearest_number() -> None:
    """NumPy's is, by IEEE 754."""
    x = torch.rand(100_001, generator=torch.Generator().manual_seed(0)) * 50
    x[:3] = torch.tensor([0.0, torch.inf, 1e-40])
    np.testing.assert_array_equal(kernels.sqrt(x).numpy(), np.sqrt(x.numpy()))
    assert torch.autograd.gradcheck(kernels.sqrt, x[3:9].double().requires_grad_())

"""Logarithms of densities against mpmath, and their gradients; against themselves: other rows, other threads."""

from collections.abc import Callable

import mpmath
import numpy as np
import pytest
import torch
from torch import Tensor

from elman import kernels
from elman.kernels import reference
from tests.kernels.operations import threads

native = pytest.importorskip("elman.kernels.native")

DF = [1e-3, 0.5, 2.0, 7.99, 15.9, 16.0, 16.1, 300.0, 2e3, 1e8, 1e13]
DISTANCE = [0.0, 1e-9, -0.3, 1.0, -7.0, 1e6, 1e120]
COUNTS = [0.0, 1.0, 7.0, 8.0, 120.0, 5e4, 1e9]
SHAPE = [1e-3, 0.4, 7.9, 8.0, 90.0, 1e6]
LOGITS = [-700.0, -40.0, -36.9, -2.0, 0.0, 3.0, 35.0, 900.0]


def grid(*values: list[float]) -> list[Tensor]:
    return [torch.tensor(part).reshape(-1) for part in np.meshgrid(*values)]


def exact_student_t(x: float, df: float, mean: float, scale: float) -> mpmath.mpf:
    x, df, mean, scale = (mpmath.mpf(v) for v in (x, df, mean, scale))
    constant = mpmath.loggamma((df + 1) / 2) - mpmath.loggamma(df / 2) - mpmath.log(df * mpmath.pi) / 2
    return constant - mpmath.log(scale) - (df + 1) / 2 * mpmath.log1p(((x - mean) / scale) ** 2 / df)


def exact_negative_binomial(n: float, logits: float, shape: float) -> mpmath.mpf:
    n, logits, r = (mpmath.mpf(v) for v in (n, logits, shape))
    m = mpmath.log1p(mpmath.exp(logits))
    ways = mpmath.loggamma(n + r) - mpmath.loggamma(r) - mpmath.loggamma(n + 1)
    return ways - r * mpmath.log1p(m / r) + n * mpmath.log(m / (r + m))


def student_t(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    x, df = grid(DISTANCE, DF)
    x = torch.where(x.abs() > 1e30, x.sign() * 1e30, x) if dtype == torch.float32 else x
    return [part.to(dtype) for part in (x * 0.7 + 0.25, df, torch.full_like(x, 0.25), torch.full_like(x, 0.7))]


def negative_binomial(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    return [part.to(dtype) for part in grid(COUNTS, LOGITS, SHAPE)]


CASES = {
    "student_t_log_prob": (student_t, exact_student_t),
    "negative_binomial_log_prob": (negative_binomial, exact_negative_binomial),
}
each_case = pytest.mark.parametrize("name", CASES)


@each_case
def test_the_exact_density(name: str) -> None:
    problem, exact = CASES[name]
    given = problem()
    before = native.calls[name]
    found = getattr(kernels, name)(*given)
    assert native.calls[name] == before + 1
    with mpmath.workdps(60):
        for i, values in enumerate(zip(*(part.tolist() for part in given), strict=True)):
            wanted = exact(*values)
            # Of counts, what is added up is larger than what comes of it: n log n.
            size = max(1, abs(wanted), 0.1 * values[0] if name.startswith("neg") else 0)
            assert abs(found[i].item() - wanted) < 1e-13 * size, (values, found[i].item(), wanted)


@each_case
def test_gradients_are_those_of_the_exact_density(name: str) -> None:
    problem, exact = CASES[name]
    given = [part.requires_grad_() for part in problem()]
    if name.startswith("neg"):
        given[0] = given[0].detach()
    wanted = [part for part in given if part.requires_grad]
    gradients = iter(torch.autograd.grad(getattr(kernels, name)(*given).sum(), wanted))
    with mpmath.workdps(60):
        for which, part in enumerate(given):
            if not part.requires_grad:
                continue
            found = next(gradients)
            for i, values in enumerate(zip(*(p.tolist() for p in given), strict=True)):
                if abs(values[0]) > 1e100:
                    continue

                def along(v: mpmath.mpf, values: tuple[float, ...] = values, which: int = which) -> mpmath.mpf:
                    return exact(*(v if j == which else other for j, other in enumerate(values)))

                slope = mpmath.diff(along, mpmath.mpf(values[which]), relative=True, h=mpmath.mpf(10) ** -25)
                # Terms cancel: of the size of 1 / df or 1 / shape with respect to these.
                if name.startswith("stu"):
                    floor = 1 / values[1] if which == 1 else 1e-3
                else:
                    floor = max(1 / values[2], 1e-6)
                size = max(abs(slope), floor)
                assert abs(found[i].item() - slope) < 1e-10 * size, (which, values, found[i].item(), slope)


@each_case
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_bits_of_a_number_are_its_own(name: str, dtype: torch.dtype) -> None:
    given = [part.repeat(40) for part in CASES[name][0](dtype)]
    given = [part[torch.randperm(len(part), generator=torch.Generator().manual_seed(0))] for part in given]
    run: Callable[..., Tensor] = getattr(kernels, name)

    def solve(parts: list[Tensor]) -> list[Tensor]:
        own = [part.clone().requires_grad_(i > 0) for i, part in enumerate(parts)]
        y = run(*own)
        return [y.detach(), *torch.autograd.grad(y.sum(), own[1:])]

    whole = solve(given)
    for count in (1, 3):
        with threads(count):
            assert all(map(torch.equal, solve(given), whole))
    for piece in (slice(0, 1), slice(5, 18), slice(3, 2051)):
        assert all(torch.equal(a, b[piece]) for a, b in zip(solve([p[piece] for p in given]), whole, strict=True))


@each_case
def test_it_can_be_differentiated_twice_and_agrees_with_the_reference(name: str) -> None:
    g = torch.Generator().manual_seed(1)
    given = [torch.rand(6, generator=g, dtype=torch.float64) + 0.5 for _ in range(4 if name.startswith("stu") else 3)]
    if name.startswith("neg"):
        given[0] = given[0].mul(9).floor()
    given = [part.requires_grad_(i > 0 or name.startswith("stu")) for i, part in enumerate(given)]
    run = getattr(kernels, name)
    torch.testing.assert_close(run(*given), getattr(reference, name)(*given), rtol=1e-12, atol=1e-12)
    assert torch.autograd.gradcheck(run, given)
    assert torch.autograd.gradgradcheck(run, given)


def test_what_is_not_finite() -> None:
    x, one = torch.tensor([torch.inf, -torch.inf, torch.nan]), torch.ones(3)
    found = kernels.student_t_log_prob(x, 3 * one, 0 * one, one)
    assert found[:2].tolist() == [-torch.inf] * 2 and bool(found[2].isnan())
    counts = kernels.negative_binomial_log_prob(torch.tensor([-1.0, torch.nan]), one[:2], 2.5 * one[:2])
    assert counts[0].item() == -torch.inf and bool(counts[1].isnan())


def test_parameters_are_shared_by_broadcasting_and_dtypes_promoted() -> None:
    x, one = torch.arange(6.0).reshape(2, 3), torch.ones(())
    scale = torch.ones(3).requires_grad_()
    found = kernels.student_t_log_prob(x, 3 * one, 0 * one, scale)
    assert torch.equal(found[1], kernels.student_t_log_prob(x[1], 3 * one.expand(3), torch.zeros(3), torch.ones(3)))
    found.sum().backward()
    assert scale.grad is not None and scale.grad.shape == (3,)
    assert kernels.student_t_log_prob(x.double(), 3 * one, 0 * one, one).dtype == torch.float64

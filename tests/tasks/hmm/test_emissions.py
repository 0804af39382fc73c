"""Closed-form maxima: at them the gradient of what they maximise is zero, by autograd through the densities
and the priors."""

import math
from collections.abc import Callable
from decimal import Decimal, localcontext

import numpy as np
import pytest
import torch
from torch import Tensor

from elman.tasks.hmm.emissions import Bernoulli, Categorical, Emission, Poisson
from elman.tasks.hmm.gaussian import Gaussian
from elman.tasks.hmm.mixture import Mixture

stats = pytest.importorskip("scipy.stats")

K, D, N = 3, 2, 50
G = torch.Generator().manual_seed(0)


def rand(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=G, dtype=torch.float64)


def gaussian(covariance_type: str, groups: int = K) -> Gaussian:
    shape = {"spherical": (K,), "diag": (K, D)}.get(covariance_type)
    covariance = rand(*shape) + 0.5 if shape else torch.eye(D, dtype=torch.float64).expand(groups, D, D) + 0.3
    return Gaussian(
        rand(K, D), covariance, covariance_type, means_prior=0.3, means_weight=1.5, covars_prior=0.4, covars_weight=4.0
    )


def simplex(*shape: int) -> Tensor:
    p = rand(*shape) + 0.1
    return p / p.sum(-1, keepdim=True)


CASES: dict[str, tuple[Callable[[], Emission], Callable[[], Tensor]]] = {
    "categorical": (lambda: Categorical(simplex(K, 4), prior=1.7), lambda: (rand(N, 1) * 4).floor()),
    "bernoulli": (lambda: Bernoulli(rand(K, D), prior=1.4), lambda: rand(N, D).round()),
    "poisson": (lambda: Poisson(rand(K, D) + 1, prior=0.7, prior_weight=0.2), lambda: (rand(N, D) * 6).floor()),
    "spherical": (lambda: gaussian("spherical"), lambda: rand(N, D) * 4),
    "diag": (lambda: gaussian("diag"), lambda: rand(N, D) * 4),
    "full": (lambda: gaussian("full"), lambda: rand(N, D) * 4),
    "tied": (lambda: gaussian("tied", 1), lambda: rand(N, D) * 4),
}


@pytest.mark.slow
@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_the_gradient_vanishes_at_the_maximum(name: str, missing: bool) -> None:
    make, draw = CASES[name]
    emission, o, weight = make(), draw(), simplex(N, K)
    if missing:
        o = torch.where(rand(*o.shape) < 0.2, torch.nan, o)
    if missing and name in ("full", "tied"):
        # What is missing is imputed from the old parameters: only the fixed point is a maximum.
        for _ in range(400):
            emission.maximise(o, weight)
    emission.maximise(o, weight)
    objective = (weight * emission(o)).sum() + emission.log_prior()
    for gradient in torch.autograd.grad(objective, list(emission.parameters())):
        assert float(gradient.abs().max()) < 1e-9


def test_densities_against_scipy() -> None:
    o = rand(N, D) * 4
    full, diag = gaussian("full"), gaussian("diag")
    for emission, covariance in ((full, full.covariance), (diag, torch.diag_embed(diag.covariance))):
        want = [
            stats.multivariate_normal(m, c).logpdf(o)
            for m, c in zip(emission.mean.detach(), covariance.detach(), strict=True)
        ]
        np.testing.assert_allclose(emission(o).detach(), np.stack(want, 1), rtol=1e-12)
    weights = simplex(1, K)
    mixture = Mixture(weights, full)
    want = sum(w * np.exp(full(o).detach().numpy()[:, k]) for k, w in enumerate(weights[0].tolist()))
    np.testing.assert_allclose(mixture(o).detach()[:, 0], np.log(want), rtol=1e-12)
    counts = (rand(N, D) * 6).floor()
    poisson = Poisson(rand(K, D) + 1)
    want_p = np.stack([stats.poisson(r).logpmf(counts).sum(1) for r in poisson.rate.detach()], 1)
    np.testing.assert_allclose(poisson(counts).detach(), want_p, rtol=1e-12)
    bits = rand(N, D).round()
    bernoulli = Bernoulli(rand(K, D))
    want_b = np.stack([stats.bernoulli(p).logpmf(bits).sum(1) for p in bernoulli.p.detach()], 1)
    np.testing.assert_allclose(bernoulli(bits).detach(), want_b, rtol=1e-10)


def test_what_cannot_be_is_minus_infinity_and_not_nan() -> None:
    zero_one = torch.tensor([[0.0, 1.0]], dtype=torch.float64)
    assert Bernoulli(zero_one)(torch.tensor([[0.0, 1.0], [1.0, 1.0]], dtype=torch.float64)).flatten().tolist() == [
        0.0,
        -torch.inf,
    ]
    rate = Poisson(torch.tensor([[0.0]], dtype=torch.float64))
    assert rate(torch.tensor([[0.0], [1.0]], dtype=torch.float64)).flatten().tolist() == [0.0, -torch.inf]
    assert Categorical(torch.tensor([[1.0, 0.0]]))(torch.tensor([[0.0], [1.0], [torch.nan]])).flatten().tolist() == [
        0.0,
        -torch.inf,
        0.0,
    ]


@pytest.mark.parametrize("count", [3, 2 * 10**6, 10**9, 10**15])
@pytest.mark.parametrize("ratio", [0.5, 0.9, 1 - 1e-7, 1.0, 1 + 1e-4, 3.0])
def test_large_counts_keep_their_digits(count: int, ratio: float) -> None:
    """Against the definition in 60 digits, log(count!) by Stirling's series where it is too long to multiply out."""
    emission = Poisson(torch.tensor([[count * ratio]], dtype=torch.float64))
    value = float(emission(torch.tensor([[float(count)], [2e6]], dtype=torch.float64)).detach()[0, 0])
    with localcontext(prec=60):
        k, rate = Decimal(count), Decimal(float(emission.rate.detach()))
        pi = Decimal("3.14159265358979323846264338327950288419716939937510582097494")
        stirling = k * k.ln() - k + (2 * pi * k).ln() / 2 + 1 / (12 * k) - 1 / (360 * k**3)
        factorial = Decimal(math.factorial(count)).ln() if count < 100 else stirling
        want = float(k * rate.ln() - rate - factorial)
    assert value == pytest.approx(want, rel=1e-12, abs=1e-6)


def test_a_rate_of_zero_is_certain_beside_large_counts() -> None:
    emission = Poisson(torch.tensor([[0.0, 1e7]], dtype=torch.float64))
    x = emission(torch.tensor([[0.0, 1e7], [1.0, 1e7]], dtype=torch.float64)).detach()
    alone = Poisson(torch.tensor([[1e7]], dtype=torch.float64))(torch.tensor([[1e7]], dtype=torch.float64)).detach()
    assert x[0, 0] == alone[0, 0] and x[1, 0] == -torch.inf

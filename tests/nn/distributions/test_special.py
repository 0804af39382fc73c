"""Quantiles and means against scipy, and a grid of quantiles against its own definition."""

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from elman.errors import InputError
from elman.nn.distributions import (
    GRID,
    Bernoulli,
    Categorical,
    Gaussian,
    NegativeBinomial,
    Poisson,
    QuantileGrid,
    StudentT,
)
from elman.nn.distributions.special import incomplete_beta, student_t_quantile
from elman.nn.readout import QuantileReadout

P = np.array([0.01, 0.1, 0.5, 0.77, 0.99])
MEANS = torch.tensor([[0.05, 1.0, 7.5, 300.0]])
LOGITS = torch.where(MEANS > 30, MEANS, torch.log(torch.expm1(MEANS.double())).float())
SHAPES = torch.tensor([[0.5, 2.0, 9.0, 40.0]])


def test_quantiles_are_scipys():
    df = np.array([2.01, 3.0, 12.0, 500.0])[:, None]
    np.testing.assert_allclose(student_t_quantile(df, P), stats.t.ppf(P, df), rtol=1e-8, atol=1e-8)
    a, b, x = (part.reshape(-1) for part in np.meshgrid([0.3, 2.0, 40.0], [0.5, 5.0, 900.0], [0.01, 0.4, 0.99]))
    np.testing.assert_allclose(incomplete_beta(a, b, x), stats.beta.cdf(x, a, b), rtol=1e-9, atol=1e-12)
    m, r = MEANS[0].double().numpy()[:, None], SHAPES[0].double().numpy()[:, None]
    bits = torch.tensor([0.0, 3.0]).sigmoid().double().numpy()[:, None]
    cases = [
        (Gaussian(MEANS, SHAPES), stats.norm(m, r)),
        (StudentT(SHAPES + 2, MEANS, SHAPES), stats.t(r + 2, m, r)),
        (Poisson(LOGITS), stats.poisson(m)),
        (NegativeBinomial(LOGITS, SHAPES), stats.nbinom(r, r / (r + m))),
        (Bernoulli(torch.tensor([[0.0, 3.0]])), stats.bernoulli(bits)),
    ]
    for ours, theirs in cases:
        np.testing.assert_allclose(ours.quantile(P)[0].numpy(), theirs.ppf(P), rtol=2e-6, atol=1e-6)
        np.testing.assert_allclose(ours.mean[0].numpy(), theirs.mean()[:, 0], rtol=1e-5)


def by_mpmath(df, t):
    """P(T < -t) to 40 digits, and the density there."""
    with mpmath.workdps(40):
        v, t = mpmath.mpf(df), mpmath.mpf(t)
        tail = mpmath.betainc(v / 2, 0.5, 0, v / (v + t * t), regularized=True) / 2
        density = mpmath.gamma((v + 1) / 2) / mpmath.gamma(v / 2) / mpmath.sqrt(v * mpmath.pi)
        return tail, density * (1 + t * t / v) ** (-(v + 1) / 2)


@pytest.mark.parametrize("df", [0.01, 0.1, 0.29, 1.0, 3.0, 30.0, 1e5, 9e5, 2e6])
def test_the_far_ends_of_student_s_t(df):
    """Few degrees of freedom, levels that are nearly 0 or nearly one half: to 11 digits, or infinite where it is."""
    for level in (1e-300, 1.23456e-14, 1e-6, 0.001, 0.1, 0.3, 0.4999, 0.5 - 1e-9):
        t = -float(student_t_quantile(np.array(df), np.array(level)))
        if np.isinf(t):
            assert by_mpmath(df, 1e308)[0] > level  # it is further away than any number
            continue
        tail, density = by_mpmath(df, t)
        assert abs(float((tail - mpmath.mpf(level)) / density / mpmath.mpf(t))) < 1e-11, (level, t)
    assert student_t_quantile(np.array(df), np.array(0.5)) == 0


def test_t_of_very_many_degrees_of_freedom_is_normal():
    np.testing.assert_allclose(student_t_quantile(np.array(1e13), P), stats.norm.ppf(P), rtol=1e-12)


@pytest.mark.parametrize(
    ("m", "r", "level"),
    [(1e6, 1e-3, 0.999), (1e6, 1e-3, 0.5), (1e6, 10.0, 0.999), (1e6, 0.5, 0.1), (1e8, 10.0, 0.5), (1e4, 0.01, 0.99),
     (1e6, 1e6, 0.9), (5e4, 1e5, 0.01)],
)  # fmt: skip
def test_quantiles_of_heavy_counts_are_scipys(m, r, level):
    mean_, shape = (torch.tensor([[v]], dtype=torch.float64) for v in (m, r))
    assert NegativeBinomial(mean_, shape).quantile([level]).item() == stats.nbinom.ppf(level, r, r / (r + m))


def test_quantiles_are_the_smallest_counts_that_are_enough():
    """Of small counts, by adding up the probabilities."""
    for m, r in ((0.3, 0.2), (4.0, 1.5), (25.0, 7.0)):
        n = np.arange(5000)
        total = np.cumsum(stats.nbinom.pmf(n, r, r / (r + m)))
        levels = [0.001, 0.2, 0.5, 0.9, 0.999]
        logits, shape = torch.tensor([[np.log(np.expm1(m))]]), torch.tensor([[r]], dtype=torch.float64)
        found = NegativeBinomial(logits, shape).quantile(levels)[0, 0]
        assert found.tolist() == [int(n[total >= level][0]) for level in levels]


def test_a_grid_of_one_level_is_refused():
    with pytest.raises(InputError, match="two or more levels"):
        QuantileGrid(torch.zeros(1, 1, 1), (0.5,))
    with pytest.raises(InputError, match="a value for each"):
        QuantileGrid(torch.zeros(1, 1, 2))
    for levels in ([0.5], [], [0.5, 0.1], [0.1, 0.1], [0.0, 0.5], [0.5, 1.5]):
        with pytest.raises(InputError, match="two or more between 0 and 1, which rise"):
            QuantileReadout(3, 2, levels=levels)


def test_of_classes():
    classes = Categorical(torch.tensor([[0.2, 0.5, 0.3]]).log())
    assert classes.quantile([0.1, 0.2001, 0.6, 0.71])[0, 0].tolist() == [0, 1, 1, 2]
    assert classes.mean.item() == pytest.approx(1.1)


def test_levels_are_checked():
    with pytest.raises(InputError, match="a quantile at 1"):
        Bernoulli(torch.zeros(1, 1)).quantile([1.0])


def grid(seed=0):
    torch.manual_seed(seed)
    return QuantileReadout(3, 2)(torch.randn(4, 3))


@given(st.integers(0, 200))
def test_quantiles_never_cross(seed):
    assert (grid(seed).values.diff(dim=-1) >= 0).all()


def test_a_grid_is_a_distribution():
    one = QuantileGrid(grid().values[:1, :1].double())
    np.testing.assert_allclose(one.quantile(GRID)[0, 0].numpy(), one.values[0, 0].detach().numpy(), rtol=1e-12)
    low, high = (float(q) for q in one.quantile([1e-9, 1 - 1e-9])[0, 0])
    x = torch.linspace(low, high, 200_001, dtype=torch.float64)
    density = QuantileGrid(one.values.expand(len(x), 1, -1)).log_prob(x[:, None]).exp().detach()
    total = torch.cumulative_trapezoid(density, x)
    assert total[-1].item() == pytest.approx(1, abs=1e-3)
    assert torch.trapezoid(density * x, x).item() == pytest.approx(one.mean.item(), abs=1e-3)
    for p in (0.005, 0.1, 0.5, 0.93, 0.995):  # in the tails too
        place = int((one.quantile([p]).item() - low) / (high - low) * 200_000)
        assert total[place].item() == pytest.approx(p, abs=1e-3)


def test_samples_of_a_grid_are_its_quantiles():
    n = 20_000
    one = grid().values[:1, :1].detach()
    draws = torch.stack([torch.arange(n), torch.zeros(n, dtype=torch.int64)], 1)
    found = QuantileGrid(one.expand(n, 1, -1)).sample(draws)[:, 0].sort().values
    exact = QuantileGrid(one).quantile([0.05, 0.5, 0.95])[0, 0]
    width = float(exact[-1] - exact[0])
    np.testing.assert_allclose(found[[n // 20, n // 2, n * 19 // 20]].numpy(), exact.numpy(), atol=0.03 * width)


def test_the_pinball_loss_is_least_at_the_quantiles():
    x = torch.randn(5000, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    true = torch.special.ndtri(torch.tensor(GRID, dtype=torch.float64))
    one = torch.ones_like(x)
    best = QuantileGrid(true.expand(5000, 1, -1)).loss(x, one).mean()
    for other in (true + 0.2, 0.8 * true):
        assert QuantileGrid(other.expand(5000, 1, -1)).loss(x, one).mean() > best


def test_units_of_a_series():
    """P(reference + scale z): quantiles move with it, and densities integrate to the same."""
    reference, scale = torch.tensor([[100.0, -5.0]]), torch.tensor([[10.0, 0.5]])
    for z in (Gaussian(torch.zeros(1, 2), torch.ones(1, 2)), QuantileGrid(grid().values[:1].detach())):
        moved = z.rescaled(reference, scale)
        wanted = reference.double()[..., None] + scale.double()[..., None] * z.quantile(P)
        np.testing.assert_allclose(moved.quantile(P).numpy(), wanted.numpy(), rtol=1e-5)
        x = torch.tensor([[0.3, -0.2]])
        change = z.log_prob(x) - scale.log().sum()
        np.testing.assert_allclose(moved.log_prob(reference + scale * x).detach(), change.detach(), rtol=1e-3)
    rate = Poisson(LOGITS).rescaled(torch.zeros(1, 4), torch.full((1, 4), 7.0))
    np.testing.assert_allclose(rate.mean.numpy(), 7 * MEANS.numpy(), rtol=1e-5)
    with pytest.raises(InputError, match="Bernoulli"):
        Bernoulli(torch.zeros(1, 2)).rescaled(reference, scale)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9, 0.999])
def test_quantiles_of_large_geometric_counts(p):
    """r = 1: P(X <= n) = 1 - q^(n + 1), q = m / (1 + m). They were off by 4e-6 of themselves."""
    for m in (1e6, 1e9):
        predicted = NegativeBinomial(torch.tensor([[m]], dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64))
        wanted = np.ceil(np.log1p(-p) / -np.log1p(1 / m) - 1)
        assert predicted.quantile([p]).item() == pytest.approx(wanted, rel=1e-12, abs=1)


def test_quantiles_of_counts_past_the_whole_numbers_of_float64():
    """Neighbours are further apart than 1 there: a bisection that waits for that would never end."""
    middle = Poisson(torch.full((1, 1), 1e17, dtype=torch.float64)).quantile([0.5])
    assert float(middle) == pytest.approx(1e17, rel=1e-7)

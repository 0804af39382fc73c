"""What every distribution promises, by one table: against SciPy, against its own samples, and against itself."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.nn.functional import softplus

from elman.errors import InputError
from elman.nn.distributions import (
    AdaptiveCategorical,
    Bernoulli,
    Categorical,
    Discrete,
    Gaussian,
    NegativeBinomial,
    Numeric,
    Poisson,
    QuantileGrid,
    StudentT,
)
from elman.nn.distributions.distribution import checked_levels
from elman.tasks.forecast.readout import ClassNumber
from elman.tasks.image.logistic_mixture import LogisticMixture

N = 40_000
LEVELS = [0.01, 0.1, 0.37, 0.5, 0.8, 0.99]


def row(*values):
    """A parameter (1, D), float64."""
    return torch.tensor([values], dtype=torch.float64)


@dataclass(frozen=True)
class Laplace(Numeric):
    """One that nobody here ships: what a user adds is this class and a read-out."""

    centre: Tensor
    scale: Tensor

    def log_prob(self, value):
        return (-(value - self.centre).abs() / self.scale - (2 * self.scale).log()).sum(-1)

    def sample(self, draws):
        from elman import random

        u = random.uniform(draws, self.centre.shape[-1]) - 0.5
        return self.centre - self.scale * u.sign() * (-2 * u.abs()).log1p()

    @property
    def mode(self):
        return self.centre

    @property
    def mean(self):
        return self.centre

    def quantile(self, levels):
        u = checked_levels(levels) - 0.5
        return self.centre[..., None] - self.scale[..., None] * u.sign() * (-2 * u.abs()).log1p()

    def rescaled(self, shift, scale):
        return Laplace(shift + scale * self.centre, scale * self.scale)


GRID = QuantileGrid(torch.tensor([[[-1.0, 0.0, 0.5, 3.0]]], dtype=torch.float64), (0.1, 0.4, 0.5, 0.8))
P = [0.1, 0.2, 0.05, 0.35, 0.3]
HEAD = row(0.3, -0.2, 0.9)
NUMBERS = {
    "gaussian": (Gaussian(row(2.0, -1.0), row(0.3, 4.0)), stats.norm([2, -1], [0.3, 4])),
    "student_t": (StudentT(row(3.0, 9.0), row(1.0, 0.0), row(2.0, 0.5)), stats.t([3, 9], [1, 0], [2, 0.5])),
    "laplace": (Laplace(row(1.0, -2.0), row(0.5, 3.0)), stats.laplace([1, -2], [0.5, 3])),
    "grid": (GRID, None),
}
COUNTS = {
    "poisson": (Poisson(row(1.0, 9.7)), stats.poisson(softplus(row(1.0, 9.7))[0].numpy())),
    "negative_binomial": (
        NegativeBinomial(row(4.0, 1.0), row(1.7, 0.6)),
        stats.nbinom([1.7, 0.6], 1 / (1 + softplus(row(4.0, 1.0))[0].numpy() / np.array([1.7, 0.6]))),
    ),
    "bernoulli": (Bernoulli(row(0.7, -2.0)), stats.bernoulli(row(0.7, -2.0).sigmoid()[0].numpy())),
}
CLASSES = {
    "categorical": Categorical(row(*P).log()),
    "adaptive": AdaptiveCategorical(HEAD, HEAD, [lambda h: h * 2], [2, 5]),
    "class_number": ClassNumber(Categorical(row(*P).log())),
    "logistic": LogisticMixture(row(0.0, 1.0), row(-0.5, 0.6), row(-1.0, -2.0), 9),
}
ALL = {name: ours for name, (ours, _) in (NUMBERS | COUNTS).items()} | CLASSES


def repeated(predicted, n):
    """The one event as n rows."""
    if isinstance(predicted, AdaptiveCategorical):
        return AdaptiveCategorical(predicted.head.expand(n, -1), predicted.h.expand(n, -1), predicted.tails, [2, 5])
    if isinstance(predicted, ClassNumber):
        return ClassNumber(repeated(predicted.classes, n))
    if isinstance(predicted, Categorical):
        return Categorical(predicted.logits.expand(n, -1))
    parts = {
        name: value.expand(n, *value.shape[1:]) if isinstance(value, Tensor) else value
        for name, value in vars(predicted).items()
    }
    return type(predicted)(**parts)


def samples(predicted, n=N):
    """Events of one row: (n, D), of a symbol (n, 1)."""
    draws = torch.stack([torch.arange(n), torch.full((n,), 5)], 1)
    return repeated(predicted, n).sample(draws).double().reshape(n, -1)


def probabilities(predicted, values):
    """P, or the density, of events (n, D): of D numbers (n, D), each by itself."""
    if isinstance(predicted, Discrete):
        return repeated(predicted, len(values)).log_prob(values[:, 0].long()).exp()[:, None]
    if isinstance(predicted, ClassNumber):
        return repeated(predicted, len(values)).log_prob(values).exp()[:, None]
    return repeated(predicted, len(values)).elementwise().log_prob(values[..., None]).exp()


@pytest.mark.parametrize("name", ALL)
def test_the_mean_is_the_mean_of_many_samples(name):
    found = samples(ALL[name])
    error = 4.5 * found.std(0) / N**0.5  # of a right mean once in a hundred thousand; the seeds are fixed
    assert ((found.mean(0) - ALL[name].mean[0].double()).abs() < error + 1e-12).all()


@pytest.mark.parametrize("name", ALL)
def test_quantiles_are_where_the_samples_are(name):
    """quantile(p) is the smallest x with P(X <= x) >= p: the share of samples up to it, and of those below it."""
    found, at = samples(ALL[name]), ALL[name].quantile(LEVELS)[0]  # (N, D), (D, Q)
    p, error = torch.tensor(LEVELS, dtype=torch.float64), 4.5 * (0.25 / N) ** 0.5
    assert ((found[..., None] <= at).double().mean(0) >= p - error).all()
    assert ((found[..., None] < at).double().mean(0) <= p + error).all()


@pytest.mark.parametrize("name", [name for name, (_, theirs) in (NUMBERS | COUNTS).items() if theirs is not None])
def test_quantiles_means_and_densities_are_scipys(name):
    ours, theirs = (NUMBERS | COUNTS)[name]
    wanted = np.stack([theirs.ppf(level) for level in LEVELS], -1)
    np.testing.assert_allclose(ours.quantile(LEVELS)[0].numpy(), wanted, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(ours.mean[0].numpy(), theirs.mean(), rtol=1e-12, atol=1e-12)
    x = wanted[:, [1, 3, 4]].T  # (3, D)
    density = theirs.pdf(x) if name in NUMBERS else theirs.pmf(x)
    np.testing.assert_allclose(probabilities(ours, torch.from_numpy(x)).numpy(), density, rtol=1e-9)


@pytest.mark.parametrize("name", NUMBERS)
def test_quantiles_invert_the_integral_of_the_density(name):
    ours = NUMBERS[name][0]
    ends = ours.quantile([1e-6, 1 - 1e-6])[0]  # (D, 2)
    x = torch.stack([torch.linspace(low, high, 200_001, dtype=torch.float64) for low, high in ends.tolist()], 1)
    total = torch.cumulative_trapezoid(probabilities(ours, x), x, dim=0)
    for d, places in enumerate(ours.quantile(LEVELS)[0]):
        at = torch.searchsorted(x[1:, d].contiguous(), places.contiguous())
        torch.testing.assert_close(total[at, d], torch.tensor(LEVELS, dtype=torch.float64), atol=1e-3, rtol=0)


@pytest.mark.parametrize("name", [*COUNTS, *CLASSES])
def test_probabilities_add_up_and_quantiles_invert_their_sum(name):
    ours = ALL[name]
    D, most = ours.mean.shape[-1], {"bernoulli": 2, "poisson": 80, "negative_binomial": 400, "logistic": 9}.get(name, 5)
    n = torch.arange(float(most), dtype=torch.float64)
    p = probabilities(ours, n[:, None].expand(-1, D))
    torch.testing.assert_close(p.sum(0), torch.ones(D, dtype=torch.float64), rtol=1e-9, atol=0)
    torch.testing.assert_close((n[:, None] * p).sum(0), ours.mean[0].double(), rtol=1e-7, atol=1e-12)
    wanted = [[int((total < level).sum()) for level in LEVELS] for total in p.cumsum(0).T]
    assert ours.quantile(LEVELS)[0].tolist() == wanted


@pytest.mark.parametrize("name", [*COUNTS, *CLASSES])
def test_samples_are_as_frequent_as_they_are_probable(name):
    found = samples(ALL[name])
    for value in found.unique():
        share = (found == value).double().mean(0)
        p = probabilities(ALL[name], torch.full((1, found.shape[1]), float(value), dtype=torch.float64))[0]
        assert ((share - p).abs() < 5 * (p * (1 - p) / N).sqrt() + 1e-9 + (p < 20 / N) * 30 / N).all()


@pytest.mark.parametrize("name", NUMBERS)
def test_samples_lie_where_the_density_is(name):
    """The share of samples between two quantiles is the integral of the density between them."""
    ours, found = NUMBERS[name][0], samples(NUMBERS[name][0])
    for low, high in ((0.1, 0.37), (0.5, 0.8)):
        ends = ours.quantile([low, high])[0]
        x = torch.stack([torch.linspace(a, b, 20_001, dtype=torch.float64) for a, b in ends.tolist()], 1)
        mass = torch.trapezoid(probabilities(ours, x), x, dim=0)
        share = ((found > ends[:, 0]) & (found <= ends[:, 1])).double().mean(0)
        assert ((share - mass).abs() < 4.5 * (mass * (1 - mass) / N).sqrt() + 1e-3).all()


@pytest.mark.parametrize("name", [name for name in ALL if name != "grid"])
def test_nothing_is_more_probable_than_the_mode(name):
    ours = ALL[name]
    found = samples(ours, 2000)
    mode = ours.mode.double().reshape(1, -1)
    assert (probabilities(ours, mode) >= probabilities(ours, found) - 1e-12).all()


def test_the_mode_of_a_grid_is_its_median():
    """Between quantiles the density is flat: that of the narrowest piece would jump about in training."""
    assert torch.equal(GRID.mode, GRID.quantile([0.5])[..., 0]) and GRID.mode.item() == 0.5


@pytest.mark.parametrize("name", NUMBERS)
def test_rescaled_moves_the_density_by_the_log_of_the_scale(name):
    ours = NUMBERS[name][0]
    D = ours.mean.shape[-1]
    shift, scale = row(*[100.0, -5.0][:D]), row(*[10.0, 0.5][:D])
    moved, x = ours.rescaled(shift, scale), row(*[0.3, -0.2][:D])
    torch.testing.assert_close(moved.log_prob(shift + scale * x), ours.log_prob(x) - scale.log().sum())
    torch.testing.assert_close(moved.mean, shift + scale * ours.mean)
    torch.testing.assert_close(moved.quantile(LEVELS), shift[..., None] + scale[..., None] * ours.quantile(LEVELS))


@pytest.mark.parametrize("name", COUNTS)
def test_counts_are_multiplied_and_bits_have_no_scale(name):
    ours = COUNTS[name][0]
    if name == "bernoulli":
        with pytest.raises(InputError, match="a Bernoulli has no scale"):
            ours.rescaled(row(0.0), row(7.0))
        return
    moved = ours.rescaled(row(3.0, 3.0), row(7.0, 0.5))
    torch.testing.assert_close(moved.mean, row(7.0, 0.5) * ours.mean)


@pytest.mark.parametrize("name", [name for name in ALL if isinstance(ALL[name], Numeric) and name != "class_number"])
def test_numbers_are_independent(name):
    """log P of an event is the sum over its numbers, each by itself."""
    ours = repeated(ALL[name], 3)
    x = samples(ALL[name], 3)
    apart = ours.elementwise().log_prob(x[..., None])
    assert apart.shape == x.shape
    torch.testing.assert_close(apart.sum(-1), ours.log_prob(x))
    if name != "grid":
        torch.testing.assert_close(ours.loss(x, torch.ones_like(x)), -ours.log_prob(x))


@pytest.mark.parametrize("name", ALL)
def test_levels_are_above_0_and_below_1(name):
    for level in (0.0, 1.0, -0.5):
        with pytest.raises(InputError, match=f"a quantile at {level}"):
            ALL[name].quantile([0.5, level])


def test_what_has_neither_quantiles_nor_scale_says_so():
    class Own(Numeric):
        pass

    with pytest.raises(InputError, match="a Own has no quantiles"):
        Own().quantile([0.5])
    with pytest.raises(InputError, match="a Own has no scale"):
        Own().rescaled(row(0.0), row(1.0))


def test_a_quantile_of_symbols_at_a_sum_of_probabilities_is_the_smaller_one():
    """P(X <= x) reaches a quarter, a half and three quarters exactly."""
    even = Categorical(torch.zeros(1, 4, dtype=torch.float64))
    assert even.log_probs().exp().cumsum(-1).tolist() == [[0.25, 0.5, 0.75, 1.0]]
    assert even.quantile([0.25, 0.26, 0.5, 0.75, 0.76])[0, 0].tolist() == [0, 1, 1, 2, 3]

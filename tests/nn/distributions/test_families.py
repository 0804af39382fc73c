"""Each distribution against Torch's or SciPy's: densities, modes, and what it draws."""

import math

import mpmath
import numpy as np
import pytest
import torch
from scipy import special, stats
from torch import distributions as theirs
from torch.nn.functional import softplus

from elman.errors import InputError
from elman.nn.distributions import (
    AdaptiveCategorical,
    Bernoulli,
    Categorical,
    Gaussian,
    NegativeBinomial,
    Poisson,
    StudentT,
)
from elman.nn.readout import AdaptiveSoftmax

N = 20_000
COUNTS = torch.arange(10.0, dtype=torch.float64).reshape(2, 5)


def adaptive(a, b=None, c=None):
    """Three common symbols and a tail of three, from five logits."""
    return AdaptiveCategorical(a[..., :4], a, [lambda h: h[..., 2:] * 2], [3, 6])


def flat(a):
    head, tail = a[..., :4].log_softmax(-1), (a[..., 2:] * 2).log_softmax(-1)
    return theirs.Categorical(logits=torch.cat([head[..., :3], head[..., 3:] + tail], -1))


# Ours and Torch's, from the same three numbers for each of five places, and a value.
CASES = {
    "categorical": (lambda a, b, c: Categorical(a), lambda a, b, c: theirs.Categorical(logits=a), torch.tensor([3, 0])),
    "adaptive": (adaptive, lambda a, b, c: flat(a), torch.tensor([4, 1])),
    "bernoulli": (
        lambda a, b, c: Bernoulli(a),
        lambda a, b, c: theirs.Independent(theirs.Bernoulli(logits=a), 1),
        torch.tensor([[1.0, 0, 0, 1, 1], [0, 0, 1, 0, 1]]).double(),
    ),
    "gaussian": (
        lambda a, b, c: Gaussian(a, b),
        lambda a, b, c: theirs.Independent(theirs.Normal(a, b), 1),
        torch.linspace(-3, 3, 10, dtype=torch.float64).reshape(2, 5),
    ),
    "student_t": (
        lambda a, b, c: StudentT(c, a, b),
        lambda a, b, c: theirs.Independent(theirs.StudentT(c, a, b), 1),
        torch.linspace(-3, 3, 10, dtype=torch.float64).reshape(2, 5),
    ),
    "poisson": (
        lambda a, b, c: Poisson(a),
        lambda a, b, c: theirs.Independent(theirs.Poisson(softplus(a)), 1),
        COUNTS,
    ),
    "negative_binomial": (
        lambda a, b, c: NegativeBinomial(a, c),
        lambda a, b, c: theirs.Independent(theirs.NegativeBinomial(c, logits=(softplus(a) / c).log()), 1),
        COUNTS,
    ),
}
each = pytest.mark.parametrize(("ours", "torchs", "value"), CASES.values(), ids=CASES)


def parameters(dtype=torch.float64):
    g = torch.Generator().manual_seed(0)
    a, b, c = torch.randn(3, 2, 5, generator=g, dtype=dtype)
    return (a * 2).requires_grad_(), (b.exp() + 0.1).requires_grad_(), (c.exp() * 3 + 0.2).requires_grad_()


@each
def test_one_log_prob_per_target_as_torchs_with_gradients(ours, torchs, value):
    given = parameters()
    mine, wanted = ours(*given).log_prob(value), torchs(*given).log_prob(value)
    assert mine.shape == (2,)
    torch.testing.assert_close(mine, wanted)
    for a, b in zip(*(torch.autograd.grad(x.sum(), given, allow_unused=True) for x in (mine, wanted)), strict=True):
        torch.testing.assert_close(a, b)


@each
def test_further_batch_axes_stand_in_front(ours, torchs, value):
    given = [p.detach().expand(3, 4, 2, 5) for p in parameters()]
    wide = ours(*given).log_prob(value.expand(3, 4, *value.shape))
    assert wide.shape == (3, 4, 2)
    torch.testing.assert_close(wide[1, 2], ours(*parameters()).log_prob(value).detach())


@each
def test_modes_are_torchs(ours, torchs, value):
    given = parameters()
    torch.testing.assert_close(ours(*given).mode.double(), torchs(*given).mode.double())


def test_the_negative_binomial_is_scipys():
    logits, shape = torch.linspace(-3, 9, 7).double(), torch.tensor([0.05, 0.5, 1, 2, 7, 90, 1e4]).double()
    n = torch.tensor([0.0, 1, 5, 2, 40, 300, 9]).double()
    mine = torch.stack([NegativeBinomial(logits, shape).log_prob(n), NegativeBinomial(logits, shape).log_prob(n * 3)])
    p = shape / (shape + softplus(logits))
    wanted = [stats.nbinom(shape.numpy(), p.numpy()).logpmf(n.numpy() * times).sum() for times in (1, 3)]
    np.testing.assert_allclose(mine.numpy(), wanted, rtol=1e-10)


def test_counts_in_float32_keep_their_digits():
    """Where float32 would cancel: large counts, large shapes, many degrees of freedom."""
    m, n = torch.tensor([[1e6]]), torch.tensor([[1.001e6]])
    assert Poisson(m).log_prob(n).item() == pytest.approx(stats.poisson(1e6).logpmf(1.001e6), rel=1e-5)
    wanted = stats.nbinom(1e6, 1e6 / (1e6 + 30)).logpmf(25)
    found = NegativeBinomial(torch.tensor([[30.0]]), torch.tensor([[1e6]])).log_prob(torch.tensor([[25.0]]))
    assert found.item() == pytest.approx(wanted, rel=1e-5)
    found = StudentT(torch.tensor([[1e6]]), torch.zeros(1, 1), torch.ones(1, 1)).log_prob(torch.tensor([[2.0]]))
    assert found.item() == pytest.approx(stats.t(1e6).logpdf(2.0), rel=1e-6)


@pytest.mark.parametrize("family", [Poisson, lambda logits: NegativeBinomial(logits, torch.full_like(logits, 2.0))])
@pytest.mark.parametrize("value", [0.0, 3.0, 1e6])
def test_extreme_logits_have_finite_gradients(family, value):
    logits = torch.tensor([[-1e4, -200.0, -37.1, -36.9, 0.0, 50.0, 1e4]], requires_grad=True)
    log_prob = family(logits).log_prob(torch.full((1, 7), value))
    (gradient,) = torch.autograd.grad(log_prob.sum(), logits)
    assert log_prob.isfinite().all() and gradient.isfinite().all()
    assert value == 0 or (gradient[0, :3] - value).abs().max() < 1e-4 * value  # a rate too small grows by its logarithm


def draws(n=N, seed=0):
    return torch.stack([torch.arange(n) + (seed << 32), torch.full((n,), 3)], 1)


def rows(values, n=N):
    return torch.tensor(values, dtype=torch.float64).expand(n, -1)


def chi_square(found, pmf):
    """The probability of so large a deviation, over counts expected at least 20 times; the rest is one class."""
    found = np.asarray(found).astype(np.int64)
    k = np.arange(found.max() + 2)
    expected = pmf(k) * len(found)
    common = np.flatnonzero(expected >= 20)
    counts = np.bincount(found, minlength=len(k))[common]
    rest = len(found) - expected[common].sum()
    if rest >= 20:
        return stats.chisquare([*counts, len(found) - counts.sum()], [*expected[common], rest]).pvalue
    scale = counts.sum() / expected[common].sum()
    assert len(found) - counts.sum() < 60
    return stats.chisquare(counts, expected[common] * scale).pvalue if len(common) > 1 else float(abs(scale - 1) < 0.01)


# A distribution of one place, by name, and how well N of its samples fit: a p-value of SciPy's.
P = np.array([0.1, 0.2, 0.05, 0.35, 0.3])
LOGITS = np.log(P).tolist()


def fits(name, sample):
    return {
        "categorical": lambda: chi_square(sample(Categorical(rows(LOGITS))), lambda k: np.append(P, 0)[k]),
        "adaptive": lambda: chi_square(
            sample(adaptive(rows(LOGITS))), lambda k: np.append(flat(rows(LOGITS, 1)).probs[0].numpy(), 0)[k]
        ),
        "bernoulli": lambda: chi_square(sample(Bernoulli(rows([0.7]))), stats.bernoulli(special.expit(0.7)).pmf),
        "gaussian": lambda: stats.kstest(sample(Gaussian(rows([2.0]), rows([0.3]))), stats.norm(2, 0.3).cdf).pvalue,
        "student_t": lambda: (
            stats.kstest(sample(StudentT(rows([2.5]), rows([1.0]), rows([3.0]))), stats.t(2.5, 1, 3).cdf).pvalue
        ),
        "few": lambda: chi_square(sample(Poisson(rows([1.0]))), stats.poisson(np.log1p(np.e)).pmf),
        "many": lambda: chi_square(sample(Poisson(rows([40.0]))), stats.poisson(40).pmf),
        "heavy": lambda: chi_square(
            sample(NegativeBinomial(rows([6.0]), rows([0.4]))), stats.nbinom(0.4, 0.4 / (0.4 + np.log1p(np.exp(6)))).pmf
        ),
        "light": lambda: chi_square(
            sample(NegativeBinomial(rows([20.0]), rows([5.0]))), stats.nbinom(5, 5 / (5 + np.log1p(np.exp(20)))).pmf
        ),
    }[name]()


KINDS = ("categorical", "adaptive", "bernoulli", "gaussian", "student_t", "few", "many", "heavy", "light")


@pytest.mark.parametrize("name", KINDS)
def test_samples_follow_the_distribution(name):
    """A right sampler fails with probability 1e-4 (and the seeds are fixed)."""
    assert fits(name, lambda d: d.sample(draws()).flatten().numpy()) > 1e-4


MUTANTS = {
    "too small": lambda x: np.where(np.arange(len(x)) % 10 == 0, x.min(), x),  # one in ten is the smallest
    "too narrow": lambda x: np.where(np.arange(len(x)) % 8 == 0, np.median(x), x),  # one in eight is the median
}


@pytest.mark.parametrize("mutant", MUTANTS)
@pytest.mark.parametrize("name", KINDS)
def test_a_wrong_sampler_is_found(name, mutant):
    assert fits(name, lambda d: MUTANTS[mutant](d.sample(draws()).flatten().numpy())) < 1e-6


@each
def test_a_row_samples_the_same_in_any_batch(ours, torchs, value):
    g = torch.Generator().manual_seed(2)
    a, b, c = torch.randn(3, 41, 5, generator=g)
    given, seeds = (a, b.exp(), c.exp() * 3), draws(41)
    whole = ours(*given).sample(seeds)
    assert whole.dtype == (torch.int64 if value.dtype == torch.int64 else torch.float32)
    for some in ([0], [40], [7, 7, 2], list(range(11, 36))):
        assert torch.equal(ours(*(p[some] for p in given)).sample(seeds[some]), whole[some])
    assert not torch.equal(ours(*given).sample(draws(41, seed=1)), whole)


@each
def test_one_event_for_each_row(ours, torchs, value):
    given = [p.detach().expand(3, 2, 5) for p in parameters()]
    with pytest.raises(InputError, match="one event"):
        ours(*given).sample(draws(3))
    with pytest.raises(InputError, match="one event"):
        ours(*(p[0] for p in given)).sample(draws(1))


def test_the_adaptive_softmax_gives_this_distribution():
    torch.manual_seed(0)
    readout = AdaptiveSoftmax(8, 9, [3, 6])
    predicted = readout(torch.randn(4, 8))
    assert isinstance(predicted, AdaptiveCategorical)
    torch.testing.assert_close(predicted.log_probs().exp().sum(-1), torch.ones(4))
    torch.testing.assert_close(
        predicted.log_prob(torch.tensor([0, 4, 7, 8])), predicted.log_probs()[range(4), [0, 4, 7, 8]]
    )


@pytest.mark.parametrize("df", [0.05, 3.0, 100.0, 1999.0, 2001.0, 1e8, 1e12, 1e15])
def test_the_density_of_student_s_t_for_any_degrees_of_freedom(df):
    """Against 40 digits: from 1e8 degrees of freedom on, two logarithms of gamma functions leave few of 16."""
    x, v = (torch.tensor([[value]], dtype=torch.float64, requires_grad=True) for value in (1.5, df))
    with mpmath.workdps(40):
        wide, t = mpmath.mpf(df), mpmath.mpf(1.5)
        rise = mpmath.loggamma((wide + 1) / 2) - mpmath.loggamma(wide / 2)
        wanted = rise - mpmath.log(wide * mpmath.pi) / 2 - (wide + 1) / 2 * mpmath.log1p(t * t / wide)
        slope = (mpmath.digamma((wide + 1) / 2) - mpmath.digamma(wide / 2) - 1 / wide) / 2
        slope += (wide + 1) / 2 * t**2 / wide / (wide + t**2) - mpmath.log1p(t * t / wide) / 2
    one = torch.ones(1, 1, dtype=torch.float64)
    found = StudentT(v, 0 * one, one).log_prob(x)
    assert found.item() == pytest.approx(float(wanted), rel=1e-12)
    (gradient,) = torch.autograd.grad(found.sum(), v)
    assert gradient.item() == pytest.approx(float(slope), rel=1e-6, abs=1e-18)


@pytest.mark.parametrize("r", [0.7, 999.0, 1001.0, 1e6, 1e12, 1e15])
def test_a_negative_binomial_has_its_digits_at_any_shape(r):
    """By the definition with fifty digits; at r = 1e15 it was off by units."""
    n, mean = 10, 7.3
    logits = math.log(math.expm1(mean))
    with mpmath.workdps(50):
        m, shape = mpmath.log1p(mpmath.exp(mpmath.mpf(logits))), mpmath.mpf(r)
        wanted = mpmath.loggamma(n + shape) - mpmath.loggamma(shape) - mpmath.loggamma(n + 1)
        wanted += shape * mpmath.log(shape / (shape + m)) + n * mpmath.log(m / (shape + m))
    each = [torch.tensor([[value]], dtype=torch.float64) for value in (logits, r, float(n))]
    assert NegativeBinomial(*each[:2]).log_prob(each[2]).item() == pytest.approx(float(wanted), abs=1e-11)


def test_student_s_t_is_finite_where_the_square_is_not():
    """Of one degree of freedom it is Cauchy's: -log(pi) - log(1 + t^2)."""
    value = torch.tensor([[3.0], [1e99], [1e101], [1e200], [-1e300]], dtype=torch.float64).requires_grad_()
    one, zero = torch.ones(5, 1, dtype=torch.float64), torch.zeros(5, 1, dtype=torch.float64)
    found = StudentT(one, zero, one).log_prob(value)
    wanted = [-math.log(math.pi) - (math.log(10) if t == 3 else 2 * math.log(abs(t))) for t in value.flatten().tolist()]
    assert found.tolist() == pytest.approx(wanted, rel=1e-14)
    found.sum().backward()
    assert value.grad.isfinite().all()

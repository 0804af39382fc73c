"""A mixture of logistics over levels, against the definition written out in Numpy, and against itself."""

import numpy as np
import pytest
import torch

from elman.errors import InputError
from elman.tasks.image.logistic_mixture import LogisticMixture, LogisticMixtureReadout


def some(rows=3, K=4, levels=256, spread=1.0):
    generator = torch.Generator().manual_seed(0)
    logits, mean, log_scale = torch.randn(3, rows, K, generator=generator, dtype=torch.float64)
    return LogisticMixture(logits, spread * mean, log_scale - 2, levels)


def literal(mixture: LogisticMixture) -> np.ndarray:
    """P of every level, as the docstring has it: differences of distribution functions."""
    V = mixture.levels
    w = mixture.logits.softmax(-1).numpy()
    m, s = mixture.centre.numpy(), np.exp(mixture.log_scale.numpy())
    F = lambda x: 1 / (1 + np.exp(-(x - m) / s))  # noqa: E731
    columns = []
    for v in range(V):
        x, d = 2 * v / (V - 1) - 1, 1 / (V - 1)
        upper = np.ones_like(m) if v == V - 1 else F(x + d)
        lower = np.zeros_like(m) if v == 0 else F(x - d)
        columns.append((w * (upper - lower)).sum(-1))
    return np.stack(columns, -1)


@pytest.mark.parametrize("levels", [2, 3, 17, 256])
def test_it_is_the_definition(levels):
    mixture = some(levels=levels)
    np.testing.assert_allclose(mixture.log_probs().exp().numpy(), literal(mixture), rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("levels", [2, 256])
def test_probabilities_sum_to_one(levels):
    torch.testing.assert_close(some(levels=levels).log_probs().exp().sum(-1), torch.ones(3, dtype=torch.float64))
    far = some(levels=levels, spread=50.0)  # means far outside: all mass is in an end
    torch.testing.assert_close(far.log_probs().exp().sum(-1), torch.ones(3, dtype=torch.float64))


def test_far_away_it_loses_no_digits():
    """F(a) - F(b) is 0 in float64 there, its logarithm is not."""
    one = LogisticMixture(*(torch.tensor([[v]], dtype=torch.float64) for v in (0.0, -40.0, -4.0)), 256)
    found = one.log_prob(torch.tensor([128]))
    a, b = ((2 * 128 / 255 - 1 + d / 255 + 40) * np.exp(4) for d in (1, -1))
    assert found.item() == pytest.approx(-b + np.log1p(-np.exp(b - a)), rel=1e-12)


def test_gradients():
    mixture = some(rows=5, K=3, levels=17)
    value = torch.tensor([0, 1, 8, 15, 16])
    parts = [part.clone().requires_grad_() for part in (mixture.logits, mixture.centre, mixture.log_scale)]
    assert torch.autograd.gradcheck(lambda *p: LogisticMixture(*p, 17).log_prob(value), parts)


@pytest.mark.parametrize("log_scale", [-7.0, 0.0, 40.0, 59.0, 61.0, 90.0, 100.0, 300.0])
@pytest.mark.parametrize("level", [0, 7, 255])
def test_gradients_of_components_of_any_width(log_scale, level):
    """In float32 against float64: the difference of two values of F that are all but equal, and its derivative."""
    found = []
    for dtype in (torch.float32, torch.float64):
        parts = [torch.tensor([[v]], dtype=dtype, requires_grad=True) for v in (0.0, 0.1, log_scale)]
        value = LogisticMixture(*parts, 256).log_prob(torch.tensor([level]))
        found.append([value.item(), *(g.item() for g in torch.autograd.grad(value.sum(), parts))])
    assert np.isfinite(found[0]).all()
    np.testing.assert_allclose(found[0], found[1], rtol=2e-3 if log_scale < 0 else 1e-4, atol=1e-6)
    if log_scale > 59 and level == 7:  # F' is 1/4: log P is log of the interval's width / 4
        assert found[1][0] == pytest.approx(np.log(2 / 255 / 4) - log_scale)
        assert found[1][3] == pytest.approx(-1)


def test_samples_are_as_frequent_as_they_are_probable():
    mixture, N = some(rows=1, levels=9), 20_000
    many = LogisticMixture(*(p.expand(N, -1) for p in (mixture.logits, mixture.centre, mixture.log_scale)), 9)
    draws = torch.stack([torch.full((N,), 5), torch.arange(N)], 1)
    found = torch.bincount(many.sample(draws), minlength=9).double()
    expected = mixture.log_probs().exp()[0] * N
    assert ((found - expected) ** 2 / expected.clamp(min=1)).sum() < 30  # chi-square of 8: 26 in one of a thousand
    alone = LogisticMixture(*(p[:1] for p in (many.logits, many.centre, many.log_scale)), 9)
    assert alone.sample(draws[7:8]) == many.sample(draws)[7]


def test_the_mode_is_the_most_probable_level():
    mixture = some()
    assert torch.equal(mixture.mode, mixture.log_probs().argmax(-1))


def test_the_readout_begins_with_all_levels_possible():
    torch.manual_seed(0)
    predicted = LogisticMixtureReadout(8, 256)(torch.randn(5, 8))
    assert predicted.log_probs().min() > -12 and predicted.log_probs().exp().sum(-1).allclose(torch.ones(5))
    with pytest.raises(InputError, match="levels is 1"):
        LogisticMixtureReadout(8, 1)

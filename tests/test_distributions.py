import pytest
import torch

from elman.distributions import Bernoulli, Categorical, Gaussian, Poisson

CASES = [
    (lambda a, b: Categorical(a), lambda a, b: torch.distributions.Categorical(logits=a), torch.tensor([3, 0])),
    (lambda a, b: Bernoulli(a), lambda a, b: torch.distributions.Bernoulli(logits=a), torch.ones(2, 5)),
    (lambda a, b: Gaussian(a, b), lambda a, b: torch.distributions.Normal(a, b), torch.randn(2, 5)),
    (
        lambda a, b: Poisson(a),
        lambda a, b: torch.distributions.Poisson(torch.nn.functional.softplus(a)),
        torch.arange(10.0).reshape(2, 5),
    ),
]


@pytest.mark.parametrize(("ours", "torchs", "value"), CASES)
def test_log_prob_and_moments(ours, torchs, value):
    torch.manual_seed(0)
    a, b = torch.randn(2, 5), torch.rand(2, 5) + 0.5
    mine, theirs = ours(a, b), torchs(a, b)
    torch.testing.assert_close(mine.log_prob(value), theirs.log_prob(value))
    torch.testing.assert_close(mine.mode.float(), theirs.mode.float())


@pytest.mark.parametrize(("ours", "torchs", "value"), CASES[1:])
def test_samples_have_the_mean(ours, torchs, value):
    a, b = torch.randn(1, 1, generator=torch.Generator().manual_seed(1)), torch.ones(1, 1)
    many = ours(a.expand(20_000, 1), b.expand(20_000, 1)).sample(torch.Generator().manual_seed(0))
    truth = torchs(a, b)
    assert abs(float(many.mean() - truth.mean)) < 4 * float(truth.stddev) / 20_000**0.5


def test_categorical_samples_have_the_frequencies():
    p = torch.tensor([0.1, 0.2, 0.7])
    drawn = Categorical(p.log().expand(30_000, 3)).sample(torch.Generator().manual_seed(0))
    torch.testing.assert_close(drawn.bincount() / 30_000, p, atol=0.012, rtol=0)

"""A hidden Markov model as every model is: what it predicts, against enumeration of all paths and of its own score."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from brute import enumerate_paths
from torch import Tensor

from elman import kernels, laws
from elman.stream import Stream
from elman.tasks.hmm.emissions import Bernoulli, Categorical, Emission, Poisson
from elman.tasks.hmm.gaussian import Gaussian
from elman.tasks.hmm.mixture import Mixture
from elman.tasks.hmm.model import HiddenMarkov
from elman.tasks.hmm.sequences import rows

K, T = 3, 6
RNG = np.random.default_rng(0)


def real(*shape: int) -> Tensor:
    return torch.tensor(RNG.normal(size=shape))


def chances(*shape: int) -> Tensor:
    return torch.tensor(RNG.dirichlet(np.ones(shape[-1]), shape[:-1]))


EMISSIONS: dict[str, tuple[Emission, Tensor]] = {
    "categorical": (Categorical(chances(K, 4)), torch.tensor(RNG.integers(0, 4, (2, T, 1)), dtype=torch.float64)),
    "bernoulli": (Bernoulli(chances(K, 2)), torch.tensor(RNG.integers(0, 2, (2, T, 2)), dtype=torch.float64)),
    "poisson": (Poisson(3 * chances(K, 2)), torch.tensor(RNG.integers(0, 5, (2, T, 2)), dtype=torch.float64)),
    "gaussian": (Gaussian(real(K, 2), torch.ones(K, 2, dtype=torch.float64), "diag"), real(2, T, 2)),
    "full": (Gaussian(real(K, 2), torch.eye(2, dtype=torch.float64).repeat(K, 1, 1), "full"), real(2, T, 2)),
    "mixture": (
        Mixture(chances(K, 2), Gaussian(real(2 * K, 2), torch.ones(2 * K, 2, dtype=torch.float64), "diag")),
        real(2, T, 2),
    ),
}
each_emission = pytest.mark.parametrize("name", EMISSIONS)


def build(name: str) -> tuple[HiddenMarkov, Tensor]:
    emission, o = EMISSIONS[name]
    return HiddenMarkov(emission, torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64), chances(K, K)), o


@each_emission
@pytest.mark.parametrize("kernel", kernels.available())
def test_the_next_observation_is_as_probable_as_all_paths_say(name: str, kernel: str) -> None:
    """p(o[t+1] | o[<=t]) = p(o[<=t+1]) / p(o[<=t]), both by enumeration."""
    model, o = build(name)
    with torch.no_grad(), kernels.use(kernel):
        predicted, _ = model.scan(o[:, :-1])
        given = predicted.log_prob(o[:, 1:])
    x, start, transition = (v.detach().numpy() for v in (model.emission(o), model.start, model.transition))
    for row in range(2):
        totals = [enumerate_paths(x[row, :t], start, transition).log_likelihood for t in range(1, T + 1)]
        np.testing.assert_allclose(given[row], np.diff(totals), atol=1e-12)


@each_emission
def test_the_score_is_what_the_filter_normalises_by(name: str) -> None:
    model, o = build(name)
    with torch.no_grad():
        predicted, _ = model.scan(o[:, :-1])
        first = torch.logsumexp(model.start.log() + model.emission(o[:, 0]), -1)
        total = float(first.sum() + predicted.log_prob(o[:, 1:]).sum())
    assert model.score(o.flatten(0, 1), rows((T, T))) == pytest.approx(total, abs=1e-11)


@each_emission
@pytest.mark.skipif("native" not in kernels.available(), reason="a promise of the native kernels")
def test_a_stream_predicts_what_the_scan_predicts_to_the_bit(name: str) -> None:
    model, o = build(name)
    stream = Stream(model, 2)
    assert stream.native
    with torch.no_grad():
        predicted, _ = model.scan(o)
    for t in range(T):
        given = stream.step(o[:, t])
        assert torch.equal(given.p, predicted.p[:, t])


@each_emission
def test_samples_follow_the_mixture(name: str) -> None:
    """The mean of many draws, against that of the parts; a row is the same alone."""
    model, o = build(name)
    with torch.no_grad():
        predicted, _ = model.scan(o[:1].expand(4000, -1, -1)[:, :1])
        p = type(predicted)(predicted.emission, predicted.p[:, 0])
        draws = torch.stack([torch.full((4000,), 7), torch.arange(4000)], 1)
        drawn = p.sample(draws)
        states = torch.arange(K).repeat_interleave(4000)
        seeds = torch.stack([torch.full((4000 * K,), 8), torch.arange(4000 * K)], 1)
        means = model.emission.sample(states, seeds).unflatten(0, (K, 4000)).mean(1)
        alone = type(p)(p.emission, p.p[5:6]).sample(draws[5:6])
    torch.testing.assert_close(drawn.mean(0), p.p[0] @ means, atol=5 * float(drawn.std()) * 2 / 4000**0.5, rtol=0)
    assert torch.equal(alone, drawn[5:6])


def test_the_mode_of_symbols_is_the_most_probable_one_though_no_state_prefers_it() -> None:
    emission = Categorical(torch.tensor([[0.6, 0.4, 0.0], [0.0, 0.4, 0.6]], dtype=torch.float64))
    half = torch.full((2,), 0.5, dtype=torch.float64)
    predicted, _ = HiddenMarkov(emission, half, half.expand(2, 2)).scan(torch.zeros(1, 2, 1, dtype=torch.float64))
    assert predicted.mode.tolist() == [[[1.0], [1.0]]]


def test_the_mode_of_densities_is_the_mean_of_the_most_probable_state() -> None:
    mean = torch.tensor([[0.0], [9.0]], dtype=torch.float64)
    transition = torch.tensor([[0.2, 0.8], [0.8, 0.2]], dtype=torch.float64)
    model = HiddenMarkov(Gaussian(mean, torch.ones(2, 1).double(), "diag"), transition[0], transition)
    predicted, _ = model.scan(torch.tensor([[[0.0], [9.0]]], dtype=torch.float64))
    assert predicted.mode.tolist() == [[[9.0], [0.0]]]


@pytest.mark.parametrize("kernel", kernels.available())
def test_its_core_keeps_the_laws(kernel: str) -> None:
    with kernels.use(kernel):
        report = laws.check(build("categorical")[0].core)
    assert report.ok and report.exact == (kernel == "native"), str(report)


def test_a_gradient_step_keeps_probabilities_and_zeros() -> None:
    model, o = build("gaussian")
    with torch.no_grad():
        model.core.log_P[0, 2] = -torch.inf
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    (-model.log_prob(o, rows((T, T)))).sum().backward()
    optimiser.step()
    assert float(model.transition[0, 2]) == 0 and not bool(model.transition.isnan().any())
    torch.testing.assert_close(model.transition.sum(-1), torch.ones(K, dtype=torch.float64))
